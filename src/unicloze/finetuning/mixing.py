"""The order in which training visits rows of several tasks: in their shares of each epoch, or one task per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unicloze import keyed
from unicloze.arrays import Int64s
from unicloze.records.record import Record
from unicloze.settings import TaskSettings
from unicloze.tasks.several import by_part, parts_of, rows_per_epoch


@dataclass(frozen=True)
class Mixture:
    """Rows of several tasks, see `unicloze.tasks.several.rows_per_epoch`."""

    counts: Mapping[str, int]  # rows of each part in an epoch, by label
    members: Mapping[str, Int64s]  # indices of the rows of each part, by label

    @classmethod
    def of(cls, records: Sequence[Record], rows: Sequence[Any], settings: TaskSettings) -> Mixture | None:
        """The mixture of a task's rows; None for a single task."""
        if not parts_of(settings):
            return None
        label = {number: name for name, numbers in by_part(records).items() for number in numbers}
        members: dict[str, list[int]] = {}
        for number, row in enumerate(rows):
            members.setdefault(label[row.record], []).append(number)
        counts = rows_per_epoch({name: len(numbers) for name, numbers in members.items()}, settings, len(rows))
        return cls(counts, {name: np.array(numbers, dtype=np.int64) for name, numbers in members.items()})

    def rows(self, places: Int64s, epoch: int, seed: int) -> Int64s:
        """The rows at some places of an epoch, a function of the arguments only.

        Each part visits all its rows in a random order before it visits one again, across epochs.
        """
        ends = np.cumsum(list(self.counts.values()))
        order = keyed.permutation(places, int(ends[-1]), keyed.key(seed, keyed.Purpose.RECORD_ORDER, epoch)[0])
        part = np.searchsorted(ends, order, side="right")
        found = np.empty_like(order)
        for number, (name, count) in enumerate(self.counts.items()):
            own, members = part == number, self.members[name]
            found[own] = _visited(members, epoch * count + order[own] - (ends[number] - count), seed, number)
        return found

    @property
    def chances(self) -> str:
        """The chance that a step is of each part, as a message."""
        total = sum(self.counts.values())
        return "steps: " + ", ".join(f"{100 * count / total:.0f} % of {name}" for name, count in self.counts.items())

    def __str__(self) -> str:
        each = ", ".join(f"{count:,} of {len(self.members[name]):,} {name}" for name, count in self.counts.items())
        return f"rows per epoch: {each}"


def _visited(members: Int64s, visits: Int64s, seed: int, part: int) -> Int64s:
    """The rows of a part at some of its visits: all its rows in a random order, then all in another, and so on."""
    passes, place = np.divmod(visits, len(members))
    row = np.empty_like(visits)
    for each in np.unique(passes):
        seen = passes == each
        key = keyed.key(seed, keyed.Purpose.RECORD_ORDER, int(each), part + 1)[0]
        row[seen] = keyed.permutation(place[seen], len(members), key)
    found: Int64s = members[row]
    return found


@dataclass(frozen=True)
class Turns:
    """Steps of several tasks with heads of their own: each is of a random task (Clark et al. 2018, Section 2.2)."""

    members: Sequence[Int64s]  # indices of the rows of each part
    parts: Int64s  # Index of the part of each step. *Shape:* (steps,)
    earlier: Int64s  # Number of earlier steps of the same part. *Shape:* (steps,)

    @classmethod
    def of(cls, mixture: Mixture, steps: int, seed: int) -> Turns:
        """The steps of a mixture, whose counts are the chances of its parts; a function of the arguments only."""
        chances = np.cumsum(list(mixture.counts.values())) / sum(mixture.counts.values())
        drawn = keyed.bits(keyed.key(seed, keyed.Purpose.PART_OF_STEP), keyed.Stream.ONLY, np.arange(steps))
        parts = np.searchsorted(chances[:-1], keyed.uniform(drawn), side="right")
        earlier = np.zeros(steps, dtype=np.int64)
        for part in range(len(chances)):
            own = parts == part
            earlier[own] = np.arange(own.sum())
        return cls([mixture.members[name] for name in mixture.counts], parts, earlier)

    def rows(self, step: int, count: int, seed: int) -> Int64s:
        """The rows of a step."""
        part = int(self.parts[step])
        visits = self.earlier[step] * count + np.arange(count, dtype=np.int64)
        return _visited(self.members[part], visits, seed, part)
