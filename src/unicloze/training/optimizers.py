"""Optimisers: AdamW's relatives of the papers, built for a model, with learning rates and trainable layers by schedule."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from unicloze.model.attention import RelativeBias
from unicloze.settings import TrainingSettings, chosen
from unicloze.training.precision import cpu_abilities


def matrices_in(model: nn.Module) -> dict[int, int]:
    """Number of matrices in each fused weight or bias, by its `id`: queries, keys and values in one projection are three."""
    return {
        id(parameter): count
        for module in model.modules()
        for name, count in getattr(module, "FUSED", {}).items()
        for parameter in (getattr(module, name).weight, getattr(module, name).bias)
        if parameter is not None
    }


Values = dict[str, Any]
"""The state of a weight, or the settings of a group."""


class TensorwiseOptimizer(torch.optim.Optimizer):
    """Calls `_update` for every weight with a gradient.

    Args:
        params: Weights, or groups of weights.
        fused: Number of matrices in each fused parameter, see `matrices_in`.
        settings: Settings of the groups, besides the class's `DEFAULTS`.
    """

    DEFAULTS: ClassVar[dict[str, Any]] = {}

    def __init__(self, params: Iterable[Any], *, fused: Mapping[int, int] | None = None, **settings: Any) -> None:
        if unknown := settings.keys() - self.DEFAULTS.keys():
            raise TypeError(f"{type(self).__name__} has no setting {', '.join(sorted(unknown))}")
        super().__init__(params, {**self.DEFAULTS, **settings})
        self._fused = fused or {}

    def apart(self, weight: Tensor) -> tuple[Tensor, bool]:
        """A weight, or its fused matrices along a dimension of their own; and whether they are several."""
        parts = self._fused.get(id(weight), 1)
        return (weight.view(parts, -1, *weight.shape[1:]), True) if parts > 1 else (weight, False)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update every weight that has a gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    seen, fused = self.apart(weight)
                    state = self.state[weight]
                    if not state:
                        state.update(self.initial(seen, fused))
                    self._update(seen, weight.grad.view(seen.shape), state, group, fused)

    def initial(self, weight: Tensor, fused: bool) -> Values:
        """The state before the first update of a tensor, or with `fused` of several along the first dimension."""
        raise NotImplementedError

    def _update(self, weight: Tensor, gradient: Tensor, state: Values, group: Values, fused: bool) -> None:
        """Update a tensor, or with `fused` several along the first dimension. *Shape:* both (matrices, *shape) or any."""
        raise NotImplementedError


def norm_of_each(weight: Tensor, fused: bool) -> Tensor:
    """Norm of a tensor, or of each of several. *Shape:* any to (), or (matrices, *shape) to (matrices, 1, ...)"""
    norms: Tensor = torch.stack([each.norm() for each in weight]) if fused else weight.norm()
    return norms.view(-1, *[1] * (weight.ndim - 1)) if fused else norms


DECAY = 0.8
"""The second moments decay by 1 - step^-0.8 (Section 7.2)."""
SMALLEST_SQUARE, SMALLEST_SIZE = 1e-30, 1e-3
"""Added to squared gradients, and smallest size of a weight that scales its update (Section 8)."""


class Adafactor(TensorwiseOptimizer):
    """Adafactor (Shazeer and Stern 2018, Algorithm 4): second moments of a matrix as one number per row and per column.

    Moves each tensor by the learning rate times the root mean square of its weights, without a first moment.

    The root mean square of an update is clipped to 1.

    Args:
        params: Weights, or groups of weights.
        lr: Learning rate, relative to the size of each tensor.
        weight_decay: Decoupled weight decay.
        fused: Number of matrices in each fused parameter, see `matrices_in`; each has its own moments and size.
    """

    DEFAULTS: ClassVar[dict[str, Any]] = {"lr": 1e-2, "weight_decay": 0.0}

    def initial(self, weight: Tensor, fused: bool) -> Values:
        """A count of steps, and moments of rows and columns, or of each element of a vector."""
        step = torch.zeros((), dtype=torch.float32)
        if weight.ndim - fused < 2:
            return {"step": step, "squares": torch.zeros_like(weight)}
        rows, columns = torch.zeros_like(weight[..., 0]), torch.zeros_like(weight[..., 0, :])
        return {"step": step, "rows": rows, "columns": columns}

    def _update(self, weight: Tensor, gradient: Tensor, state: Values, group: Values, fused: bool) -> None:
        state["step"] += 1
        new = float(state["step"]) ** -DECAY
        rate = self._rate(weight, group["lr"], fused)
        square = gradient**2 + SMALLEST_SQUARE
        if "rows" in state:
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


class Lamb(TensorwiseOptimizer):
    """LAMB (You et al. 2020, Algorithm 2): Adam with each update scaled to the norm of its tensor, for very large batches.

    Moves each tensor by the learning rate times its norm, in the direction of Adam's update plus weight decay.

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

    DEFAULTS: ClassVar[dict[str, Any]] = {
        "lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.0, "adapt": True,
    }  # fmt: skip

    def initial(self, weight: Tensor, fused: bool) -> Values:
        """A count of steps and the moments."""
        moments = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
        return {"step": torch.zeros((), dtype=torch.float32), **moments}

    def _update(self, weight: Tensor, gradient: Tensor, state: Values, group: Values, fused: bool) -> None:
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


