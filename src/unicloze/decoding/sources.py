"""Sources encoded once: the keys and values that everything generated for them reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unicloze.decoding.layout import GenerationLayout
from unicloze.errors import UsageError
from unicloze.model.packed import IncrementalModel

PAIRS_AT_ONCE = 1 << 21
"""Pairs of a query and a key of one pass over the sources: its scores take 4 bytes a head for each."""


class Sources:
    """Some sources, side by side in a cache; targets are written behind the longest one.

    Args:
        model: Encodes them.
        layout: What stands around each and who reads whom.
        sources: Token ids of each source, or of the beginning of each text.
        max_length: Tokens of the longest target.
        room: Slots behind the sources to begin with.

    Attributes:
        lengths: Position of each row's first token of target, less the layout's opening token. *Shape:* (rows,)
        readable: Which slots before the target are no padding. *Shape:* (rows, slots)

    Raises:
        UsageError: A source is too long for the model.
    """

    def __init__(
        self,
        model: IncrementalModel,
        layout: GenerationLayout,
        sources: Sequence[npt.NDArray[np.integer]],
        *,
        max_length: int,
        room: int,
    ) -> None:
        rows = [layout.row(source) for source in sources]
        longest, opened = max(map(len, rows)), int(layout.opening is not None)
        fitting = model.max_positions - max_length - opened
        if longest > fitting:
            raise UsageError(
                f"a source of {longest - len(layout.row([]))} tokens and {max_length} of target are more than the model's "
                f"{model.max_positions} positions hold: give a source of at most {fitting - len(layout.row([]))}, "
                "or a smaller max_length"
            )
        self.model, self.layout = model, layout
        self.lengths = torch.tensor([len(row) for row in rows], device=model.device)
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.from_numpy(row)
        self._ids = ids.to(model.device)
        slot = torch.arange(longest + opened, device=model.device)
        self.readable = (slot < self.lengths[:, None]) | (slot >= longest)
        # The pseudo mask that predicts the first token is overwritten.
        self.cache = model.cache(len(rows), len(slot) + max(room, 1))

    def __len__(self) -> int:
        return len(self.lengths)

    def encode(self) -> Tensor:
        """Write their keys and values.

        Returns:
            Logits of the first token of each target. *Shape:* (rows, vocabulary)
        """
        slots = self.readable.shape[1]
        at_once = max(1, PAIRS_AT_ONCE // slots**2)
        parts = [self._encode(slice(i, i + at_once)) for i in range(0, len(self), at_once)]
        self.cache.filled = slots
        return torch.cat(parts)

    def keep(self, rows: Tensor) -> None:
        """Forget all sources but these. *Shape:* (rows kept,)"""
        self.cache.keep_rows(rows)
        self.lengths, self.readable = self.lengths[rows], self.readable[rows]

    def _encode(self, part: slice) -> Tensor:
        layout, ids, lengths = self.layout, self._ids[part], self.lengths[part, None]
        width = ids.shape[1]
        slot = torch.arange(width, device=ids.device)
        positions, segments = slot.expand_as(ids), torch.full_like(ids, layout.source_segment)
        reads = self.readable[part, None, :width].expand(-1, width, -1)
        if layout.decoder_only:
            reads = reads & (slot <= slot[:, None])
        # Padding reads itself too: in layers that read nearby slots only nothing else may be left to it.
        reads = reads | (slot == slot[:, None])
        predicting = lengths - 1
        last = layout.pseudo if layout.predicts == "pseudo" else layout.opening
        if last is not None:
            ids = torch.cat([ids, torch.full_like(lengths, last)], dim=1)
            positions = torch.cat([positions, lengths], dim=1)
            segments = torch.cat([segments, torch.full_like(lengths, layout.target_segment)], dim=1)
            reads = torch.cat([reads, self.readable[part, None, :width]], dim=1)
            itself = torch.zeros_like(reads[:, :, :1])
            itself[:, -1] = True
            reads = torch.cat([reads, itself], dim=2)
            predicting = torch.full_like(lengths, width)
        logits = self.model.extend(
            self.cache.of_rows(part),
            ids[:, :, None],
            positions,
            segments,
            None if bool(reads.all()) else reads,
            select=predicting,
            local_width=layout.local_width,
        )
        return logits[:, 0]
