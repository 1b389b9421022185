"""Encoder and decoder: a batch split into source and target, and cross-attention (Vaswani et al. 2017, Section 3.2.3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from unicloze.errors import UniclozeError
from unicloze.example import Batch, Leading, Split
from unicloze.model.adapters import project
from unicloze.model.attention import (
    AttentionWeights,
    Backend,
    BucketPlan,
    Region,
    choose_backend,
    score_bias,
    score_dtype,
)
from unicloze.model.dropout import DropoutKey
from unicloze.packing import pack
from unicloze.settings import ModelSettings

NO_SOURCE = (
    "an encoder-decoder reads rows of a source and a target, and these rows have no source: use an objective such as "
    "span_corruption, denoising, masked_span or prefix, or set model.decoder_layers to 0"
)


# The source of a row are its leading slots that read exactly each other; the slots after it read the source, through
# cross-attention, and what their row says of the others after it. Both parts are batches like any other.


def source_part(batch: Batch) -> Batch:
    """The sources, packed as the batch is; padding reads only itself."""
    return pack([_source(part) for part in batch.rows_by_length])


def target_part(batch: Batch) -> Batch | None:
    """The slots after the sources, packed as the batch is; None if there are none."""
    parts = [_target(part) for part in batch.rows_by_length]
    return pack(parts) if any(part.input_ids.shape[1] for part in parts) else None


def _source_plan(batch: Batch, dtype: torch.dtype) -> list[BucketPlan]:
    """Cross-attention of the slots after the sources, bucket by bucket."""
    buckets = []
    for part in batch.rows_by_length:
        split = _split(part)
        slot = torch.arange(split.slots, device=part.input_ids.device)
        real = None if part.leading.alike else (slot < split.lengths[:, None])[:, None, :]
        region = Region(0, split.rest, split.slots, score_bias(real, None, dtype))
        buckets.append(BucketPlan(len(part.input_ids), split.rest, split.slots, (region,)))
    return buckets


def in_row_order(batch: Batch, encoded: Tensor, decoded: Tensor | None, slots: Tensor | None) -> Tensor:
    """The states of both parts at the slots of the batch.

    Args:
        batch: The rows.
        encoded: States of `source_part`.
        decoded: States of `target_part`; None if it is None.
        slots: Slots of each row to return; all if None. *Shape:* (rows, slots)

    Returns:
        *Shape:* (rows, slots, hidden size)
    """
    rows, width = batch.input_ids.shape
    states = [part.flatten(0, 1) for part in (encoded, decoded) if part is not None]
    place = _places(batch.rows_by_length).view(rows, width)
    if slots is not None:
        place = place.gather(1, slots)
    joined = torch.cat(states) if len(states) > 1 else states[0]
    chosen: Tensor = joined.index_select(0, place.flatten()).unflatten(0, place.shape)
    return chosen


def _split(part: Batch) -> Split:
    if part.split is None or not part.split.slots:
        raise UniclozeError(NO_SOURCE)
    return part.split


def _places(parts: Sequence[Batch]) -> Tensor:
    """Number of every slot of the batch among those of its sources, then those of its targets; 0 for padding."""
    splits = [_split(part) for part in parts]
    first = sum(len(part.input_ids) * split.slots for part, split in zip(parts, splits, strict=True))
    found, before = [], 0
    for part, split in zip(parts, splits, strict=True):
        rows, width = part.input_ids.shape
        slot = torch.arange(width, device=part.input_ids.device)
        row = torch.arange(rows, device=slot.device)[:, None]
        after = slot - split.lengths[:, None]
        number = torch.where(after < 0, before + row * split.slots + slot, first + row * split.rest + after)
        found.append(torch.where(after < split.rest, number, 0).flatten())
        before += rows * split.slots
        first += rows * split.rest
    return torch.cat(found)


def _source(part: Batch) -> Batch:
    split, leading = _split(part), part.leading
    slots, slot = split.slots, torch.arange(split.slots, device=part.input_ids.device)
    real = slot < split.lengths[:, None]
    positions = part.position_ids[:, :slots]
    start = torch.where(real, 0, slot)
    end = torch.where(real, split.lengths[:, None], slot + 1)
    nothing = torch.zeros_like(start)
    return Batch(
        input_ids=part.input_ids[:, :slots],
        position_ids=torch.where(real, positions, slot) if split.in_order else positions,
        segment_ids=part.segment_ids[:, :slots],
        intervals=torch.stack([start, end, nothing, nothing], dim=2).int(),
        leading=Leading(
            slots=slots,
            keys=slots,
            alike=leading.alike,
            in_order=split.in_order or leading.in_order,
            shorter=None if split.in_order else leading.shorter,
        ),
        targets={},
        text_tokens=part.text_tokens,
    )


def _target(part: Batch) -> Batch:
    split, width = _split(part), part.input_ids.shape[1]
    slot = torch.arange(split.rest, device=part.input_ids.device)
    chosen = (slot + split.lengths[:, None]).clamp(max=max(0, width - 1))
    before = split.lengths[:, None, None]
    intervals = (part.intervals.gather(1, chosen[:, :, None].expand(-1, -1, 4)) - before).clamp(min=0).int()
    return Batch(
        input_ids=part.input_ids.gather(1, chosen),
        position_ids=part.position_ids.gather(1, chosen),
        segment_ids=part.segment_ids.gather(1, chosen),
        intervals=intervals,
        leading=Leading(slots=0, keys=0, alike=True, in_order=True, shorter=None),
        targets={},
        text_tokens=part.text_tokens,
        split=split,
    )


def for_planning(target: Batch) -> Batch:
    """The part of the targets with one row of positions and intervals where all rows agree on them.

    Rows that read their own past agree, apart from padding, whose states nothing uses; so do the distances of rows whose
    positions count up by one. Attention then has one mask and one bias instead of one per row.
    """
    if target.buckets:
        return dataclasses.replace(target, buckets=tuple(for_planning(part) for part in target.buckets))
    split = _split(target)
    slot = torch.arange(split.rest, device=target.input_ids.device)
    changes: dict[str, Tensor] = {}
    if split.causal:
        nothing = torch.zeros_like(slot)
        changes["intervals"] = torch.stack([nothing, slot + 1, nothing, nothing], dim=1).int()[None]
    if split.counts_up:
        changes["position_ids"] = slot[None]
    return dataclasses.replace(target, **changes)  # type: ignore[arg-type]


class CrossAttention(AttentionWeights):
    """Weights of cross-attention: queries of the target, and one fused projection to keys and values of the source."""

    FUSED = {"key_value": 2}  # noqa: RUF012

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        self.query = nn.Linear(settings.hidden_size, self.width, bias=settings.biases)
        self.key_value = nn.Linear(settings.hidden_size, 2 * self.width, bias=settings.biases)
        self.output = nn.Linear(self.width, settings.hidden_size, bias=settings.biases)
        self.terms = None


class SourceReader(Protocol):
    """Supplies keys and values of the source in every layer of a decoder, and computes cross-attention."""

    def attend(self, attention: CrossAttention, number: int, normed: Tensor) -> Tensor:
        """Attention output, projected.

        Args:
            attention: The layer's weights.
            number: Index of the layer.
            normed: Input of cross-attention, normalised in pre-norm layers. *Shape:* (rows, slots, hidden size)

        Returns:
            *Shape:* (rows, slots, hidden size)
        """


@dataclass(eq=False, kw_only=True)
class SourceStates:
    """The encoder's output for the sources of a batch, packed as the batch is."""

    batch: Batch  # the whole rows
    states: Tensor  # *Shape:* (rows, source slots, hidden size)
    backend: Backend | None = None  # attention backend; default: the fastest
    dropout: DropoutKey | None = None  # dropout of this forward pass; none if None

    def __post_init__(self) -> None:
        dtype = score_dtype(self.states)
        self._backend = self.backend or choose_backend(self.states, dtype, False)
        self._buckets = _source_plan(self.batch, dtype)

    def attend(self, attention: CrossAttention, number: int, normed: Tensor) -> Tensor:
        """See `SourceReader.attend`."""
        asked = project(attention.query, normed, self.dropout)
        key, value = project(attention.key_value, self.states, self.dropout).split(attention.width, dim=-1)
        joined = attention.attend_buckets(asked, key, value, self._buckets, self._backend, self.dropout)
        return project(attention.output, joined, self.dropout)


