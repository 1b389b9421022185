"""A file of labelled records as the steps of training, and as blocks for prediction."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze import keyed
from unicloze.digest import digest
from unicloze.errors import option_of
from unicloze.finetuning.auxiliary import auxiliary_objective, with_auxiliary
from unicloze.progress import say
from unicloze.records import read_records
from unicloze.records.record import Record
from unicloze.settings import Recipe
from unicloze.tasks import TASKS
from unicloze.tasks.columns import with_columns
from unicloze.tasks.roles import check_roles
from unicloze.text.tokenizers import Tokenizer, Vocabulary
from unicloze.training.batches import MicroBatch

ROWS_SEEN = 256
"""Rows that tell how many segments all have."""

BLOCK_COST = {"cpu": 24, "cuda": 1 << 20}
"""What attention to a block of its own costs, in slots: on a GPU a step is one block, whatever the padding."""


@dataclass(frozen=True)
class TaskData:
    """Labelled records and their rows.

    Args:
        records: In the order of the file.
        rows: Those of a record stand together.
        fingerprint: SHA-256 of the records.
    """

    records: Sequence[Record]
    rows: Sequence[Any]
    fingerprint: str


def open_records(path: Path, recipe: Recipe, tokenizer: Tokenizer, *, answers: bool = True) -> TaskData:
    """Read and encode a file of records, or a folder of such files; arguments and errors as of `encoded`."""
    records = read_records(path, recipe.task)
    return encoded(records, recipe, tokenizer, answers=answers)


def reading_columns(recipe: Recipe, records: Sequence[Record], progress: bool) -> Recipe:
    """The recipe with the columns that hold text and label; what was guessed is printed.

    Args:
        recipe: Of the task.
        records: Of the training file.
        progress: Whether to print it.
    """
    task = with_columns(recipe.task, records)
    guessed = {role: name for role, name in task.fields.items() if recipe.task.fields.get(role) != name}
    if guessed and progress:
        each = ", ".join(f"{role} from '{name}'" for role, name in guessed.items())
        say(f"reading {each} ({option_of('task.fields')} says otherwise)")
    return dataclasses.replace(recipe, task=task)


def encoded(records: Sequence[Record], recipe: Recipe, tokenizer: Tokenizer, *, answers: bool = True) -> TaskData:
    """Records with their rows.

    Args:
        records: The records.
        recipe: Of the task.
        tokenizer: The model's.
        answers: Whether they are learned from or measured; if not, what they hold as answers is not even looked at.

    Raises:
        UsageError: `task.fields` names a role that the task does not read.
        UniclozeError: A record cannot be used; the message names its line.
    """
    task = TASKS[recipe.task.kind]
    if not answers:
        records = [dataclasses.replace(record, unread=task.answers) for record in records]
    check_roles(records, task, recipe)
    return TaskData(records, task.encode(records, tokenizer, recipe), records_fingerprint(records))


def records_fingerprint(records: Sequence[Record]) -> str:
    """SHA-256 of what records hold."""
    return digest([[record.id, dict(record.fields)] for record in records])


def sample(data: TaskData, count: int | None) -> TaskData:
    """So many of the records with their rows, evenly spread; all if there are no more."""
    if count is None or count >= len(data.records):
        return data
    chosen = [place * len(data.records) // count for place in range(count)]
    number = {record: place for place, record in enumerate(chosen)}
    rows = [dataclasses.replace(row, record=number[row.record]) for row in data.rows if row.record in number]
    return TaskData([data.records[record] for record in chosen], rows, data.fingerprint)


def segments_of(data: TaskData, recipe: Recipe, vocabulary: Vocabulary) -> int:
    """Segments that rows have, seen in the first ones: an export must know whether pairs told their parts apart."""
    rows = data.rows[:ROWS_SEEN]
    return int(TASKS[recipe.task.kind].lay_out(rows, vocabulary, recipe, None).segment_ids.max()) + 1


def steps_per_epoch(rows: int, batch_size: int) -> int:
    """Steps in which every row is seen once; the last one may have fewer rows."""
    return -(-rows // batch_size)


def finetuning_steps(
    data: TaskData, recipe: Recipe, vocabulary: Vocabulary, device: str, first_step: int
) -> Iterator[list[MicroBatch]]:
    """The micro-batches of each step from `first_step` to the last; a function of the seed and the step alone.

    The rows of a step are those of a random order of the epoch. They are laid end to end in blocks of like length, which
    changes the padding and not the gradient.
    """
    batch_size, seed = recipe.training.batch_size, recipe.training.seed
    weights = recipe.finetuning.auxiliary
    beside = auxiliary_objective(recipe) if weights else None
    each_epoch = steps_per_epoch(len(data.rows), batch_size)
    for step in range(first_step, recipe.training.steps):
        epoch, number = divmod(step, each_epoch)
        places = np.arange(number * batch_size, min((number + 1) * batch_size, len(data.rows)))
        chosen = keyed.permutation(places, len(data.rows), keyed.key(seed, keyed.Purpose.RECORD_ORDER, epoch)[0])
        lengths = np.array([data.rows[number].slots for number in chosen])
        chosen, most = chosen[np.argsort(-lengths, kind="stable")], recipe.training.micro_batch_size or len(chosen)
        step_batches: list[MicroBatch] = []
        for first in range(0, len(chosen), most):
            numbers = chosen[first : first + most]
            batch = _micro_batch(
                data, numbers, recipe, vocabulary, keyed.key(seed, keyed.Purpose.RECORD, epoch, numbers), device
            )
            keys = keyed.key(seed, keyed.Purpose.RECORD_OF_AUXILIARY, epoch, numbers)
            step_batches += [batch] if beside is None else with_auxiliary(batch, beside, weights, vocabulary, keys)
        yield step_batches


def block_sizes(lengths: npt.NDArray[np.integer], cost: int) -> list[int]:
    """Cut rows into the blocks that cost least, padding and a constant for each block counted.

    Args:
        lengths: Slots of each row, the longest first. *Shape:* (rows,)
        cost: Of a block, in slots.

    Returns:
        Rows of each block.
    """
    least, best = np.zeros(len(lengths) + 1), np.zeros(len(lengths) + 1, dtype=np.int64)
    for end in range(1, len(lengths) + 1):  # the cheapest way to cut the longest `end` rows
        starts = np.arange(end)
        options = least[starts] + (end - starts) * lengths[starts] + cost
        best[end] = options.argmin()
        least[end] = options.min()
    sizes, end = [], len(lengths)
    while end:
        sizes.append(int(end - best[end]))
        end = int(best[end])
    return sizes[::-1]


def blocks_by_length(rows: Sequence[Any], most_slots: int) -> Iterator[npt.NDArray[np.int64]]:
    """Numbers of all rows, the longest first, in blocks of at most so many slots with their padding."""
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
    blocks = block_sizes(examples.lengths, BLOCK_COST[device])
    return MicroBatch(examples, None, recipe.objective.coefficients, place, blocks)
