"""Optimisers and learning-rate schedules, as the settings name them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from unicloze.model.attention import RelativeBias
from unicloze.settings import TrainingSettings


def build_optimizers(model: nn.Module, settings: TrainingSettings) -> list[torch.optim.Optimizer]:
    """AdamW or Adamax for everything, or Muon for the matrices inside the layers and AdamW for the rest.

    Matrices decay; biases, normalisations and the relative position bias do not. Each group remembers its peak learning
    rate as `peak_lr`.
    """
    hidden, matrices, vectors = [], [], []
    undecayed = {id(p) for module in model.modules() if isinstance(module, RelativeBias) for p in module.parameters()}
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2 or id(parameter) in undecayed:
            vectors.append(parameter)
        elif settings.optimizer == "muon" and ".layers." in name and parameter.ndim == 2:
            hidden.append(parameter)
        else:
            matrices.append(parameter)
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    shared: dict[str, Any] = {"lr": settings.learning_rate, "betas": settings.betas, "eps": settings.epsilon}
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Adamax(groups, **shared)
        if settings.optimizer == "adamax"
        else torch.optim.AdamW(groups, **shared, fused=True)
    ]
    if hidden:
        optimizers.append(
            torch.optim.Muon(
                hidden,
                lr=settings.muon_learning_rate or settings.learning_rate,
                weight_decay=settings.weight_decay,
                momentum=settings.muon_momentum,
                adjust_lr_fn="match_rms_adamw",
            )
        )
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


def schedule_factor(step: int, settings: TrainingSettings) -> float:
    """Share of the peak learning rate at a step, counted from 0: a linear warm-up, then the schedule down to 0."""
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    left = settings.steps - step
    if settings.schedule == "constant":
        return 1.0
    if settings.schedule == "wsd":
        decay = settings.decay_steps if settings.decay_steps is not None else max(1, settings.steps // 10)
        return min(1.0, left / max(1, decay))
    share = left / max(1, settings.steps - settings.warmup_steps)
    return share if settings.schedule == "linear" else 0.5 * (1 - math.cos(math.pi * share))


def set_learning_rate(optimizers: list[torch.optim.Optimizer], factor: float) -> None:
    """Set every group to `factor` of its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor
