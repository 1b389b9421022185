"""Sources and targets in the visibility of a batch, for an LSTM encoder-decoder.

A source is a sequence of slots that each read all of it: both directions of an encoder read it. Its target are the slots
after it that each read the source, the target up to themselves and nothing else: a decoder writes them from left to right.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unicloze.arrays import Int64s
from unicloze.errors import UsageError
from unicloze.model.recurrent.runs import Runs
from unicloze.visibility import Intervals

NO_PAIR = (
    "an LSTM encoder-decoder (model.kind recurrent with model.decoder_layers) reads a source in both directions and writes a "
    "target from left to right, but a slot of these rows reads otherwise: use an objective or task with source and target"
)


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """The sources of a batch, longest first, each with its target, which may be empty.

    Padding, which reads only itself, is a source of one slot.

    Args:
        rows: Row of each. *Shape:* (pairs,)
        starts: First slot of the source. *Shape:* (pairs,)
        lengths: Slots of the source, in descending order. *Shape:* (pairs,)
        targets: Slots of the target, which begins after the source. *Shape:* (pairs,)
    """

    rows: Int64s
    starts: Int64s
    lengths: Int64s
    targets: Int64s

    def __len__(self) -> int:
        return len(self.rows)

    def runs(self, *, backward: bool) -> Runs:
        """The sources as the runs of one direction."""
        return Runs(rows=self.rows, starts=self.starts, lengths=self.lengths, backward=backward)

    def with_targets(self) -> Int64s:
        """Numbers of the pairs that have a target, longest target first. *Shape:* (pairs with a target,)"""
        order = np.argsort(-self.targets, kind="stable")
        return order[: np.count_nonzero(self.targets)]


def find_pairs(intervals: Intervals) -> Pairs:
    """The sources and targets of a batch.

    Args:
        intervals: *Shape:* (rows, slots, 4)
    """
    rows, width = intervals.shape[:2]
    slot, row = np.arange(width), np.arange(rows)[:, None]
    first, end = intervals[..., 0].astype(np.int64), intervals[..., 1].astype(np.int64)
    if (intervals[..., 3] > intervals[..., 2]).any() or (first > slot).any() or (end <= slot).any():
        raise UsageError(NO_PAIR)
    source_end = end[row, first]
    in_source = (slot < source_end) & (end == source_end)
    in_target = (slot >= source_end) & (end == slot + 1)
    place = (row * width + first).ravel()
    counts = np.bincount(place[in_source.ravel()], minlength=rows * width)
    written = np.bincount(place[in_target.ravel()], minlength=rows * width)
    starts = np.flatnonzero((first == slot).ravel())
    lengths = (source_end - slot).ravel()[starts]
    last = np.zeros(rows * width, dtype=np.int64)
    np.maximum.at(last, place, np.broadcast_to(slot + 1, first.shape).ravel())
    ends = starts % width + lengths + written[starts]
    if not (in_source | in_target).all() or (counts[starts] != lengths).any() or (last[starts] != ends).any():
        raise UsageError(NO_PAIR)
    order = np.argsort(-lengths, kind="stable")
    starts = starts[order]
    return Pairs(rows=starts // width, starts=starts % width, lengths=lengths[order], targets=written[starts])
