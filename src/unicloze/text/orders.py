"""In which order windows are visited: a function of the position alone, nothing is stored.

A sample is a visit of an epoch to a window, numbered in the order of the text: 0 to the epoch's size.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from unicloze import keyed
from unicloze.text.pieces import Ints


def shuffled(positions: Ints, size: int, seed: int) -> tuple[Ints, Ints]:
    """Epoch and sample at each position: every epoch is a keyed permutation of its samples. *Shape:* (positions,) each."""
    epochs, ranks = np.divmod(positions, size)
    samples = np.empty(len(positions), dtype=np.int64)
    for epoch in np.unique(epochs):
        rows = epochs == epoch
        samples[rows] = keyed.permutation(ranks[rows], size, keyed.key(seed, keyed.Purpose.EPOCH_ORDER, int(epoch))[0])
    return epochs, samples


def streams(positions: Ints, size: int, seed: int, *, lanes: int) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """Epoch and sample at each position, every `lanes` positions going on where those before them stopped.

    An epoch is a ring of its samples. Lanes start at evenly spaced places, turned by a keyed shift each epoch, and take
    equally many steps; what is left at the end of some lanes (fewer samples than lanes) another epoch's shift reaches.

    Args:
        positions: Step times lanes, plus the lane. *Shape:* (positions,)
        size: Samples of an epoch.
        seed: Names the shifts.
        lanes: How many samples are read side by side.

    Returns:
        Epoch, sample, and whether a lane begins there, *Shape:* (positions,) each.
    """
    steps = max(1, size // lanes)
    epochs, within = np.divmod(positions, steps * lanes)
    step, lane = np.divmod(within, lanes)
    shift = keyed.below(keyed.key(seed, keyed.Purpose.LANE_SHIFT, epochs), size)
    return epochs, (lane * size // lanes + step + shift) % size, step == 0


def spread(count: int, size: int) -> Ints:
    """`count` of `size` numbers, at even distances. *Shape:* (count,)"""
    return np.arange(count, dtype=np.int64) * size // count


def spread_lanes(count: int, size: int, *, lanes: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """At most `count` of `size` numbers: lanes at even distances, each of consecutive numbers.

    Returns:
        Numbers, as many for each lane, and whether a lane begins there. *Shape:* (numbers,) each.
    """
    lanes = min(lanes, count)
    step, lane = np.divmod(np.arange(count // lanes * lanes, dtype=np.int64), lanes)
    return lane * size // lanes + step, step == 0
