"""Locates the pieces of text that windows are made of, and reads their tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from unicloze.arrays import Flags, Int64s
from unicloze.text.shards import TokenShard, TokenSource

Tokens = npt.NDArray[np.unsignedinteger]


@dataclass(frozen=True, kw_only=True)
class Places:
    """Locations of some pieces. *Shape:* (pieces,) each.

    Args:
        run: Number of the run of text a piece is cut from, within its source.
        start: Its first token, counted from the start of the run.
        length: Its number of tokens.
        first: Number of the first piece of the run.
        last: Number of the first piece after the run.
    """

    run: Int64s
    start: Int64s
    length: Int64s
    first: Int64s
    last: Int64s


class Pieces:
    """The pieces of a source, numbered in the order of its text.

    Pieces are cut consecutively from runs of text: each document is a run, or all documents of a shard form one run.
    The last piece of a run may be shorter.

    Args:
        source: The text.
        piece: Tokens per piece.
        least: Smallest number of tokens in the last piece of a run; shorter ones are dropped.
        separator: Id between two documents of a run; if None, each document is its own run.
    """

    def __init__(self, source: TokenSource, *, piece: int, least: int, separator: int | None = None) -> None:
        self._piece = piece
        self._texts: list[_Text] = [
            _Documents(shard) if separator is None else _Joined(shard, separator) for shard in source.shards
        ]
        self._bounds: Int64s = np.cumsum([0, *(len(text.lengths) for text in self._texts)], dtype=np.int64)
        self._lengths: Int64s = np.concatenate([np.zeros(0, np.int64), *(text.lengths for text in self._texts)])
        whole, rest = np.divmod(self._lengths, piece)
        counts = whole + (rest >= least)
        self._ends: Int64s = np.cumsum(counts)
        self.count = int(counts.sum())
        self.tokens = int((whole * piece + rest * (rest >= least)).sum())

    def place(self, index: Int64s) -> Places:
        """Locations of pieces, by number. *Shape:* (pieces,)"""
        run = np.searchsorted(self._ends, index, side="right")
        first = np.where(run > 0, self._ends[run - 1], 0)
        start = (index - first) * self._piece
        length = np.minimum(self._piece, self._lengths[run] - start)
        return Places(run=run, start=start, length=length, first=first, last=self._ends[run])

    def take(self, run: Int64s, start: Int64s) -> npt.NDArray[np.int32]:
        """The tokens of pieces; arbitrary after a piece's end. *Shape:* (pieces, piece)"""
        text = np.empty((len(run), self._piece), dtype=np.int32)
        shards = np.searchsorted(self._bounds, run, side="right") - 1
        for number in np.unique(shards):
            mine = shards == number
            text[mine] = self._texts[number].take(run[mine] - self._bounds[number], start[mine], self._piece)
        return text

    def whole(self, places: Places) -> tuple[Flags, Flags]:
        """Whether a document begins where each piece begins, and ends where it ends. *Shape:* (pieces,) each"""
        begins, ends = np.empty((2, len(places.run)), dtype=bool)
        shards = np.searchsorted(self._bounds, places.run, side="right") - 1
        for number in np.unique(shards):
            mine = shards == number
            run, start = places.run[mine] - self._bounds[number], places.start[mine]
            begins[mine] = self._texts[number].begins(start)
            ends[mine] = self._texts[number].ends(run, start + places.length[mine])
        return begins, ends

    def document(self, run: int, start: int) -> tuple[TokenShard, int, int]:
        """Shard, document index and token index at which a piece begins."""
        number = int(np.searchsorted(self._bounds, run, side="right")) - 1
        text = self._texts[number]
        return text.shard, *text.document(run - int(self._bounds[number]), start)


