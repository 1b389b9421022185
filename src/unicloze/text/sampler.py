"""Samples windows from token shards, in an order that is a function of (seed, position).

Text is cut into consecutive pieces of `window - 1 - segments` tokens, per document or from all documents joined
(`unicloze.text.windows`); each piece becomes one window "[SOS] S1 [EOS] S2 [EOS]" (paper Section 2.2) or "[SOS] S1 [EOS]".
An epoch visits the windows of each source `weight` times, in an order that is computed rather than stored:
reading is random access, and the state of a run is its position.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from unicloze import keyed
from unicloze.arrays import Flags, Int32s, Int64s
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import select_rows
from unicloze.text import windows as pairing
from unicloze.text.phrases import PhraseTable
from unicloze.text.shards import TokenSource
from unicloze.text.sources import check_ids
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Column, Pairs, Pieces, Places, Segments, Windows, cut

# A sample is one visit to a window within an epoch, numbered from 0 in the order of the text.


def shuffled(positions: Int64s, size: int, seed: int) -> tuple[Int64s, Int64s]:
    """Epoch and sample at each position; each epoch is a keyed permutation of its samples. *Shape:* (positions,) each."""
    epochs, ranks = np.divmod(positions, size)
    samples = np.empty(len(positions), dtype=np.int64)
    for epoch in np.unique(epochs):
        rows = epochs == epoch
        samples[rows] = keyed.permutation(ranks[rows], size, keyed.key(seed, keyed.Purpose.EPOCH_ORDER, int(epoch))[0])
    return epochs, samples


Directions = Literal["forward", "backward", "both"]
"""Directions of the lanes: all forward, all backward, or one half each."""


def streams(
    positions: Int64s, size: int, seed: int, lanes: int, directions: Directions = "forward"
) -> tuple[Int64s, Int64s, Flags, Flags]:
    """Epoch and sample at each position, for `lanes` parallel streams that each advance by one sample per step.

    An epoch is a ring of its samples. Lanes start at evenly spaced places, rotated by a keyed shift each epoch, and take
    equally many steps; samples left at the end of some lanes (fewer than `lanes`) are reached by another epoch's shift.

    Returns:
        Epoch, sample, whether the lane begins there, and whether it goes backward. *Shape:* (positions,) each
    """
    steps = max(1, size // lanes)
    epochs, within = np.divmod(positions, steps * lanes)
    places, begins, backward = _in_lanes(within, steps, size, lanes, directions)
    shift = keyed.below(keyed.key(seed, keyed.Purpose.LANE_SHIFT, epochs), size)
    return epochs, (places + shift) % size, begins, backward


def _in_lanes(within: Int64s, steps: int, size: int, lanes: int, directions: Directions) -> tuple[Int64s, Flags, Flags]:
    """Place of each position in evenly spaced lanes of `steps` consecutive places; whether its lane begins, or goes back."""
    step, lane = np.divmod(within, lanes)
    backward = np.full(lane.shape, directions == "backward")
    if directions == "both":  # the second half of the lanes, but not a single lane
        backward = 2 * lane >= lanes + lanes % 2
    return lane * size // lanes + np.where(backward, steps - 1 - step, step), step == 0, backward


def evenly_spaced(count: int, size: int) -> Int64s:
    """`count` evenly spaced numbers below `size`. *Shape:* (count,)"""
    return np.arange(count, dtype=np.int64) * size // count


SHORTEST, DEVIATION, HALVED = 5, 5.0, 0.05
"""Fewest tokens of a step, standard deviation of their number, and share of the steps around half of the mean (Merity et al.
2018, Section 5; the released code)."""
LONGEST = 4
"""Deviations above the mean at which a length is cut."""
LENGTH = 2**20 + 11
"""Stream of the draws of lengths."""


# The windows of a step are sequences of windows of a single token each, so that the text at a step is a function of
# the step alone: the streams go on where the lengths of all steps before it have brought them.


def lengths_of(steps: Int64s, mean: int, seed: int) -> Int64s:
    """Tokens of each step: around `mean`, in a twentieth of the steps around half of it. *Shape:* (steps,)"""
    draws = keyed.uniform(keyed.bits(keyed.key(seed, LENGTH, steps)[:, None], keyed.Stream.ONLY, np.arange(3)))
    centre = np.where(draws[:, 0] < HALVED, mean / 2, mean)
    normal = np.sqrt(-2 * np.log1p(-draws[:, 1])) * np.cos(2 * np.pi * draws[:, 2])
    drawn = (centre + DEVIATION * normal.clip(-LONGEST, LONGEST)).astype(np.int64)
    lengths: Int64s = np.maximum(SHORTEST, drawn)
    return lengths


_CHECKED_WINDOWS = 256


@dataclass(frozen=True, kw_only=True)
class WindowName:
    """Location of a window's text."""

    source: str  # name of the source
    file: str  # file of the document
    line: int | None  # line of the file where the document begins (row of a table), from 1; None if unknown
    document: int  # index of the document among those of the file in the shard
    first_token: int  # index of the window's first token within the document
    byte: int | None  # its approximate byte offset in the document's text; None if unknown

    def __str__(self) -> str:
        place = "" if self.byte is None else f", near byte {self.byte}"
        document = f"document {self.document}" if self.line is None else f"line {self.line}"
        return f"{self.file}, {document}, token {self.first_token}{place}"


