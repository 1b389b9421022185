"""Checks before training starts: usable metrics and labels, and resuming with the same model and records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from unicloze.errors import UniclozeError, UsageError, option_of
from unicloze.evaluation.metrics.registry import METRICS, metric
from unicloze.finetuning.data import TaskData
from unicloze.records.record import Record
from unicloze.settings import Recipe
from unicloze.tasks import TASKS
from unicloze.tasks.several import metrics_of, parts_of
from unicloze.training.checkpoint import fingerprint
from unicloze.training.loading import LoadedModel

Origin = Mapping[str, str | None]
"""Fingerprints of the model and files that a run started with; None for those it lacks."""


def check_metrics(recipe: Recipe) -> None:
    """Reject unknown metrics, metrics that do not compare what the task predicts, and options that no metric has."""
    known = {option for each in METRICS.values() for option in each.options}
    names = metrics_of(recipe.task)
    named = [metric(name) for name in names]
    for option in recipe.task.metric_options:
        if option not in known:
            raise UsageError(f"task.metric_options names {option}: metrics have the options {', '.join(sorted(known))}")
        if not any(option in each.options for each in named):
            raise UsageError(
                f"task.metric_options names {option}, but none of the metrics {', '.join(names)} has it: leave "
                f"it out ({option_of('task.metric_options')} '{{}}')"
            )
    allowed = TASKS[recipe.task.kind].compares
    parts = parts_of(recipe.task)
    for part in parts:
        for name in part.metrics:
            if metric(name).compares not in part.compares:
                raise UsageError(f"task.parts: {name} of {part.label} does not compare {' or '.join(part.compares)}")
            metric(name).check_options(options_of(name, recipe))
    for name in () if parts else names:
        compares = metric(name).compares
        if allowed and compares not in allowed:
            raise UsageError(
                f"task.metrics names {name}, which compares {compares}, but a {recipe.task.kind} task predicts "
                f"{' or '.join(allowed)}: name another metric"
            )
        metric(name).check_options(options_of(name, recipe))


def check_given_options(recipe: Recipe) -> None:
    """Reject explicitly given options that no metric of the task has."""
    for option in recipe.task.metric_options:
        names = metrics_of(recipe.task)
        if not any(option in metric(name).options for name in names):
            raise UsageError(
                f"option {option_of('task.metric_options')}: {' and '.join(names)} has no option {option}: leave it out"
            )


def options_of(name: str, recipe: Recipe) -> dict[str, str]:
    """Those of the task's metric options that apply to a metric."""
    return {key: value for key, value in recipe.task.metric_options.items() if key in metric(name).options}


def check_labels(records: Sequence[Record], recipe: Recipe) -> None:
    """Reject unlabelled training records, which nothing else notices if the recipe names the classes."""
    for record in records:
        TASKS[recipe.task.kind].reference(record, recipe.task)


def refuse_word_vectors(recipe: Recipe) -> None:
    """Reject word vectors for a model that has trained embeddings."""
    if recipe.training.word_vectors is not None:
        raise UsageError(
            "training.word_vectors is for new embeddings, and those of --model are trained: leave it out, or give "
            "the recipe of a network as --model"
        )


def origin_of(start: LoadedModel, train: TaskData, dev: TaskData | None, teacher: str | None = None) -> Origin:
    """Fingerprints of the models and files of a new run."""
    return {
        **({} if teacher is None else {"teacher": teacher}),
        **({} if train.unlabelled is None else {"unlabelled text": train.unlabelled.fingerprint}),
        "training file": train.fingerprint,
        "development file": None if dev is None else dev.fingerprint,
        "model": model_fingerprint(start),
    }


def model_fingerprint(model: LoadedModel) -> str:
    """SHA-256 of a model's vocabulary and weights."""
    return fingerprint(model.tokenizer, model.model.state_dict())


def refuse_other_origin(former: Origin, now: Origin, out: Path) -> None:
    """Reject resuming a run with other records or another model: its evaluations would not be comparable."""
    other = next((what for what, fingerprint in now.items() if former.get(what) != fingerprint), None)
    if other is not None:
        raise UniclozeError(
            f"{out} holds a run with another {other}, or one that has changed since: give the new run another --out"
        )