@dataclass(eq=False, kw_only=True)
class SourceKeys:
    """Keys and values of encoded sources, for generation: any number of slots of a row read them."""

    keys: list[Tensor]  # One tensor per layer. *Shape:* (rows, heads, head size, source slots)
    values: list[Tensor]  # One tensor per layer. *Shape:* (rows, heads, source slots, head size)
    # Added to the scores, -inf at padding; None without padding. *Shape:* (rows, 1, 1, source slots)
    bias: Tensor | None

    @classmethod
    def of(cls, layers: Sequence[CrossAttention], states: Tensor, real: Tensor) -> SourceKeys:
        """Compute them from the encoder's output.

        Args:
            layers: Weights of every layer.
            states: The encoder's output. *Shape:* (rows, source slots, hidden size)
            real: Which slots are not padding. *Shape:* (rows, source slots)
        """
        keys, values = [], []
        for attention in layers:
            key, value = (
                part.unflatten(2, (attention.num_heads, -1))
                for part in attention.key_value(states).split(attention.width, dim=2)
            )
            keys.append(key.permute(0, 2, 3, 1).contiguous())
            values.append(value.transpose(1, 2).contiguous())
        mask = None if bool(real.all()) else real[:, None, :]
        return cls(keys=keys, values=values, bias=score_bias(mask, None, score_dtype(states)))

    @classmethod
    def joined(cls, parts: Sequence[SourceKeys]) -> SourceKeys:
        """Concatenate the rows of several, with as many slots each."""
        if len(parts) == 1:
            return parts[0]
        slots = parts[0].keys[0].shape[-1]
        biases = [
            part.keys[0].new_zeros(len(part.keys[0]), 1, 1, slots) if part.bias is None else part.bias for part in parts
        ]
        return cls(
            keys=[torch.cat(layer) for layer in zip(*(part.keys for part in parts), strict=True)],
            values=[torch.cat(layer) for layer in zip(*(part.values for part in parts), strict=True)],
            bias=None if all(part.bias is None for part in parts) else torch.cat(biases),
        )

    def keep_rows(self, rows: Tensor) -> None:
        """Drop all other rows. *Shape:* (rows kept,)"""
        self.keys = [layer.index_select(0, rows) for layer in self.keys]
        self.values = [layer.index_select(0, rows) for layer in self.values]
        self.bias = None if self.bias is None else self.bias.index_select(0, rows)

    def attend(self, attention: CrossAttention, number: int, normed: Tensor) -> Tensor:
        """See `SourceReader.attend`."""
        query = attention.query(normed).unflatten(2, (attention.num_heads, -1))
        biases = [] if self.bias is None else [self.bias]
        return attention.attend_stored(query, self.keys[number], self.values[number], biases)
