"""Windows: the rows of text from which objectives make examples, of one segment or a pair of segments.

Each is made of a piece of text; `cut` locates the pieces of a source.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from unicloze import keyed
from unicloze.arrays import Flags, Float64s, Int32s, Int64s
from unicloze.errors import UsageError
from unicloze.example import select_rows
from unicloze.text.digests import Mapped
from unicloze.text.shards import Marks, TokenShard, TokenSource
from unicloze.text.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class Windows:
    """A block of windows "[SOS] S1 [EOS] S2 [EOS]" or "[SOS] S1 [EOS]" (paper Section 2.2), padded on the right.

    Padding holds the id of the padding token.
    """

    token_ids: Int32s  # *Shape:* (rows, window)
    # 0 up to the [EOS] that ends S1, 1 after it, 0 in the padding. *Shape:* (rows, window)
    segment_ids: Int32s
    lengths: Int32s  # Number of tokens in each row, special tokens included. *Shape:* (rows,)
    maskable: Flags  # Text tokens, neither special nor padding. *Shape:* (rows, window)
    keys: npt.NDArray[np.uint64]  # Key of all random draws for a row, see `unicloze.keyed`. *Shape:* (rows,)
    source: Int32s  # Index of the row's source in the corpus. *Shape:* (rows,)
    index: Int64s  # Number of the window within its source. *Shape:* (rows,)
    # Whether S2 does not follow S1 in the text (it is from another document, or precedes it); None if it always
    # follows. *Shape:* (rows,)
    negative: Flags | None = None
    # Whether a token belongs to the same phrase as the token before it; None without a phrase table. *Shape:* (rows,
    # window)
    joined: Flags | None = None
    # Bytes of the spans that documents give, see `unicloze.text.phrases`, 0 at special tokens; None if they are not read.
    # *Shape:* (rows, window)
    marks: npt.NDArray[np.uint8] | None = None
    # Whether a row is adjacent in its text to the same row of the previous batch (segment recurrence); None unless
    # windows are read as streams. *Shape:* (rows,)
    continues: Flags | None = None
    # Tokens that a window adds to the memory of its stream, where windows overlap; None if all of them. *Shape:* (rows,
    # window)
    new: Flags | None = None
    # Whether a row's stream runs from the end of the text to its beginning; None if none does. *Shape:* (rows,)
    backward: Flags | None = None
    # Which special tokens stand where the text was cut inside a document, and so say nothing about where documents
    # begin and end; None if none does. *Shape:* (rows, window)
    cut: Flags | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

    def __getitem__(self, rows: slice) -> Windows:
        return select_rows(self, rows)

    @property
    def ends_cut(self) -> Flags:
        """Whether the text goes on after a row's last [EOS]. *Shape:* (rows,)"""
        if self.cut is None:
            return np.zeros(len(self), dtype=bool)
        return self.cut[np.arange(len(self)), self.lengths - 1]


def without_start(windows: Windows) -> Windows:
    """The windows without their [SOS]."""
    columns = {name: getattr(windows, name) for name in Windows.__dataclass_fields__}
    later = {name: column[:, 1:] for name, column in columns.items() if column is not None and column.ndim == 2}
    return replace(windows, lengths=windows.lengths - 1, **later)


def split_segments(pieces: Sequence[npt.NDArray[np.integer]], keys: keyed.Bits) -> list[list[npt.NDArray[np.integer]]]:
    """Split each piece into S1 and S2 where the sampler would, given its length and key: uniformly, neither empty."""
    cuts = uniform_cuts(np.array([len(piece) for piece in pieces], dtype=np.int64), keys)
    return [[piece[:cut], piece[cut:]] for piece, cut in zip(pieces, cuts.tolist(), strict=True)]


