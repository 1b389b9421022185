"""Runs: the sequences of slots that an LSTM reads, found in the visibility of a batch.

A left-to-right run is a sequence of slots that each read the run's slots up to themselves; in a right-to-left run each
reads itself and those after it. A bidirectional LSTM reads whole texts, runs of slots that each read exactly the run. Every
other visibility is refused, because an LSTM cannot follow it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from unicloze.arrays import Int64s
from unicloze.errors import UsageError
from unicloze.visibility import Intervals

Direction = Literal["forward", "backward"]
"""A reading direction: from left to right, or from right to left."""

FORWARD: Direction = "forward"
BACKWARD: Direction = "backward"

NO_RUN = (
    "model.kind recurrent reads a text from left to right or from right to left, but a slot of these rows reads otherwise: "
    "use an objective or use.visibility left_to_right or right_to_left, or model.kind transformer"
)


NO_TEXT = (
    "model.directions bidirectional reads whole texts in both directions, but a slot of these rows reads otherwise: use an "
    "objective or use.visibility bidirectional, or another value of model.directions"
)


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The runs of one direction, longest first."""

    rows: Int64s  # Row of each run. *Shape:* (runs,)
    starts: Int64s  # Its leftmost slot. *Shape:* (runs,)
    lengths: Int64s  # Its number of slots, in descending order. *Shape:* (runs,)
    backward: bool  # whether they are read from right to left

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def alike(self) -> bool:
        """Whether all have the same length."""
        return bool((self.lengths == self.lengths[:1]).all())

    def order(self) -> tuple[Int64s, Int64s, Int64s]:
        """All slots step by step, as `PackedSequence` orders them.

        Returns:
            Run and slot of each, *Shape:* (slots of all runs,), and the number of runs with each step, *Shape:* (steps,)
        """
        steps = np.arange(int(self.lengths.max(initial=0)))
        step, run = np.nonzero(steps[:, None] < self.lengths)
        offset = self.lengths[run] - 1 - step if self.backward else step
        return run, self.starts[run] + offset, np.bincount(step, minlength=len(steps))


def find_runs(intervals: Intervals, directions: Sequence[Direction]) -> dict[Direction, Runs]:
    """The runs of a batch by direction.

    Slots that read only themselves and that no other slot reads, such as padding, are runs of the first direction.

    Args:
        intervals: *Shape:* (rows, slots, 4)
        directions: The directions the model can read in.
    """
    width = intervals.shape[1]
    slot = np.arange(width)
    first, end = intervals[..., 0], intervals[..., 1]
    if (intervals[..., 3] > intervals[..., 2]).any():
        raise UsageError(NO_RUN)
    alone = (first == slot) & (end == slot + 1)
    rightward = (end == slot + 1) & (first <= slot)
    leftward = (first == slot) & (end > slot)
    if not (rightward | leftward).all():
        raise UsageError(NO_RUN)
    # A slot that reads only itself is the first of a run if its neighbour's run begins or ends with it.
    begins = _shifted(rightward & ~alone & (first == slot - 1), -1) & alone
    ends = _shifted(leftward & ~alone & (end == slot + 2), 1) & alone
    if (begins & ends).any():
        raise UsageError(NO_RUN)
    is_left = (leftward & ~alone) | ends
    if directions[0] == BACKWARD:
        is_left |= alone & ~begins
    found = {
        FORWARD: _runs(~is_left, np.where(~is_left, first, -1), backward=False),
        BACKWARD: _runs(is_left, np.where(is_left, end, -1), backward=True),
    }
    _check(found[FORWARD], first, slot)
    _check(found[BACKWARD], end, slot)
    for direction, runs in found.items():
        if len(runs) and direction not in directions:
            raise UsageError(
                f"a slot of these rows is read {direction}, but model.directions is {directions[0]}: use a model that reads "
                f"{direction}, or set model.directions both"
            )
    return {direction: found[direction] for direction in directions}


def find_texts(intervals: Intervals) -> dict[Direction, Runs]:
    """The texts of a batch, runs of slots that each read exactly the run, to be read from left to right and back.

    Args:
        intervals: *Shape:* (rows, slots, 4)
    """
    first, end = intervals[..., 0].astype(np.int64), intervals[..., 1].astype(np.int64)
    slot = np.arange(intervals.shape[1])
    if (intervals[..., 3] > intervals[..., 2]).any() or not ((first <= slot) & (slot < end)).all():
        raise UsageError(NO_TEXT)
    member = np.ones(first.shape, dtype=bool)
    found = _runs(member, first * (intervals.shape[1] + 1) + end, backward=False)
    if (
        (found.starts != first[found.rows, found.starts]) | (found.lengths != (end - first)[found.rows, found.starts])
    ).any():
        raise UsageError(NO_TEXT)
    return {FORWARD: found, BACKWARD: dataclasses.replace(found, backward=True)}


def _shifted(flags: npt.NDArray[np.bool_], by: int) -> npt.NDArray[np.bool_]:
    """The flag of the slot `-by` to the right of each slot; False beyond the row."""
    result = np.zeros_like(flags)
    if by < 0:
        result[:, :by] = flags[:, -by:]
    else:
        result[:, by:] = flags[:, :-by]
    return result


def _runs(member: npt.NDArray[np.bool_], bound: npt.NDArray[np.integer], *, backward: bool) -> Runs:
    """Maximal sequences of adjacent members with one bound, longest first."""
    before = np.zeros_like(member)
    before[:, 1:] = member[:, 1:] & member[:, :-1] & (bound[:, 1:] == bound[:, :-1])
    rows, starts = np.nonzero(member & ~before)
    after = np.zeros_like(member)
    after[:, :-1] = before[:, 1:]
    _, last = np.nonzero(member & ~after)
    lengths = last - starts + 1
    order = np.argsort(-lengths, kind="stable")
    return Runs(rows=rows[order], starts=starts[order], lengths=lengths[order], backward=backward)


def _check(runs: Runs, bound: npt.NDArray[np.integer], slot: Int64s) -> None:
    """Reject runs whose slots read slots outside of them."""
    wanted = runs.starts + runs.lengths if runs.backward else runs.starts
    if (bound[runs.rows, runs.starts] != wanted).any():
        raise UsageError(NO_RUN)
