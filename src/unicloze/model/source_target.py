"""Splits a batch for an encoder-decoder: the source of each row for the encoder, the rest for the decoder.

The source of a row are its leading slots that read exactly each other; the slots after it read the source, through
cross-attention, and what their row says of the others after it. Both parts are batches like any other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from unicloze.errors import UniclozeError
from unicloze.example import Batch, Leading, Split
from unicloze.model.cross_attention import SourceBucket
from unicloze.packing import pack

NO_SOURCE = (
    "an encoder-decoder reads rows of a source and a target, and these rows have no source: use an objective such as "
    "span_corruption, denoising, masked_span or prefix, or set model.decoder_layers to 0"
)


def source_part(batch: Batch) -> Batch:
    """The sources, packed as the batch is; padding reads only itself."""
    return pack([_source(part) for part in batch.rows_by_length])


def target_part(batch: Batch) -> Batch | None:
    """The slots after the sources, packed as the batch is; None if there are none."""
    parts = [_target(part) for part in batch.rows_by_length]
    return pack(parts) if any(part.input_ids.shape[1] for part in parts) else None


def source_buckets(batch: Batch) -> list[SourceBucket]:
    """The rows of each bucket, for cross-attention."""
    buckets = []
    for part in batch.rows_by_length:
        split = _split(part)
        slot = torch.arange(split.slots, device=part.input_ids.device)
        real = None if part.leading.alike else slot < split.lengths[:, None]
        buckets.append(SourceBucket(rows=len(part.input_ids), slots=split.rest, keys=split.slots, real=real))
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
