"""Keeps the hypotheses of each source as a tree in one cache.

Each batch row is a source, encoded once and never copied. Its hypotheses share that row: every generated token is written
once after the source, and each hypothesis reads the source and its own ancestors. So selecting hypotheses changes a boolean
matrix and moves no keys. Tokens that no hypothesis descends from are removed from time to time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unicloze.decoding.model_format import GenerationFormat
from unicloze.decoding.sources import Sources
from unicloze.model.inference_model import IncrementalModel
from unicloze.visibility_masks import hypothesis_mask, with_pseudo_masks

STEPS_AT_ONCE = 16
"""Steps a cache has room for before it is compacted or grown."""


class Branches:
    """A batch of sources and their hypotheses.

    Args:
        model: Predicts the next tokens.
        layout: The generation layout.
        sources: Token ids of each source, or of the beginning of each text.
        count: Number of hypotheses per source.
        max_length: Tokens of the longest hypothesis.

    Raises:
        UsageError: A source is too long for the model.
    """

    def __init__(
        self,
        model: IncrementalModel,
        layout: GenerationFormat,
        sources: Sequence[npt.NDArray[np.integer]],
        *,
        count: int,
        max_length: int,
    ) -> None:
        self._model, self._layout, self.count = model, layout, count
        self._steps_left = max_length
        self._written = 0  # tokens written per hypothesis
        room = self._slots_of(min(max_length, STEPS_AT_ONCE))
        self._sources = Sources(model, layout, sources, max_length=max_length, room=room)
        self._ancestors = torch.zeros(len(sources), count, 0, dtype=torch.bool, device=model.device)

    def __len__(self) -> int:
        return len(self._sources)

    @torch.inference_mode()
    def first(self) -> Tensor:
        """Encode the sources.

        Returns:
            Logits of the first token of each target. *Shape:* (rows, vocabulary)
        """
        return self._sources.encode()

    @torch.inference_mode()
    def step(self, tokens: Tensor, parents: Tensor | None) -> Tensor:
        """Extend hypotheses by one token each.

        Args:
            tokens: *Shape:* (rows, hypotheses)
            parents: Index of the hypothesis each one continues; None: the same index. *Shape:* (rows, hypotheses)

        Returns:
            Logits of the next token of each. *Shape:* (rows, hypotheses, vocabulary)
        """
        if parents is not None and self._written:
            index = parents[:, :, None].expand(-1, -1, self._ancestors.shape[2])
            self._ancestors = self._ancestors.gather(1, index)
        self._make_room()
        count, layout = self.count, self._layout
        reads = hypothesis_mask(self._sources.readable, self._ancestors)
        lineage = reads[:, :, self._sources.readable.shape[1] :]
        place = self._sources.first_positions + self._written
        slots, positions = tokens[:, None, :], place[:, None]
        select = None
        if layout.predicts == "pseudo":
            assert layout.pseudo is not None
            reads = with_pseudo_masks(reads, reads)
            slots = torch.cat([slots, torch.full_like(slots, layout.pseudo)], dim=1)
            positions, select = torch.stack([place, place + 1], dim=1), slice(count, None)
        segments = torch.full_like(positions, layout.target_segment)
        logits = self._model.extend(
            self._sources.cache, slots, positions, segments, reads, select=select, local_width=layout.local_width
        )
        self._sources.cache.filled += count
        self._ancestors = lineage
        self._written += 1
        self._steps_left -= 1
        return logits

    @torch.inference_mode()
    def keep(self, rows: Tensor) -> None:
        """Keep only these sources. *Shape:* (rows kept,)"""
        self._sources.keep(rows)
        self._ancestors = self._ancestors[rows]

    def _slots_of(self, steps: int) -> int:
        """Slots taken up by `steps` steps, including the pseudo masks of the last."""
        return self.count * (steps + (self._layout.predicts == "pseudo"))

    def _make_room(self) -> None:
        """Make the next step fit: drop tokens that no hypothesis descends from if there are many, else grow the cache."""
        cache, needed = self._sources.cache, self._slots_of(1)
        if cache.filled + needed <= cache.capacity:
            return
        alive = self._ancestors.any(dim=1)
        most = int(alive.sum(dim=1).max())
        if alive.shape[1] - most >= self._slots_of(STEPS_AT_ONCE) // 2:
            kept = alive.logical_not().to(torch.uint8).argsort(dim=1, stable=True)[:, :most]
            cache.keep_slots(self._sources.readable.shape[1], kept)
            self._ancestors = self._ancestors.gather(2, kept[:, None, :].expand(-1, self.count, -1))
        else:
            cache.grow(cache.filled + self._slots_of(min(self._steps_left, STEPS_AT_ONCE)))
