"""Probes: tasks that every trained model of a comparison is fine-tuned on in the same way.

Visibility and pooling follow each model's recipe (`use.visibility`, `use.pooling`); everything else is the same for all
models: files, settings, the maximum tokens per row, and for runs with the same seed the order of the records.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from unicloze.comparison.table import ProbeColumn
from unicloze.errors import UsageError, options_begin_with
from unicloze.evaluation.metrics.registry import metric
from unicloze.example import Examples
from unicloze.finetuning.data import (
    check_labels,
    check_targets,
    encoded,
    evenly_chosen,
    finetuning_steps,
    open_records,
    reading_columns,
    unlabelled_text,
)
from unicloze.finetuning.initial import adaptable, task_recipe, with_chosen
from unicloze.finetuning.scores import check_answers, check_metrics
from unicloze.model.build import Model, shapes_only
from unicloze.model.flops import TRAINING
from unicloze.pretraining.budget import SAMPLED_STEPS, amounts_of
from unicloze.recipes import read_recipe, task_names
from unicloze.recipes.validation import (
    refuse_decided_in_task,
    refuse_unread_in_task,
    refuse_unread_in_task_files,
    value_of,
)
from unicloze.records import read_records
from unicloze.settings import Recipe
from unicloze.tasks import TASKS, of_view
from unicloze.tasks.columns import check_roles, resolved
from unicloze.tasks.generation import with_learning
from unicloze.tasks.rows import text_pooling
from unicloze.tasks.several import records_of
from unicloze.tasks.task import OF_TEXTS, Headed
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.loading import LoadedModel, check_smoothing, shape_model
from unicloze.training.lock import FREE_TO_CHANGE
from unicloze.training.memory import refuse_task_that_cannot_fit
from unicloze.training.precision import choose_device

POOLED = *OF_TEXTS, "choice"
"""Kinds of tasks with a slot that represents a text; only these use the pooling of the model's recipe."""

PREFIX = "probe."
"""Prefix of the options that set the probes' settings."""

SHARED = "task", "generation", "decoding", "finetuning", "training"
"""Sections that the probes of all models have in common."""

