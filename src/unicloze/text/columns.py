"""Numbers per document, read from disk when indexed, and their running sums; memory use does not grow with the corpus."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unicloze.arrays import Int64s
from unicloze.errors import UniclozeError
from unicloze.files import parse_json
from unicloze.progress import Progress
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


SCHEMA = 1
STRIDE = 256
"""Documents per stored sum."""
SMALL = 2**20
"""Up to this many documents every sum is held in memory and none is kept on disk."""
_HEAD = 4096


# They find the document that holds the n-th window. Those of a large prepared source are kept in its folder, because
# they depend on every document:
#
#     FOLDER/index/PART-SOURCE-KIND.sums   one line of JSON padded to 4 KiB, then sums as int64


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Where the sums of a source are kept on disk.

    Args:
        file: The file.
        made_from: Identifies the documents and the values that are summed.
        show: Show progress while they are computed.
    """

    file: Path
    made_from: str
    show: bool = True


class Sums:
    """Running sums of a nonnegative integer per document.

    Args:
        values: The value of each of some documents, given their sorted indices.
        between: The values of consecutive documents, from a start to an end, and a number that is added up beside them.
        count: Number of documents.
        kept: Where to keep the sums of a large source; default: nowhere.
        what: Label of the progress shown while the sums of a large source are computed.
    """

    def __init__(
        self,
        values: Callable[[Int64s], Int64s],
        between: Callable[[int, int], tuple[Int64s, int]],
        count: int,
        *,
        kept: Kept | None = None,
        what: str = "",
    ) -> None:
        self._values, self._count = values, count
        self._stride = 1 if count <= SMALL else STRIDE
        known = _read(kept, count) if kept and self._stride > 1 else None
        if known is None:
            known = self._computed(between, what, show=kept is not None and kept.show and self._stride > 1)
            if kept and self._stride > 1:
                _write(kept, count, *known)
        self._ends, self.beside = known
        self.total = int(self._ends[-1]) if len(self._ends) else 0

    def find(self, positions: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """The documents whose values contain some positions."""
        blocks = np.searchsorted(self._ends, positions, side="right")
        base = self._before_block(blocks)
        if self._stride == 1:
            return blocks, base, self._ends[blocks] - base
        unique, place = np.unique(blocks, return_inverse=True)
        values = self._of_blocks(unique)
        sums = np.cumsum(values, axis=1)
        columns = (sums[place] <= (positions - base)[:, None]).sum(axis=1)
        value = values[place, columns]
        return blocks * self._stride + columns, base + sums[place, columns] - value, value

    def before(self, documents: Int64s) -> Int64s:
        """Sum of the values before each document; for `count`, the total. *Shape:* that of `documents`"""
        blocks, within = np.divmod(documents, self._stride)
        base = self._before_block(blocks)
        if self._stride == 1 or not within.any():
            return base
        unique, place = np.unique(blocks, return_inverse=True)
        sums = np.pad(np.cumsum(self._of_blocks(unique), axis=1), ((0, 0), (1, 0)))
        return base + sums[place, within]

    def _before_block(self, blocks: Int64s) -> Int64s:
        return np.where(blocks > 0, self._ends[np.maximum(blocks - 1, 0)], 0) if len(self._ends) else blocks * 0

    def _of_blocks(self, blocks: Int64s) -> Int64s:
        """Values of the documents of some sorted blocks, 0 after the last document. *Shape:* (blocks, stride)"""
        documents = (blocks[:, None] * self._stride + np.arange(self._stride)).reshape(-1)
        inside = min(len(documents), int(np.searchsorted(documents, self._count)))
        values = np.zeros(len(documents), dtype=np.int64)
        values[:inside] = self._values(documents[:inside])
        return values.reshape(len(blocks), self._stride)

    def _computed(
        self, between: Callable[[int, int], tuple[Int64s, int]], what: str, *, show: bool
    ) -> tuple[Int64s, int]:
        ends = np.zeros(-(-self._count // self._stride), dtype=np.int64)
        total = beside = 0
        with Progress(what, self._count, "documents", show=show) as bar:
            for start in range(0, self._count, AT_ONCE):
                values, more = between(start, min(start + AT_ONCE, self._count))
                beside += more
                sums = np.cumsum(np.add.reduceat(values, np.arange(0, len(values), self._stride))) + total
                ends[start // self._stride : start // self._stride + len(sums)] = sums
                total = int(sums[-1])
                bar.update(len(values))
        return ends, beside


def _read(kept: Kept, count: int) -> tuple[Int64s, int] | None:
    """Sums kept on disk; None if there are none that fit, so that they are computed again."""
    try:
        with kept.file.open("rb") as file:
            head = parse_json(file.read(_HEAD).strip())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if not isinstance(head, dict) or not isinstance(beside := head.pop("beside", None), int):
            return None
        if head != {**_head(kept, count), "sha256": digest}:
            return None
        return np.asarray(np.memmap(kept.file, dtype="<i8", mode="r", offset=_HEAD)), beside
    except (OSError, ValueError):
        return None


def _write(kept: Kept, count: int, sums: Int64s, beside: int) -> None:
    """Keep sums on disk where the folder is writable; elsewhere they are computed at each opening."""
    content = sums.astype("<i8")
    head = json.dumps({**_head(kept, count), "beside": beside, "sha256": hashlib.sha256(content.data).hexdigest()})
    temporary = kept.file.with_name(f".{kept.file.name}-{uuid.uuid4().hex[:8]}")
    try:
        kept.file.parent.mkdir(exist_ok=True)
        with temporary.open("xb") as file:
            file.write(head.encode().ljust(_HEAD))
            file.write(content.data)
        os.replace(temporary, kept.file)
    except OSError:
        with suppress(OSError):
            temporary.unlink()


def _head(kept: Kept, count: int) -> dict[str, object]:
    return {"schema": SCHEMA, "made_from": kept.made_from, "documents": count, "stride": STRIDE}
