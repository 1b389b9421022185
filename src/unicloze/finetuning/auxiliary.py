"""Trains on unlabelled text as well: the pre-training objective on a task's texts, and cross-view training."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from unicloze import keyed
from unicloze.errors import UniclozeError, UsageError, option_of
from unicloze.example import Batch, Examples, Kind, SoftLabels
from unicloze.mixtures import parts, positions
from unicloze.model.model import UnifiedModel
from unicloze.model.recurrent.backbone import VIEWS
from unicloze.objectives import make_examples
from unicloze.objectives.groups import Pairs
from unicloze.records import read_records, record_files
from unicloze.records.files import kind_of, read_text
from unicloze.records.record import Record
from unicloze.settings import ObjectiveSettings, Recipe
from unicloze.tasks import TASKS, of_view
from unicloze.tasks.columns import record_of_texts
from unicloze.tasks.groups import Headed
from unicloze.tasks.rows import Row, RowTarget
from unicloze.tasks.tagging import TaggingSettings
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows
from unicloze.training.batches import MicroBatch
from unicloze.training.loop import Compute

SEQUENCE = 2**20 + 9
"""Stream of the keys of sequences packed into one row."""
OF_A_ROW = "ae", "par", "lm", "diffusion", "sbo"
"""Targets that a single row has: neither segment-pair relations nor tokens replaced by a generator."""


def auxiliary_objective(recipe: Recipe) -> ObjectiveSettings:
    """The part of the objective that predicts the auxiliary targets with the visibility of the task's rows.

    In a mixture this is the first such part, such as the bidirectional one of UniLM v1's four.
    """
    wanted, reads = recipe.finetuning.auxiliary, recipe.use.visibility
    known: dict[str, None] = {}
    for part in parts(recipe.objective):
        settings = part.settings
        if settings.reading.visibility != reads:
            continue
        known |= dict.fromkeys(name for name in settings.targets if name in OF_A_ROW)
        if not set(wanted) <= known.keys() & set(settings.targets):
            continue
        longest = positions(settings, recipe.task.max_length)
        if recipe.model.max_positions is not None and longest > recipe.model.max_positions:
            raise UsageError(
                f"finetuning.auxiliary needs {longest} positions for rows of {recipe.task.max_length} tokens, but the "
                f"model has {recipe.model.max_positions}: lower {option_of('task.max_length')}"
            )
        targets = [name for name in settings.targets if name in wanted]
        alone = dataclasses.replace(settings, targets=targets)
        return dataclasses.replace(alone, pairs="contiguous") if isinstance(alone, Pairs) else alone
    cure = f"train on the task alone with {option_of('finetuning.auxiliary')} '{{}}'"
    raise UsageError(
        f"finetuning.auxiliary names {', '.join(wanted)}, but the model's objective with {reads} visibility has "
        f"{' and '.join(known) or 'no target that a single row has'}: {cure}, or start from a model that "
        "was pre-trained for it"
    )


def with_auxiliary(
    batch: MicroBatch,
    objective: ObjectiveSettings,
    weights: Mapping[str, float],
    vocabulary: Vocabulary,
    keys: keyed.Bits,
) -> list[MicroBatch]:
    """A micro-batch of a task, and its rows as an objective lays them out."""
    examples = make_examples(_windows(batch.examples, vocabulary, keys), vocabulary, objective)
    if not _alike(batch.examples, examples):
        buckets = batch.buckets if len(examples) == len(batch.examples) else ()
        return [batch, MicroBatch(examples, None, weights, batch.place, buckets, repeats=True, part=1)]
    both = dataclasses.replace(batch.examples, targets={**batch.examples.targets, **examples.targets})
    merged = dataclasses.replace(batch, examples=both, coefficients={**batch.coefficients, **weights})
    return [merged, MicroBatch(Examples.none(), None, part=1)]


def _windows(examples: Examples, vocabulary: Vocabulary, keys: keyed.Bits) -> Windows:
    """The sequences of a task's rows as windows of text."""
    real = np.arange(examples.input_ids.shape[1]) < examples.lengths[:, None]
    row, slot = np.nonzero(real & (examples.position_ids == 0))  # where each sequence begins
    following = np.append(slot[1:], 0)
    ends = np.where(np.append(row[1:], -1) == row, following, examples.lengths[row])
    lengths = (ends - slot).astype(np.int32)
    inner = np.arange(lengths.max(initial=1))
    taken = inner < lengths[:, None]
    at = row[:, None], np.minimum(slot[:, None] + inner, examples.input_ids.shape[1] - 1)
    plain = (examples.kinds[at] == Kind.CONTEXT) & (examples.position_ids[at] == inner)
    if lengths.sum() != examples.lengths.sum() or not plain[taken].all():
        raise UsageError("finetuning.auxiliary needs rows of plain text only, unlike those of this task: leave it out")
    token_ids = np.where(taken, examples.input_ids[at], vocabulary.pad).astype(np.int32)
    first = np.searchsorted(row, np.arange(len(examples)))
    return Windows(
        token_ids=token_ids,
        segment_ids=np.where(taken, examples.segment_ids[at], 0).astype(np.int32),
        lengths=lengths,
        maskable=taken & ~np.isin(token_ids, vocabulary.special),
        keys=keyed.bits(keys[row], SEQUENCE, np.arange(len(row)) - first[row]) if len(row) > len(keys) else keys,
        source=np.zeros(len(row), dtype=np.int32),
        index=np.arange(len(row), dtype=np.int64),
    )