_SHOWN = "finetuning.epochs", "training.batch_size", "training.learning_rate", "task.max_length"
_DROPOUTS = "model.dropout", "model.attention_dropout"
_DECIDED = (
    "training.seed", "training.steps", "training.warmup_steps", "training.initialize_from", "training.word_vectors",
    "task.pooling",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A task with its files, the same for every model."""

    recipe: Recipe  # recipe of the task
    overridden: tuple[str, ...]  # dotted keys that were set explicitly
    files: tuple[Path, Path]  # training and development file
    records: tuple[int, int]  # number of records in each
    # Known once it is fitted to the models of a comparison: fingerprints of the files, and why a model cannot do the task, by
    # the name of its recipe
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    not_defined: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the recipe."""
        return self.recipe.name

    def column(self, unit: str) -> ProbeColumn:
        """The column of its scores."""
        name = self.recipe.task.metrics[0]
        return ProbeColumn(
            name=self.name,
            metric=name,
            value=metric(name).headline,
            unit=unit,
            higher_is_better=metric(name).higher_is_better,
            files=(str(self.files[0]), str(self.files[1])),
            records=self.records,
            settings={key: value_of(self.recipe, key) for key in _SHOWN},
            not_defined=self.not_defined,
        )


def open_probe(task: str, train: Path, dev: Path, overrides: Mapping[str, Any], progress: bool = True) -> Probe:
    """A task with its files, checked for readable and labelled records."""
    for key in overrides:
        if key in _DECIDED or (key.partition(".")[0] not in SHARED and key not in _DROPOUTS):
            raise UsageError(
                f"option --{PREFIX}{key}: the comparison sets this, from its seeds and from each recipe; for "
                f"probes give settings of {', '.join(SHARED)}, or {' and '.join(_DROPOUTS)}."
            )
    refuse_decided_in_task(overrides, f"option --{PREFIX}")
    with options_begin_with(PREFIX):
        files = read_recipe(task)
        recipe = files.recipe(overrides)
    if not recipe.task.kind:
        raise UsageError(
            f"recipe {recipe.name} is for pre-training: give --probe a task (`unicloze recipes` lists them)."
        )
    if task in task_names():
        recipe = adaptable(recipe, overrides)
    written = {key: origin for key, origin in files.given_for_a_task().items() if key not in overrides}
    refuse_unread_in_task_files(recipe, written)
    of_model = [key for key in written if key.startswith(("model.", "use."))]
    if fixed := [key for key in of_model if key not in _DROPOUTS]:
        raise UsageError(
            f"{written[fixed[0]]}: {fixed[0]} is set by each recipe of the comparison; a probe may set only "
            f"{' and '.join(_DROPOUTS)} of the model: leave it out."
        )
    with options_begin_with(PREFIX):
        check_metrics(recipe)
        check_smoothing(recipe)
        records, measured = read_records(train, recipe.task), read_records(dev, recipe.task)
        recipe = reading_columns(recipe, records, progress)
        learned = dataclasses.replace(recipe, task=resolved(recipe.task, records))
        check_labels(records, learned)
        check_answers(measured, learned)
        for each in (records, measured):
            check_roles(each, TASKS[recipe.task.kind], learned)
    kept = (*overrides, *of_model)
    return Probe(recipe=recipe, overridden=kept, files=(train, dev), records=(len(records), len(measured)))


def fit_probes(probes: Sequence[Probe], recipes: Sequence[Recipe], tokenizer: Tokenizer) -> list[Probe]:
    """The probes with rows short enough for every model, checked against every model's shape."""
    names = [probe.name for probe in probes]
    again = [name for name in names if names.count(name) > 1]
    if again:
        raise UsageError(
            f"two probes are named {again[0]}: give one of them a recipe file of its own (base: {again[0]})."
        )
    starts = []  # the shapes of the models that the recipes train
    for recipe in recipes if probes else ():
        with shapes_only():
            model = shape_model(recipe, tokenizer.vocabulary.size).for_use()
        starts.append(LoadedModel(model, tokenizer, recipe, Path(recipe.name), 0))
    with options_begin_with(PREFIX):
        return [_fitted(probe, starts) for probe in probes]


def _fitted(probe: Probe, starts: Sequence[LoadedModel]) -> Probe:
    longest = min(start.model.max_positions for start in starts)
    recipe = probe.recipe.changed("task", max_length=min(probe.recipe.task.max_length, longest))
    probe, task = dataclasses.replace(probe, recipe=recipe), recipe.task
    able, not_defined = list[Recipe](), dict[str, str]()
    for start in starts:
        try:
            able.append(recipe_for(probe, start))
        except UsageError as error:
            not_defined[start.recipe.name] = str(error)
    if not able:
        raise UsageError(f"probe {probe.name}: {next(iter(not_defined.values()))}")
    refuse_unread_in_task([with_learning(recipe) for recipe in able], probe.overridden)
    tokenizer, (train, dev) = starts[0].tokenizer, probe.files
    records = read_records(train, task)
    learned = dataclasses.replace(able[0], task=resolved(able[0].task, records))
    check_targets(records, learned, tokenizer)
    training = evenly_chosen(encoded(records, learned, tokenizer), task.train_records)
    recipe = with_chosen(probe.recipe, starts[0].model.num_parameters(), len(training.rows))  # same for all models
    probe = dataclasses.replace(probe, recipe=recipe)
    slots, device = [row.slots for row in training.rows], choose_device(able[0].training)
    for one in able:
        labelled = dataclasses.replace(one, task=resolved(one.task, records))
        refuse_task_that_cannot_fit(labelled, device, tokenizer.vocabulary.size, slots)
    measured = open_records(dev, learned, tokenizer)
    fingerprints = {"training file": training.fingerprint, "development file": measured.fingerprint}
    return dataclasses.replace(probe, fingerprints=fingerprints, not_defined=not_defined)


def recipe_for(probe: Probe, start: LoadedModel) -> Recipe:
    """The recipe that fine-tunes a model on a probe, with the visibility and pooling of that model's recipe.

    Seed, device and precision are those of its pre-training, unless the probe sets device or precision.
    """
    recipe, own = probe.recipe, start.recipe.training
    inherited = {key: getattr(own, key) for key in ("device", "precision") if f"training.{key}" not in probe.overridden}
    recipe, task = recipe.changed("training", seed=own.seed, **inherited), recipe.task
    if isinstance(task, Headed):
        pooling = text_pooling(start.recipe) if task.kind in POOLED else task.pooling
        own_way = start.recipe.model.decoder_layers or task.head == "biattentive"  # the decoder refuses, the head pools
        alone = task.one_slot and (task.kind not in POOLED or pooling == "mean")
        recipe = recipe.changed("task", pooling=None if own_way or alone else pooling)
    return task_recipe(recipe, start, probe.overridden)


def agreed(probes: Sequence[Probe], former: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """The notes on all probes of a comparison, checked so that no probe changes when it resumes."""
    noted = {**former, **{probe.name: _noted(probe) for probe in probes}}
    for name in former:
        changes = _changes(former[name], noted[name])
        if changes:
            raise UsageError(f"{place} has a probe {name} with {changes}: give another --out, or undo the change.")
    return noted


def _noted(probe: Probe) -> dict[str, Any]:
    settings = probe.recipe.flat(*SHARED) | {key: value_of(probe.recipe, key) for key in probe.overridden}
    kept = {key: value for key, value in settings.items() if key not in FREE_TO_CHANGE and key not in _DECIDED}
    noted: dict[str, Any] = json.loads(json.dumps({"settings": kept, "files": probe.fingerprints}))
    return noted


def _changes(former: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The difference between two notes on a probe, in words; empty if there is none."""
    old, new = former["settings"], now["settings"]
    if old.get("finetuning.fit_head") == "auto":  # of older comparisons, which fitted none
        old = {**old, "finetuning.fit_head": False}
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    if changed:
        others = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        return f"{changed[0]} {old.get(changed[0])}, but this one has {new.get(changed[0])}{others}"
    files = [what for what, fingerprint in now["files"].items() if former["files"].get(what) != fingerprint]
    return f"another {' and another '.join(files)}, or one that has changed since" if files else ""


def finetuning_flops(recipe: Recipe, train: Path, tokenizer: Tokenizer, steps: int) -> float:
    """Floating-point operations of a fine-tuning's training steps, from a sample of them."""
    data = encoded(records_of(train, recipe.task), recipe, tokenizer)
    data = evenly_chosen(data, recipe.task.train_records)
    data = dataclasses.replace(data, unlabelled=unlabelled_text(recipe, tokenizer))
    with shapes_only():
        model = shape_model(recipe, tokenizer.vocabulary.size)
    together = recipe.finetuning.steps_between  # a labelled step and those on unlabelled text
    turns = -(-steps // together)
    firsts = together * np.linspace(0, turns - 1, min(turns, SAMPLED_STEPS)).round().astype(int)
    numbers = [number for first in firsts for number in range(first, min(first + together, steps))]
    sampled = [next(finetuning_steps(data, recipe, tokenizer.vocabulary, "cpu", int(number))) for number in numbers]
    blocks = [batch.examples for step in sampled for batch in step if len(batch.examples)]
    return steps * sum(_flops_of(model, recipe, block) for block in blocks) / len(sampled)


def _flops_of(model: Model, recipe: Recipe, rows: Examples) -> float:
    """Those of a training step; rows with views are also read by the heads that teach them, see `OwnTeacher`."""
    amounts = amounts_of(model, rows)
    teaching = TASKS[recipe.task.kind].heads(recipe.task).keys()
    views = amounts.predictions.keys() & {of_view(head, view) for head in teaching for view in recipe.finetuning.views}
    if not views:
        return model.flops(amounts)
    return model.flops(amounts.of(views)) + model.flops(amounts.of(teaching)) / TRAINING
