"""Attention whose mask is data: intervals of keys, rendered once for a batch and shared by all layers.

Shape suffixes: B rows, S slots, Q queries, K keys, H heads, D hidden size, d head size.

The slots of a row fall into regions. The leading slots that read exactly each other need no mask at all (the context of a
pseudo-masked row, a whole bidirectional row); the rest reads all keys under one. That keeps the mask small and saves the
work of scores that nobody may see.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from unicloze.example import Batch
from unicloze.model.dropout import DropoutKey
from unicloze.model.transformer_xl import Relation, Relations, RelativeTerms
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
class Plan:
    """How a batch is attended to: in the layers below the last, and for the predicted slots in the last.

    Args:
        regions: Cover all slots.
        selected: The predicted slots, or None where the last layer computes all. *Shape:* (rows, predictions)
        last: The region of the selected slots.
    """

    regions: tuple[Region, ...]
    selected: Tensor | None
    last: tuple[Region, ...]


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
        bucket_BQK = self.bucket(key_positions[:, None, :] - query_positions[:, :, None])
        if not torch.is_grad_enabled():
            return functional.embedding(bucket_BQK, self.weight.T).permute(0, 3, 1, 2).contiguous()
        # A product with one-hot rows: its backward pass is a product too, not a scatter into 32 numbers.
        buckets = torch.arange(self.buckets, dtype=torch.uint8, device=bucket_BQK.device)
        one_hot = (bucket_BQK.to(torch.uint8)[..., None] == buckets).to(self.weight.dtype)
        return (one_hot @ self.weight.T).permute(0, 3, 1, 2).contiguous()


def predicted_slots(batch: Batch) -> Tensor:
    """The slots the targets predict at, side by side in the targets' order. *Shape:* (rows, predictions)"""
    return torch.cat([target.slots.flatten(1) for target in batch.targets.values()], dim=1)


def plan(
    batch: Batch,
    relative: RelativeBias | None,
    relations: Relations | None,
    backend: Backend,
    dtype: torch.dtype,
    select: bool,
) -> Plan:
    """Render a batch's visibility for attention in the given backend and data type.

    Args:
        batch: The rows.
        relative: The relative position bias, if the model has one.
        relations: The relations within the batch, if the model encodes them.
        backend: Which implementation of attention will read it.
        dtype: Of the scores.
        select: Compute only the predicted slots in the last layer, unless those are nearly all.
    """
    slots = batch.input_ids.shape[1]
    memory = 0 if batch.memory is None else batch.memory.slots
    intervals = batch.intervals if batch.memory is None else with_memory(batch.intervals, memory, batch.memory.lengths)
    selected = predicted_slots(batch) if select else None
    if selected is not None and selected.shape[1] > MOST_SELECTED * slots:
        selected = None
    if backend == "flex" and relative is None and relations is None:
        regions: tuple[Region, ...] = (Region(0, slots, memory + slots, block=block_mask(intervals, memory + slots)),)
    else:
        regions = _regions(batch, intervals, memory, relative, relations, dtype)
    if selected is None:
        return Plan(regions, None, regions)
    bias = None
    if memory or not batch.leading.alike or batch.leading.slots < slots:
        read = intervals.gather(1, selected[:, :, None].expand(-1, -1, 4))
        bias = additive(bool_mask(read, memory + slots), dtype)
    if relative is not None:
        distance_bias = relative(batch.position_ids.gather(1, selected), batch.position_ids).to(dtype)
        bias = distance_bias if bias is None else distance_bias + bias
    relation = None if relations is None else relations.of(selected, memory + slots)
    return Plan(regions, selected, (Region(0, selected.shape[1], memory + slots, bias, relation=relation),))


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


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    region: Region,
    *,
    backend: Backend,
    dropout: DropoutKey | None,
    rate: float,
) -> Tensor:
    """Attention of one region: softmax(Q K^T / sqrt(d) + bias) V.

    Args:
        query: *Shape:* (rows, heads, queries, head size)
        key: *Shape:* (rows, heads, keys, head size)
        value: *Shape:* (rows, heads, keys, head size)
        region: What the queries may read.
        backend: `explicit` multiplies out the scores, `sdpa` and `flex` are torch's fused kernels.
        dropout: Dropout of this forward pass, None in evaluation.
        rate: Dropout rate of the probabilities.

    Returns:
        *Shape:* (rows, heads, queries, head size)
    """
    if region.block is not None:
        return _flex_kernel(query.is_cuda)(query, key, value, block_mask=region.block)
    if backend == "sdpa" and (dropout is None or rate == 0 or query.is_cuda):
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=region.bias, dropout_p=rate if dropout is not None else 0.0
        )
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    if region.bias is not None:
        scores = scores + region.bias if region.bias.requires_grad else scores.add_(region.bias)
    probabilities = torch.softmax(scores, dim=-1)
    if dropout is not None:
        probabilities = dropout(probabilities, rate)
    return probabilities @ value


