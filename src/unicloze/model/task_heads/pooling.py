"""Pools the slots of each prediction into one vector."""

from __future__ import annotations

import torch
from torch import Tensor

from unicloze.model.recurrent.views import view_width
from unicloze.settings import HeadSettings, ModelSettings


def pooled_width(settings: ModelSettings, head: HeadSettings) -> int:
    """Width of a pooled vector."""
    seen = settings.hidden_size if head.view is None else view_width(settings, head.view)
    return seen * (3 if head.pooling == "concat" else head.directions)


def pooled(states: Tensor, present: Tensor | None, head: HeadSettings) -> Tensor:
    """The vector of every prediction; 0 for a padded prediction, which has no slots.

    Args:
        states: *Shape:* (rows, predictions, slots, width)
        present: Which slots are present; all if None. *Shape:* (rows, predictions, slots)
        head: Says how they are combined.

    Returns:
        *Shape:* (rows, predictions, `pooled_width`)
    """
    if head.directions == 1:
        return _of_a_direction(states, present, head)
    there = torch.ones_like(states[..., 0], dtype=torch.bool) if present is None else present
    half = there.sum(dim=2, keepdim=True) // 2
    first = torch.arange(states.shape[2], device=states.device) < half
    return torch.cat([_of_a_direction(states, part, head) for part in (there & first, there & ~first)], dim=-1)


def _of_a_direction(states: Tensor, present: Tensor | None, head: HeadSettings) -> Tensor:
    if head.pooling == "concat":
        if present is None:
            return torch.cat([states[:, :, -1], states.amax(dim=2), states.mean(dim=2)], dim=-1)
        count = present.sum(dim=2).clamp(min=1)
        last = states.gather(2, (count - 1)[..., None, None].expand(-1, -1, 1, states.shape[3])).squeeze(2)
        highest = states.masked_fill(~present[..., None], -torch.inf).amax(dim=2)
        highest = torch.where(highest.isinf(), torch.zeros_like(highest), highest)  # a padded prediction has no slots
        return torch.cat([last, highest, (states * present[..., None]).sum(dim=2) / count[..., None]], dim=-1)
    if present is None:
        return states.mean(dim=2) if head.pooling == "mean" else states.sum(dim=2)
    total = (states * present[..., None]).sum(dim=2)
    return total / present.sum(dim=2).clamp(min=1)[..., None] if head.pooling == "mean" else total
