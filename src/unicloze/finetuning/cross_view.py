"""Cross-view training: a task learns from unlabelled text as well (Clark et al. 2018, Section 2).

Labelled and unlabelled steps alternate. On labelled records the task's own heads, the primary ones, learn as usual. On
unlabelled text they predict without dropout and without a gradient, and auxiliary heads with restricted views learn to
predict the same. So the primary heads never learn from unlabelled text, but the network below them does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from unicloze.errors import UniclozeError, UsageError, option_of
from unicloze.example import Batch, SoftLabels
from unicloze.model.model import UnifiedModel
from unicloze.model.recurrent.backbone import VIEWS
from unicloze.records import read_records, record_files
from unicloze.records.files import kind_of, read_text
from unicloze.records.record import Record
from unicloze.settings import Recipe
from unicloze.tasks import TASKS, of_view
from unicloze.tasks.groups import Headed
from unicloze.tasks.raw_texts import record_of_texts
from unicloze.tasks.rows import Row, RowTarget
from unicloze.tasks.tagging import TaggingSettings
from unicloze.training.loop import Compute


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
