"""What is refused before anything is learned: metrics that cannot measure, and a run that began otherwise."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from unicloze.errors import UniclozeError, UsageError, option_of
from unicloze.evaluation.metrics.registry import METRICS, metric
from unicloze.finetuning.data import TaskData
from unicloze.records.record import Record, refuse_repeated
from unicloze.settings import Recipe
from unicloze.tasks import TASKS
from unicloze.training.models import LoadedModel

Origin = Mapping[str, str | None]
"""Fingerprints of what a run began with; None of what it has not."""


def check_metrics(recipe: Recipe) -> None:
    """Refuse metrics that there are not, or that compare something else than the task predicts, and options of none of them.

    Raises:
        UsageError: One of `task.metrics` or `task.metric_options` is such.
    """
    known = {option for each in METRICS.values() for option in each.options}
    named = [metric(name) for name in recipe.task.metrics]
    for option in recipe.task.metric_options:
        if option not in known:
            raise UsageError(f"task.metric_options names {option}: metrics have {', '.join(sorted(known))}")
        if not any(option in each.options for each in named):
            raise UsageError(
                f"task.metric_options names {option}, which none of the metrics {', '.join(recipe.task.metrics)} has: leave "
                f"it out ({option_of('task.metric_options')} '{{}}')"
            )
    allowed = TASKS[recipe.task.kind].compares
    for name in recipe.task.metrics:
        compares = metric(name).compares
        if allowed and compares not in allowed:
            raise UsageError(
                f"task.metrics names {name}, which compares {compares}, and a task of the kind {recipe.task.kind} predicts "
                f"{' or '.join(allowed)}: name another metric"
            )
        metric(name).check_options(options_of(name, recipe))


def check_given_options(recipe: Recipe) -> None:
    """Refuse options that no metric of the task has: for a caller who gives them.

    Raises:
        UsageError: One of `task.metric_options` is such.
    """
    for option in recipe.task.metric_options:
        if not any(option in metric(name).options for name in recipe.task.metrics):
            raise UsageError(
                f"option {option_of('task.metric_options')}: {' and '.join(recipe.task.metrics)} has no option {option}: "
                "leave it out"
            )


def options_of(name: str, recipe: Recipe) -> dict[str, str]:
    """The options of the task that a metric has."""
    return {key: value for key, value in recipe.task.metric_options.items() if key in metric(name).options}


def check_labels(records: Sequence[Record], recipe: Recipe) -> None:
    """Refuse training records of which one has no label: where the recipe names the classes, nothing else misses them.

    Raises:
        UniclozeError: One has none; the message names its line.
    """
    for record in records:
        TASKS[recipe.task.kind].reference(record, recipe.task)


def check_answers(dev: TaskData, recipe: Recipe) -> None:
    """Refuse a development file without right answers, or whose answers the metrics cannot compare.

    Raises:
        UniclozeError: A record has no answer, two whose answers are compared by their id have the same, a library that a
            metric needs is absent, or F1 finds no positive record.
    """
    task = TASKS[recipe.task.kind]
    references = [task.reference(record, recipe.task) for record in dev.records]
    for name in recipe.task.metrics:
        compares = metric(name).compares
        wanted = references[:1] if compares == "texts" else references  # some metrics of texts take long
        tried = [texts[0] for texts in wanted] if compares == "texts" else wanted
        if compares in ("texts", "labels", "numbers", "tags"):
            try:
                metric(name)(tried, wanted, **options_of(name, recipe))
            except UsageError as error:
                raise UsageError(
                    f"task.metrics names {name}, which does not fit the development file: {error}"
                ) from error
        else:
            refuse_repeated(dev.records)


def origin_of(start: LoadedModel, train: TaskData, dev: TaskData | None) -> Origin:
    """Fingerprints of what a run begins with, by what it is."""
    return {
        "training file": train.fingerprint,
        "development file": None if dev is None else dev.fingerprint,
        "model": model_fingerprint(start),
    }


def model_fingerprint(model: LoadedModel) -> str:
    """SHA-256 of a model's vocabulary and weights."""
    weights = hashlib.sha256(model.tokenizer.fingerprint.encode())
    for name, tensor in sorted(model.model.state_dict().items()):
        weights.update(name.encode())
        weights.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy())
    return weights.hexdigest()


def refuse_other_origin(former: Origin, now: Origin, out: Path) -> None:
    """Refuse to go on with a run on other records or from another model: its evaluations could not be compared.

    Raises:
        UniclozeError: One is another.
    """
    other = next((what for what, fingerprint in now.items() if former.get(what) != fingerprint), None)
    if other is not None:
        raise UniclozeError(
            f"{out} holds a run with another {other}, or with one that has changed since: give the new run another --out"
        )
