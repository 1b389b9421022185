"""Which tokens are masked, and in which factorization step each is predicted.

Every scheme returns the step of each position, -1 where a position is not masked. *Shape:* (rows, window), int32.
"""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from unicloze import keyed

Steps = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

PROPOSALS_AT_ONCE = 32


class Stream(IntEnum):
    """Independent streams of a row's draws."""

    ORDER = 1
    CORRUPTION = 2
    RANDOM_TOKEN = 3
    TOKENS = 4
    BLOCKS = 16  # and upwards: one for every PROPOSALS_AT_ONCE proposals


def blockwise(
    maskable: Flags,
    lengths: npt.NDArray[np.int32],
    keys: keyed.Bits,
    *,
    rates: npt.NDArray[np.float64],
    block_probability: float,
    max_span: int,
) -> Steps:
    """Algorithm 1 of the UniLMv2 paper, exactly in distribution; each accepted draw is a factorization step.

    Draw an index, uniform over the row, and a length, uniform in 2..max_span with `block_probability` and else 1. A draw
    that covers a masked, special or padding position is drawn again, so blocks never cross [EOS]. Stop as soon as the
    masked tokens reach `rates` of |x|, which counts text tokens only: special tokens are never masked.

    Args:
        maskable: Positions that hold text. *Shape:* (rows, window)
        lengths: Tokens of each row. *Shape:* (rows,)
        keys: Key of each row's draws. *Shape:* (rows,)
        rates: Share of the text tokens to mask. *Shape:* (rows,)
        block_probability: Chance of a block.
        max_span: Longest block.
    """
    rows, window = maskable.shape
    wanted = np.ceil(rates * maskable.sum(axis=1) - 1e-9).astype(np.int64)
    free = np.zeros((rows, window + max_span), dtype=bool)
    free[:, :window] = maskable
    steps = np.full((rows, window + max_span), -1, dtype=np.int32)
    masked = np.zeros(rows, dtype=np.int64)
    next_step = np.zeros(rows, dtype=np.int32)
    within = np.arange(max_span)
    active = np.flatnonzero(masked < wanted)
    proposal = 0
    while len(active):
        column = proposal % PROPOSALS_AT_ONCE
        if column == 0:
            stream = Stream.BLOCKS + proposal // PROPOSALS_AT_ONCE
            bits = keyed.bits(keys[active, None], stream, np.arange(PROPOSALS_AT_ONCE))
            index_of = keyed.below(bits, lengths[active, None])
            length_of = _block_lengths(bits, block_probability, max_span)
            drawn = np.arange(len(active))
        covered = index_of[drawn, column, None] + within
        inside = within < length_of[drawn, column, None]
        accepted = (free[active[:, None], covered] | ~inside).all(axis=1)
        row = active[accepted]
        which, offset = np.nonzero(inside[accepted])
        position = covered[accepted][which, offset]
        free[row[which], position] = False
        steps[row[which], position] = next_step[row][which]
        masked[row] += length_of[drawn, column][accepted]
        next_step[row] += 1
        unfinished = masked[active] < wanted[active]
        active, drawn = active[unfinished], drawn[unfinished]
        proposal += 1
    return steps[:, :window]


def _block_lengths(bits: keyed.Bits, block_probability: float, max_span: int) -> npt.NDArray[np.int64]:
    """Lengths from the low half of the bits, whose high half draws the index."""
    draw = (bits & np.uint64(0xFFFFFFFF)).astype(np.float64) * 2.0**-32
    if max_span < 2 or block_probability == 0:
        return np.ones(bits.shape, dtype=np.int64)
    length = 2 + (draw * ((max_span - 1) / block_probability)).astype(np.int64)
    return np.where(draw < block_probability, length, 1)


def single_tokens(maskable: Flags, keys: keyed.Bits, *, rates: npt.NDArray[np.float64]) -> Steps:
    """BERT's masking: a fixed number of tokens, drawn without replacement, in an order of their own.

    Args:
        maskable: Positions that hold text. *Shape:* (rows, window)
        keys: Key of each row's draws. *Shape:* (rows,)
        rates: Share of the text tokens to mask, rounded, at least one. *Shape:* (rows,)
    """
    count = maskable.sum(axis=1)
    wanted = np.minimum(count, np.maximum(1, np.round(rates * count).astype(np.int64)))
    draws = keyed.uniform(keyed.bits(keys[:, None], Stream.TOKENS, np.arange(maskable.shape[1])))
    order = np.argsort(np.where(maskable, draws, 2.0), axis=1)
    rank = np.empty(maskable.shape, dtype=np.int32)
    np.put_along_axis(rank, order, np.arange(maskable.shape[1], dtype=np.int32)[None, :], axis=1)
    return np.where(rank < wanted[:, None], rank, np.int32(-1))


def shuffle_tokens(steps: Steps, keys: keyed.Bits) -> Steps:
    """Split the blocks: the same masked tokens, each a step of its own, in a uniformly random order (AR)."""
    draws = keyed.uniform(keyed.bits(keys[:, None], Stream.ORDER, np.arange(steps.shape[1])))
    order = np.argsort(np.where(steps >= 0, draws, 2.0), axis=1)
    rank = np.empty(steps.shape, dtype=np.int32)
    np.put_along_axis(rank, order, np.arange(steps.shape[1], dtype=np.int32)[None, :], axis=1)
    return np.where(steps >= 0, rank, np.int32(-1))


def most_masked(text_tokens: int, rate: float, max_span: int) -> int:
    """The most tokens either scheme masks in a row: the last block may overshoot the rate by all but one of its tokens."""
    return max(1, min(text_tokens, math.ceil(rate * text_tokens) + max_span - 1))
