"""Key and value cache of slots computed earlier.

Keys are stored with slots as the last dimension, the fastest layout measured on a CPU for products of few queries with
many keys: 1.3 times the speed of slots first in fp32 and 2.5 times in bf16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unicloze.model.attention import head_width
from unicloze.model.cross_attention import SourceKeys
from unicloze.settings import ModelSettings


@dataclass(kw_only=True)
class Cache:
    """Keys and values of the slots computed so far, for every layer."""

    keys: list[Tensor]  # One tensor per layer. *Shape:* (rows, heads, head size, capacity)
    values: list[Tensor]  # One tensor per layer. *Shape:* (rows, heads, capacity, head size)
    positions: Tensor  # Position each slot stands for. *Shape:* (rows, capacity)
    filled: int = 0  # number of slots kept per row; the next slots are written after them
    source: SourceKeys | None = None  # what a decoder reads of the encoded sources; None in a model without a decoder

    @classmethod
    def empty(
        cls, settings: ModelSettings, *, rows: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> Cache:
        """A cache with room for `capacity` slots per row; of an encoder-decoder, for the slots of its decoder.

        It holds zeros because masked values must be finite.
        """
        heads, size = settings.num_heads, head_width(settings)
        layers = settings.decoder_layers or settings.num_layers
        capacity = _aligned(capacity)
        shape = rows, heads, size, capacity
        return cls(
            keys=[torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)],
            values=[torch.zeros(rows, heads, capacity, size, dtype=dtype, device=device) for _ in range(layers)],
            positions=torch.zeros(rows, capacity, dtype=torch.long, device=device),
        )

    @property
    def capacity(self) -> int:
        """Slots per row there is room for."""
        return self.positions.shape[1]

    def of_rows(self, rows: slice) -> Cache:
        """A view of some rows of this cache."""
        return Cache(
            keys=[layer[rows] for layer in self.keys],
            values=[layer[rows] for layer in self.values],
            positions=self.positions[rows],
            filled=self.filled,
        )

    def keep_rows(self, rows: Tensor) -> None:
        """Drop all other rows. *Shape:* (rows kept,)"""
        self._replace(lambda _, part: part.index_select(0, rows))
        if self.source is not None:
            self.source.keep_rows(rows)

    def grow(self, capacity: int) -> None:
        """Enlarge the cache to `capacity` slots per row."""
        capacity = _aligned(capacity)

        def larger(slots: int, part: Tensor) -> Tensor:
            shape = list(part.shape)
            shape[slots] = capacity
            grown = part.new_zeros(shape)
            grown.narrow(slots, 0, self.filled).copy_(part.narrow(slots, 0, self.filled))
            return grown

        self._replace(larger)

    def keep_slots(self, first: int, kept: Tensor) -> None:
        """Keep only some of the slots from `first` on in each row, and close the gaps.

        Args:
            first: All earlier slots are kept.
            kept: Slots to keep, counted from `first`. *Shape:* (rows, slots kept)
        """
        rows, count = kept.shape

        def moved(slots: int, part: Tensor) -> Tensor:
            index = (
                kept.view([rows, *[1] * (part.ndim - 2), count]) if slots == part.ndim - 1 else kept[:, None, :, None]
            )
            source = part.narrow(slots, first, self.filled - first)
            shape = list(source.shape)
            shape[slots] = count
            part.narrow(slots, first, count).copy_(source.gather(slots, index.expand(shape)))
            return part

        self._replace(moved)
        self.filled = first + count

    def _replace(self, change: Callable[[int, Tensor], Tensor]) -> None:
        """Apply `change(slot dimension, tensor)` to every tensor."""
        for number, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            self.keys[number] = change(3, keys)
            self.values[number] = change(2, values)
        self.positions = change(1, self.positions)


def _aligned(capacity: int) -> int:
    """The next multiple of 32, which aligns rows of keys with cache lines."""
    return -(-capacity // 32) * 32
