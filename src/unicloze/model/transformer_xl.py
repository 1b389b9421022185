"""Transformer-XL's relative encoding as used by XLNet: scores depend on the query, and on distance and segment of the key.

A score is ((q + u) k + (q + v) W R[i - j] + (q + w) s[same or different segment]) / sqrt(d), with learned u, v, w and s for
every head of every layer and sinusoids R of the distance (Dai et al. 2019, Section 3.3; Yang et al. 2019, Sections 2.4
and 2.5). Distances and segment differences are the same in all layers: a `Relation`. From it each layer's `RelativeTerms`
compute an ordinary bias of the scores, so attention itself does not change.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unicloze.example import Batch
from unicloze.model.dropout import DropoutKey
from unicloze.settings import ModelSettings


@dataclass(frozen=True)
class Relation:
    """Distances and segment differences between some queries and keys."""

    sinusoids: Tensor  # One row per distance, after dropout. *Shape:* (distances, hidden size)
    distance: Tensor  # Row of `sinusoids` for each pair. *Shape:* (rows, 1, queries, keys)
    differs: Tensor | None  # whether the two are in different segments; None in a model without segments


class Relations:
    """The relations within a batch. Memory tokens are left of position 0 and belong to the first segment.

    In a backward row they are right of the last position and belong to the last segment.

    Args:
        batch: The rows.
        settings: Model shape.
        dropout: Dropout of this forward pass, None in evaluation; all rows share one draw.
    """

    def __init__(self, batch: Batch, settings: ModelSettings, dropout: DropoutKey | None) -> None:
        memory = 0 if batch.memory is None else batch.memory.slots
        device = batch.position_ids.device
        furthest = batch.last_position
        self._furthest = int(batch.position_ids.max()) if furthest is None else furthest
        backward = None if batch.memory is None else batch.memory.backward
        if backward is not None:
            self._furthest += memory
        distances = torch.arange(-self._furthest, self._furthest + memory + 1, device=device)
        table = sinusoids(distances, settings.hidden_size)
        self.sinusoids = table if dropout is None else dropout(table, settings.dropout)
        before = torch.arange(-memory, 0, device=device).expand(len(batch.position_ids), -1)
        if backward is not None:
            behind = batch.position_ids.amax(dim=1, keepdim=True) - before  # the nearest stands last here too
            before = torch.where(backward[:, None], behind, before)
        self.key_positions = torch.cat([before, batch.position_ids], dim=1)
        self.key_segments = None
        if settings.num_segments:
            beside = torch.zeros_like(before)
            if backward is not None:
                last = batch.segment_ids.gather(1, batch.position_ids.argmax(dim=1, keepdim=True))
                beside = torch.where(backward[:, None], last.to(before.dtype), beside)
            self.key_segments = torch.cat([beside, batch.segment_ids], dim=1)
        self._memory = memory

    def of(self, queries: slice | Tensor, keys: int) -> Relation:
        """The relation of some queries to the leading keys.

        Args:
            queries: Query slots, the same in all rows or one row each. *Shape:* (rows, queries)
            keys: Number of leading keys.
        """
        distance = self._of_queries(self.key_positions, queries) - self.key_positions[:, None, :keys]
        differs = None
        if self.key_segments is not None:
            differs = self._of_queries(self.key_segments, queries) != self.key_segments[:, None, :keys]
            differs = differs.unsqueeze(1)
        return Relation(self.sinusoids, (distance + self._furthest).unsqueeze(1), differs)

    def _of_queries(self, of_keys: Tensor, queries: slice | Tensor) -> Tensor:
        of_slots = of_keys[:, self._memory :]
        chosen = of_slots[:, queries] if isinstance(queries, slice) else of_slots.gather(1, queries)
        return chosen[:, :, None]


def sinusoids(distances: Tensor, size: int) -> Tensor:
    """Sines, then cosines of each distance at `size` / 2 frequencies from 1 down to 1/10,000.

    Args:
        distances: *Shape:* (distances,)
        size: Width; must be even.

    Returns:
        *Shape:* (distances, size)
    """
    frequencies = 10_000.0 ** (-torch.arange(0, size, 2, device=distances.device) / size)
    angles = distances[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class RelativeTerms(nn.Module):
    """One layer's parameters of the relative encoding.

    `content`, `position` and `segment` hold u, v and w for all heads; `segments` holds s for the same segment and for
    different ones.
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        size, heads = settings.hidden_size, settings.num_heads
        self.scale = (size // heads) ** -0.5 if settings.scale_scores else 1.0
        self.projection = nn.Linear(size, size, bias=False)
        self.content = nn.Parameter(torch.empty(size))
        self.position = nn.Parameter(torch.empty(size))
        if settings.num_segments:
            self.segment = nn.Parameter(torch.empty(size))
            self.segments = nn.Parameter(torch.empty(2, heads, size // heads))

    def forward(self, query: Tensor, relation: Relation) -> tuple[Tensor, Tensor]:
        """Apply the relation to the scores.

        Args:
            query: *Shape:* (rows, heads, queries, head size)
            relation: Relation of these queries to their keys.

        Returns:
            The queries plus u, for the content term, same *Shape:*, and the bias of the scores, *Shape:* (rows, heads,
            queries, keys).
        """
        rows, heads, queries, size = query.shape

        def shifted(vector: Tensor) -> Tensor:
            moved: Tensor = (query + vector.view(heads, 1, size)) * self.scale
            return moved

        places = self.projection(relation.sinusoids).view(-1, heads, size)
        by_distance = torch.einsum("bhqd,lhd->bhql", shifted(self.position), places)
        distance = relation.distance.expand(rows, heads, queries, -1)
        bias = by_distance.gather(-1, distance)
        if relation.differs is not None:
            same, different = torch.einsum("bhqd,shd->sbhq", shifted(self.segment), self.segments).unsqueeze(-1)
            bias = bias + torch.where(relation.differs, different, same)
        return query + self.content.view(heads, 1, size), bias
