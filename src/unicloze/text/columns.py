"""Columns of a shard: a number per document, read from disk when indexed; memory use does not grow with the corpus."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from unicloze.arrays import Int64s
from unicloze.errors import UniclozeError
from unicloze.text.digests import Blocks

AT_ONCE = 2**20
"""Documents read at once where a whole column is read."""


class Stored:
    """A file of unsigned 64-bit numbers, mapped into memory; each block is verified when it is first read.

    Args:
        values: The numbers. *Shape:* (numbers,)
        blocks: Digests of the file; None without digests.
    """

    def __init__(self, values: Int64s, blocks: Blocks | None = None) -> None:
        self.values, self._blocks = values, blocks

    @classmethod
    def open(cls, path: Path, blocks: Blocks | None = None) -> Stored:
        """Map a file."""
        size = path.stat().st_size
        if size % 8:
            raise UniclozeError(f"{path} has {size} bytes, not a multiple of 8: remove the folder and prepare again.")
        if not size:
            return cls(np.zeros(0, np.int64), blocks)
        return cls(np.asarray(np.memmap(path, dtype="<i8", mode="r")), blocks)

    def __len__(self) -> int:
        return len(self.values)

    def at(self, index: Int64s) -> Int64s:
        """Some numbers. *Shape:* that of `index`"""
        self._check(index * 8, index * 8 + 8)
        return self.values[index]

    def between(self, start: int, end: int) -> Int64s:
        """The numbers from `start` to `end`. *Shape:* (end - start,)"""
        if end > start:
            self._check(np.array([8 * start]), np.array([8 * end]))
        return self.values[start:end]

    def check_all(self) -> None:
        """Verify every block."""
        if self._blocks is not None:
            self._blocks.check_all(self.values.view(np.uint8))

    def _check(self, starts: Int64s, ends: Int64s) -> None:
        if self._blocks is not None:
            self._blocks.check(self.values.view(np.uint8), starts.reshape(-1), ends.reshape(-1))


class Column:
    """A number for each document of a shard, or for some of its documents.

    An index gives one number, a slice or an array of indices gives an array.

    Args:
        count: Number of documents.
        ends: Running sums that end with each document of the file, or the numbers themselves; None for the numbers of the
            documents.
        chosen: Index of each document within the file; None for all documents of the file.
        start: Begin with the previous sum: the column holds where documents begin.
        size: The column holds the differences of the sums.
    """

    def __init__(
        self, count: int, ends: Stored | None, chosen: Stored | None, *, start: bool = False, size: bool = False
    ) -> None:
        self._count, self._ends, self._chosen, self._start, self._size = count, ends, chosen, start, size

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int | np.integer | slice | Int64s) -> Int64s:
        if isinstance(index, slice):
            start, end, step = index.indices(self._count)
            if step == 1 and self._chosen is None:
                return self._between(start, max(start, end))
            index = self._chosen.between(start, end) if step == 1 and self._chosen else np.arange(start, end, step)
            return self._of(index if step == 1 else self._numbers(index))
        return self._of(self._numbers(np.asarray(index, dtype=np.int64)))

    def __iter__(self) -> Iterator[int]:
        for start in range(0, self._count, AT_ONCE):
            yield from self[start : start + AT_ONCE].tolist()

    def tolist(self) -> list[int]:
        """All numbers, in memory."""
        return list(self)

    @property
    def total(self) -> int:
        """Sum of the sizes of all documents."""
        if self._chosen is None and self._ends is not None:
            return int(self._ends.values[-1]) if self._count else 0
        return sum(int(self[start : start + AT_ONCE].sum()) for start in range(0, self._count, AT_ONCE))

    def check_all(self) -> None:
        """Verify every block of the files.

        Raises:
            UniclozeError: One is damaged.
        """
        for stored in (self._ends, self._chosen):
            if stored is not None:
                stored.check_all()

    def _numbers(self, index: Int64s) -> Int64s:
        return index if self._chosen is None else self._chosen.at(index)

    def _of(self, numbers: Int64s) -> Int64s:
        if self._ends is None:
            return numbers
        before = self._before(numbers) if self._start or self._size else None
        if self._start:
            assert before is not None
            return before
        found = self._ends.at(numbers)
        return found if before is None else found - before

    def _before(self, numbers: Int64s) -> Int64s:
        assert self._ends is not None
        return np.where(numbers > 0, self._ends.at(np.maximum(numbers - 1, 0)), 0) if len(self._ends) else numbers

    def _between(self, start: int, end: int) -> Int64s:
        if self._ends is None:
            return np.arange(start, end, dtype=np.int64)
        if not (self._start or self._size):
            return self._ends.between(start, end)
        if start == end:
            return np.zeros(0, np.int64)
        first = self._ends.between(start - 1, start) if start else np.zeros(1, np.int64)
        before = np.concatenate([first, self._ends.between(start, end - 1)])
        return self._ends.between(start, end) - before if self._size else before
