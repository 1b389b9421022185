"""Distillation: a trained model, the teacher, gives soft labels for the predictions of another (Hinton et al. 2015).

The teacher reads the same rows as the student, with the same masks and visibility, so it sees no more than the student does.
Its outputs are computed once per micro-batch and without a gradient; only training steps use them, so evaluations stay
comparable with those of other runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from unicloze.errors import UsageError
from unicloze.example import Batch, SoftLabels
from unicloze.mixtures import all_targets, longest_row, parts, phases
from unicloze.model.flops import TRAINING, Amounts
from unicloze.model.model import OWN_HEADS
from unicloze.settings import ModelSettings, ObjectiveSettings, Recipe
from unicloze.tasks import task_heads
from unicloze.tasks.rows import pooling_of
from unicloze.tasks.tagging import TARGET, TaggingSettings, taggers_of
from unicloze.tasks.task import task_of
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.checkpoint import fingerprint
from unicloze.training.loading import LoadedModel
from unicloze.training.loop import Compute

KINDS = "classification", "regression", "tagging"
"""Kinds of tasks with soft labels."""
OF_ROWS = "labels", "delimiter", "both_orders", "predicate"
"""Settings of a task that decide what its rows are and what their predictions mean."""


class Teacher:
    """Adds soft labels to batches.

    Args:
        opened: The teacher.
        recipe: Recipe of the student, with the temperature and the weight.
        targets: Targets that get soft labels.
    """

    def __init__(self, opened: LoadedModel, recipe: Recipe, targets: Sequence[str]) -> None:
        self._model, self._settings = opened.model.eval(), recipe.distillation
        self._targets = frozenset(targets)
        self.path, self.network = opened.path, self._model.for_use()
        self.digest = fingerprint(opened.tokenizer, opened.model.state_dict())

    @classmethod
    def of(cls, opened: LoadedModel, recipe: Recipe, tokenizer: Tokenizer) -> Teacher:
        """The teacher of a run."""
        said = f"distillation.teacher {opened.path}"
        if opened.tokenizer.fingerprint != tokenizer.fingerprint:
            raise UsageError(
                f"{said} has another tokenizer than this run, and soft labels need the same tokens: give the student the "
                "teacher's tokenizer (--tokenizer.path TEACHER/tokenizer.json in pre-training, or a --model that has it)"
            )
        targets = _targets_of_task(recipe, opened, said) if recipe.task.kind else _targets_of_text(recipe, opened, said)
        _check_rows(recipe, opened, said)
        return cls(opened, recipe, targets)

    def flops(self, amounts: Amounts) -> float:
        """Floating-point operations of the soft labels for such rows: a forward pass."""
        asked = self._targets & set(amounts.predictions)
        return self._model.flops(amounts.of(self._targets)) / TRAINING if asked else 0.0

    def __call__(self, batch: Batch, compute: Compute) -> Batch:
        """The batch with soft labels for every prediction of the targets."""
        asked = {name: target for name, target in batch.targets.items() if name in self._targets}
        if not asked:
            return batch
        model = self._model.to(compute.device)
        with torch.no_grad(), compute.autocast():
            found = model.predicted_outputs(dataclasses.replace(batch, targets=asked))
        targets = dict(batch.targets)
        for name, outputs in found.items():
            soft = SoftLabels(outputs, temperature=self._settings.temperature, weight=self._settings.weight)
            targets[name] = dataclasses.replace(asked[name], soft=soft)
        return dataclasses.replace(batch, targets=targets)


def _check_rows(recipe: Recipe, opened: LoadedModel, said: str) -> None:
    """Reject a teacher without the positions or segments of the student's rows."""
    theirs = opened.model.settings
    needed = recipe.task.max_length if recipe.task.kind else longest_row(recipe)
    if theirs.positions in ("learned", "sinusoidal") and opened.model.max_positions < needed:
        cure = "task.max_length" if recipe.task.kind else "data.window"
        raise UsageError(
            f"{said} has {opened.model.max_positions} positions, but the rows have up to {needed}: lower {cure}"
        )
    if theirs.num_segments > 1 and theirs.num_segments < recipe.model.num_segments:
        raise UsageError(
            f"{said} has {theirs.num_segments} segments, but model.num_segments is {recipe.model.num_segments}: give the "
            "student no more"
        )