class Muon(torch.optim.Muon):
    """`torch.optim.Muon` with `match_rms_adamw`, the same state, and one product for all matrices of a shape.

    A fused projection of queries, keys and values is one matrix: apart they learned 1 to 3 % less (docs/log.md). On a GPU one
    launch for all is faster than one for each. On a CPU without bf16 instructions torch's bf16 products are 20
    times as slow as fp32 (measured: 8.9 of 14 s per step), so the iterations run in fp32.

    Args:
        params: Matrices, or groups of matrices.
        settings: As of `torch.optim.Muon`.
    """

    def __init__(self, params: Any, **settings: Any) -> None:
        super().__init__(params, **{"adjust_lr_fn": "match_rms_adamw", **settings})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[tuple[Tensor, Tensor, Tensor]]] = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    state = self.state[weight]
                    if "momentum_buffer" not in state:
                        state["momentum_buffer"] = torch.zeros_like(weight)
                    by_shape.setdefault(weight.shape, []).append((weight, weight.grad, state["momentum_buffer"]))
            for matrices in by_shape.values():
                self._update(matrices, group)

    def _update(self, matrices: list[tuple[Tensor, Tensor, Tensor]], group: dict[str, Any]) -> None:
        """Update matrices of one shape, each with its gradient and momentum."""
        weights, gradients, buffers = (list(each) for each in zip(*matrices, strict=True))
        torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
        directions = list(torch._foreach_lerp(gradients, buffers, group["momentum"])) if group["nesterov"] else buffers
        slow = weights[0].device.type == "cpu" and not any(cpu_abilities().values())
        stacked = torch.stack(directions).to(torch.float32 if slow else torch.bfloat16)
        updates = orthogonalised(stacked, group["ns_coefficients"], group["ns_steps"], group["eps"])
        rate = group["lr"] * 0.2 * math.sqrt(max(weights[0].shape))
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, [update.to(weights[0].dtype) for update in updates], alpha=-rate)


def orthogonalised(matrices: Tensor, coefficients: Sequence[float], steps: int, epsilon: float) -> Tensor:
    """Newton-Schulz iterations, as `torch.optim.Muon` does for each matrix, in the precision of `matrices`.

    Args:
        matrices: *Shape:* (matrices, rows, columns)
        coefficients: The three of the polynomial.
        steps: Number of iterations.
        epsilon: Smallest norm to divide by.
    """
    first, second, third = coefficients
    found = matrices
    tall = found.shape[1] > found.shape[2]
    if tall:
        found = found.mT
    found = found / found.flatten(1).norm(dim=1).clamp(min=epsilon)[:, None, None]
    for _ in range(steps):
        gram = found @ found.mT
        change = torch.baddbmm(gram, gram, gram, beta=second, alpha=third)
        found = torch.baddbmm(found, change, found, beta=first)
    return found.mT if tall else found


