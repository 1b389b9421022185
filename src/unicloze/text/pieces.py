"""Locates the pieces of text that windows are made of, and reads their tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from unicloze.arrays import Flags, Int64s
from unicloze.text.columns import Kept, Sums
from unicloze.text.marks import Marks
from unicloze.text.shards import TokenShard, TokenSource

Tokens = npt.NDArray[np.unsignedinteger]


@dataclass(frozen=True, kw_only=True)
class Places:
    """Locations of some pieces. *Shape:* (pieces,) each."""

    run: Int64s  # number of the run of text a piece is cut from, within its source
    start: Int64s  # its first token, counted from the start of the run
    length: Int64s  # its number of tokens
    first: Int64s  # number of the first piece of the run
    last: Int64s  # number of the first piece after the run


class Pieces(Protocol):
    """The pieces of a source, numbered in the order of its text.

    Pieces are cut from runs of text, consecutively or, with a stride, overlapping: each document is a run, or all documents
    of a shard form one run. The last piece of a run may be shorter. Of a large source, nothing is held in memory for each
    document.

    Args:
        count: Number of pieces.
        tokens: Number of tokens in all pieces.
    """

    count: int
    tokens: int

    def place(self, index: Int64s) -> Places:
        """Locations of pieces, by number. *Shape:* (pieces,)"""

    def take(self, run: Int64s, start: Int64s) -> npt.NDArray[np.int32]:
        """The tokens of pieces; arbitrary after a piece's end. *Shape:* (pieces, piece)"""

    def take_marks(self, run: Int64s, start: Int64s) -> Marks:
        """The bytes of their spans; arbitrary after a piece's end. *Shape:* (pieces, piece)"""

    def whole(self, places: Places) -> tuple[Flags, Flags]:
        """Whether a document begins where each piece begins, and ends where it ends. *Shape:* (pieces,) each"""

    def document(self, run: int, start: int) -> tuple[TokenShard, int, int]:
        """Shard, document index and token index at which a piece begins."""


def cut(
    source: TokenSource, *, piece: int, least: int, separator: int | None = None, stride: int | None = None
) -> Pieces:
    """Cut a source into pieces."""
    if separator is None:
        return _Separate(source, piece, least)
    return _Joined(source, piece, least, separator, stride or piece)


class _Separate:
    """The pieces of documents, each of which is a run."""

    def __init__(self, source: TokenSource, piece: int, least: int) -> None:
        self._source, self._piece, self._least = source, piece, least
        self._sums = Sums(
            lambda documents: self._pieces(source.lengths(documents)),
            self._between,
            source.num_documents,
            kept=_kept(source, f"{piece}-{least}"),
            what=f"indexing {source.name}",
        )
        self.count, self.tokens = self._sums.total, self._sums.beside

    def place(self, index: Int64s) -> Places:
        document, first, pieces = self._sums.find(index)
        start = (index - first) * self._piece
        length = np.minimum(self._piece, self._source.lengths(document) - start)
        return Places(run=document, start=start, length=length, first=first, last=first + pieces)

    def take(self, run: Int64s, start: Int64s) -> npt.NDArray[np.int32]:
        text = np.empty((len(run), self._piece), dtype=np.int32)
        for shard, mine, begins in self._begins(run, start):
            text[mine] = _rows(shard.read(begins, begins + self._piece), begins, self._piece)
        return text

    def take_marks(self, run: Int64s, start: Int64s) -> Marks:
        marks = np.zeros((len(run), self._piece), dtype=np.uint8)
        for shard, mine, begins in self._begins(run, start):
            read = shard.read_marks(begins, begins + self._piece)
            if read is not None:
                marks[mine] = _rows(read, begins, self._piece)
        return marks

    def _begins(self, run: Int64s, start: Int64s) -> Iterator[tuple[TokenShard, Int64s | slice, Int64s]]:
        """Each shard, the pieces it holds, and where these begin in it."""
        for number, mine in self._source.by_shard(run):
            shard = self._source.shards[number]
            yield shard, mine, shard.starts[run[mine] - self._source.bounds[number]] + start[mine]

    def whole(self, places: Places) -> tuple[Flags, Flags]:
        return np.equal(places.start, 0), np.equal(places.start + places.length, self._source.lengths(places.run))

    def document(self, run: int, start: int) -> tuple[TokenShard, int, int]:
        number = int(np.searchsorted(self._source.bounds, run, side="right")) - 1
        return self._source.shards[number], run - int(self._source.bounds[number]), start

    def _pieces(self, lengths: Int64s) -> Int64s:
        whole, rest = np.divmod(lengths, self._piece)
        return whole + (rest >= self._least)

    def _between(self, start: int, end: int) -> tuple[Int64s, int]:
        lengths = self._source.lengths_between(start, end)
        pieces = self._pieces(lengths)
        return pieces, int(np.minimum(pieces * self._piece, lengths).sum())


