"""An optimiser that updates each matrix by itself, those of a fused projection too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def matrices_in(model: nn.Module) -> dict[int, int]:
    """Number of matrices in each fused weight or bias, by its `id`: queries, keys and values in one projection are three."""
    return {
        id(parameter): count
        for module in model.modules()
        for name, count in getattr(module, "FUSED", {}).items()
        for parameter in (getattr(module, name).weight, getattr(module, name).bias)
        if parameter is not None
    }


class TensorwiseOptimizer(torch.optim.Optimizer):
    """Calls `_update` for every weight with a gradient.

    Args:
        params: Weights, or groups of weights.
        defaults: Those of the groups.
        fused: Number of matrices in each fused parameter, see `matrices_in`.
    """

    def __init__(self, params: Any, defaults: dict[str, Any], fused: Mapping[int, int] | None = None) -> None:
        super().__init__(params, defaults)
        self._fused = fused or {}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every weight that has a gradient."""
        if closure is not None:
            with torch.enable_grad():
                closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    parts = self._fused.get(id(weight), 1)
                    apart = (parts, -1, *weight.shape[1:])
                    self._update(
                        weight if parts == 1 else weight.view(apart),
                        weight.grad if parts == 1 else weight.grad.view(apart),
                        self.state[weight],
                        group,
                        parts > 1,
                    )

    def _update(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any], fused: bool
    ) -> None:
        """Update a tensor, or with `fused` several along the first dimension. *Shape:* both (matrices, *shape) or any."""
        raise NotImplementedError


def norm_of_each(weight: Tensor, fused: bool) -> Tensor:
    """Norm of a tensor, or of each of several. *Shape:* any to (), or (matrices, *shape) to (matrices, 1, ...)"""
    norms: Tensor = torch.stack([each.norm() for each in weight]) if fused else weight.norm()
    return norms.view(-1, *[1] * (weight.ndim - 1)) if fused else norms