def windows_of(
    rows: Sequence[Sequence[npt.NDArray[np.integer]]], vocabulary: Vocabulary, *, keys: keyed.Bits
) -> Windows:
    """Make windows from given text instead of a corpus, padded to the longest."""
    lengths = np.array([1 + sum(len(segment) + 1 for segment in row) for row in rows], dtype=np.int32)
    shape = len(rows), int(lengths.max(initial=1))
    token_ids = np.full(shape, vocabulary.pad, dtype=np.int32)
    segment_ids = np.zeros(shape, dtype=np.int32)
    token_ids[:, 0] = vocabulary.sos
    for number, row in enumerate(rows):
        start = 1
        for segment, ids in enumerate(row):
            end = start + len(ids)
            token_ids[number, start:end] = ids
            token_ids[number, end] = vocabulary.eos
            segment_ids[number, start : end + 1] = segment
            start = end + 1
    return Windows(
        token_ids=token_ids,
        segment_ids=segment_ids,
        lengths=lengths,
        maskable=~np.isin(token_ids, vocabulary.special),
        keys=keys,
        source=np.zeros(len(rows), dtype=np.int32),
        index=np.arange(len(rows), dtype=np.int64),
    )


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


def cut(source: TokenSource, *, piece: int, least: int, separator: int | None, stride: int | None) -> Pieces:
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
        number = documents[:rows][row] + within - self._source.bounds[run]
        begins_in_shard, ends = self._source.shards[run].bounds(number)
        values = _with_separator(ends - begins_in_shard)
        sums = np.cumsum(values) - values
        begins_in_run = sums - sums[within == 0][row] + before[:rows][row] - self._before[run]
        some = values > 0
        columns = row, begins_in_shard, begins_in_run, values
        row, begins_in_shard, begins_in_run, values = (column[some] for column in columns)
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


Pairs = Literal["contiguous", "next_sentence", "sentence_order"]

_ONE = np.zeros(1, dtype=np.int64)


# Whether a row is negative is drawn first and independently, and segment lengths are determined in the same way for
# both kinds of row, so lengths say nothing about the label.


@dataclass(frozen=True, kw_only=True)
class Segments:
    """The text of a block of rows, with S2 directly after S1.

    Args:
        text: Arbitrary after a row's end. *Shape:* (rows, piece)
        lengths: Number of tokens in both segments. *Shape:* (rows,)
        cuts: Number of tokens in S1; equal to `lengths` if there is no S2. *Shape:* (rows,)
        negative: As in `Windows`. *Shape:* (rows,)
        marks: Bytes of the spans of the text. *Shape:* (rows, piece)
        new: Which tokens no neighbouring window remembers; None if all of them. *Shape:* (rows, piece)
    """

    text: Int32s
    lengths: Int64s
    cuts: Int64s
    negative: Flags | None = None
    marks: Marks | None = None
    new: Flags | None = None

    def reread(self, rows: Int64s, index: Int64s, others: Segments, **changes: Any) -> Segments:
        """Read some rows from their own piece and another, side by side, at the given places.

        Args:
            rows: The rows to change. *Shape:* (changed rows,)
            index: Places to read. *Shape:* (changed rows, piece)
            others: The other pieces, of which no token is new.
            changes: Other fields to change.
        """

        def values(own: Any, other: Any) -> Any:
            if own is None or other is None:
                return None
            changed = own.copy()
            changed[rows] = np.take_along_axis(np.concatenate([own[rows], other[rows]], axis=1), index, axis=1)
            return changed

        new = None if self.new is None else np.zeros_like(self.new)
        columns = {"text": others.text, "marks": others.marks, "new": new}
        return replace(
            self, **{name: values(getattr(self, name), column) for name, column in columns.items()}, **changes
        )


def uniform_cuts(lengths: Int64s, keys: keyed.Bits) -> Int64s:
    """Uniform places to cut pieces in two, with neither part empty (UniLMv2, Section 2.2). *Shape:* (rows,)"""
    return keyed.below(keyed.bits(keys, keyed.Stream.SEGMENT_BORDER, _ONE), lengths - 1) + 1


def draw_negative(keys: keyed.Bits) -> Flags:
    """Draw the negative rows, each with probability 0.5. *Shape:* (rows,)"""
    return keyed.uniform(keyed.bits(keys, keyed.Stream.NEGATIVE, _ONE)) < 0.5


