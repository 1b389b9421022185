"""Locates the pieces of text that windows are made of, and reads their tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from unicloze.arrays import Flags, Int64s
from unicloze.text.digests import Mapped
from unicloze.text.shards import TokenShard, TokenSource

Column = Literal["tokens", "marks"]
"""One of the two columns of a shard with a value for each token."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Locations of some pieces. *Shape:* (pieces,) each."""

    run: Int64s  # number of the run of text a piece is cut from, within its source
    start: Int64s  # its first token, counted from the start of the run
    length: Int64s  # its number of tokens
    first: Int64s  # number of the first piece of the run
    last: Int64s  # number of the first piece after the run


class Pieces(ABC):
    """The pieces of a source, numbered in the order of its text.

    Pieces are cut from runs of text, consecutively or, with a stride, overlapping: each document is a run, or all documents
    of a shard form one run. The last piece of a run may be shorter. Of a large source, nothing is held in memory for each
    document.

    Args:
        source: The source.
        piece: Number of tokens in a piece.
    """

    count: int  # number of pieces

    def __init__(self, source: TokenSource, piece: int) -> None:
        self._source, self._piece = source, piece

    @abstractmethod
    def place(self, index: Int64s) -> Places:
        """Locations of pieces, by number. *Shape:* (pieces,)"""

    @abstractmethod
    def whole(self, places: Places) -> tuple[Flags, Flags]:
        """Whether a document begins where each piece begins, and ends where it ends. *Shape:* (pieces,) each"""

    @abstractmethod
    def document(self, run: int, start: int) -> tuple[TokenShard, int, int]:
        """Shard, document index and token index at which a piece begins."""

    @abstractmethod
    def read(self, values: npt.NDArray[np.integer], run: Int64s, start: Int64s, column: Column) -> None:
        """Read the values of pieces from a column; arbitrary after a piece's end. *Shape:* (pieces, piece)"""


def cut(
    source: TokenSource, *, piece: int, least: int, separator: int | None = None, stride: int | None = None
) -> Pieces:
    """Cut a source into pieces."""
    if separator is None:
        return _Separate(source, piece, least)
    return _Joined(source, piece, least, separator, stride or piece)


