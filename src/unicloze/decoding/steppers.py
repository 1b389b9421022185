"""Takes the steps of generation: with cached keys and values (Transformers), or with a carried state (LSTMs).

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

from unicloze.decoding.inputs import check_numbers
from unicloze.errors import UsageError
from unicloze.model.encoder_decoder import SourceKeys
from unicloze.model.inference_model import IncrementalModel
from unicloze.model.model import UnifiedModel
from unicloze.model.readers import check_steps
from unicloze.model.recurrent.model import RecurrentModel, RecurrentSteps, StepModel, TranslationModel, TranslationSteps
from unicloze.objectives.generation_format import GenerationFormat
from unicloze.progress import counted
from unicloze.settings import ModelSettings
from unicloze.visibility_masks import hypothesis_mask, source_mask, with_pseudo_masks

Ids = npt.NDArray[np.integer]

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
    """

    def __init__(
        self, model: IncrementalModel, layout: GenerationFormat, sources: Sequence[Ids], *, max_length: int, room: int
    ) -> None:
        rows = [layout.row(source) for source in sources]
        longest, opened = max(map(len, rows)), len(layout.opening)
        tokens, most = max(map(len, sources)), layout.room(model.max_positions, max_length)
        if tokens > most:
            raise UsageError(
                f"a source of {counted(tokens, 'token')} and {max_length} of target are more than the model's "
                f"{model.max_positions} positions hold: give a source of at most {most}, or a smaller max_length"
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
        """
        layout, width = self.layout, self._ids.shape[1]
        at_once = max(1, PAIRS_AT_ONCE // width**2)
        blocks = [slice(i, i + at_once) for i in range(0, len(self), at_once)]
        if self._encoded is None:
            logits = torch.cat([self._encode(block) for block in blocks])
            self.cache.filled = width
        else:
            segment, real = layout.source_segment, self._encoded
            encoded = [self.model.encode(self._ids[block], segment, real[block]) for block in blocks]
            self.cache.source = SourceKeys.joined(encoded)
        opening = layout.opening if layout.pseudo is None else (layout.pseudo,)
        for number, token in enumerate(opening, start=-len(layout.opening)):
            place = self.first_positions[:, None] + number
            ids, alone = torch.full_like(place, token)[:, :, None], self.readable.new_zeros(len(self), 1, 0)
            reads = hypothesis_mask(self.readable[:, : self.cache.filled], alone)
            logits = self.model.extend(self.cache, ids, place, layout.target_segment, reads)
            self.cache.filled = min(self.cache.filled + 1, self.readable.shape[1])
        check_numbers(logits)
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
        select = lengths - 1 if layout.predicts == "next" and not layout.opening else slice(0, 0)
        given = self.cache.of_rows(part), ids[:, :, None], slot[None], layout.source_segment
        read = None if bool(reads.all()) else reads
        return self.model.extend(*given, read, select=select, local_width=layout.local_width)


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
    """

    def __init__(
        self, model: IncrementalModel, layout: GenerationFormat, sources: Sequence[Ids], *, count: int, max_length: int
    ) -> None:
        self._model, self._layout, self.count = model, layout, count
        self._longest = max_length
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
        if layout.pseudo is not None:
            reads = with_pseudo_masks(reads, reads)
            slots = torch.cat([slots, torch.full_like(slots, layout.pseudo)], dim=1)
            positions, select = torch.stack([place, place + 1], dim=1), slice(count, None)
        given = self._sources.cache, slots, positions, layout.target_segment
        logits = self._model.extend(*given, reads, select=select, local_width=layout.local_width)
        self._sources.cache.filled += count
        self._ancestors = lineage
        self._written += 1
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
            cache.grow(cache.filled + self._slots_of(min(self._longest - self._written, STEPS_AT_ONCE)))


class CarriedStates:
    """A batch of sources and their hypotheses, as a `Stepper`.

    Args:
        model: Predicts the next tokens.
        layout: The generation layout.
        sources: Token ids of each source, or of the beginning of each text.
        count: Number of hypotheses per source.
    """

    def __init__(self, model: StepModel, layout: GenerationFormat, sources: Sequence[Ids], *, count: int) -> None:
        self._model, self._opening, self.count = model, layout.opening, count
        self._rows = [layout.row(source) for source in sources]

    def __len__(self) -> int:
        return len(self._rows)

    @torch.inference_mode()
    def first(self) -> Tensor:
        """Read the sources.

        Returns:
            Logits of the first token of each target. *Shape:* (rows, vocabulary)
        """
        logits, state = self._model.begin(self._rows)
        for token in self._opening:
            read = torch.full((len(self), 1), token, device=self._model.device)
            logits, state = self._model.step(read, state)
        assert logits is not None
        check_numbers(logits)
        self._state = state.for_hypotheses(self.count)
        return logits[:, 0]

    @torch.inference_mode()
    def step(self, tokens: Tensor, parents: Tensor | None) -> Tensor:
        """Extend hypotheses by one token each, see `unicloze.decoding.steppers.Branches.step`."""
        before = self._state if parents is None else self._state.of_parents(parents)
        logits, self._state = self._model.step(tokens, before)
        return logits

    @torch.inference_mode()
    def keep(self, rows: Tensor) -> None:
        """Keep only these sources. *Shape:* (rows kept,)"""
        self._state = self._state.of_rows(rows)
        self._rows = [self._rows[row] for row in rows.tolist()]


def generates(settings: ModelSettings) -> bool:
    """Whether a model of this shape can generate token by token."""
    return settings.kind == "recurrent" or settings.positions != "transformer_xl"


def check_generates(settings: ModelSettings) -> None:
    """Reject a model that cannot generate token by token."""
    if not generates(settings):
        check_steps(settings)


def prepared(model: UnifiedModel, dtype: torch.dtype) -> IncrementalModel | StepModel:
    """The model prepared for generation."""
    if isinstance(model, RecurrentModel):
        return RecurrentSteps(model, dtype)
    return TranslationSteps(model, dtype) if isinstance(model, TranslationModel) else IncrementalModel(model, dtype)