def _alike(one: Examples, other: Examples) -> bool:
    """Whether two blocks have the same slots with the same visibility, ignoring padding."""
    if one.local is not None or other.local is not None or not np.array_equal(one.lengths, other.lengths):
        return False
    real = np.arange(one.lengths.max(initial=0)) < one.lengths[:, None]
    columns = ("input_ids", "position_ids", "segment_ids", "intervals")
    return all(
        np.array_equal(*(getattr(examples, name)[:, : real.shape[1]][real] for examples in (one, other)))
        for name in columns
    )


# Labelled and unlabelled steps alternate. On labelled records the task's own heads, the primary ones, learn as usual.
# On unlabelled text they predict without dropout and without a gradient, and auxiliary heads with restricted views
# learn to predict the same. So the primary heads never learn from unlabelled text, but the network below them does.


def check_views(recipe: Recipe) -> None:
    """Reject views that the model or the task does not have."""
    task, finetuning = recipe.task, recipe.finetuning
    both_ways = recipe.model.kind == "recurrent" and recipe.model.directions == "bidirectional"
    if isinstance(task, Headed) and task.layers == "all" and not both_ways:
        raise UsageError(
            "task.layers is all, which only bidirectional LSTMs have (model.directions bidirectional): set it to last, or "
            "give a model such as cvt"
        )
    if not finetuning.unlabelled:
        return
    if task.kind != "tagging":
        raise UsageError(
            "finetuning.unlabelled hides the text on one side of a word, so it is for tagging only (the auxiliary decoders "
            f"of cross-view training for translation are not done), and task.kind is {task.kind}: leave it out"
        )
    if not both_ways:
        raise UsageError(
            "finetuning.unlabelled needs bidirectional LSTMs (model.directions bidirectional), whose first layer has the "
            "views: give a model such as cvt"
        )
    if isinstance(task, TaggingSettings) and task.encoder_size:
        raise UsageError(
            "finetuning.unlabelled needs heads that see no more than their view, and a biLSTM before a head reads the whole "
            "sentence: set task.encoder_size to 0"
        )
    for each in dataclasses.fields(recipe.model):
        if "dropout" in each.name and getattr(recipe.model, each.name) * finetuning.unlabelled_dropout >= 1:
            raise UsageError(
                f"finetuning.unlabelled_dropout is {finetuning.unlabelled_dropout:g}, which makes model.{each.name} 1 or "
                "more: lower it"
            )
    if recipe.training.on_spike != "accept":
        raise UsageError(
            "training.on_spike compares the gradients of all steps, and those on unlabelled text (finetuning.unlabelled) are "
            "much smaller at first: set it to accept"
        )
    if recipe.distillation.teacher is not None:
        raise UsageError(
            "with finetuning.unlabelled the model teaches itself: leave it out, or leave out distillation.teacher"
        )


def unlabelled_records(recipe: Recipe) -> list[Record]:
    """The unlabelled records of a recipe: lines of .txt files, split into words, and records of other files."""
    found: list[Record] = []
    for name in recipe.finetuning.unlabelled:
        for file in record_files(Path(name)):
            found += _lines(file, recipe) if kind_of(file) == ".txt" else read_records(file, recipe.task)
    if not found:
        given = ", ".join(recipe.finetuning.unlabelled)
        raise UniclozeError(f"{given}: there is no text: give {option_of('finetuning.unlabelled')} other files")
    return found


def _lines(file: Path, recipe: Recipe) -> Iterator[Record]:
    for number, line in enumerate(read_text(file).split("\n"), 1):
        if line.strip():
            yield dataclasses.replace(record_of_texts([line], recipe), id=str(number), place=f"{file}, line {number}")


def with_views(rows: Sequence[Row], recipe: Recipe) -> list[Row]:
    """The rows with a target for the primary head and one for each view, which learns from it."""
    found = []
    for row in rows:
        targets = dict(row.targets)
        for name, target in row.targets.items():
            for view in recipe.finetuning.views:
                slots = target.slots
                if VIEWS[view].direction is not None:
                    slots = [[VIEWS[view].slot(first, end)] for first, end in target.units]
                targets[of_view(name, view)] = RowTarget(slots=slots, labels=None)
        found.append(dataclasses.replace(row, targets=targets))
    return found


class OwnTeacher:
    """Replaces the targets of unlabelled batches: the primary heads' by soft labels for the auxiliary ones.

    Args:
        model: The model being trained.
        recipe: Its recipe.
    """

    def __init__(self, model: UnifiedModel, recipe: Recipe) -> None:
        self._model, self._views = model, recipe.finetuning.views
        self._primary = list(TASKS[recipe.task.kind].heads(recipe.task))

    def __call__(self, batch: Batch, compute: Compute) -> Batch:
        """The batch with the views' targets alone; a labelled batch is returned as it is."""
        asked = {name: batch.targets[name] for name in self._primary if of_view(name, self._views[0]) in batch.targets}
        if not asked:
            return batch
        with torch.no_grad(), compute.autocast():
            found = self._model.predicted_outputs(dataclasses.replace(batch, targets=asked))
        soft = {name: SoftLabels(outputs, temperature=1.0, weight=1.0) for name, outputs in found.items()}
        targets = {
            of_view(name, view): dataclasses.replace(batch.targets[of_view(name, view)], soft=soft[name])
            for name in asked
            for view in self._views
        }
        return dataclasses.replace(batch, targets=targets)