class WindowSampler:
    """Random access to the windows of some sources.

    Args:
        sources: Sources of the windows.
        window: Length of a window in tokens, special tokens included.
        segments: 2 for "[SOS] S1 [EOS] S2 [EOS]" with a uniform split point, 1 for "[SOS] S1 [EOS]".
            Pieces with fewer tokens than segments are dropped.
        vocabulary: Ids of the special tokens.
        seed: Key of the order and all draws.
        weights: Passes over each source per epoch; default: 1. A fractional pass continues where the previous epoch
            stopped.
        documents: `separate` cuts windows within documents, `joined` from all documents of a shard with an [EOS] between
            them, so that all windows of a shard but the last are full (RoBERTa's FULL-SENTENCES).
        order: `shuffled`, or `streams`: each row of a batch continues the same row of the previous batch, for segment
            recurrence (Transformer-XL, XLNet).
        directions: `backward` runs the streams from the end of the text to its beginning, `both` half of them.
        phrases: Phrases to mark in the windows, as `Windows.joined`.
        spans: Read the spans that documents give, as `Windows.marks`.
        overlap: Share of the text of a window in `streams` that the next window reads again.
    """

    def __init__(
        self,
        sources: Sequence[TokenSource],
        *,
        window: int,
        segments: int,
        vocabulary: Vocabulary,
        seed: int,
        weights: Sequence[float] | None = None,
        documents: Literal["separate", "joined"] = "separate",
        order: Literal["shuffled", "streams"] = "shuffled",
        directions: Directions = "forward",
        phrases: PhraseTable | None = None,
        spans: bool = False,
        overlap: float = 0.0,
    ) -> None:
        least = 1 + 2 * segments
        if window < least:
            raise UsageError(
                f"data.window is {window}, too short for {1 + segments} special tokens and {segments} of text: "
                f"set it to at least {least}."
            )
        if weights is not None and len(weights) != len(sources):
            raise UsageError(f"data.weights has {len(weights)} values for {len(sources)} sources: give one per source.")
        if weights is not None and (min(weights) < 0 or not np.isfinite(weights).all()):
            raise UsageError(f"data.weights contains {min(weights)}: weights must be at least 0.")
        self.sources = tuple(sources)
        self._phrases, self._spans = phrases, spans
        self.window, self.segments, self.vocabulary, self.seed = window, segments, vocabulary, seed
        self.documents, self.order, self.directions = documents, order, directions
        self._piece = window - 1 - segments
        self._stride = self._piece - round(overlap * self._piece) if overlap else None
        separator = vocabulary.eos if documents == "joined" else None
        self._pieces: list[Pieces] = [
            cut(source, piece=self._piece, least=segments, separator=separator, stride=self._stride)
            for source in self.sources
        ]
        self.source_windows: Int64s = np.array([pieces.count for pieces in self._pieces], dtype=np.int64)
        factors = np.ones(len(self.sources)) if weights is None else np.asarray(weights, dtype=np.float64)
        self._quotas: Int64s = np.rint(factors * self.source_windows).astype(np.int64)
        empty = [source.name for source, count in zip(self.sources, self.source_windows, strict=True) if not count]
        if empty and weights is not None and len(empty) < len(self.sources):
            warnings.warn(
                f"data.weights has no effect on {', '.join(empty)}: none of their documents is long enough for a window",
                stacklevel=2,
            )
        for source, factor, quota, count in zip(self.sources, factors, self._quotas, self.source_windows, strict=True):
            if factor > 0 and count and not quota:
                raise UsageError(
                    f"data.weights gives {source.name} {factor:g} of its windows, which rounds to none: "
                    "raise it, or drop the source."
                )
        self.num_windows = int(self.source_windows.sum())
        self.epoch_size = int(self._quotas.sum())
        if not self.epoch_size:
            raise UniclozeError(
                f"There is no window in {', '.join(source.name for source in self.sources) or 'the sources'}: "
                "every document is too short, or every weight is 0; add text."
            )
        self._special = np.zeros(vocabulary.size, dtype=bool)
        self._special[vocabulary.special] = True

    @property
    def rows_of_a_pass(self) -> float:
        """Number of windows read, of all sources, while the source with the largest weight is read once."""
        return self.epoch_size / float((self._quotas / np.maximum(1, self.source_windows)).max())

    def read(
        self, start: int, count: int, *, pairs: Pairs = "contiguous", static_copies: int | None = None, lanes: int = 1
    ) -> Windows:
        """The windows at positions `start` to `start + count`, counted over all epochs."""
        positions = np.arange(start, start + count, dtype=np.int64)
        begins = backward = None
        if self.order == "streams":
            epochs, samples, begins, backward = streams(positions, self.epoch_size, self.seed, lanes, self.directions)
        else:
            epochs, samples = shuffled(positions, self.epoch_size, self.seed)
        bounds = np.cumsum(self._quotas)
        source = np.searchsorted(bounds, samples, side="right")
        within = samples - (bounds - self._quotas)[source]
        passes, index = np.divmod(epochs * self._quotas[source] + within, self.source_windows[source])
        if begins is None or backward is None:
            self._shuffle_parts(source, passes, index)
        else:
            begins |= within == np.where(backward, self._quotas[source] - 1, 0)
        if static_copies is None:
            keys = keyed.key(self.seed, epochs, samples)
        else:
            keys = keyed.key(self.seed, keyed.Purpose.STATIC_COPY, source, index, passes % static_copies)
        return self._windows(source, index, keys, pairs, self._quotas, begins, backward)

    def rate_at(self, position: int, lanes: int) -> float:
        """Factor of the learning rate of the step at a position."""
        return 1.0

    def sequential(self, count: int, *, pairs: Pairs = "contiguous", lanes: int = 1) -> Windows:
        """At most `count` windows for evaluation, spread evenly over the sources and independent of the seed."""
        count, begins, backward = min(count, self.num_windows), None, None
        if self.order == "streams":
            lanes = min(lanes, count)
            within = np.arange(count // lanes * lanes, dtype=np.int64)
            numbers, begins, backward = _in_lanes(within, count // lanes, self.num_windows, lanes, self.directions)
        else:
            numbers = evenly_spaced(count, self.num_windows)
        bounds = np.cumsum(self.source_windows)
        source = np.searchsorted(bounds, numbers, side="right")
        index = numbers - (bounds - self.source_windows)[source]
        keys = keyed.key(keyed.Purpose.HELDOUT_WINDOW, source, index)
        return self._windows(source, index, keys, pairs, self.source_windows, begins, backward)

    def texts_before(self, windows: Windows, count: int) -> list[list[Int32s]]:
        """Text of at most `count` windows before each window in the same run of text, in order."""
        found = []
        for source, index in zip(windows.source.astype(np.int64), windows.index, strict=True):
            first = int(self._pieces[source].place(np.array([index])).first[0])
            numbers = np.arange(max(first, int(index) - count), int(index))
            _, text = self._read(np.full(len(numbers), source), numbers)
            found.append([row[:length] for row, length in zip(text.text, text.lengths.tolist(), strict=True)])
        return found

    def name(self, source: int, index: int) -> WindowName:
        """Location of a window; if it spans several documents, the document of its first token."""
        place = self._pieces[source].place(np.array([index]))
        shard, document, first_token = self._pieces[source].document(int(place.run[0]), int(place.start[0]))
        at, byte = np.array([document]), None
        numbers = shard.numbers(at)
        if shard.sizes is not None:
            before, size = shard.sizes.with_before(numbers)
            byte = int((size - before)[0]) * first_token // max(1, int(shard.lengths(at)[0]))
        stored = int(numbers[0])
        file, first_document = next(entry for entry in reversed(shard.files) if entry[1] <= stored)
        return WindowName(
            source=self.sources[source].name,
            file=file,
            line=None if shard.lines is None else int(shard.lines[numbers][0]) or None,
            document=stored - first_document,
            first_token=first_token,
            byte=byte,
        )

    def _shuffle_parts(self, source: Int64s, passes: Int64s, index: Int64s) -> None:
        """Shuffle the windows of sources read in fractional passes, so that a part of a pass is not the source's start."""
        for number in np.flatnonzero(self._quotas % self.source_windows.clip(1)):
            for one_pass in np.unique(passes[source == number]):
                rows = (source == number) & (passes == one_pass)
                order = keyed.key(self.seed, keyed.Purpose.SOURCE_ORDER, int(number), int(one_pass))[0]
                index[rows] = keyed.permutation(index[rows], int(self.source_windows[number]), order)

    def _read(self, source: Int64s, index: Int64s, rows: Flags | None = None) -> tuple[Places, Segments]:
        """Locations of some windows, and the text of all or of the given rows as one segment, zeros elsewhere."""
        columns = {field: np.empty(len(index), dtype=np.int64) for field in Places.__dataclass_fields__}
        text = np.zeros((len(source), self._piece), dtype=np.int32)
        read: dict[Column, npt.NDArray[Any]] = {"tokens": text}
        if self._spans:
            read["marks"] = np.zeros(text.shape, dtype=np.uint8)
        for number in np.unique(source):
            mine, pieces = source == number, self._pieces[number]
            places = pieces.place(index[mine])
            for field, column in columns.items():
                column[mine] = getattr(places, field)
            taken = mine if rows is None else mine & rows
            if taken.any():
                for name, values in read.items():
                    block = values[taken]
                    pieces.read(block, columns["run"][taken], columns["start"][taken], name)
                    values[taken] = block
                check_ids(self.sources[number].shards[0].path, text[taken], self.vocabulary.size)
        places = Places(**columns)
        return places, Segments(text=text, lengths=places.length, cuts=places.length, marks=read.get("marks"))

    def _segments(
        self, source: Int64s, index: Int64s, keys: keyed.Bits, pairs: Pairs, quotas: Int64s, backward: Flags
    ) -> tuple[Places, Segments]:
        """Locations of some windows, and their text as S1 and S2."""
        places, segments = self._read(source, index)
        if self.segments == 1:
            return places, segments
        segments = replace(segments, cuts=pairing.uniform_cuts(places.length, keys))
        if self._stride is not None:
            segments = pairing.beside_new_text(segments, keys, self._stride, backward)
        if pairs == "contiguous":
            return places, segments
        negative, shares = pairing.draw_negative(keys), quotas.astype(np.float64)
        if pairs == "sentence_order":
            ends = self.vocabulary.ends_sentence
            return places, pairing.sentence_order(segments, places, index, keys, ends, negative)
        if self._stride is not None:
            other = pairing.any_windows(keys, windows=self.source_windows, shares=shares)
            return places, pairing.random_segment(segments, self._read(*other, negative)[1], negative, backward)
        other = pairing.other_documents(source, places, keys, windows=self.source_windows, shares=shares)
        return places, pairing.next_sentence(segments, self._read(*other, negative)[1], negative)

    def _windows(
        self,
        source: Int64s,
        index: Int64s,
        keys: keyed.Bits,
        pairs: Pairs,
        quotas: Int64s,
        begins: Flags | None,
        backward: Flags | None,
    ) -> Windows:
        if pairs != "contiguous" and self.order == "streams" and not (pairs == "next_sentence" and self._stride):
            raise UsageError(
                f"objective.pairs is {pairs}, but data.order streams reads the text in its original order: set "
                "--objective.pairs contiguous, or next_sentence with --data.overlap."
            )
        if pairs != "contiguous" and not self._stride and (self.segments == 1 or self.documents == "joined"):
            raise UsageError(
                f"objective.pairs is {pairs}, which needs two segments of one document: set --data.segments 2 and "
                "--data.documents separate."
            )
        turned = np.zeros(len(index), dtype=bool) if backward is None else backward
        places, segments = self._segments(source, index, keys, pairs, quotas, turned)
        token_ids, segment_ids = self._lay_out(segments)
        lengths = (segments.lengths + 1 + self.segments).astype(np.int32)
        within_run = np.where(turned, index + 1 < places.last, index > places.first)
        maskable = ~self._special[token_ids]
        return Windows(
            token_ids=token_ids,
            segment_ids=segment_ids,
            lengths=lengths,
            maskable=maskable,
            joined=None if self._phrases is None else self._phrases.joined(token_ids, maskable),
            marks=None if segments.marks is None else self._at_text(segments.marks, segments),
            new=None if segments.new is None else self._at_text(segments.new, segments),
            keys=keys,
            source=source.astype(np.int32),
            index=index,
            negative=segments.negative,
            continues=None if begins is None else ~begins & within_run,
            backward=None if self.directions == "forward" else backward,
            cut=self._cut(source, places, lengths, segments) if pairs == "contiguous" else None,
        )

    def _cut(self, source: Int64s, places: Places, lengths: Int32s, segments: Segments) -> Flags:
        """`Windows.cut` of contiguous text: the [EOS] of S1 is always a cut. *Shape:* (rows, window)"""
        cut, rows = np.zeros((len(source), self.window), dtype=bool), np.arange(len(source))
        if self.segments == 2:
            cut[rows, segments.cuts + 1] = True
        for number in np.unique(source):
            mine = np.flatnonzero(source == number)
            begins, ends = self._pieces[number].whole(select_rows(places, mine))
            cut[mine, 0], cut[mine, lengths[mine] - 1] = ~begins, ~ends
        return cut

    def _at_text(self, values: npt.NDArray[Any], segments: Segments) -> npt.NDArray[Any]:
        """Values of the text of S1 and S2 at its columns, 0 at the others. *Shape:* (rows, window)"""
        columns = np.arange(self.window)
        placed = np.zeros((len(values), self.window), dtype=values.dtype)
        placed[:, 1 : self._piece + 1] = values
        if self.segments == 2:
            middle = (segments.cuts + 1)[:, None]
            np.copyto(placed[:, 2:-1], values, where=(columns > middle)[:, 2:-1])
            np.put_along_axis(placed, middle, 0, axis=1)
        np.copyto(placed, placed.dtype.type(0), where=columns >= (segments.lengths + self.segments)[:, None])
        return placed

    def _lay_out(self, segments: Segments) -> tuple[Int32s, Int32s]:
        """Token ids and segment ids of windows. *Shape:* (rows, window) each."""
        rows, columns = np.arange(len(segments.text)), np.arange(self.window, dtype=np.int32)
        last = (segments.lengths + self.segments).astype(np.int32)
        token_ids = self._at_text(segments.text, segments)
        np.copyto(token_ids, np.int32(self.vocabulary.pad), where=columns > last[:, None])
        segment_ids = np.zeros_like(token_ids)
        token_ids[:, 0], token_ids[rows, last] = self.vocabulary.sos, self.vocabulary.eos
        if self.segments == 2:
            middle = (segments.cuts + 1).astype(np.int32)
            token_ids[rows, middle] = self.vocabulary.eos
            segment_ids = ((columns > middle[:, None]) & (columns <= last[:, None])).astype(np.int32)
        return token_ids, segment_ids


def check_segment_pairs(sampler: WindowSampler, pairs: Pairs) -> None:
    """Reject text that does not allow such segment pairs."""
    windows = sampler.sequential(_CHECKED_WINDOWS, pairs=pairs)
    if pairs != "sentence_order" or windows.negative is None:
        return
    # The segment that comes first in the text ends at its row's cut.
    cuts = windows.lengths - windows.segment_ids.sum(axis=1) - 2
    ends = np.where(windows.negative, windows.lengths - 2, cuts)
    share = sampler.vocabulary.ends_sentence[windows.token_ids[np.arange(len(windows)), ends]].mean()
    if share < 0.5:
        raise UsageError(
            f"objective.pairs is sentence_order, but only {share:.0%} of the windows hold two whole sentences: raise "
            "--data.window, or give text with sentences in it."
        )


class RandomLengthSampler(WindowSampler):
    """The windows of streams as `WindowSampler` reads them, but of random length; for evaluation they have the full one."""

    _before: Int64s = np.zeros(1, dtype=np.int64)

    def read(
        self, start: int, count: int, *, pairs: Pairs = "contiguous", static_copies: int | None = None, lanes: int = 1
    ) -> Windows:
        """The windows at positions `start` to `start + count`; all lanes of a step have the same length."""
        steps, lane = np.divmod(np.arange(start, start + count, dtype=np.int64), lanes)
        before = self._starts(int(steps[-1]) + 1)
        first, last = before[steps[0]], before[steps[-1] + 1]
        tokens = self._of_single_tokens().read(int(first * lanes), int((last - first) * lanes), lanes=lanes)
        sizes = before[steps + 1] - before[steps]
        place = np.arange(int(sizes.max()))
        inside = place < sizes[:, None]
        begins = (before[steps] - first) * lanes + lane
        backward = None if tokens.backward is None else tokens.backward[begins]
        turned = place if backward is None else np.where(backward[:, None], sizes[:, None] - 1 - place, place)
        single = np.where(inside, begins[:, None] + turned * lanes, 0)
        text = tokens.token_ids[single, 1]
        vocabulary, rows = self.vocabulary, np.arange(count)
        token_ids = np.full((count, text.shape[1] + 2), vocabulary.pad, dtype=np.int32)
        token_ids[:, 0] = vocabulary.sos
        token_ids[:, 1:-1][inside] = text[inside]
        token_ids[rows, sizes + 1] = vocabulary.eos
        cut = np.zeros_like(token_ids, dtype=bool)
        if tokens.cut is not None:
            cut[:, 0], cut[rows, sizes + 1] = tokens.cut[single[:, 0], 0], tokens.cut[single[rows, sizes - 1], 2]
        chosen = select_rows(tokens, begins)
        return replace(
            chosen,
            index=np.minimum(chosen.index // self._piece, self.source_windows[chosen.source] - 1),
            token_ids=token_ids,
            segment_ids=np.zeros_like(token_ids),
            lengths=(sizes + 2).astype(np.int32),
            maskable=~self._special[token_ids],
            cut=cut,
        )

    def rate_at(self, position: int, lanes: int) -> float:
        """Factor of the learning rate at a position: the length of its step relative to the mean."""
        step = np.array([position // lanes])
        return float(lengths_of(step, self._piece, self.seed)[0]) / self._piece

    def _starts(self, steps: int) -> Int64s:
        """Tokens of each stream before each of the first steps and after the last. *Shape:* (steps + 1 or more,)"""
        if len(self._before) <= steps:
            every = lengths_of(np.arange(2 * steps), self._piece, self.seed)
            self._before = np.concatenate([[0], np.cumsum(every)])
        return self._before

    def _of_single_tokens(self) -> WindowSampler:
        kept = {name: getattr(self, name) for name in ("vocabulary", "seed", "documents", "order", "directions")}
        return WindowSampler(self.sources, window=3, segments=1, **kept)