@functools.cache
def _flex_kernel(compiled: bool) -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    kernel: Any = torch.compile(flex_attention) if compiled else flex_attention
    return kernel  # type: ignore[no-any-return]


class SelfAttention(nn.Module):
    """Multi-head self-attention with one fused projection to queries, keys and values, in that order.

    With Transformer-XL's encoding the projections have no biases of their own, and the scores have `RelativeTerms`.
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.num_heads = settings.num_heads
        self.rate = settings.attention_dropout
        relative = settings.positions == "transformer_xl"
        self.qkv = nn.Linear(settings.hidden_size, 3 * settings.hidden_size, bias=not relative)
        self.output = nn.Linear(settings.hidden_size, settings.hidden_size, bias=not relative)
        self.terms = RelativeTerms(settings) if relative else None

    def forward(
        self,
        hidden: Tensor,
        memory: Tensor | None,
        regions: tuple[Region, ...],
        selected: Tensor | None,
        backend: Backend,
        dropout: DropoutKey | None,
    ) -> Tensor:
        """Attend from all slots, or only from the selected ones.

        Args:
            hidden: *Shape:* (rows, slots, hidden size)
            memory: Hidden states that are keys before all others, and no queries. *Shape:* (rows, memory, hidden size)
            regions: Cover the queries.
            selected: Query slots, all if None. *Shape:* (rows, predictions)
            backend: Implementation of attention.
            dropout: Dropout of this forward pass, None in evaluation.

        Returns:
            *Shape:* (rows, queries, hidden size)
        """
        query, key, value = (self._heads(part) for part in self._project(hidden, memory, selected))
        queries = query.split([region.last - region.first for region in regions], dim=2)
        parts = []
        for part, region in zip(queries, regions, strict=True):
            if self.terms is not None and region.relation is not None:
                part, bias = self.terms(part, region.relation)
                region = dataclasses.replace(region, bias=bias if region.bias is None else bias + region.bias)
            read = key[:, :, : region.keys], value[:, :, : region.keys]
            parts.append(attend(part, *read, region, backend=backend, dropout=dropout, rate=self.rate))
        attended = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
        projected: Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return projected

    def _project(self, hidden: Tensor, memory: Tensor | None, selected: Tensor | None) -> tuple[Tensor, ...]:
        """Queries of the slots or of the selected ones, keys and values of the memory and the slots."""
        size = hidden.shape[-1]
        if memory is None and selected is None:
            fused: tuple[Tensor, ...] = self.qkv(hidden).split(size, dim=-1)
            return fused
        weights = self.qkv.weight.split([size, 2 * size])
        biases = (None, None) if self.qkv.bias is None else self.qkv.bias.split([size, 2 * size])
        asking = hidden if selected is None else select_slots(hidden, selected)
        read = hidden if memory is None else torch.cat([memory, hidden], dim=1)
        query = functional.linear(asking, weights[0], biases[0])
        return query, *functional.linear(read, weights[1], biases[1]).split(size, dim=-1)

    def _heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return heads


def select_slots(hidden: Tensor, slots: Tensor) -> Tensor:
    """The hidden states of some slots of each row.

    Args:
        hidden: *Shape:* (rows, slots, hidden size)
        slots: *Shape:* (rows, predictions)

    Returns:
        *Shape:* (rows, predictions, hidden size)
    """
    flat = slots + torch.arange(len(slots), device=slots.device)[:, None] * hidden.shape[1]
    chosen: Tensor = hidden.flatten(0, 1).index_select(0, flat.flatten()).unflatten(0, slots.shape)
    return chosen
