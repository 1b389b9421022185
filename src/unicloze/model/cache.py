"""Keys and values of slots computed earlier, so that later ones can read them.

Keys are kept with the slots last: of products of few queries with many keys that one measured fastest on a CPU, 1.3 times
the speed of slots first in fp32 and 2.5 times in bf16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unicloze.settings import ModelSettings


@dataclass(kw_only=True)
class Cache:
    """Keys and values of the slots computed so far, in every layer.

    Args:
        keys: One tensor a layer. *Shape:* (rows, heads, head size, capacity)
        values: One tensor a layer. *Shape:* (rows, heads, capacity, head size)
        positions: Position each slot stands for. *Shape:* (rows, capacity)
        filled: Slots of a row that are kept; the next ones are written behind them.
    """

    keys: list[Tensor]
    values: list[Tensor]
    positions: Tensor
    filled: int = 0

    @classmethod
    def empty(
        cls, settings: ModelSettings, *, rows: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> Cache:
        """A cache with room for `capacity` slots in each row. Zeros, as what is masked must be finite."""
        heads, size = settings.num_heads, settings.hidden_size // settings.num_heads
        capacity = _aligned(capacity)
        shape = rows, heads, size, capacity
        return cls(
            keys=[torch.zeros(shape, dtype=dtype, device=device) for _ in range(settings.num_layers)],
            values=[
                torch.zeros(rows, heads, capacity, size, dtype=dtype, device=device) for _ in range(settings.num_layers)
            ],
            positions=torch.zeros(rows, capacity, dtype=torch.long, device=device),
        )

    @property
    def capacity(self) -> int:
        """Slots of a row there is room for."""
        return self.positions.shape[1]

    def of_rows(self, rows: slice) -> Cache:
        """Some rows of this cache, in the same memory."""
        return Cache(
            keys=[layer[rows] for layer in self.keys],
            values=[layer[rows] for layer in self.values],
            positions=self.positions[rows],
            filled=self.filled,
        )

    def keep_rows(self, rows: Tensor) -> None:
        """Forget all rows but these. *Shape:* (rows kept,)"""
        self._replace(lambda _, part: part.index_select(0, rows))

    def grow(self, capacity: int) -> None:
        """Make room for so many slots in each row."""
        capacity = _aligned(capacity)

        def larger(slots: int, part: Tensor) -> Tensor:
            shape = list(part.shape)
            shape[slots] = capacity
            grown = part.new_zeros(shape)
            grown.narrow(slots, 0, self.filled).copy_(part.narrow(slots, 0, self.filled))
            return grown

        self._replace(larger)

    def keep_slots(self, first: int, kept: Tensor) -> None:
        """Of the slots from `first` on, keep some of each row and close the gaps.

        Args:
            first: All slots before it stay.
            kept: Which slots stay, counted from `first`. *Shape:* (rows, slots kept)
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
        """Change every tensor, given which of its dimensions counts slots."""
        for number, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            self.keys[number] = change(3, keys)
            self.values[number] = change(2, values)
        self.positions = change(1, self.positions)


def _aligned(capacity: int) -> int:
    """The next multiple of 32, at which rows of keys begin at whole cache lines."""
    return -(-capacity // 32) * 32