class _Separate(Pieces):
    """The pieces of documents, each of which is a run."""

    def __init__(self, source: TokenSource, piece: int, least: int) -> None:
        super().__init__(source, piece)
        self._sums = source.sums(f"{piece}-{least}", lambda lengths: lengths // piece + (lengths % piece >= least))
        self.count = self._sums.total

    def place(self, index: Int64s) -> Places:
        document, first, pieces = self._sums.find(index)
        start = (index - first) * self._piece
        length = np.minimum(self._piece, self._source.lengths(document) - start)
        return Places(run=document, start=start, length=length, first=first, last=first + pieces)

    def whole(self, places: Places) -> tuple[Flags, Flags]:
        return np.equal(places.start, 0), np.equal(places.start + places.length, self._source.lengths(places.run))

    def document(self, run: int, start: int) -> tuple[TokenShard, int, int]:
        ((shard, _, inside),) = self._source.by_shard(np.array([run]))
        return shard, int(inside[0]), start

    def read(self, values: npt.NDArray[np.integer], run: Int64s, start: Int64s, column: Column) -> None:
        for shard, mine, inside in self._source.by_shard(run):
            if (read := getattr(shard, column)) is not None:
                begins, count = shard.bounds(inside)[0] + start[mine], self._piece
                found = read.ranges(begins, begins + count)
                if len(found) >= count and int(begins.max()) <= len(found) - count:
                    values[mine] = np.lib.stride_tricks.sliding_window_view(found, count)[begins]
                else:
                    values[mine] = found[np.minimum(begins[:, None] + np.arange(count), len(found) - 1)]


class _Joined(Pieces):
    """The pieces of shards, in each of which the documents form one run, joined by separators; empty ones are dropped.

    Each document counts as its tokens and the separator after it, which the last document of a run does not have.
    """

    def __init__(self, source: TokenSource, piece: int, least: int, separator: int, stride: int) -> None:
        super().__init__(source, piece)
        self._separator, self._stride = separator, stride
        self._sums = source.sums("joined", _with_separator)
        self._before = self._sums.before(source.bounds)
        self._lengths = np.maximum(np.diff(self._before) - 1, 0)
        pieces = np.where(self._lengths >= least, 1 - np.minimum(0, piece - self._lengths) // stride, 0)
        if stride == piece:  # nothing of a shorter last piece is in the one before it, but a few tokens are no piece
            pieces -= (pieces > 0) & (self._lengths - (pieces - 1) * stride < least)
        self._ends: Int64s = np.cumsum(pieces)
        self.count = int(pieces.sum())

    def place(self, index: Int64s) -> Places:
        run = np.searchsorted(self._ends, index, side="right")
        first = np.where(run > 0, self._ends[run - 1], 0)
        start = (index - first) * self._stride
        length = np.minimum(self._piece, self._lengths[run] - start)
        return Places(run=run, start=start, length=length, first=first, last=self._ends[run])

    def whole(self, places: Places) -> tuple[Flags, Flags]:
        starts = self._before[places.run] + places.start
        stops = starts + places.length
        _, first, _ = self._sums.find(starts)
        _, before, values = self._sums.find(stops)
        return np.equal(first, starts), np.equal(before + values - 1, stops)  # a separator follows the last token

    def document(self, run: int, start: int) -> tuple[TokenShard, int, int]:
        document, before, _ = self._sums.find(self._before[run] + np.array([start]))
        within = int(self._before[run]) + start - int(before[0])
        return self._source.shards[run], int(document[0] - self._source.bounds[run]), within

    def read(self, values: npt.NDArray[np.integer], run: Int64s, start: Int64s, column: Column) -> None:
        for number in np.unique(run).tolist():
            shard, mine = self._source.shards[number], run == number
            if (read := getattr(shard, column)) is not None:
                separator = self._separator if read is shard.tokens else 0
                values[mine] = self._rows(number, start[mine], read, separator)

    def _rows(self, run: int, starts: Int64s, column: Mapped, separator: int) -> npt.NDArray[np.integer]:
        """A piece of a run from each place: the values of a column, and a value between two documents.

        *Shape:* (rows, piece)
        """
        rows, count, total = len(starts), self._piece, int(self._lengths[run])
        places = np.concatenate([starts, np.minimum(starts + count, total) - 1]) + self._before[run]
        documents, before, _ = self._sums.find(places)
        # A part is what one document and its separator contribute to one row; the parts of a row fill it.
        sizes = np.diff(documents.reshape(2, rows), axis=0)[0] + 1
        row = np.repeat(np.arange(rows), sizes)
        within = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        begins_in_shard, ends = self._source.shards[run].bounds(
            documents[:rows][row] + within - self._source.bounds[run]
        )
        values = _with_separator(ends - begins_in_shard)
        sums = np.cumsum(values) - values
        begins_in_run = sums - sums[within == 0][row] + before[:rows][row] - self._before[run]
        some = values > 0
        row, begins_in_shard, begins_in_run, values = (
            each[some] for each in (row, begins_in_shard, begins_in_run, values)
        )
        shift = row * count - starts[row]  # from positions in the run to positions in the block of rows
        begins = np.maximum(begins_in_run + shift, row * count)
        parts = np.diff(begins, append=rows * count)
        shifts = begins_in_shard - begins_in_run - shift
        index = np.arange(rows * count) + np.repeat(shifts, parts)
        tokens = column.ranges(begins + shifts, begins + shifts + parts)
        block = np.asarray(tokens[np.minimum(index, len(tokens) - 1)])
        separators = begins_in_run + values - 1 + shift
        block[separators[separators < (row + 1) * count]] = separator
        return block.reshape(rows, count)


def _with_separator(lengths: Int64s) -> Int64s:
    return lengths + (lengths > 0)
