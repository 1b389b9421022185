"""Encodes sources once: the cached keys and values that everything generated for them reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unicloze.decoding.inputs import check_numbers
from unicloze.decoding.model_format import GenerationFormat
from unicloze.errors import UsageError
from unicloze.model.cross_attention import SourceKeys
from unicloze.model.inference_model import IncrementalModel
from unicloze.visibility_masks import hypothesis_mask, source_mask

PAIRS_AT_ONCE = 1 << 20
"""Query-key pairs per pass over the sources, so that its attention scores stay in the processor's cache."""


class Sources:
    """A batch of sources in one cache; targets are written after the longest source.

    Of an encoder-decoder, the cache holds the slots of the decoder, and what these read of the encoded sources apart.

    Args:
        model: Encodes the sources.
        layout: Special tokens around each source, and which slots read which.
        sources: Token ids of each source, or of the beginning of each text.
        max_length: Tokens of the longest target.
        room: Initial number of slots after the sources.

    Attributes:
        first_positions: Position of each row's first target token. *Shape:* (rows,)
        readable: Which slots of the cache before the target are not padding. *Shape:* (rows, slots)

    Raises:
        UsageError: A source is too long for the model.
    """

    def __init__(
        self,
        model: IncrementalModel,
        layout: GenerationFormat,
        sources: Sequence[npt.NDArray[np.integer]],
        *,
        max_length: int,
        room: int,
    ) -> None:
        rows = [layout.row(source) for source in sources]
        longest, opened = max(map(len, rows)), len(layout.opening)
        fitting = layout.room(model.max_positions, max_length)
        if longest > fitting:
            raise UsageError(
                f"a source of {longest - len(layout.row([]))} tokens and {max_length} of target are more than the model's "
                f"{model.max_positions} positions hold: give a source of at most {fitting - len(layout.row([]))}, "
                "or a smaller max_length"
            )
        self.model, self.layout = model, layout
        self._lengths = torch.tensor([len(row) for row in rows], device=model.device)
        self.first_positions = opened + (torch.zeros_like(self._lengths) if layout.restarts else self._lengths)
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.from_numpy(row)
        self._ids = ids.to(model.device)
        slot = torch.arange(longest + opened, device=model.device)
        real = slot < self._lengths[:, None]
        self._encoded = real[:, :longest] if model.settings.decoder_layers else None
        self.readable = (real | (slot >= longest)) if self._encoded is None else torch.ones_like(real[:, longest:])
        # The pseudo mask that predicts the first token is overwritten.
        self.cache = model.cache(len(rows), self.readable.shape[1] + max(room, 1))

    def __len__(self) -> int:
        return len(self.first_positions)

    def encode(self) -> Tensor:
        """Write the keys and values of the sources to the cache.

        Returns:
            Logits of the first token of each target. *Shape:* (rows, vocabulary)

        Raises:
            UniclozeError: The logits are nan.
        """
        logits = self._logits()
        check_numbers(logits)
        return logits

    def _logits(self) -> Tensor:
        layout, width = self.layout, self._ids.shape[1]
        at_once = max(1, PAIRS_AT_ONCE // width**2)
        blocks = [slice(i, i + at_once) for i in range(0, len(self), at_once)]
        parts = []
        if self._encoded is None:
            parts = [self._encode(block) for block in blocks]
            self.cache.filled = width
        else:
            segment, real = layout.source_segment, self._encoded
            encoded = [self.model.encode(self._ids[block], segment, real[block]) for block in blocks]
            self.cache.source = SourceKeys.joined(encoded)
        opening = layout.opening if layout.pseudo is None else (layout.pseudo,)
        if not opening:
            return torch.cat(parts)
        for number, token in enumerate(opening, start=-len(layout.opening)):
            place = self.first_positions[:, None] + number
            segments = torch.full_like(place, layout.target_segment)
            alone = self.readable.new_zeros(len(self), 1, 0)
            reads = hypothesis_mask(self.readable[:, : self.cache.filled], alone)
            logits = self.model.extend(self.cache, torch.full_like(place, token)[:, :, None], place, segments, reads)
            self.cache.filled = min(self.cache.filled + 1, self.readable.shape[1])
        return logits[:, 0]

    def keep(self, rows: Tensor) -> None:
        """Keep only these sources. *Shape:* (rows kept,)"""
        self.cache.keep_rows(rows)
        self.first_positions, self.readable = self.first_positions[rows], self.readable[rows]

    def _encode(self, part: slice) -> Tensor:
        """Encode some of the sources; logits at the last slot of each if that slot predicts."""
        layout, ids, lengths = self.layout, self._ids[part], self._lengths[part, None]
        width = ids.shape[1]
        slot = torch.arange(width, device=ids.device)
        reads = source_mask(self.readable[part, :width], both_ways=not layout.decoder_only)
        if int(lengths.min()) == width:
            reads = reads[:1]
        predicts = layout.predicts == "next" and not layout.opening
        logits = self.model.extend(
            self.cache.of_rows(part),
            ids[:, :, None],
            slot[None],
            torch.full_like(slot[None], layout.source_segment),
            None if bool(reads.all()) else reads,
            select=lengths - 1 if predicts else slice(0, 0),
            local_width=layout.local_width,
        )
        return logits.flatten(0, 1)
