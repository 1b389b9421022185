"""Running sums over the documents of a source, of which only every 256th is stored if there are many.

They find the document that holds the n-th window. Those of a large prepared source are kept in its folder, because they
depend on every document:

    FOLDER/index/PART-SOURCE-KIND.sums   one line of JSON padded to 4 KiB, then sums as int64
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unicloze.arrays import Int64s
from unicloze.bounded import parse_json
from unicloze.progress import Progress
from unicloze.text.columns import AT_ONCE

SCHEMA = 1
STRIDE = 256
"""Documents per stored sum."""
SMALL = 2**20
"""Up to this many documents every sum is held in memory and none is kept on disk."""
_HEAD = 4096


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
