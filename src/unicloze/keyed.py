"""Counter-based random numbers: every draw is a function of a key.

Masks are keyed by (seed, epoch, sample), dropout by (seed, step, micro-batch), the order of samples by (seed, epoch).
There is no generator state to save, so a resumed run repeats every draw exactly, and one vectorised call draws many
rows.

The mixing function is the output function of splitmix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
Generators", 2014); the permutation is a four-round Feistel network over the next power of four, with cycle walking.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint64]


class Stream(IntEnum):
    """What the draws of a key are for; different streams of a key are independent.

    The numbers decide what is drawn, so they never change. Streams of one number belong to different kinds of keys.
    """

    ONLY = 0
    """Of a key that has draws of one kind."""
    FACTORIZATION = 1
    CORRUPTION = 2
    RANDOM_TOKEN = 3
    MASKED_TOKENS = 4
    PROPOSED_BLOCKS = 16
    """And upwards: one for every `PROPOSALS_OF_A_STREAM` proposals of `unicloze.objectives.masking`."""
    NOISE_LEVEL = 201
    DIFFUSED = 202
    NOISE_SPANS = 1001
    KEPT_SPANS = 1002
    SOURCE_END = 1003
    FRAGMENT = 1004
    MASKED_BY_NOISE = 1005
    DELETED = 1006
    SPAN_LENGTHS = 1007
    LAST_SPAN = 1008
    ARRANGEMENT = 1009
    SENTENCES = 1010
    ROTATION = 1011
    NOISED_TARGET = 2001
    NOISE_OF_TARGET = 2002
    NEGATIVE = 2**20
    OTHER_SOURCE = 2**20 + 1
    OTHER_WINDOW = 2**20 + 2
    SENTENCE_BORDER = 2**20 + 3
    SEGMENT_BORDER = 2**20 + 4
    CONTENT_WORD = 1


class Purpose(IntEnum):
    """What a key is for, one of the integers that name it.

    The numbers never change either. Purposes of one number are of keys that are never drawn from with one seed.
    """

    EPOCH_ORDER = 1
    SOURCE_ORDER = 2
    LANE_SHIFT = 3
    STATIC_COPY = 4
    HELDOUT_WINDOW = 0x4E1D
    CONTENT_SENTENCE = 0xC0A7E47
    PHRASE_WORD = 0x50A5
    RECORD_ORDER = 1
    RECORD = 2
    RECORD_OF_AUXILIARY = 3
    UNLABELLED_ORDER = 4
    PART_OF_STEP = 5
    SHOTS = 1
    CHOSEN_RECORDS = 1
    OTHER_PASSAGE = 2
    GENERATOR_WEIGHTS = 1


GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio, whose multiples are spread evenly."""
_MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)


def _mix(bits: Bits) -> Bits:
    with np.errstate(over="ignore"):
        bits = bits ^ (bits >> _SHIFTS[0])
        bits *= _MULTIPLIERS[0]
        bits ^= bits >> _SHIFTS[1]
        bits *= _MULTIPLIERS[1]
        bits ^= bits >> _SHIFTS[2]
        return bits


def key(*parts: int | npt.NDArray[np.integer]) -> Bits:
    """Hash several integers to a 64-bit key; arrays broadcast to an array of keys."""
    result = np.zeros(1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for part in parts:
            result = _mix(result + GOLDEN + _mix(np.asarray(part).astype(np.uint64) * GOLDEN + GOLDEN))
    return result


def bits(keys: Bits, stream: int, counters: int | npt.NDArray[np.integer]) -> Bits:
    """A random 64-bit integer for each pair of a key and a counter, which broadcast; `stream` may be a number after one."""
    with np.errstate(over="ignore"):
        start = _mix(keys + np.uint64(stream + 1) * _MULTIPLIERS[1])
        return _mix(start + np.asarray(counters + 1).astype(np.uint64) * GOLDEN)


def uniform(random_bits: Bits) -> npt.NDArray[np.float64]:
    """Map random bits to floats, uniform in [0, 1)."""
    return (random_bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(random_bits: Bits, limit: int | npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Map random bits to integers, uniform in [0, limit); limits broadcast and must be below 2**63.

    Where a limit is below 2**32, 32 of the random bits are used.
    """
    limits, half = np.asarray(limit).astype(np.uint64), np.uint64(32)
    high = random_bits >> half
    if not (limits >> half).any():
        return ((high * limits) >> half).astype(np.int64)
    # The upper half of the product of 64 by 64 bits, from products of 32 by 32 bits.
    low, mask = random_bits & np.uint64(2**32 - 1), np.uint64(2**32 - 1)
    top, bottom = limits >> half, limits & mask
    middle = high * bottom + ((low * bottom) >> half)
    large = high * top + (middle >> half) + (((middle & mask) + low * top) >> half)
    return np.where(top > 0, large, (high * limits) >> half).astype(np.int64)


def permutation(index: npt.NDArray[np.integer], size: int, seed_key: int | np.uint64) -> npt.NDArray[np.int64]:
    """Image of each index under a keyed random permutation of [0, size), without building the permutation."""
    half = max(1, ((max(size - 1, 1)).bit_length() + 1) // 2)
    low = np.uint64((1 << half) - 1)
    rounds = [_mix(np.uint64(seed_key) ^ np.asarray(r + 1, np.uint64) * _MULTIPLIERS[0]) for r in range(4)]
    result = np.asarray(index).astype(np.uint64)
    outside = np.ones(result.shape, dtype=bool)
    while outside.any():
        values = result[outside]
        left, right = values >> np.uint64(half), values & low
        for round_key in rounds:
            with np.errstate(over="ignore"):
                left, right = right, left ^ (_mix(right + round_key) & low)
        result[outside] = (left << np.uint64(half)) | right
        outside = result >= np.uint64(size)
    return result.astype(np.int64)