class _Text(Protocol):
    """The runs of a shard."""

    shard: TokenShard

    @property
    def lengths(self) -> Int64s:
        """Number of tokens in each run. *Shape:* (runs,)"""

    def take(self, runs: Int64s, starts: Int64s, count: int) -> npt.NDArray[np.integer]:
        """`count` tokens of each run, starting at `starts`. *Shape:* (rows, count)"""

    def begins(self, starts: Int64s) -> Flags:
        """Whether a document begins at a token of its run. *Shape:* (rows,)"""

    def ends(self, runs: Int64s, stops: Int64s) -> Flags:
        """Whether a document ends before a token of its run. *Shape:* (rows,)"""

    def document(self, run: int, start: int) -> tuple[int, int]:
        """Document of a token of a run, and the token's index within it."""


class _Documents:
    """A shard in which each document is a run."""

    def __init__(self, shard: TokenShard) -> None:
        self.shard = shard

    @property
    def lengths(self) -> Int64s:
        return self.shard.ends - self.shard.starts

    def take(self, runs: Int64s, starts: Int64s, count: int) -> npt.NDArray[np.integer]:
        begins = self.shard.starts[runs] + starts
        tokens = self.shard.read(begins, begins + count)
        if len(tokens) >= count and int(begins.max()) <= len(tokens) - count:
            return cast(Tokens, np.lib.stride_tricks.sliding_window_view(tokens, count)[begins])
        return cast(Tokens, tokens[np.minimum(begins[:, None] + np.arange(count), len(tokens) - 1)])

    def begins(self, starts: Int64s) -> Flags:
        return np.equal(starts, 0)

    def ends(self, runs: Int64s, stops: Int64s) -> Flags:
        ends: Flags = self.shard.starts[runs] + stops == self.shard.ends[runs]
        return ends

    def document(self, run: int, start: int) -> tuple[int, int]:
        return run, start


class _Joined:
    """A shard whose documents form one run, joined by separators; empty documents are dropped."""

    def __init__(self, shard: TokenShard, separator: int) -> None:
        self.shard, self._separator = shard, separator
        self._documents = np.flatnonzero(shard.ends > shard.starts)
        self._starts: Int64s = shard.starts[self._documents]
        sizes = shard.ends[self._documents] - self._starts
        self._ends: Int64s = np.cumsum(sizes + 1) - 1  # position in the run of the separator after each document

    @property
    def lengths(self) -> Int64s:
        return self._ends[-1:]

    def take(self, runs: Int64s, starts: Int64s, count: int) -> npt.NDArray[np.integer]:
        rows, total = len(starts), int(self._ends[-1])
        first = np.searchsorted(self._ends, starts)
        last = np.searchsorted(self._ends, np.minimum(starts + count, total) - 1)
        # A part is what one document and its separator contribute to one row; the parts of a row fill it.
        parts = last - first + 1
        row = np.repeat(np.arange(rows), parts)
        document = np.repeat(first - np.cumsum(parts) + parts, parts) + np.arange(len(row))
        shift = row * count - starts[row]  # from positions in the run to positions in the block of rows
        document_starts = np.where(document > 0, self._ends[document - 1] + 1, 0)
        begins = np.maximum(document_starts + shift, row * count)
        sizes = np.diff(begins, append=rows * count)
        shifts = self._starts[document] - document_starts - shift
        index = np.arange(rows * count) + np.repeat(shifts, sizes)
        tokens = self.shard.read(begins + shifts, begins + shifts + sizes)
        block = np.asarray(tokens[np.minimum(index, len(tokens) - 1)])
        separators = self._ends[document] + shift
        block[separators[separators < (row + 1) * count]] = self._separator
        return block.reshape(rows, count)

    def begins(self, starts: Int64s) -> Flags:
        return np.equal(starts, 0) | self._at_separators(starts - 1)

    def ends(self, runs: Int64s, stops: Int64s) -> Flags:
        return self._at_separators(stops)

    def _at_separators(self, places: Int64s) -> Flags:
        found = np.searchsorted(self._ends, places).clip(max=len(self._ends) - 1)
        at: Flags = self._ends[found] == places
        return at

    def document(self, run: int, start: int) -> tuple[int, int]:
        number = int(np.searchsorted(self._ends, start))
        first = int(self._ends[number - 1]) + 1 if number else 0
        return int(self._documents[number]), start - first
