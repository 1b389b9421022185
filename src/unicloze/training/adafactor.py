"""Adafactor: second moments of a matrix as one number per row and per column (Shazeer and Stern 2018, Algorithm 4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from unicloze.training.tensorwise import TensorwiseOptimizer, norm_of_each

DECAY = 0.8
"""The second moments decay by 1 - step^-0.8 (Section 7.2)."""
SMALLEST_SQUARE, SMALLEST_SIZE = 1e-30, 1e-3
"""Added to squared gradients, and smallest size of a weight that scales its update (Section 8)."""


class Adafactor(TensorwiseOptimizer):
    """Moves each tensor by the learning rate times the root mean square of its weights, without a first moment.

    The root mean square of an update is clipped to 1.

    Args:
        params: Weights, or groups of weights.
        lr: Learning rate, relative to the size of each tensor.
        weight_decay: Decoupled weight decay.
        fused: Number of matrices in each fused parameter, see `matrices_in`; each has its own moments and size.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float = 1e-2,
        weight_decay: float = 0.0,
        fused: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay}, fused)

    def _update(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any], fused: bool
    ) -> None:
        factored = weight.ndim - fused >= 2
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            if factored:
                state["rows"] = torch.zeros_like(weight[..., 0])
                state["columns"] = torch.zeros_like(weight[..., 0, :])
            else:
                state["squares"] = torch.zeros_like(weight)
        state["step"] += 1
        new = float(state["step"]) ** -DECAY
        rate = self._rate(weight, group["lr"], fused)
        square = gradient**2 + SMALLEST_SQUARE
        if factored:
            rows, columns = state["rows"], state["columns"]
            rows.lerp_(square.mean(dim=-1), new)
            columns.lerp_(square.mean(dim=-2), new)
            update = gradient * (rows / rows.mean(dim=-1, keepdim=True)).rsqrt_()[..., None]
            update.mul_(columns.rsqrt()[..., None, :])
        else:
            state["squares"].lerp_(square, new)
            update = gradient * state["squares"].rsqrt()
        update.div_(_size(update, fused).clamp_(min=1.0))
        if group["weight_decay"]:
            weight.mul_(1 - rate * group["weight_decay"])
        if isinstance(rate, Tensor):
            weight.sub_(update.mul_(rate))
        else:
            weight.sub_(update, alpha=rate)

    @staticmethod
    def _rate(weight: Tensor, rate: float, fused: bool = False) -> float | Tensor:
        """The learning rate for a tensor of its size; on a GPU it stays a tensor there, so that nothing waits for it."""
        if weight.device.type == "cpu" and not fused:
            return rate * max(SMALLEST_SIZE, float(_size(weight)))
        return rate * _size(weight, fused).clamp_(min=SMALLEST_SIZE)


def _size(weight: Tensor, fused: bool = False) -> Tensor:
    """Root mean square of a tensor, or of each of several; shapes as of `norm_of_each`."""
    size: Tensor = norm_of_each(weight, fused) / (weight.numel() / (len(weight) if fused else 1)) ** 0.5
    return size