def other_documents(
    source: Int64s, places: Places, keys: keyed.Bits, *, windows: Int64s, shares: Float64s
) -> tuple[Int64s, Int64s]:
    """Draw a window of another document for each row, uniformly over the windows of all other documents.

    One draw suffices: the windows of a document have consecutive numbers, which are excluded from the range.
    """
    rows, own = np.arange(len(source)), places.last - places.first
    mass = np.repeat(shares[None, :], len(source), axis=0)
    mass[rows, source] *= 1 - own / windows[source]
    bounds = np.cumsum(mass, axis=1)
    if not bounds[:, -1].all():
        raise UsageError(
            "objective.pairs is next_sentence, but all windows are from one document: give more documents (in .txt files, "
            "separated by blank lines), raise --data.heldout_share if this is the held-out text, or set "
            "--objective.pairs contiguous."
        )
    draws = keyed.uniform(keyed.bits(keys, keyed.Stream.OTHER_SOURCE, _ONE)) * bounds[:, -1]
    other = (bounds <= draws[:, None]).sum(axis=1)
    own = np.where(other == source, own, 0)
    index = keyed.below(keyed.bits(keys, keyed.Stream.OTHER_WINDOW, _ONE), windows[other] - own)
    return other, np.where(index >= places.first, index + own, index)


def next_sentence(segments: Segments, others: Segments, negative: Flags) -> Segments:
    """Replace S2 of the negative rows with the end of another document's piece (BERT, Section 3.1).

    In positive rows too, S2 is shorter than the other piece: it is limited to one token less, and S1 starts later in its
    piece by as many tokens as S2 loses. So S2 is always the end of a piece and never begins a document, whatever the label.

    Args:
        segments: The rows, cut in two at `uniform_cuts`.
        others: Pieces of other documents, with their lengths in positive rows too.
        negative: Rows to change. *Shape:* (rows,)
    """
    second = np.minimum(segments.lengths - segments.cuts, others.lengths - 1)
    lengths = segments.cuts + second
    dropped = segments.lengths - lengths
    changed = np.flatnonzero(negative | (dropped > 0))
    columns = np.arange(segments.text.shape[1])
    behind = len(columns) + others.lengths[changed] - lengths[changed] - dropped[changed]
    jump = np.where(negative[changed], behind, 0)[:, None] * (columns >= segments.cuts[changed, None])
    index = np.minimum(columns + dropped[changed, None] + jump, 2 * len(columns) - 1)
    return segments.reread(changed, index, others, lengths=lengths, negative=negative)


def beside_new_text(segments: Segments, keys: keyed.Bits, stride: int, backward: Flags) -> Segments:
    """Cut overlapping pieces so that the text a window adds to the memory is whole in one segment (XLNet, Section 2.5).

    Windows of a stream advance by `stride` tokens, and each window adds as many to the memory: the first of its piece, or in
    backward rows the last. These tokens and a part of the others are the segment next to the memory. The rest, cut off at a
    uniform place, is the other segment: the second, or in backward rows the first. Neither part of the others is empty.
    """
    lengths, piece = segments.lengths, segments.text.shape[1]
    new = np.where(backward, np.maximum(0, lengths - (piece - stride)), np.minimum(stride, lengths))
    others = lengths - new
    draws = keyed.bits(keys, keyed.Stream.SEGMENT_BORDER, _ONE)
    beside = keyed.below(draws, np.maximum(1, others - 1)) + 1
    cuts = np.where(others < 2, segments.cuts, np.where(backward, others - beside, new + beside))
    place = np.arange(piece) + np.where(backward, new - lengths, 0)[:, None]
    return replace(segments, cuts=cuts, new=(place >= 0) & (place < new[:, None]))


def random_segment(segments: Segments, others: Segments, negative: Flags, backward: Flags) -> Segments:
    """Replace the segment apart from the memory with the beginning of another piece (XLNet, Section 2.5).

    This is the second segment, or in backward rows the first. Its length stays the same if the other piece has enough tokens.

    Args:
        segments: Result of `beside_new_text`.
        others: Pieces drawn from all text.
        negative: Rows to change. *Shape:* (rows,)
        backward: Rows whose memory is of the text behind them. *Shape:* (rows,)
    """
    piece = segments.text.shape[1]
    before = np.where(backward, segments.cuts, segments.lengths - segments.cuts)
    after = np.where(negative, np.minimum(before, others.lengths), before)
    cuts = np.where(backward, after, segments.cuts)
    changed = np.flatnonzero(negative)
    columns, backward, cut = np.arange(piece), backward[changed, None], cuts[changed, None]
    inside = np.where(backward, columns < cut, columns >= cut)
    own = columns + np.where(backward, (before - after)[changed, None], 0)
    index = np.where(inside, piece + columns - np.where(backward, 0, cut), own).clip(max=2 * piece - 1)
    lengths = segments.lengths - before + after
    return segments.reread(changed, index, others, lengths=lengths, cuts=cuts, negative=negative)


def any_windows(keys: keyed.Bits, *, windows: Int64s, shares: Float64s) -> tuple[Int64s, Int64s]:
    """Draw a window of any source for each row, by the sources' shares; see `other_documents`."""
    bounds = np.cumsum(shares)
    draws = keyed.uniform(keyed.bits(keys, keyed.Stream.OTHER_SOURCE, _ONE)) * bounds[-1]
    source = np.searchsorted(bounds, draws, side="right")
    return source, keyed.below(keyed.bits(keys, keyed.Stream.OTHER_WINDOW, _ONE), windows[source])


def sentence_order(
    segments: Segments, places: Places, index: Int64s, keys: keyed.Bits, ends_sentence: Flags, negative: Flags
) -> Segments:
    """Make S1 and S2 of whole sentences, swapped in the negative rows (ALBERT, Section 3.1).

    The cut is uniform over the sentence ends inside the piece. Incomplete sentences at either end of the piece are dropped,
    because they would reveal the order. A row without two whole sentences keeps the longest stretch of the piece between
    sentence ends, cut uniformly.
    """
    text, lengths = segments.text, segments.lengths
    piece = text.shape[1]
    columns = np.arange(piece)
    ends = ends_sentence[text] & (columns < lengths[:, None])
    # A piece begins with a whole sentence where its document does.
    first = np.where(index == places.first, 0, ends.argmax(axis=1) + 1)
    last = piece - ends[:, ::-1].argmax(axis=1)
    inner = ends & (columns >= first[:, None]) & (columns < last[:, None] - 1)
    count = inner.sum(axis=1)
    whole = count > 0
    which = keyed.below(keyed.bits(keys, keyed.Stream.SENTENCE_BORDER, _ONE), np.maximum(count, 1))
    at_end = (np.cumsum(inner, axis=1) > which[:, None]).argmax(axis=1) + 1
    start, stop = _longest_stretch(ends, lengths)
    first, last = np.where(whole, first, start), np.where(whole, last, stop)
    lengths = last - first
    cuts = np.where(whole, at_end - first, uniform_cuts(lengths, keys))
    changed = np.flatnonzero(negative | (first > 0))
    turned = columns + np.where(negative, cuts, 0)[changed, None]
    turned -= np.where(turned >= lengths[changed, None], lengths[changed, None], 0)
    taken = np.minimum(turned + first[changed, None], piece - 1)
    cuts = np.where(negative, lengths - cuts, cuts)
    return segments.reread(changed, taken, segments, lengths=lengths, cuts=cuts, negative=negative)


def _longest_stretch(ends: Flags, lengths: Int64s) -> tuple[Int64s, Int64s]:
    """The longest stretch before the first, between the outer, or after the last sentence end; else the whole piece.

    Args:
        ends: Tokens that end a sentence. *Shape:* (rows, piece)
        lengths: Number of tokens in each piece. *Shape:* (rows,)
    """
    some, rows = ends.any(axis=1), np.arange(len(lengths))
    at_first = np.where(some, ends.argmax(axis=1), lengths)
    at_last = np.where(some, ends.shape[1] - 1 - ends[:, ::-1].argmax(axis=1), lengths)
    starts = np.stack([np.zeros_like(lengths), at_first + 1, at_last + 1])
    stops = np.stack([at_first, at_last, lengths])
    longest = (stops - starts).argmax(axis=0)
    start, stop = starts[longest, rows], stops[longest, rows]
    short = stop - start < 2
    return np.where(short, 0, start), np.where(short, lengths, stop)
