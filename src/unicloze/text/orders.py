"""The order in which windows are visited: a function of the position alone, without stored state.

A sample is one visit to a window within an epoch, numbered from 0 in the order of the text.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from unicloze import keyed
from unicloze.arrays import Int64s


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


def backward_lanes(lane: Int64s, lanes: int, directions: Directions = "both") -> npt.NDArray[np.bool_]:
    """Whether a lane goes backward; with both directions the second half does, but not a single lane."""
    if directions == "both":
        return 2 * lane >= lanes + lanes % 2
    return np.full(lane.shape, directions == "backward")


def streams(
    positions: Int64s, size: int, seed: int, *, lanes: int, directions: Directions = "forward"
) -> tuple[Int64s, Int64s, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Epoch and sample at each position, for `lanes` parallel streams that each advance by one sample per step.

    An epoch is a ring of its samples. Lanes start at evenly spaced places, rotated by a keyed shift each epoch, and take
    equally many steps; samples left at the end of some lanes (fewer than `lanes`) are reached by another epoch's shift.
    """
    steps = max(1, size // lanes)
    epochs, within = np.divmod(positions, steps * lanes)
    step, lane = np.divmod(within, lanes)
    shift = keyed.below(keyed.key(seed, keyed.Purpose.LANE_SHIFT, epochs), size)
    backward = backward_lanes(lane, lanes, directions)
    taken = np.where(backward, steps - 1 - step, step)
    return epochs, (lane * size // lanes + taken + shift) % size, step == 0, backward


def evenly_spaced(count: int, size: int) -> Int64s:
    """`count` evenly spaced numbers below `size`. *Shape:* (count,)"""
    return np.arange(count, dtype=np.int64) * size // count


def evenly_spaced_lanes(
    count: int, size: int, *, lanes: int, directions: Directions = "forward"
) -> tuple[Int64s, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """At most `count` numbers below `size`: evenly spaced lanes of equally many consecutive numbers."""
    lanes = min(lanes, count)
    step, lane = np.divmod(np.arange(count // lanes * lanes, dtype=np.int64), lanes)
    backward = backward_lanes(lane, lanes, directions)
    taken = np.where(backward, count // lanes - 1 - step, step)
    return lane * size // lanes + taken, step == 0, backward
