"""Attention whose mask is data: softmax(Q K^T / sqrt(d) + bias) V, region by region."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from unicloze.model.dropout import DropoutKey
from unicloze.model.plan import Backend, Block, Region
from unicloze.model.transformer_xl import RelativeTerms
from unicloze.settings import ModelSettings


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
        blocks: tuple[Block, ...],
        selected: Tensor | None,
        late: bool,
        backend: Backend,
        dropout: DropoutKey | None,
    ) -> Tensor:
        """Attend from all slots, or only from the selected ones.

        Args:
            hidden: *Shape:* (rows, slots, hidden size)
            memory: Hidden states that are keys before all others, and no queries. *Shape:* (rows, memory, hidden size)
            blocks: Cover the queries: the rows themselves, or the blocks that are laid end to end in the only one.
            selected: Query slots, all if None. *Shape:* (rows, predictions)
            late: Select when all have asked, out of the slots of all rows.
            backend: Implementation of attention.
            dropout: Dropout of this forward pass, None in evaluation.

        Returns:
            *Shape:* (rows, queries, hidden size)
        """
        query, key, value = self._project(hidden, memory, None if late else selected)
        queries = _cut(query, [(block.rows, block.queries) for block in blocks])
        keys, values = (_cut(part, [(block.rows, block.keys) for block in blocks]) for part in (key, value))
        attended = [
            self._attend(part, key, value, block.regions, backend, dropout)
            for part, key, value, block in zip(queries, keys, values, blocks, strict=True)
        ]
        joined = attended[0] if len(attended) == 1 else torch.cat([part.flatten(0, 1) for part in attended])[None]
        if late and selected is not None:
            joined = select_slots(in_one_row(joined), selected)
        projected: Tensor = self.output(joined)
        return projected

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        regions: tuple[Region, ...],
        backend: Backend,
        dropout: DropoutKey | None,
    ) -> Tensor:
        """Attention of a block. *Shape:* (rows, queries or keys, hidden size) to (rows, queries, hidden size)"""
        query, key, value = (self._heads(part) for part in (query, key, value))
        queries = query.split([region.last - region.first for region in regions], dim=2)
        parts = []
        for part, region in zip(queries, regions, strict=True):
            if self.terms is not None and region.relation is not None:
                part, bias = self.terms(part, region.relation)
                region = dataclasses.replace(region, bias=bias if region.bias is None else bias + region.bias)
            read = key[:, :, : region.keys], value[:, :, : region.keys]
            parts.append(attend(part, *read, region, backend=backend, dropout=dropout, rate=self.rate))
        attended = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
        return attended.transpose(1, 2).flatten(2)

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


def _cut(states: Tensor, shapes: Sequence[tuple[int, int]]) -> Sequence[Tensor]:
    """States laid end to end as blocks. *Shape:* (1, slots, width) to (rows, slots, width) each"""
    if len(shapes) == 1:
        return [states]
    parts = states[0].split([rows * slots for rows, slots in shapes])
    return [part.unflatten(0, shape) for part, shape in zip(parts, shapes, strict=True)]


def in_one_row(hidden: Tensor) -> Tensor:
    """The slots of all rows side by side. *Shape:* (rows, slots, hidden size) to (1, rows x slots, hidden size)"""
    return hidden.flatten(0, 1)[None]


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