class NtAsgd(torch.optim.Optimizer):
    """NT-ASGD (Merity et al. 2018, Section 3, Algorithm 1): gradient descent that starts to average when it stops improving.

    Its weights are averaged once an evaluation is worse than the best of those long before it. The averages are what is
    evaluated and saved; a resumed run goes on from the weights behind them.

    Args:
        params: Weights, or groups of weights.
        patience: Number of latest evaluations among which the best one is not sought.
        lr: Learning rate.
        weight_decay: Factor of the weights added to the gradient.
    """

    def __init__(self, params: Iterable[Any], *, patience: int = 5, lr: float = 30.0, weight_decay: float = 0) -> None:
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
    def step(self) -> None:  # type: ignore[override]
        """Update every weight that has a gradient, and the averages, without the first step, as `torch.optim.ASGD` does."""
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


SLANTED_RATIO = 32
"""Ratio of peak to lowest learning rate of a slanted triangle (ULMFiT, Section 3.2)."""

SLOWNESS = 0.005
"""Factor of the square root of the steps in CVT's schedule (Clark et al. 2018, table of hyperparameters)."""

_LAYER = re.compile(r"\bbackbone\.(decoder\.)?layers\.(\d+)\.")
_MATRICES, _VECTORS, _HIDDEN = "matrices", "vectors", "hidden"


def build_optimizers(
    model: nn.Module, settings: TrainingSettings, *, layer_decay: float = 1.0, unfreeze_every: float = 0.0
) -> list[torch.optim.Optimizer]:
    """One optimiser for everything; or Muon for matrices inside layers and AdamW for the rest.

    LAMB and Adafactor treat queries, keys and values as a matrix each, though one projection holds them; Muon takes it
    whole, and no weights of LSTMs, which are stacks of gates. Frozen weights belong to none. Weight decay applies to
    matrices, but not to biases, normalisations and the relative position bias. Each group stores its peak learning rate as
    `peak_lr` and its first training step as `first_step`.
    """
    apart = layer_decay != 1.0 or unfreeze_every > 0 or settings.head_learning_rate is not None
    stacked = {id(p) for module in model.modules() if isinstance(module, nn.RNNBase) for p in module.parameters()}
    undecayed = {id(p) for module in model.modules() if isinstance(module, RelativeBias) for p in module.parameters()}
    members: dict[tuple[int, str], list[nn.Parameter]] = {}
    depth_of = depths(model, heads_apart=settings.head_learning_rate is not None)
    head_rate = settings.head_learning_rate if any("backbone." not in name for name in depth_of) else None
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        hidden = settings.optimizer == "muon" and ".layers." in name and parameter.ndim == 2
        kind = _HIDDEN if hidden and id(parameter) not in stacked else _MATRICES
        kind = _VECTORS if parameter.ndim < 2 or id(parameter) in undecayed else kind
        members.setdefault((depth_of[name] if apart else 0, kind), []).append(parameter)

    def groups(rate: float, *kinds: str) -> list[dict[str, Any]]:
        return [
            {
                "params": members[depth, kind],
                "weight_decay": 0.0 if kind == _VECTORS else settings.weight_decay,
                "lr": rate * layer_decay**depth if depth else head_rate or rate,
                "first_step": round(depth * unfreeze_every),
                **({"adapt": kind != _VECTORS} if settings.optimizer == "lamb" else {}),
            }
            for depth in range(1 + max(depth_of.values()))
            for kind in kinds
            if (depth, kind) in members
        ]

    everything, fused = groups(chosen(settings.learning_rate), _MATRICES, _VECTORS), matrices_in(model)
    moments: dict[str, Any] = {"betas": settings.betas, "eps": settings.epsilon}
    kinds: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "adamax": lambda: torch.optim.Adamax(everything, **moments),
        "lamb": lambda: Lamb(everything, fused=fused, **moments),
        "sgd": lambda: torch.optim.SGD(everything, momentum=settings.momentum),
        "nt_asgd": lambda: NtAsgd(everything, patience=settings.average_patience),
        "adafactor": lambda: Adafactor(everything, fused=fused),
    }
    adamw = functools.partial(torch.optim.AdamW, everything, **moments, fused=True)
    optimizers = [kinds.get(settings.optimizer, adamw)()] if everything else []
    if inner := groups(settings.muon_learning_rate or chosen(settings.learning_rate), _HIDDEN):
        optimizers.append(Muon(inner, momentum=settings.muon_momentum))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


