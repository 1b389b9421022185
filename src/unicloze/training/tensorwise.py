"""An optimiser that updates each tensor by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class TensorwiseOptimizer(torch.optim.Optimizer):
    """Calls `_update` for every weight with a gradient."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every weight that has a gradient."""
        if closure is not None:
            with torch.enable_grad():
                closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, weight.grad, group)

    def _update(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError
