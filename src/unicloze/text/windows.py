"""Windows: the rows of text from which objectives make examples, of one segment or a pair of segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from unicloze import keyed
from unicloze.arrays import Flags, Int64s
from unicloze.errors import UsageError
from unicloze.example import select_rows
from unicloze.text.pieces import Places
from unicloze.text.shards import Marks
from unicloze.text.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class Windows:
    """A block of windows "[SOS] S1 [EOS] S2 [EOS]" or "[SOS] S1 [EOS]" (paper Section 2.2), padded on the right.

    Padding holds the id of the padding token.
    """

    token_ids: npt.NDArray[np.int32]  # *Shape:* (rows, window)
    # 0 up to the [EOS] that ends S1, 1 after it, 0 in the padding. *Shape:* (rows, window)
    segment_ids: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]  # Number of tokens in each row, special tokens included. *Shape:* (rows,)
    maskable: Flags  # Text tokens, neither special nor padding. *Shape:* (rows, window)
    keys: npt.NDArray[np.uint64]  # Key of all random draws for a row, see `unicloze.keyed`. *Shape:* (rows,)
    source: npt.NDArray[np.int32]  # Index of the row's source in the corpus. *Shape:* (rows,)
    index: npt.NDArray[np.int64]  # Number of the window within its source. *Shape:* (rows,)
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


Pairs = Literal["contiguous", "next_sentence", "sentence_order"]
Text = npt.NDArray[np.int32]

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

    text: Text
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
    source: Int64s, places: Places, keys: keyed.Bits, *, windows: Int64s, shares: npt.NDArray[np.float64]
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


def any_windows(keys: keyed.Bits, *, windows: Int64s, shares: npt.NDArray[np.float64]) -> tuple[Int64s, Int64s]:
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
