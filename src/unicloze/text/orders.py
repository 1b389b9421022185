"""The order in which windows are visited: a function of the position alone, without stored state.

A sample is one visit to a window within an epoch, numbered from 0 in the order of the text.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from unicloze import keyed
from unicloze.text.pieces import Ints


def shuffled(positions: Ints, size: int, seed: int) -> tuple[Ints, Ints]:
    """Epoch and sample at each position; each epoch is a keyed permutation of its samples. *Shape:* (positions,) each."""
    epochs, ranks = np.divmod(positions, size)
    samples = np.empty(len(positions), dtype=np.int64)
    for epoch in np.unique(epochs):
        rows = epochs == epoch
        samples[rows] = keyed.permutation(ranks[rows], size, keyed.key(seed, keyed.Purpose.EPOCH_ORDER, int(epoch))[0])
    return epochs, samples


def streams(positions: Ints, size: int, seed: int, *, lanes: int) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """Epoch and sample at each position, where each position continues the text `lanes` positions earlier.

    An epoch is a ring of its samples. Lanes start at evenly spaced places, rotated by a keyed shift each epoch, and take
    equally many steps; samples left at the end of some lanes (fewer than `lanes`) are reached by another epoch's shift.

    Args:
        positions: Step times lanes, plus the lane. *Shape:* (positions,)
        size: Samples of an epoch.
        seed: Key of the shifts.
        lanes: Number of samples read side by side.

    Returns:
        Epoch, sample, and whether a lane begins there. *Shape:* (positions,) each.
    """
    steps = max(1, size // lanes)
    epochs, within = np.divmod(positions, steps * lanes)
    step, lane = np.divmod(within, lanes)
    shift = keyed.below(keyed.key(seed, keyed.Purpose.LANE_SHIFT, epochs), size)
    return epochs, (lane * size // lanes + step + shift) % size, step == 0


def spread(count: int, size: int) -> Ints:
    """`count` evenly spaced numbers below `size`. *Shape:* (count,)"""
    return np.arange(count, dtype=np.int64) * size // count


def spread_lanes(count: int, size: int, *, lanes: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """At most `count` numbers below `size`, in evenly spaced lanes of consecutive numbers.

    Returns:
        Numbers, equally many per lane, and whether a lane begins there. *Shape:* (numbers,) each.
    """
    lanes = min(lanes, count)
    step, lane = np.divmod(np.arange(count // lanes * lanes, dtype=np.int64), lanes)
    return lane * size // lanes + step, step == 0
