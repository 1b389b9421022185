"""LAMB: Adam with each update scaled to the norm of its tensor, for very large batches (You et al. 2020, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from unicloze.training.tensorwise import TensorwiseOptimizer, norm_of_each


class Lamb(TensorwiseOptimizer):
    """Moves each tensor by the learning rate times its norm, in the direction of Adam's update plus weight decay.

    Norms are not clipped (phi is the identity); if either norm is 0, the update is not scaled. Groups with `adapt` false
    use Adam's unscaled update: ALBERT's released code excludes biases and normalisations from scaling.

    Args:
        params: Weights, or groups of weights.
        lr: Learning rate.
        betas: Decay rates of the moments.
        eps: Added to the square root of the second moment.
        weight_decay: Factor of the weights added to the update.
        fused: Number of matrices in each fused parameter, see `matrices_in`; each has its own norm.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        fused: Mapping[int, int] | None = None,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "adapt": True}
        super().__init__(params, defaults, fused)

    def _update(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any], fused: bool
    ) -> None:
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
        state["step"] += 1
        (first, second), number = group["betas"], float(state["step"])
        state["exp_avg"].lerp_(gradient, 1 - first)
        state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        root = (state["exp_avg_sq"] / (1 - second**number)).sqrt_().add_(group["eps"])
        update = (state["exp_avg"] / (1 - first**number)).div_(root)
        if group["weight_decay"]:
            update.add_(weight, alpha=group["weight_decay"])
        if group["adapt"]:
            size, length = norm_of_each(weight, fused), norm_of_each(update, fused)
            update.mul_(torch.where((size > 0) & (length > 0), size / length, torch.ones_like(size)))
        weight.sub_(update, alpha=group["lr"])
