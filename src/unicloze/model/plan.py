"""How a batch is attended to: its visibility rendered once, as regions of queries, and shared by all layers.

The slots of a row fall into regions. The leading slots that read exactly each other need no mask at all (the context of a
pseudo-masked row, a whole bidirectional row); the rest reads all keys under one. That keeps the mask small and saves the
work of scores that nobody may see. Rows of different lengths come as blocks laid end to end (`unicloze.blocks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unicloze.blocks import end_to_end
from unicloze.example import Batch
from unicloze.model.transformer_xl import Relation, Relations
from unicloze.settings import ModelSettings
from unicloze.visibility import block_mask, bool_mask, with_memory

Backend = Literal["explicit", "sdpa", "flex"]

MOST_SELECTED = 0.9
"""Share of the slots above which the last layer computes all: little would be saved, and a second mask built for it."""


@dataclass(frozen=True)
class Region:
    """Some queries of every row, and what they may read.

    Args:
        first: First query slot.
        last: Query slot after the last.
        keys: The queries read among the leading `keys` slots.
        bias: Added to the scores: 0, or -inf where a query must not read a key, plus the relative position bias.
            *Shape:* (rows or 1, heads or 1, queries, keys)
        block: FlexAttention's mask, instead of `bias`.
        relation: How the queries stand to the keys, for layers whose bias depends on the queries too.
    """

    first: int
    last: int
    keys: int
    bias: Tensor | None = None
    block: object | None = None
    relation: Relation | None = None


@dataclass(frozen=True)
class Block:
    """Rows of as many slots each, and how they are attended to.

    Args:
        rows: How many there are.
        queries: Query slots of a row.
        keys: Keys of a row, those of a memory included.
        regions: Cover the queries.
    """

    rows: int
    queries: int
    keys: int
    regions: tuple[Region, ...]


@dataclass(frozen=True)
class Plan:
    """How a batch is attended to: in the layers below the last, and for the predicted slots in the last.

    Args:
        blocks: Cover all slots.
        selected: The predicted slots, block by block, or None where the last layer computes all.
            *Shape:* (rows, predictions)
        last: The blocks of the selected slots.
        late: All slots ask, and what follows attention is computed for the selected ones, which are numbers within all rows:
            where some rows predict nearly everywhere and others do not. *Shape of selected:* (1, predictions)
    """

    blocks: tuple[Block, ...]
    selected: Tensor | None
    last: tuple[Block, ...]
    late: bool = False


class RelativeBias(nn.Module):
    """T5's relative position bias: a learned number per head and bucket of distances, shared by all layers.

    Half the buckets are for keys right of the query. Distances below a quarter of the buckets have one each, longer ones
    share logarithmically growing ranges up to `relative_max_distance` (Raffel et al. 2020, Section 2.1).
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.buckets = settings.relative_buckets
        self.max_distance = settings.relative_max_distance
        self.weight = nn.Parameter(torch.empty(settings.num_heads, settings.relative_buckets))

    def bucket(self, distance: Tensor) -> Tensor:
        """Bucket of each distance, key position minus query position."""
        half = self.buckets // 2
        exact = half // 2
        size = distance.abs()
        growth = torch.log(size.clamp(min=1).float() / exact) / torch.log(torch.tensor(self.max_distance / exact))
        far = exact + (growth * (half - exact)).long()
        return (distance > 0).long() * half + torch.where(size < exact, size, far.clamp(max=half - 1))

    def forward(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """The bias of each pair.

        Args:
            query_positions: *Shape:* (rows, queries)
            key_positions: *Shape:* (rows, keys)

        Returns:
            *Shape:* (rows, heads, queries, keys)
        """
        far = self.max_distance
        distance_BQK = (key_positions[:, None, :] - query_positions[:, :, None]).clamp_(-far, far)
        if distance_BQK.is_cuda and torch.is_grad_enabled():
            # A product with one-hot rows: its backward pass is a product too, whose sums have the same order in every run.
            buckets = torch.arange(self.buckets, device=distance_BQK.device)
            one_hot = (self.bucket(distance_BQK)[..., None] == buckets).to(self.weight.dtype)
            return (one_hot @ self.weight.T).permute(0, 3, 1, 2).contiguous()
        each = torch.arange(-far, far + 1, device=distance_BQK.device)
        table = self.weight.index_select(1, self.bucket(each))
        bias_HBQK: Tensor = _LookUp.apply(table, distance_BQK.add_(far))  # type: ignore[no-untyped-call]
        return bias_HBQK.transpose(0, 1)


class _LookUp(torch.autograd.Function):
    """Columns of a small table; the gradient is summed head by head, into numbers that stay in the processor's cache."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, columns: Tensor) -> Tensor:
        ctx.save_for_backward(columns)
        ctx.width = table.shape[1]
        return table.index_select(1, columns.flatten()).view(-1, *columns.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (columns,), grad = ctx.saved_tensors, grads[0].flatten(1)
        sums = grad.new_zeros(len(grad), ctx.width)
        return sums.scatter_add_(1, columns.flatten().expand_as(grad), grad), None


def predicted_slots(batch: Batch) -> Tensor:
    """The slots the targets predict at, side by side in the targets' order. *Shape:* (rows, predictions)"""
    return torch.cat([target.slots.flatten(1) for target in batch.targets.values()], dim=1)


def _needed_slots(batch: Batch) -> Tensor:
    """The slots that predict anything, in order, as numbers within all rows. *Shape:* (1, slots)"""
    needed = torch.zeros(batch.input_ids.numel(), dtype=torch.bool)
    for target in batch.targets.values():
        predicts = (target.weights > 0).view(*target.weights.shape, *[1] * (target.slots.ndim - 2))
        there = predicts if target.present is None else predicts & target.present
        (numbers,) = end_to_end([target.slots], [batch])
        needed[numbers[there.expand_as(target.slots).flatten(0, 1)]] = True
    return needed.nonzero().T


def plan(
    batch: Batch,
    relative: RelativeBias | None,
    relations: Sequence[Relations | None],
    backend: Backend,
    dtype: torch.dtype,
    select: bool,
) -> Plan:
    """Render a batch's visibility for attention in the given backend and data type.

    Args:
        batch: The rows.
        relative: The relative position bias, if the model has one.
        relations: The relations within each block of the batch, if the model encodes them.
        backend: Which implementation of attention will read it.
        dtype: Of the scores.
        select: Compute only the predicted slots in the last layer, unless those are nearly all.
    """
    parts = batch.parts
    blocks = tuple(_block(part, relative, each, backend, dtype) for part, each in zip(parts, relations, strict=True))
    if not select:
        return Plan(blocks, None, blocks)
    chosen, most = [predicted_slots(part) for part in parts], MOST_SELECTED * batch.input_ids.numel()
    if sum(slots.numel() for slots in chosen) > most:
        # Without what pads the predictions there may be few, but on a GPU to count them would stop it.
        needed = _needed_slots(batch) if batch.input_ids.device.type == "cpu" else None
        late = needed is not None and 0 < needed.numel() <= most
        return Plan(blocks, needed if late else None, blocks, late)
    last = tuple(
        _selected_block(part, slots, relative, each, dtype)
        for part, slots, each in zip(parts, chosen, relations, strict=True)
    )
    return Plan(blocks, chosen[0] if len(parts) == 1 else end_to_end(chosen, parts), last)


def _block(
    batch: Batch, relative: RelativeBias | None, relations: Relations | None, backend: Backend, dtype: torch.dtype
) -> Block:
    rows, slots = batch.input_ids.shape
    intervals, memory = _intervals(batch)
    keys = memory + slots
    if backend == "flex" and relative is None and relations is None:
        return Block(rows, slots, keys, (Region(0, slots, keys, block=block_mask(intervals, keys)),))
    return Block(rows, slots, keys, _regions(batch, intervals, memory, relative, relations, dtype))


def _selected_block(
    batch: Batch, selected: Tensor, relative: RelativeBias | None, relations: Relations | None, dtype: torch.dtype
) -> Block:
    slots = batch.input_ids.shape[1]
    intervals, memory = _intervals(batch)
    bias = None
    if memory or not batch.leading.alike or batch.leading.slots < slots:
        read = intervals.gather(1, selected[:, :, None].expand(-1, -1, 4))
        bias = additive(bool_mask(read, memory + slots), dtype)
    if relative is not None:
        distance_bias = relative(batch.position_ids.gather(1, selected), batch.position_ids).to(dtype)
        bias = distance_bias if bias is None else distance_bias + bias
    relation = None if relations is None else relations.of(selected, memory + slots)
    rows, queries = selected.shape
    return Block(rows, queries, memory + slots, (Region(0, queries, memory + slots, bias, relation=relation),))


def _intervals(batch: Batch) -> tuple[Tensor, int]:
    """What the slots read, keys of a memory first, and how many of those there are."""
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
        bias, keys = None, memory + leading.keys
        if memory or not leading.alike:
            bias = additive(bool_mask(intervals[:, : leading.slots], keys), dtype)
        if relative is not None:
            distance_bias = _leading_bias(batch, relative).to(dtype)
            bias = distance_bias if bias is None else distance_bias + bias
        relation = None if relations is None else relations.of(slice(leading.slots), keys)
        regions.append(Region(0, leading.slots, keys, bias, relation=relation))
    if leading.slots < slots:
        bias = additive(bool_mask(intervals[:, leading.slots :], memory + slots), dtype)
        if relative is not None:
            bias = relative(batch.position_ids[:, leading.slots :], batch.position_ids).to(dtype) + bias
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


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A boolean mask (rows, queries, keys) as numbers to add to the scores of all heads."""
    zero = torch.zeros((), dtype=dtype, device=mask.device)
    return torch.where(mask, zero, zero - torch.inf).unsqueeze(1)
