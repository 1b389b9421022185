"""Masking schemes: choose the masked tokens and the factorization step that predicts each.

A scheme draws spans of units or single units; a unit is a token, a word or a phrase. Every scheme returns the step of each
position, -1 if the position is not masked. *Shape:* (rows, window), int32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze import keyed
from unicloze.arrays import Flags, Int32s, Int64s, flagged, ranks, sorted_in_rows
from unicloze.objectives.groups import Masking, MaskRate
from unicloze.text.shards import joined_by
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows


def per_row(function: Callable[[int, float], Any], tokens: Int64s, rates: Rates) -> Any:
    """Apply a function of tokens and rate to each row, computing it once per distinct pair.

    Args:
        function: Maps tokens and rate to a count or a tuple of counts.
        tokens: *Shape:* (rows,)
        rates: *Shape:* (rows,)

    Returns:
        *Shape:* (rows,), or (counts, rows) for a tuple.
    """
    pairs, row = np.unique(np.stack([tokens, rates], axis=1), axis=0, return_inverse=True)
    results = [function(int(count), rate) for count, rate in pairs.tolist()] or [function(0, 0.0)]
    return np.array(results, dtype=np.int64).T[..., row.reshape(-1)]


def subset(items: Int64s, chosen: Int64s, keys: keyed.Bits, stream: int) -> Flags:
    """A uniformly random subset of each row's items, by Floyd's algorithm, which takes one turn per chosen item.

    Args:
        items: Items of each row. *Shape:* (rows,)
        chosen: Number of items to choose, at most all. *Shape:* (rows,)
        keys: Key of each row's draws. *Shape:* (rows,)
        stream: Stream of the draws.

    Returns:
        Whether each item is chosen. *Shape:* (rows, most items)
    """
    width, turns = max(0, int(items.max(initial=0))), np.arange(int(chosen.max(initial=0)))[:, None]
    flags = np.zeros((len(items), width + 1), dtype=bool)  # rows without a turn write to the extra column
    row = np.arange(len(items)) * (width + 1)
    last = items - chosen + turns
    drawn = keyed.below(keyed.bits(keys, stream, turns), last + 1)
    idle = turns >= chosen
    last[idle] = drawn[idle] = width
    last += row
    drawn += row
    flat = flags.reshape(-1)
    for latest, candidate in zip(last, drawn, strict=True):
        flat[np.where(flat[candidate], latest, candidate)] = True
    return flags[:, :width]


def partition(items: Int64s, parts: Int64s, keys: keyed.Bits, stream: int) -> Int64s:
    """Sizes of the parts of a uniformly random partition of each row's items into non-empty parts (T5's segmentation).

    Args:
        items: Items of each row. *Shape:* (rows,)
        parts: Parts of each row, from 1 to its items; a row without items has one empty part. *Shape:* (rows,)
        keys: Key of each row's draws. *Shape:* (rows,)
        stream: Stream of the draws.

    Returns:
        The sizes, row by row. *Shape:* (all parts,)
    """
    cuts = subset(np.maximum(items - 1, 0), parts - 1, keys, stream)
    first = np.ones((len(items), cuts.shape[1] + 1), dtype=bool)
    first[:, 1:] = cuts
    row, start = np.divmod(np.flatnonzero(first), first.shape[1])
    end = items[row]
    end[:-1] = np.where(row[1:] == row[:-1], start[1:], end[:-1])
    sizes: Int64s = end - start
    return sizes


def within(counts: Int64s, width: int) -> Flags:
    """Which columns of a padded array hold items of the row. *Shape:* (rows, width)"""
    return np.arange(width) < counts[:, None]


Steps = Int32s
Rates = npt.NDArray[np.float64]
SpanLengths = Callable[[npt.NDArray[np.float64]], Int64s]
"""Maps draws uniform in [0, 1) to span lengths in units."""

PROPOSALS_OF_A_STREAM = 32
PROPOSALS_AT_ONCE = 16
"""Proposals resolved at once. Every divisor of PROPOSALS_OF_A_STREAM gives the same draws."""
LONGEST_UNIT = 16
"""Maximum tokens per unit. Longer units (an address, text without word boundaries) are split, so that the row width is known
before anything is drawn."""


def rates_of(windows: Windows, settings: MaskRate, rates: Rates | None) -> Rates:
    """Mask rate of each row; default: that of the settings. *Shape:* (rows,)"""
    return np.full(len(windows), settings.mask_rate) if rates is None else rates


def highest_rate(settings: MaskRate, rates: Rates) -> float:
    """The highest mask rate of a run, which determines the row width independently of which rows are made at once."""
    return max(*settings.rates, float(rates.max(initial=0)))


@dataclass(frozen=True)
class Units:
    """Units that are masked as a whole: consecutive, covering each row; every special token is a unit by itself."""

    of_position: Int64s  # Index of each position's unit within its row. *Shape:* (rows, window)
    begins: Flags  # Whether a unit begins at a position. *Shape:* (rows, window)
    maskable: Flags  # Whether a unit is text; False after the last unit of a row. *Shape:* (rows, window)
    sizes: Int64s  # Tokens of each unit. *Shape:* (rows, window)

    @classmethod
    def of(cls, follows: Flags, maskable: Flags) -> Units:
        """Build units of at most LONGEST_UNIT tokens that do not cross special tokens.

        Args:
            follows: Whether a token belongs to the same unit as the token before it. *Shape:* (rows, window)
            maskable: Positions of text tokens. *Shape:* (rows, window)
        """
        begins = ~(follows & maskable)
        begins[:, 0] = True
        begins[:, 1:] |= ~maskable[:, :-1]
        first = np.flatnonzero(begins)
        size = np.diff(first, append=begins.size)
        for offset in range(LONGEST_UNIT, int(size.max(initial=0)), LONGEST_UNIT):
            begins.reshape(-1)[first[size > offset] + offset] = True
        row, position, _ = flagged(begins)
        first = row * begins.shape[1] + position
        place = first - position + ranks(row, len(begins))
        holds_text, sizes = np.zeros(begins.shape, dtype=bool), np.zeros(begins.shape, dtype=np.int64)
        holds_text.reshape(-1)[place] = maskable.reshape(-1)[first]
        sizes.reshape(-1)[place] = np.diff(first, append=begins.size)
        return cls(np.cumsum(begins, axis=1) - 1, begins, holds_text, sizes)

    def broadcast(self, steps: Steps) -> Steps:
        """Convert steps of units to steps of their tokens. *Shape:* (rows, window) both."""
        window = steps.shape[1]
        broadcast: Steps = steps.reshape(-1)[self.of_position + np.arange(len(steps))[:, None] * window]
        return broadcast


def units_of(windows: Windows, vocabulary: Vocabulary, settings: Masking) -> Units | None:
    """Units according to `settings.mask_unit`; None if every token is a unit. Phrases and entities consist of whole words."""
    if settings.mask_unit == "token":
        return None
    follows = vocabulary.boundaries.follows(windows.token_ids)
    if settings.mask_unit == "word":
        return Units.of(follows, windows.maskable)
    joined = windows.joined if settings.unmarked_unit == "phrase" else None
    if joined is None:
        joined = np.zeros(follows.shape, dtype=bool)
    if windows.marks is not None:
        own, given = joined_by(windows.marks, settings.mask_unit)
        joined = np.where(given, own, joined)
    return Units.of(follows | joined, windows.maskable)


def span_lengths(settings: Masking) -> SpanLengths:
    """Distribution of span lengths for `settings.masking`, which must be a scheme that draws spans.

    With `block_probability` uniform in 2 to `max_span`, else 1 (UniLMv2, Algorithm 1); or with probability proportional to
    (1 - p)^(l - 1) (SpanBERT, Section 3.1), or to 1/n (ALBERT, Section 4.1).
    """
    if settings.masking == "blockwise":
        chance, most = settings.block_probability, settings.max_span
        if most < 2 or chance == 0:
            return lambda draw: np.ones(draw.shape, dtype=np.int64)
        stretch = (most - 1) / chance
        return lambda draw: np.where(draw < chance, 2 + (draw * stretch).astype(np.int64), 1)
    numbers = np.arange(settings.max_span)
    weights = (1 - settings.geometric_p) ** numbers if settings.masking == "geometric" else 1 / (numbers + 1)
    bounds = np.cumsum(weights / weights.sum())[:-1]
    return lambda draw: np.searchsorted(bounds, draw, side="right") + 1


def spans(
    maskable: Flags,
    lengths: Int32s,
    keys: keyed.Bits,
    *,
    rates: Rates,
    lengths_of: SpanLengths,
    units: Units | None = None,
) -> Steps:
    """Draw spans until enough tokens are masked; each accepted span is a factorization step.

    Draw an index, uniform over the row, and a number of units. Reject the draw if it does not begin at the start of a unit,
    or covers a masked, special or padding position; so spans neither overlap nor cross [EOS]. Stop as soon as the masked
    tokens reach `rates` of |x|, which counts text tokens only: special tokens are never masked. With blocks this is
    Algorithm 1 of the UniLMv2 paper, exact in distribution.

    Args:
        maskable: Positions of text tokens. *Shape:* (rows, window)
        lengths: Tokens of each row. *Shape:* (rows,)
        keys: Key of each row's draws. *Shape:* (rows,)
        rates: Share of the text tokens to mask. *Shape:* (rows,)
        lengths_of: Distribution of span lengths in units.
        units: Units to mask as a whole; default: single tokens.
    """
    rows, window = maskable.shape
    wanted = np.ceil(rates * maskable.sum(axis=1) - 1e-9).astype(np.int64)
    taken = ~(maskable if units is None else units.maskable).reshape(-1)
    tokens_before = None if units is None else np.append(0, np.cumsum(units.sizes))
    steps = np.full((rows, window), -1, dtype=np.int32)
    active = np.flatnonzero(wanted > 0)
    wanted, next_step = wanted[active], np.zeros(len(active), dtype=np.int32)
    proposal = 0
    while len(active):
        stream, number = divmod(proposal, PROPOSALS_OF_A_STREAM)
        bits = keyed.bits(
            keys[active], keyed.Stream.PROPOSED_BLOCKS + stream, number + np.arange(PROPOSALS_AT_ONCE)[:, None]
        )
        first = keyed.below(bits, lengths[active]) + active * window
        accepted = np.ones(first.shape, dtype=bool)
        if units is not None:
            accepted = units.begins.reshape(-1)[first]
            first = units.of_position.reshape(-1)[first] + active * window
        # The high half of the bits draws the index, the low half the length.
        end = first + lengths_of((bits & np.uint64(0xFFFFFFFF)).astype(np.float64) * 2.0**-32)
        row_end = (active + 1) * window
        accepted &= end <= row_end
        end = np.minimum(end, row_end)
        taken_before = np.cumsum(np.append(False, taken), dtype=np.int32)
        accepted &= taken_before[first] == taken_before[end]
        tokens = end - first if tokens_before is None else tokens_before[end] - tokens_before[first]
        step = np.empty(first.shape, dtype=np.int32)
        for this in range(len(first)):
            overlaps = (first[:this] < end[this]) & (first[this] < end[:this])
            accepted[this] &= (wanted > 0) & ~(overlaps & accepted[:this]).any(axis=0)
            wanted -= tokens[this] * accepted[this]
            step[this] = next_step
            next_step += accepted[this]
        chosen = np.flatnonzero(accepted)
        size = (end - first).reshape(-1)[chosen]
        covered = np.repeat(first.reshape(-1)[chosen] - np.cumsum(size) + size, size) + np.arange(size.sum())
        taken[covered] = True
        steps.reshape(-1)[covered] = np.repeat(step.reshape(-1)[chosen], size)
        unfinished = wanted > 0
        active, wanted, next_step = active[unfinished], wanted[unfinished], next_step[unfinished]
        proposal += PROPOSALS_AT_ONCE
    return steps if units is None else units.broadcast(steps)


def single_tokens(maskable: Flags, keys: keyed.Bits, *, rates: Rates, units: Units | None = None) -> Steps:
    """BERT's masking: a fixed number of tokens, drawn without replacement, in random order.

    With units, whole units are drawn until they contain that number of tokens (whole-word masking); a step is a unit.

    Args:
        maskable: Positions of text tokens. *Shape:* (rows, window)
        keys: Key of each row's draws. *Shape:* (rows,)
        rates: Share of the text tokens to mask; the number is rounded, at least one. *Shape:* (rows,)
        units: Units to mask as a whole; default: single tokens.
    """
    count = maskable.sum(axis=1)
    wanted = np.minimum(count, np.maximum(1, np.round(rates * count).astype(np.int64)))
    drawable = maskable if units is None else units.maskable
    row, column, rank = _shuffled(drawable, keys, keyed.Stream.MASKED_TOKENS)
    place, before = row * drawable.shape[1] + column, rank
    if units is not None:
        sizes = units.sizes.reshape(-1)[place]
        before = np.cumsum(sizes) - sizes
        before -= before[np.arange(len(rank)) - rank]
    drawn = before < wanted[row]
    steps = np.full(drawable.shape, -1, dtype=np.int32)
    steps.reshape(-1)[place[drawn]] = rank[drawn]
    return steps if units is None else units.broadcast(steps)


def _shuffled(which: Flags, keys: keyed.Bits, stream: keyed.Stream) -> tuple[Int64s, Int64s, Int64s]:
    """The flagged columns of each row in uniformly random order: row, column and rank of each, row by row."""
    row, column, counts = flagged(which)
    # The lowest bits of a draw hold its column, so that sorting the draws sorts the columns.
    low = np.uint64((1 << which.shape[1].bit_length()) - 1)
    draws = (keyed.bits(keys[row], stream, column) & ~low) | column.astype(np.uint64)
    return row, (sorted_in_rows(draws, counts) & low).astype(np.int64), ranks(row, len(which))


def shuffle_tokens(steps: Steps, keys: keyed.Bits) -> Steps:
    """Split the blocks: the same masked tokens, one per step, in uniformly random order (AR)."""
    row, column, rank = _shuffled(steps >= 0, keys, keyed.Stream.FACTORIZATION)
    shuffled = np.full(steps.shape, -1, dtype=np.int32)
    shuffled.reshape(-1)[row * steps.shape[1] + column] = rank
    return shuffled


def most_masked(text_tokens: int, rate: float, max_span: int, longest: int = 1) -> int:
    """Maximum tokens a scheme masks per row: the last span may overshoot the rate by all but one of its tokens.

    Args:
        text_tokens: Maskable tokens of the row.
        rate: Share of them to mask.
        max_span: Maximum span length in units.
        longest: Maximum tokens per unit.
    """
    return max(1, min(text_tokens, math.ceil(rate * text_tokens) + max_span * longest - 1))


def most_masked_by(settings: Masking, window: int, rate: float) -> int:
    """Maximum tokens that the settings mask in a window of this many slots, the first of which is [SOS]."""
    return most_masked(window - 1, rate, settings.max_span, 1 if settings.mask_unit == "token" else LONGEST_UNIT)
