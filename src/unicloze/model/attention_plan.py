"""Renders a batch's visibility once for all layers, as regions of queries with masks and biases.

The slots of a row form regions. Leading slots that read exactly each other need no mask (the context of a pseudo-masked
row, a whole bidirectional row); the rest reads all keys under a mask. That keeps the mask small and skips scores that would
be masked out. Rows of different lengths come as concatenated buckets (`unicloze.packing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unicloze.example import Batch
from unicloze.model.relative_bias import RelativeBias, ScoreMod
from unicloze.model.transformer_xl import Relation, Relations
from unicloze.packing import packed_slots
from unicloze.visibility import block_mask, bool_mask, with_memory
from unicloze.visibility_masks import nearby_mask

Backend = Literal["explicit", "sdpa", "flex"]

MOST_SELECTED = 0.9
"""Share of predicted slots above which the last layer computes all: selecting would save little and need another mask."""


@dataclass(frozen=True)
class Region:
    """Consecutive queries of every row, and what they may read."""

    first: int  # first query slot
    last: int  # end of the query slots, exclusive
    keys: int  # number of leading keys the queries read from
    # Added to the scores: 0, or -inf where a query may not read a key, plus the relative position bias. *Shape:* (rows
    # or 1, heads or 1, queries, keys)
    bias: Tensor | None = None
    block_mask: object | None = None  # FlexAttention's mask, instead of `bias`
    score_mod: ScoreMod | None = None  # adds the relative position bias to a score, for `block_mask`
    # transformer-XL's relation of queries to keys, whose bias depends on the queries too
    relation: Relation | None = None


@dataclass(frozen=True)
class BucketPlan:
    """Rows of equal length, and their attention regions."""

    rows: int  # number of rows
    queries: int  # query slots per row
    keys: int  # keys per row, including a memory's
    regions: tuple[Region, ...]  # regions that cover all queries


@dataclass(frozen=True)
class AttentionPlan:
    """Attention of a batch, bucket by bucket: for all layers but the last, and for the predicted slots in the last."""

    buckets: tuple[BucketPlan, ...]  # blocks that cover all slots
    # The predicted slots, bucket by bucket; None if the last layer computes all slots. *Shape:* (rows, predictions)
    selected: Tensor | None
    last: tuple[BucketPlan, ...]  # blocks of the selected slots
    # All slots are queries in the last layer, and slots are selected after attention; used where some rows predict
    # nearly everywhere and others do not. `selected` then numbers slots over all rows, *Shape:* (1, predictions)
    late: bool = False


def predicted_slots(batch: Batch) -> Tensor:
    """The predicted slots, concatenated in the order of the targets. *Shape:* (rows, predictions)"""
    return torch.cat([target.slots.flatten(1) for target in batch.targets.values()], dim=1)


def _needed_slots(batch: Batch) -> Tensor:
    """The slots that predict anything, in order, numbered over all rows. *Shape:* (1, slots)"""
    needed = torch.zeros(batch.input_ids.numel(), dtype=torch.bool)
    for target in batch.targets.values():
        predicts = (target.weights > 0).view(*target.weights.shape, *[1] * (target.slots.ndim - 2))
        there = predicts if target.present is None else predicts & target.present
        (numbers,) = packed_slots([target.slots], [batch])
        needed[numbers[there.expand_as(target.slots).flatten(0, 1)]] = True
    return needed.nonzero().T


def plan_attention(
    batch: Batch,
    relative: RelativeBias | None,
    relations: Sequence[Relations | None],
    backend: Backend,
    dtype: torch.dtype,
    select: bool,
) -> AttentionPlan:
    """Render a batch's visibility for one attention backend and data type.

    Args:
        batch: The rows.
        relative: The relative position bias, if the model has one.
        relations: Transformer-XL's relations within each bucket, if the model uses them.
        backend: Attention backend.
        dtype: Data type of the scores.
        select: Compute only the predicted slots in the last layer, unless they are nearly all slots.
    """
    parts = batch.rows_by_length
    buckets = tuple(_bucket(part, relative, each, backend, dtype) for part, each in zip(parts, relations, strict=True))
    if not select:
        return AttentionPlan(buckets, None, buckets)
    chosen, most = [predicted_slots(part) for part in parts], MOST_SELECTED * batch.input_ids.numel()
    if sum(slots.numel() for slots in chosen) > most:
        # Without padding predictions there may be few; counting them would synchronise a GPU.
        needed = _needed_slots(batch) if batch.input_ids.device.type == "cpu" else None
        late = needed is not None and 0 < needed.numel() <= most
        return AttentionPlan(buckets, needed if late else None, buckets, late)
    last = tuple(
        _selected_bucket(part, slots, relative, each, dtype)
        for part, slots, each in zip(parts, chosen, relations, strict=True)
    )
    return AttentionPlan(buckets, chosen[0] if len(parts) == 1 else packed_slots(chosen, parts), last)


def _bucket(
    batch: Batch, relative: RelativeBias | None, relations: Relations | None, backend: Backend, dtype: torch.dtype
) -> BucketPlan:
    rows, slots = batch.input_ids.shape
    intervals, memory = _intervals(batch)
    keys = memory + slots
    if backend == "flex" and relations is None and (relative is None or not memory):
        biased = None if relative is None else relative.score_mod(batch.position_ids)
        region = Region(0, slots, keys, block_mask=block_mask(intervals, keys), score_mod=biased)
        return BucketPlan(rows, slots, keys, (region,))
    return BucketPlan(rows, slots, keys, _regions(batch, intervals, memory, relative, relations, dtype))


def _selected_bucket(
    batch: Batch, selected: Tensor, relative: RelativeBias | None, relations: Relations | None, dtype: torch.dtype
) -> BucketPlan:
    slots = batch.input_ids.shape[1]
    intervals, memory = _intervals(batch)
    mask = None
    if memory or not batch.leading.alike or batch.leading.slots < slots:
        read = intervals.gather(1, selected[:, :, None].expand(-1, -1, 4))
        mask = bool_mask(read, memory + slots)
    distance = None if relative is None else relative(batch.position_ids.gather(1, selected), batch.position_ids)
    bias = score_bias(mask, distance, dtype)
    relation = None if relations is None else relations.of(selected, memory + slots)
    rows, queries = selected.shape
    return BucketPlan(rows, queries, memory + slots, (Region(0, queries, memory + slots, bias, relation=relation),))


def _intervals(batch: Batch) -> tuple[Tensor, int]:
    """Intervals with memory keys first, and the number of memory keys."""
    if batch.memory is None:
        return batch.intervals, 0
    return with_memory(batch.intervals, batch.memory.slots, batch.memory.lengths), batch.memory.slots


def _regions(
    batch: Batch,
    intervals: Tensor,
    memory: int,
    relative: RelativeBias | None,
    relations: Relations | None,
    dtype: torch.dtype,
) -> tuple[Region, ...]:
    slots, leading = batch.input_ids.shape[1], batch.leading
    regions = []
    if leading.slots:
        keys = memory + leading.keys
        mask = bool_mask(intervals[:, : leading.slots], keys) if memory or not leading.alike else None
        bias = score_bias(mask, None if relative is None else _leading_bias(batch, relative), dtype)
        relation = None if relations is None else relations.of(slice(leading.slots), keys)
        regions.append(Region(0, leading.slots, keys, bias, relation=relation))
    if leading.slots < slots:
        mask = bool_mask(intervals[:, leading.slots :], memory + slots)
        positions = batch.position_ids
        bias = score_bias(mask, None if relative is None else relative(positions[:, leading.slots :], positions), dtype)
        relation = None if relations is None else relations.of(slice(leading.slots, slots), memory + slots)
        regions.append(Region(leading.slots, slots, memory + slots, bias, relation=relation))
    return tuple(regions)


def _leading_bias(batch: Batch, relative: RelativeBias) -> Tensor:
    """The bias among the leading slots, computed once for all rows whose positions there are 0, 1, 2, ..."""
    leading = batch.leading
    positions = batch.position_ids[:, : leading.keys]
    if not leading.in_order:
        own: Tensor = relative(positions[:, : leading.slots], positions)
        return own
    order = torch.arange(leading.keys, device=positions.device)[None]
    shared: Tensor = relative(order[:, : leading.slots], order)
    if leading.shorter is None:
        return shared
    positions = positions[leading.shorter]
    pattern = torch.zeros(len(batch.position_ids), dtype=torch.long, device=positions.device)
    pattern[leading.shorter] = torch.arange(1, len(positions) + 1, device=positions.device)
    return torch.cat([shared, relative(positions[:, : leading.slots], positions)]).index_select(0, pattern)


def score_bias(mask: Tensor | None, distance: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """The bias added to the scores: -inf where a query may not read a key, plus the relative position bias.

    Args:
        mask: True where a query reads a key; None: every query reads every key. *Shape:* (rows, queries, keys)
        distance: The relative position bias, if any. *Shape:* (rows, heads, queries, keys)
        dtype: Data type of the scores.

    Returns:
        None if there is nothing to add. *Shape:* (rows, heads or 1, queries, keys)
    """
    distance = None if distance is None else distance.to(dtype)
    if mask is None:
        return distance
    zero = torch.zeros((), dtype=dtype, device=mask.device)
    added = torch.where(mask, zero, zero - torch.inf).unsqueeze(1)
    return added if distance is None else distance + added


def step_biases(
    reads: Tensor | None,
    positions: Tensor,
    key_positions: Tensor,
    relative: RelativeBias | None,
    *,
    names: Iterable[str],
    local_width: int | None,
    dtype: torch.dtype,
    copies: int = 1,
) -> dict[str, list[Tensor]]:
    """Score biases, by visibility, of slots whose keys may be cached.

    Args:
        reads: Which keys each slot reads; default: all. *Shape:* (rows or 1, slots or 1, keys)
        positions: *Shape:* (rows or 1, positions)
        key_positions: *Shape:* (rows or 1, keys)
        relative: The relative position bias, if the model has one.
        names: Visibilities of the layers.
        local_width: Largest distance in positions that `local` layers read.
        dtype: Data type of the scores.
        copies: Number of slots per position.

    Returns:
        By name, tensors to add one after the other: a mask per row and a bias shared by all rows are kept separate.
        *Shape:* (rows or 1, heads or 1, slots or 1, keys) each
    """
    distance = None if relative is None else relative(positions, key_positions)
    if distance is not None and copies > 1:
        distance = distance.repeat_interleave(copies, dim=2)
    biases = {}
    for name in dict.fromkeys(names):
        mask = reads
        if name == "local":
            near = nearby_mask(positions, key_positions, local_width)
            near = near if copies == 1 else near.repeat_interleave(copies, dim=1)
            mask = near if reads is None else near & reads
        apart = mask is not None and distance is not None and mask.shape[0] != distance.shape[0]
        pairs = [(None, distance), (mask, None)] if apart else [(mask, distance)]
        found = (score_bias(*pair, dtype) for pair in pairs)
        biases[name] = [bias for bias in found if bias is not None]
    return biases
