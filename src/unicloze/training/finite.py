"""Checks weights for NaN and infinity, cheaply enough to run after every update."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from unicloze.training.sharding import whole


def norm_of_all(tensors: Mapping[str, Tensor]) -> Tensor:
    """The norm over all tensors of floating point numbers. *Shape:* ()"""
    floats = [tensor.detach() for tensor in tensors.values() if tensor.is_floating_point()]
    return whole(torch.nn.utils.get_total_norm(floats))


def sizes_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Largest absolute number of each tensor of floating point numbers; NaN if it holds NaN. *Shape:* () each

    Unlike a norm it never overflows; on a CPU it takes ten times as long.
    """
    floats = {name: t.detach() for name, t in tensors.items() if t.is_floating_point() and t.numel()}
    return dict(zip(floats, torch._foreach_norm(list(floats.values()), math.inf), strict=True))


def largest_of(sizes: Mapping[str, Tensor]) -> Tensor:
    """The largest of `sizes_of`; NaN if one is. *Shape:* ()"""
    return whole(torch.linalg.vector_norm(torch.stack([size.float() for size in sizes.values()]), math.inf))


def first_non_finite(tensors: Mapping[str, Tensor], norm: float | None = None) -> str | None:
    """Name of the first tensor with NaN or infinite values; None if there is none.

    One norm over all tensors is computed first. Only if it is not finite, which large values can also cause, is each tensor
    checked.

    Args:
        tensors: By name; those of integers are not checked.
        norm: Their norm, if it is known, see `norm_of_all`.
    """
    if math.isfinite(float(norm_of_all(tensors)) if norm is None else norm):
        return None
    floats = {name: tensor.detach() for name, tensor in tensors.items() if tensor.is_floating_point()}
    return next((name for name, tensor in floats.items() if not bool(whole(tensor).isfinite().all())), None)