def _rows(tokens: Tokens, begins: Int64s, count: int) -> npt.NDArray[np.integer]:
    """`count` values of a shard from each place. *Shape:* (rows, count)"""
    if len(tokens) >= count and int(begins.max()) <= len(tokens) - count:
        return np.lib.stride_tricks.sliding_window_view(tokens, count)[begins]
    return np.asarray(tokens[np.minimum(begins[:, None] + np.arange(count), len(tokens) - 1)])


class _Joined:
    """The pieces of shards, in each of which the documents form one run, joined by separators; empty ones are dropped.

    Each document counts as its tokens and the separator after it, which the last document of a run does not have.
    """

    def __init__(self, source: TokenSource, piece: int, least: int, separator: int, stride: int) -> None:
        self._source, self._piece, self._separator, self._stride = source, piece, separator, stride
        self._sums = Sums(
            lambda documents: _with_separator(source.lengths(documents)),
            lambda start, end: (_with_separator(source.lengths_between(start, end)), 0),
            source.num_documents,
            kept=_kept(source, "joined"),
            what=f"indexing {source.name}",
        )
        self._before = self._sums.before(source.bounds)
        self._lengths = np.maximum(np.diff(self._before) - 1, 0)
        pieces = np.where(self._lengths >= least, 1 - np.minimum(0, piece - self._lengths) // stride, 0)
        last = self._lengths - (pieces - 1) * stride
        if stride == piece:  # nothing of a shorter last piece is in the one before it, but a few tokens are no piece
            pieces -= (pieces > 0) & (last < least)
        self._ends: Int64s = np.cumsum(pieces)
        self.count = int(pieces.sum())
        last = np.minimum(self._lengths - (pieces - 1) * stride, piece)
        self.tokens = int((((pieces - 1) * piece + last) * (pieces > 0)).sum())

    def place(self, index: Int64s) -> Places:
        run = np.searchsorted(self._ends, index, side="right")
        first = np.where(run > 0, self._ends[run - 1], 0)
        start = (index - first) * self._stride
        length = np.minimum(self._piece, self._lengths[run] - start)
        return Places(run=run, start=start, length=length, first=first, last=self._ends[run])

    def take(self, run: Int64s, start: Int64s) -> npt.NDArray[np.int32]:
        text = np.empty((len(run), self._piece), dtype=np.int32)
        for number in np.unique(run).tolist():
            mine = run == number
            text[mine] = self._rows(number, start[mine], self._source.shards[number].read, self._separator)
        return text

    def take_marks(self, run: Int64s, start: Int64s) -> Marks:
        marks = np.zeros((len(run), self._piece), dtype=np.uint8)
        for number in np.unique(run).tolist():
            shard, mine = self._source.shards[number], run == number
            if shard.marks is not None:
                marks[mine] = self._rows(number, start[mine], shard.read_marks, 0)
        return marks

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

    def _rows(
        self, run: int, starts: Int64s, read: Callable[[Int64s, Int64s], Tokens | None], separator: int
    ) -> npt.NDArray[np.integer]:
        """A piece of a run from each place: the values that `read` returns, and a value between two documents.

        *Shape:* (rows, piece)
        """
        rows, count, total = len(starts), self._piece, int(self._lengths[run])
        places = np.concatenate([starts, np.minimum(starts + count, total) - 1]) + self._before[run]
        documents, before, _ = self._sums.find(places)
        # A part is what one document and its separator contribute to one row; the parts of a row fill it.
        sizes = np.diff(documents.reshape(2, rows), axis=0)[0] + 1
        row = np.repeat(np.arange(rows), sizes)
        within = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        local = documents[:rows][row] + within - self._source.bounds[run]
        shard = self._source.shards[run]
        begins_in_shard = shard.starts[local]
        values = _with_separator(shard.ends[local] - begins_in_shard)
        sums = np.cumsum(values) - values
        begins_in_run = sums - sums[within == 0][row] + before[:rows][row] - self._before[run]
        some = values > 0
        row, begins_in_shard, begins_in_run, values = (
            column[some] for column in (row, begins_in_shard, begins_in_run, values)
        )
        shift = row * count - starts[row]  # from positions in the run to positions in the block of rows
        begins = np.maximum(begins_in_run + shift, row * count)
        parts = np.diff(begins, append=rows * count)
        shifts = begins_in_shard - begins_in_run - shift
        index = np.arange(rows * count) + np.repeat(shifts, parts)
        tokens = read(begins + shifts, begins + shifts + parts)
        assert tokens is not None
        block = np.asarray(tokens[np.minimum(index, len(tokens) - 1)])
        separators = begins_in_run + values - 1 + shift
        block[separators[separators < (row + 1) * count]] = separator
        return block.reshape(rows, count)


def _with_separator(lengths: Int64s) -> Int64s:
    return lengths + (lengths > 0)


def _kept(source: TokenSource, kind: str) -> Kept | None:
    """Where the sums of a source are kept for one way of cutting it."""
    if source.index is None:
        return None
    file = source.index.file
    return replace(
        source.index, file=file.with_name(f"{file.name}-{kind}.sums"), made_from=f"{source.index.made_from} {kind}"
    )