def _targets_of_text(recipe: Recipe, opened: LoadedModel, said: str) -> list[str]:
    """The token targets that both models predict."""
    if recipe.model.memory or recipe.model.generator_size:
        key = "model.memory" if recipe.model.memory else "model.generator_size"
        raise UsageError(f"distillation.teacher needs {key} 0: the teacher reads every row once, as it is given")
    known = set(all_targets(opened.recipe)) if hasattr(opened.model, "token_head") else set()
    own = [name for name in all_targets(recipe) if name not in OWN_HEADS]
    targets = [name for name in own if name in known]
    if not targets:
        raise UsageError(
            f"{said} predicts {' and '.join(sorted(known)) or 'no tokens'}, but the run trains "
            f"{' and '.join(all_targets(recipe))}: name a teacher trained for one of its targets"
        )
    for name in targets:
        theirs, ours = (_kinds_of_rows(each, name, opened.model.settings) for each in (opened.recipe, recipe))
        if other := sorted(ours - theirs):
            raise UsageError(
                f"{said} predicts {name} in rows of {' and '.join(sorted(theirs))}, but the run has rows of "
                f"{' and '.join(other)}: name a teacher trained on such rows"
            )
    return targets


def _kinds_of_rows(recipe: Recipe, target: str, teacher: ModelSettings) -> set[str]:
    """The kinds of rows that have a target, as far as they matter to a teacher; `ae` means the same in every objective."""

    def kind(settings: ObjectiveSettings) -> str:
        said = [settings.reading.visibility]
        if teacher.decoder_layers:
            said.append(f"targets begin with {' '.join(getattr(settings, 'starts', ())) or 'nothing'}")
        if "local" in teacher.layer_visibility:
            said.append(f"local_width {settings.reading.local_width}")
        return f"{'masked' if target == 'ae' else settings.name} ({', '.join(map(str, said))})"

    settings = [part.settings for phase in phases(recipe) for part in parts(phase.recipe.objective)]
    return {kind(each) for each in settings if target in each.targets}


def _targets_of_task(recipe: Recipe, opened: LoadedModel, said: str) -> list[str]:
    """The targets of a task with heads."""
    kind = recipe.task.kind
    if kind not in KINDS:
        raise UsageError(f"distillation.teacher: a {kind} task has no soft labels; only {', '.join(KINDS)} have")
    if opened.recipe.task.kind != kind:
        other = opened.recipe.task.kind or "pre-training only"
        raise UsageError(f"{said} was trained for {other}, but the run is for {kind}: fine-tune the teacher first")
    pairs = [(f"task.{name}", getattr(opened.recipe.task, name, None), getattr(recipe.task, name, None))
             for name in OF_ROWS]  # fmt: skip
    pairs += [
        ("task.pooling", pooling_of(opened.recipe), pooling_of(recipe)),
        ("use.visibility", opened.recipe.use.visibility, recipe.use.visibility),
        ("use.separators", opened.recipe.use.separators, recipe.use.separators),
    ]
    heads = [getattr(each.task, "head", None) for each in (opened.recipe, recipe)]
    if "biattentive" in heads:  # it reads the texts of a pair apart, and all slots
        pairs += [("task.head", heads[0], heads[1])]
    for key, theirs, ours in pairs:
        if theirs != ours:
            raise UsageError(f"{said} was fine-tuned with {key} {theirs}, but the run has {ours}: give both the same")
    if isinstance(recipe.task, TaggingSettings):
        former = taggers_of(task_of(opened.recipe, TaggingSettings))
        for name, tags in taggers_of(recipe.task).items():
            if former.get(name) != tags:
                raise UsageError(
                    f"{said} has no tagger {name.removeprefix(f'{TARGET}:')} with the tags {', '.join(tags)}: give both the "
                    "same task.parts"
                )
    return list(task_heads(recipe))
