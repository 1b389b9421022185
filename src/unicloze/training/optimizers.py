"""Builds optimisers, and sets learning rates and trainable layers by schedule."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from unicloze.model.relative_bias import RelativeBias
from unicloze.settings import TrainingSettings, chosen
from unicloze.training.adafactor import Adafactor
from unicloze.training.lamb import Lamb
from unicloze.training.muon import Muon
from unicloze.training.nt_asgd import NtAsgd
from unicloze.training.tensorwise import matrices_in

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

    Muon, LAMB and Adafactor treat queries, keys and values as a matrix each, though one projection holds them. Muon takes no
    weights of LSTMs, which are stacks of gates. Frozen weights belong to none. Weight decay applies to
    matrices, but not to biases, normalisations and the relative position bias. Each group stores its peak learning rate as
    `peak_lr` and its first training step as `first_step`.

    Args:
        model: The model.
        settings: Optimiser and learning rates.
        layer_decay: Factor of the peak learning rate per layer from the top down, see `depths` (ULMFiT's discriminative
            fine-tuning, Section 3.2).
        unfreeze_every: Number of steps after which one more layer is trained, from the top down (ULMFiT's gradual unfreezing,
            Section 3.3); 0 trains all from the start.
    """
    apart = layer_decay != 1.0 or unfreeze_every > 0
    stacked = {id(p) for module in model.modules() if isinstance(module, nn.RNNBase) for p in module.parameters()}
    undecayed = {id(p) for module in model.modules() if isinstance(module, RelativeBias) for p in module.parameters()}
    members: dict[tuple[int, str], list[nn.Parameter]] = {}
    depth_of = depths(model)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        kind = _MATRICES
        if parameter.ndim < 2 or id(parameter) in undecayed:
            kind = _VECTORS
        elif (
            settings.optimizer == "muon" and ".layers." in name and parameter.ndim == 2 and id(parameter) not in stacked
        ):
            kind = _HIDDEN
        members.setdefault((depth_of[name] if apart else 0, kind), []).append(parameter)

    def groups(rate: float, *kinds: str) -> list[dict[str, Any]]:
        return [
            {
                "params": members[depth, kind],
                "weight_decay": 0.0 if kind == _VECTORS else settings.weight_decay,
                "lr": rate * layer_decay**depth,
                "first_step": round(depth * unfreeze_every),
            }
            for depth in range(1 + max(depth_of.values()))
            for kind in kinds
            if (depth, kind) in members
        ]

    fused = matrices_in(model)
    everything = groups(chosen(settings.learning_rate), _MATRICES, _VECTORS)
    moments: dict[str, Any] = {"betas": settings.betas, "eps": settings.epsilon}
    optimizers: list[torch.optim.Optimizer] = []
    if everything and settings.optimizer == "adamax":
        optimizers.append(torch.optim.Adamax(everything, **moments))
    elif everything and settings.optimizer == "lamb":
        for group in everything:
            group["adapt"] = group["params"][0].ndim >= 2 and id(group["params"][0]) not in undecayed
        optimizers.append(Lamb(everything, fused=fused, **moments))
    elif everything and settings.optimizer == "sgd":
        optimizers.append(torch.optim.SGD(everything, momentum=settings.momentum))
    elif everything and settings.optimizer == "nt_asgd":
        optimizers.append(NtAsgd(everything, patience=settings.average_patience))
    elif everything and settings.optimizer == "adafactor":
        optimizers.append(Adafactor(everything, fused=fused))
    elif everything:
        optimizers.append(torch.optim.AdamW(everything, **moments, fused=True))
    hidden = groups(settings.muon_learning_rate or chosen(settings.learning_rate), _HIDDEN)
    if hidden:
        optimizers.append(Muon(hidden, momentum=settings.muon_momentum, fused=fused))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


def depths(model: nn.Module) -> dict[str, int]:
    """Depth of each weight by name: the number of layers above it.

    Heads have depth 0, the last layer 1, and so on down to the embeddings, which share their depth with position terms
    computed once for all layers. A decoder's layers are above the encoder's. Only modules with weights of their own count:
    not layers that share the first layer's (ALBERT), nor heads without any (GPT-2 reuses the embeddings as output matrix).
    """
    names = [name for name, _ in model.named_parameters()]
    found = {name: (match[1] is not None, int(match[2])) for name in names if (match := _LAYER.search(name))}
    encoder = 1 + max((number for decodes, number in found.values() if not decodes), default=0)
    layers = {name: number + encoder * decodes for name, (decodes, number) in found.items()}
    last = max(layers.values(), default=0)
    heights: dict[str, float] = {}
    for name in names:
        if name in layers or ".decoder.final_norm." in name:
            heights[name] = layers.get(name, last)
        elif ".final_norm." in name:
            heights[name] = encoder - 1
        else:
            heights[name] = -1 if "backbone." in name else math.inf
    order = sorted(set(heights.values()), reverse=True)
    return {name: order.index(height) for name, height in heights.items()}


def set_learning(optimizers: list[torch.optim.Optimizer], step: int) -> None:
    """Train the groups whose first step has come; the others get no gradient, update or moments.

    Args:
        optimizers: Made by `build_optimizers`.
        step: Number of steps done.
    """
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
