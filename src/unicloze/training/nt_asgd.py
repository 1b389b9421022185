"""NT-ASGD: stochastic gradient descent that starts to average its weights when evaluations stop improving.

Non-monotonically triggered averaged SGD (Merity et al. 2018, Section 3, Algorithm 1). The averages are what is evaluated
and saved; a resumed run goes on from the weights behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


class NtAsgd(torch.optim.Optimizer):
    """Gradient descent whose weights are averaged once an evaluation is worse than the best of those long before it.

    Args:
        params: Weights, or groups of weights.
        patience: Number of latest evaluations among which the best one is not sought.
        lr: Learning rate.
        weight_decay: Factor of the weights added to the gradient.
    """

    def __init__(
        self, params: Iterable[Any], *, patience: int = 5, lr: float = 30.0, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.patience = patience
        self.heard: list[float] = []

    @property
    def averages(self) -> bool:
        """Whether the weights are being averaged."""
        return bool(self.state)

    def hear(self, loss: float) -> None:
        """Note an evaluation, and start to average if it is above the best of those before the last `patience`."""
        if not self.averages and len(self.heard) > self.patience and loss > min(self.heard[: -self.patience]):
            for group in self.param_groups:
                for weight in group["params"]:
                    self.state[weight] = {"average": weight.detach().clone(), "step": torch.zeros(())}
        self.heard.append(loss)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every weight that has a gradient, and the averages, without the first step, as `torch.optim.ASGD` does."""
        if closure is not None:
            with torch.enable_grad():
                closure()
        averages = self.averages
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    if group["weight_decay"]:
                        weight.mul_(1 - group["lr"] * group["weight_decay"])
                    weight.add_(weight.grad, alpha=-group["lr"])
                if averages:
                    state = self.state[weight]
                    state["step"] += 1
                    state["average"].lerp_(weight, 1 / max(1.0, float(state["step"]) - 1))

    @torch.no_grad()
    def exchange(self) -> None:
        """Exchange the weights and their averages."""
        for weight, state in self.state.items():
            kept = weight.clone()
            weight.copy_(state["average"])
            state["average"].copy_(kept)


@contextmanager
def averaged(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[None]:
    """Use the averages in place of the weights within this context, where there are any."""
    averaging = [optimizer for optimizer in optimizers if isinstance(optimizer, NtAsgd)]
    for optimizer in averaging:
        optimizer.exchange()
    try:
        yield
    finally:
        for optimizer in averaging:
            optimizer.exchange()
