"""Checks weights for NaN and infinity, cheaply enough to run after every update."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor


def first_non_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Name of the first tensor with NaN or infinite values; None if there is none.

    One norm over all tensors is computed first. Only if it is not finite, which large values can also cause, is each tensor
    checked.
    """
    tensors = {name: tensor.detach() for name, tensor in tensors.items() if tensor.is_floating_point()}
    if math.isfinite(float(torch.nn.utils.get_total_norm(tensors.values()))):
        return None
    return next((name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())), None)
