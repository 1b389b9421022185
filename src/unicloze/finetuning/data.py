"""Turns a file of labelled records into training steps, and into buckets for prediction."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze import keyed
from unicloze.arrays import Int64s
from unicloze.errors import option_of
from unicloze.example import Examples
from unicloze.files import digest
from unicloze.finetuning.auxiliary import auxiliary_objective, unlabelled_records, with_auxiliary, with_views
from unicloze.packing import bucket_cost, bucket_sizes
from unicloze.progress import say
from unicloze.records.record import Record
from unicloze.settings import Recipe, TaskSettings
from unicloze.tasks import TASKS
from unicloze.tasks.columns import check_roles, with_columns
from unicloze.tasks.several import TAGGING, by_part, parts_of, records_of, rows_per_epoch
from unicloze.text.tokenizers import Tokenizer
from unicloze.text.vocabulary import Vocabulary
from unicloze.training.batches import MicroBatch, Own, every


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


ROWS_SEEN = 256
"""Number of rows checked to find how many segments rows have."""


@dataclass(frozen=True)
class TaskData:
    """Labelled records and their rows."""

    records: Sequence[Record]  # records in file order
    rows: Sequence[Any]  # rows of the records; those of one record are consecutive
    fingerprint: str  # SHA-256 of the records
    unlabelled: TaskData | None = None  # unlabelled text to learn from in every second step, if any


def open_records(path: Path, recipe: Recipe, tokenizer: Tokenizer, *, answers: bool = True) -> TaskData:
    """Read and encode development records, a file or a folder; arguments and errors as for `encoded`."""
    records = records_of(path, recipe.task, dev=True)
    return encoded(records, recipe, tokenizer, answers=answers)


def reading_columns(recipe: Recipe, records: Sequence[Record], progress: bool) -> Recipe:
    """The recipe with the columns of text and label; guessed columns are reported."""
    task = with_columns(recipe.task, records)
    guessed = {role: name for role, name in task.fields.items() if recipe.task.fields.get(role) != name}
    if guessed and progress:
        each = ", ".join(f"{role} from '{name}'" for role, name in guessed.items())
        say(f"reading {each} (set {option_of('task.fields')} to change)")
    return dataclasses.replace(recipe, task=task)


def encoded(records: Sequence[Record], recipe: Recipe, tokenizer: Tokenizer, *, answers: bool = True) -> TaskData:
    """Encode records as rows."""
    task = TASKS[recipe.task.kind]
    if not answers:
        records = [dataclasses.replace(record, unread=task.answers) for record in records]
    check_roles(records, task, recipe)
    return TaskData(records, task.encode(records, tokenizer, recipe), records_fingerprint(records))


def records_fingerprint(records: Sequence[Record]) -> str:
    """SHA-256 of the ids and fields of records."""
    return digest([[record.id, dict(record.fields)] for record in records])


def evenly_chosen(data: TaskData, count: int | None) -> TaskData:
    """`count` of the records with their rows, evenly spaced; all if there are no more or `count` is None."""
    if count is None or count >= len(data.records):
        return data
    chosen = [place * len(data.records) // count for place in range(count)]
    number = {record: place for place, record in enumerate(chosen)}
    rows = [dataclasses.replace(row, record=number[row.record]) for row in data.rows if row.record in number]
    return TaskData([data.records[record] for record in chosen], rows, data.fingerprint)


def segments_of(data: TaskData, recipe: Recipe, vocabulary: Vocabulary) -> int:
    """Number of segments in the first rows; an export needs to know whether the parts of pairs differ in segment."""
    rows = data.rows[:ROWS_SEEN]
    return int(TASKS[recipe.task.kind].lay_out(rows, vocabulary, recipe, None).segment_ids.max()) + 1


def steps_per_epoch(rows: int, batch_size: int) -> int:
    """Steps in which every row is seen once; the last step may have fewer rows."""
    return -(-rows // batch_size)


def unlabelled_text(recipe: Recipe, tokenizer: Tokenizer) -> TaskData | None:
    """The unlabelled text of a recipe, with targets for every view; None without any."""
    if not recipe.finetuning.unlabelled:
        return None
    data = encoded(unlabelled_records(recipe), recipe, tokenizer, answers=False)
    return dataclasses.replace(data, rows=with_views(data.rows, recipe))


def finetuning_steps(
    data: TaskData, recipe: Recipe, vocabulary: Vocabulary, device: str, first_step: int, own: Own = every
) -> Iterator[list[MicroBatch]]:
    """The micro-batches of each step from `first_step` to the last; a function of the seed and the step only.

    Each epoch visits the rows in a random order. The rows of a step are packed end to end in buckets of similar length,
    which changes the padding but not the gradient. Each part of them is followed by its rows for the auxiliary objective, if
    there is one, or by none if one forward pass serves both. With unlabelled text, every second step has rows of that text,
    which has its own epochs.
    """
    batch_size, seed = recipe.training.batch_size, recipe.training.seed
    weights = recipe.finetuning.auxiliary
    beside = auxiliary_objective(recipe) if weights else None
    mixture = Mixture.of(data.records, data.rows, recipe.task)
    turns = None
    if mixture is not None and recipe.task.kind == TAGGING:
        turns = Turns.of(mixture, recipe.training.steps, seed)
    for step in range(first_step, recipe.training.steps):
        turn, place = divmod(step, recipe.finetuning.steps_between)
        if place:
            assert data.unlabelled is not None
            yield _unlabelled_step(data.unlabelled, turn, recipe, vocabulary, device, own)
            continue
        epoch, number = divmod(turn, steps_per_epoch(len(data.rows), batch_size))
        places = np.arange(number * batch_size, min((number + 1) * batch_size, len(data.rows)))
        if turns is not None:
            chosen = turns.rows(turn, batch_size, seed)
        elif mixture is None:
            chosen = keyed.permutation(places, len(data.rows), keyed.key(seed, keyed.Purpose.RECORD_ORDER, epoch)[0])
        else:
            chosen = mixture.rows(places, epoch, seed)
        lengths = np.array([data.rows[number].slots for number in chosen])
        chosen, most = chosen[np.argsort(-lengths, kind="stable")], recipe.training.micro_batch_size or len(chosen)
        cuts = [chosen[first : first + most] for first in range(0, len(chosen), most)]
        together = 1 if beside is None else 2
        mine = own([*range(together)] * len(cuts))
        step_batches: list[MicroBatch] = []
        for place, numbers in enumerate(cuts):
            wanted = [together * place + part in mine for part in range(together)]
            made = absent = [MicroBatch(Examples.none(), None, part=part) for part in range(together)]
            if any(wanted):
                keys = keyed.key(seed, keyed.Purpose.RECORD, epoch, numbers)
                made = [_micro_batch(data, numbers, recipe, vocabulary, keys, device)]
            if any(wanted) and beside is not None:
                keys = keyed.key(seed, keyed.Purpose.RECORD_OF_AUXILIARY, epoch, numbers)
                made = with_auxiliary(made[0], beside, weights, vocabulary, keys)
            step_batches += [made[part] if wanted[part] else absent[part] for part in range(together)]
        yield step_batches


def _unlabelled_step(
    data: TaskData, turn: int, recipe: Recipe, vocabulary: Vocabulary, device: str, own: Own
) -> list[MicroBatch]:
    """The micro-batches of a step on unlabelled text; `turn` counts these steps."""
    batch_size, seed, count = recipe.training.batch_size, recipe.training.seed, len(data.rows)
    epoch, number = divmod(turn, steps_per_epoch(count, batch_size))
    places = np.arange(number * batch_size, min((number + 1) * batch_size, count))
    chosen = keyed.permutation(places, count, keyed.key(seed, keyed.Purpose.UNLABELLED_ORDER, epoch)[0])
    lengths = np.array([data.rows[number].slots for number in chosen])
    chosen, most = chosen[np.argsort(-lengths, kind="stable")], recipe.training.micro_batch_size or len(chosen)
    cuts, found = [chosen[first : first + most] for first in range(0, len(chosen), most)], []
    mine = own([0] * len(cuts))
    for place, numbers in enumerate(cuts):
        if place not in mine:
            found.append(MicroBatch(Examples.none(), None))
            continue
        keys = keyed.key(seed, keyed.Purpose.RECORD, epoch, numbers)
        batch = _micro_batch(data, numbers, recipe, vocabulary, keys, device)
        found.append(dataclasses.replace(batch, dropout=recipe.finetuning.unlabelled_dropout))
    return found


def buckets_by_length(rows: Sequence[Any], most_slots: int) -> Iterator[npt.NDArray[np.int64]]:
    """Indices of all rows, longest first, in buckets of at most `most_slots` slots including padding."""
    lengths = np.array([row.slots for row in rows])
    order, first = np.argsort(-lengths, kind="stable"), 0
    while first < len(order):
        count = max(1, most_slots // int(lengths[order[first]]))
        yield order[first : first + count]
        first += count


def _micro_batch(
    data: TaskData,
    numbers: npt.NDArray[np.int64],
    recipe: Recipe,
    vocabulary: Vocabulary,
    keys: npt.NDArray[np.uint64],
    device: str,
) -> MicroBatch:
    rows = [data.rows[number] for number in numbers]
    examples = TASKS[recipe.task.kind].lay_out(rows, vocabulary, recipe, keys)
    others = f" and {len(rows) - 1} more records" if len(rows) > 1 else ""
    place = f"{data.records[rows[0].record].place}{others}"
    buckets = bucket_sizes(examples.lengths, bucket_cost(device))
    return MicroBatch(examples, None, recipe.objective.coefficients, place, buckets)
