"""Cross-attention: a decoder's slots read the encoder's output (Vaswani et al. 2017, Section 3.2.3).

Every slot of a decoder reads the whole source of its row. A `SourceReader` supplies its keys and values: computed from the
encoder's output for whole rows, or kept from step to step in generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from unicloze.model.attention import attend, choose_backend, head_width, score_dtype, score_scale
from unicloze.model.attention_plan import Backend, Region, score_bias
from unicloze.model.dropout import DropoutKey
from unicloze.model.low_rank import project
from unicloze.settings import ModelSettings


class CrossAttention(nn.Module):
    """Weights of cross-attention: queries of the target, and one fused projection to keys and values of the source."""

    FUSED = {"key_value": 2}  # noqa: RUF012

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.num_heads, self.width = settings.num_heads, settings.num_heads * head_width(settings)
        self.rate, self.scale = settings.attention_dropout, score_scale(settings)
        self.query = nn.Linear(settings.hidden_size, self.width, bias=settings.biases)
        self.key_value = nn.Linear(settings.hidden_size, 2 * self.width, bias=settings.biases)
        self.output = nn.Linear(self.width, settings.hidden_size, bias=settings.biases)


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


@dataclass(frozen=True, kw_only=True)
class SourceBucket:
    """Rows of equal length whose cross-attention is computed at once."""

    rows: int  # number of rows
    slots: int  # slots of the target per row
    keys: int  # slots of the source per row
    real: Tensor | None  # Which of these are not padding; None if all. *Shape:* (rows, keys)


@dataclass(eq=False, kw_only=True)
class SourceStates:
    """The encoder's output for whole rows, as buckets of rows concatenated into one or as a single one."""

    states: Tensor  # *Shape:* (rows, source slots, hidden size)
    buckets: Sequence[SourceBucket]  # how rows are divided
    backend: Backend | None = None  # attention backend; default: the fastest
    dropout: DropoutKey | None = None  # dropout of this forward pass; none if None

    def __post_init__(self) -> None:
        dtype = score_dtype(self.states)
        self._backend = self.backend or choose_backend(self.states, dtype, False)
        masks = [None if bucket.real is None else bucket.real[:, None, :] for bucket in self.buckets]
        self._regions = [
            Region(0, bucket.slots, bucket.keys, score_bias(mask, None, dtype))
            for bucket, mask in zip(self.buckets, masks, strict=True)
        ]

    def attend(self, attention: CrossAttention, number: int, normed: Tensor) -> Tensor:
        """See `SourceReader.attend`."""
        asked = project(attention.query, normed, self.dropout)
        read = project(attention.key_value, self.states, self.dropout)
        query = self._by_heads(asked, [bucket.slots for bucket in self.buckets], attention)
        keys, values = (
            self._by_heads(part, [bucket.keys for bucket in self.buckets], attention)
            for part in read.split(attention.width, dim=-1)
        )
        parts = []
        for asking, key, value, region in zip(query, keys, values, self._regions, strict=True):
            attended = attend(
                asking,
                key,
                value,
                region,
                backend=self._backend,
                dropout=self.dropout,
                rate=attention.rate,
                scale=attention.scale,
            )
            parts.append(attended.transpose(1, 2).flatten(2))
        joined = parts[0] if len(parts) == 1 else torch.cat([part.flatten(0, 1) for part in parts])[None]
        return project(attention.output, joined, self.dropout)

    def _by_heads(self, states: Tensor, widths: Sequence[int], attention: CrossAttention) -> list[Tensor]:
        """Split by bucket and head. *Shape:* (rows, heads, slots, head size) each"""
        rows = [bucket.rows for bucket in self.buckets]
        flat = states.flatten(0, 1).split([count * width for count, width in zip(rows, widths, strict=True)])
        return [
            part.view(count, width, attention.num_heads, -1).transpose(1, 2)
            for part, count, width in zip(flat, rows, widths, strict=True)
        ]


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
        rows, heads = len(normed), attention.num_heads
        query = attention.query(normed).unflatten(2, (heads, -1)) * attention.scale
        keys, values = self.keys[number], self.values[number]
        scores = torch.bmm(query.transpose(1, 2).flatten(0, 1), keys.flatten(0, 1)).unflatten(0, (rows, heads))
        if self.bias is not None:
            scores.add_(self.bias)
        attended = torch.bmm(torch.softmax(scores, dim=-1).flatten(0, 1), values.flatten(0, 1))
        projected: Tensor = attention.output(attended.unflatten(0, (rows, heads)).transpose(1, 2).flatten(2))
        return projected
