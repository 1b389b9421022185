"""The order in which training visits rows: each once per epoch, or those of several tasks in their shares."""

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
    """Rows of several tasks, see `unicloze.tasks.several.rows_per_epoch`.

    Args:
        counts: Rows of each part in an epoch, by label.
        members: Indices of the rows of each part, by label.
    """

    counts: Mapping[str, int]
    members: Mapping[str, Int64s]

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
            visit = epoch * count + order[own] - (ends[number] - count)
            passes, place = np.divmod(visit, len(members))
            row = np.empty_like(visit)
            for each in np.unique(passes):
                seen = passes == each
                key = keyed.key(seed, keyed.Purpose.RECORD_ORDER, int(each), number + 1)[0]
                row[seen] = keyed.permutation(place[seen], len(members), key)
            found[own] = members[row]
        return found

    def __str__(self) -> str:
        each = ", ".join(f"{count:,} of {len(self.members[name]):,} {name}" for name, count in self.counts.items())
        return f"rows per epoch: {each}"
