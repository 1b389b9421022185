"""Segment pairs with labels: next-sentence prediction (BERT, UniLM v1) and sentence order (ALBERT).

Whether a row is negative is drawn first and independently, and segment lengths are determined in the same way for both
kinds of row, so lengths say nothing about the label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from unicloze import keyed
from unicloze.arrays import Int64s
from unicloze.errors import UsageError
from unicloze.text.pieces import Places

Pairs = Literal["contiguous", "next_sentence", "sentence_order"]
Text = npt.NDArray[np.int32]

_ONE = np.zeros(1, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class Segments:
    """The text of a block of rows, with S2 directly after S1.

    Args:
        text: Arbitrary after a row's end. *Shape:* (rows, piece)
        lengths: Number of tokens in both segments. *Shape:* (rows,)
        cuts: Number of tokens in S1; equal to `lengths` if there is no S2. *Shape:* (rows,)
        negative: As in `Windows`. *Shape:* (rows,)
    """

    text: Text
    lengths: Int64s
    cuts: Int64s
    negative: npt.NDArray[np.bool_] | None = None


def contiguous(text: Text, lengths: Int64s, keys: keyed.Bits) -> Segments:
    """Cut each piece in two at a uniform place, with neither part empty (UniLMv2, Section 2.2).

    Args:
        text: The pieces. *Shape:* (rows, piece)
        lengths: Number of tokens in each piece. *Shape:* (rows,)
        keys: Key of each row's draws. *Shape:* (rows,)
    """
    return Segments(text=text, lengths=lengths, cuts=_uniform_cuts(lengths, keys))


def _uniform_cuts(lengths: Int64s, keys: keyed.Bits) -> Int64s:
    return keyed.below(keyed.bits(keys, keyed.Stream.SEGMENT_BORDER, _ONE), lengths - 1) + 1


def draw_negative(keys: keyed.Bits) -> npt.NDArray[np.bool_]:
    """Draw the negative rows, each with probability 0.5. *Shape:* (rows,)"""
    return keyed.uniform(keyed.bits(keys, keyed.Stream.NEGATIVE, _ONE)) < 0.5


def other_documents(
    source: Int64s, places: Places, keys: keyed.Bits, *, windows: Int64s, shares: npt.NDArray[np.float64]
) -> tuple[Int64s, Int64s]:
    """Draw a window of another document for each row, uniformly over the windows of all other documents.

    One draw suffices: the windows of a document have consecutive numbers, which are excluded from the range.

    Args:
        source: Source of each row. *Shape:* (rows,)
        places: Location of the rows' own pieces.
        keys: Key of each row's draws. *Shape:* (rows,)
        windows: Number of windows in each source. *Shape:* (sources,)
        shares: How often each source is read, windows x weight. *Shape:* (sources,)

    Returns:
        Source and number of each window. *Shape:* (rows,) each.

    Raises:
        UsageError: There is no other document.
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


def next_sentence(segments: Segments, others: Text, other_lengths: Int64s, negative: npt.NDArray[np.bool_]) -> Segments:
    """Replace S2 of the negative rows with the end of another document's piece (BERT, Section 3.1).

    In positive rows too, S2 is shorter than the other piece: it is limited to one token less, and S1 starts later in its
    piece by as many tokens as S2 loses. So S2 is always the end of a piece and never begins a document, whatever the label.

    Args:
        segments: Result of `contiguous`.
        others: Pieces of other documents; ignored in positive rows. *Shape:* (rows, piece)
        other_lengths: Number of tokens in each, in positive rows too. *Shape:* (rows,)
        negative: Rows to change. *Shape:* (rows,)
    """
    second = np.minimum(segments.lengths - segments.cuts, other_lengths - 1)
    lengths = segments.cuts + second
    dropped = segments.lengths - lengths
    changed = np.flatnonzero(negative | (dropped > 0))
    columns = np.arange(segments.text.shape[1])
    # Side by side, so that one index reads a row from its own text and, after the cut, from the end of the other.
    both = np.concatenate([segments.text[changed], others[changed]], axis=1)
    behind = len(columns) + other_lengths[changed] - lengths[changed] - dropped[changed]
    jump = np.where(negative[changed], behind, 0)[:, None] * (columns >= segments.cuts[changed, None])
    index = columns + dropped[changed, None] + jump
    text = segments.text.copy()
    text[changed] = np.take_along_axis(both, np.minimum(index, both.shape[1] - 1), axis=1)
    return Segments(text=text, lengths=lengths, cuts=segments.cuts, negative=negative)


def sentence_order(
    segments: Segments,
    places: Places,
    index: Int64s,
    keys: keyed.Bits,
    ends_sentence: npt.NDArray[np.bool_],
    negative: npt.NDArray[np.bool_],
) -> Segments:
    """Make S1 and S2 of whole sentences, swapped in the negative rows (ALBERT, Section 3.1).

    The cut is uniform over the sentence ends inside the piece. Incomplete sentences at either end of the piece are dropped,
    because they would reveal the order. A row without two whole sentences keeps the longest stretch of the piece between
    sentence ends, cut uniformly.

    Args:
        segments: Result of `contiguous`.
        places: Location of the pieces.
        index: Number of each piece. *Shape:* (rows,)
        keys: Key of each row's draws. *Shape:* (rows,)
        ends_sentence: Whether an id ends a sentence. *Shape:* (vocabulary,)
        negative: Rows to swap. *Shape:* (rows,)
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
    cuts = np.where(whole, at_end - first, _uniform_cuts(lengths, keys))
    changed = np.flatnonzero(negative | (first > 0))
    turned = columns + np.where(negative, cuts, 0)[changed, None]
    turned -= np.where(turned >= lengths[changed, None], lengths[changed, None], 0)
    text = text.copy()
    text[changed] = np.take_along_axis(text[changed], np.minimum(turned + first[changed, None], piece - 1), axis=1)
    return Segments(text=text, lengths=lengths, cuts=np.where(negative, lengths - cuts, cuts), negative=negative)


def _longest_stretch(ends: npt.NDArray[np.bool_], lengths: Int64s) -> tuple[Int64s, Int64s]:
    """The longest stretch before the first, between the outer, or after the last sentence end; else the whole piece.

    Args:
        ends: Tokens that end a sentence. *Shape:* (rows, piece)
        lengths: Number of tokens in each piece. *Shape:* (rows,)

    Returns:
        Start and stop; the whole piece if no stretch has two tokens. *Shape:* (rows,) each.
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