_OF_THE_DECODER = ".decoder.final_norm.", ".decoder.query.", ".decoder.combine."
"""Weights above a decoder's last layer, or of its depth (CoVe's attention)."""


def depths(model: nn.Module, *, heads_apart: bool = False) -> dict[str, int]:
    """Depth of each weight by name: the number of layers above it.

    Heads have depth 0, the last layer 1, and so on down to the embeddings, which share their depth with position terms
    computed once for all layers. A decoder's layers are above the encoder's. Only modules with weights of their own count:
    not layers that share the first layer's (ALBERT), nor heads that reuse the embeddings as output matrix, without any of
    their own (GPT-2) or with a bias (ULMFiT), which is then of the last layer's depth unless `heads_apart`.
    """
    names = [name for name, _ in model.named_parameters()]
    heads = [weights for name, weights in model.named_parameters() if "backbone." not in name]
    apart = heads_apart or any(weights.ndim > 1 for weights in heads)
    found = {name: (match[1] is not None, int(match[2])) for name in names if (match := _LAYER.search(name))}
    encoder = 1 + max((number for decodes, number in found.values() if not decodes), default=0)
    layers = {name: number + encoder * decodes for name, (decodes, number) in found.items()}
    last = max(layers.values(), default=0)
    heights: dict[str, float] = {}
    for name in names:
        if name in layers or any(part in name for part in _OF_THE_DECODER):
            heights[name] = layers.get(name, last)
        elif ".final_norm." in name:
            heights[name] = encoder - 1
        else:
            heights[name] = -1 if "backbone." in name else math.inf if apart else last
    order = sorted(set(heights.values()), reverse=True)
    return {name: order.index(height) for name, height in heights.items()}


def set_learning(optimizers: list[torch.optim.Optimizer], step: int) -> None:
    """Train the groups whose first step has come; the others get no gradient, update or moments."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            learns = step >= group.get("first_step", 0)  # missing in older checkpoints
            for parameter in group["params"]:
                parameter.requires_grad_(learns)


def schedule_factor(step: int, settings: TrainingSettings, decays: Sequence[tuple[int, int]] = ()) -> float:
    """Share of the peak learning rate at a step, counted from 0: a linear warm-up, then the schedule down to its end.

    From the first step of a decay in `decays` on, see `unicloze.training.pace`, it falls in a straight line from what it was.

    A slanted triangle starts and ends at 1/32 of the peak. With T steps and a warm-up of T x cut_frac this is
    ULMFiT's equation 3.
    """
    for number in reversed(range(len(decays))):
        first, end = decays[number]
        if step >= first:
            start = schedule_factor(first, settings, decays[:number])
            return settings.final_rate + (start - settings.final_rate) * max(0, end - step) / max(1, end - first)
    left, since_warmup = settings.steps - step, max(1, settings.steps - settings.warmup_steps)
    if settings.schedule == "slanted_triangular":
        share = step / settings.warmup_steps if step < settings.warmup_steps else left / since_warmup
        return (1 + share * (SLANTED_RATIO - 1)) / SLANTED_RATIO
    if settings.schedule == "flat_inverse_sqrt":
        return math.sqrt(min(1.0, max(1, settings.warmup_steps) / (step + 1)))
    if settings.schedule == "slow_inverse_sqrt":
        return min(1.0, (step + 1) / max(1, settings.warmup_steps)) / (1 + SLOWNESS * math.sqrt(step))
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    if settings.schedule == "inverse_sqrt":
        return math.sqrt(max(1, settings.warmup_steps) / (step + 1))
    if settings.schedule == "constant":
        return 1.0
    if settings.schedule == "wsd":
        decay = settings.decay_steps if settings.decay_steps is not None else max(1, settings.steps // 10)
        share = min(1.0, left / max(1, decay))
    elif settings.schedule == "cosine":
        decay = settings.decay_steps if settings.decay_steps is not None else since_warmup
        share = 0.5 * (1 - math.cos(math.pi * max(0.0, (left - since_warmup + decay) / decay)))
    else:
        share = left / since_warmup
    return settings.final_rate + (1 - settings.final_rate) * share


def set_learning_rate(optimizers: list[torch.optim.Optimizer], factor: float) -> None:
    """Set every group to `factor` of its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor
