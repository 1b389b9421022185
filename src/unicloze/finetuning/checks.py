"""Checks before training starts: usable metrics and labels, and resuming with the same model and records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from unicloze.errors import UniclozeError, UsageError, option_of
from unicloze.evaluation.metrics.registry import METRICS, metric
from unicloze.finetuning.data import TaskData
from unicloze.records.record import Record, refuse_repeated
from unicloze.settings import Recipe
from unicloze.tasks import TASKS
from unicloze.tasks.several import parts_of
from unicloze.training.checkpoint import fingerprint
from unicloze.training.loading import LoadedModel

Origin = Mapping[str, str | None]
"""Fingerprints of the model and files that a run started with; None for those it lacks."""


def check_metrics(recipe: Recipe) -> None:
    """Reject unknown metrics, metrics that do not compare what the task predicts, and options that no metric has.

    Raises:
        UsageError: An entry of `task.metrics` or `task.metric_options` is invalid.
    """
    known = {option for each in METRICS.values() for option in each.options}
    named = [metric(name) for name in recipe.task.metrics]
    for option in recipe.task.metric_options:
        if option not in known:
            raise UsageError(f"task.metric_options names {option}: metrics have the options {', '.join(sorted(known))}")
        if not any(option in each.options for each in named):
            raise UsageError(
                f"task.metric_options names {option}, but none of the metrics {', '.join(recipe.task.metrics)} has it: leave "
                f"it out ({option_of('task.metric_options')} '{{}}')"
            )
    allowed = TASKS[recipe.task.kind].compares
    taggers = "tags" in allowed
    for part in parts_of(recipe.task):
        for name in part.metrics:
            if metric(name).compares not in (("tags",) if taggers else ("labels", "numbers", "texts")):
                what = "tags" if taggers else "labels, numbers or texts"
                raise UsageError(f"task.parts: {name} of {part.label} does not compare {what}")
    for name in recipe.task.metrics:
        compares = metric(name).compares
        if allowed and compares not in allowed:
            raise UsageError(
                f"task.metrics names {name}, which compares {compares}, but a {recipe.task.kind} task predicts "
                f"{' or '.join(allowed)}: name another metric"
            )
        metric(name).check_options(options_of(name, recipe))


def check_given_options(recipe: Recipe) -> None:
    """Reject explicitly given options that no metric of the task has.

    Raises:
        UsageError: An entry of `task.metric_options` is invalid.
    """
    for option in recipe.task.metric_options:
        if not any(option in metric(name).options for name in recipe.task.metrics):
            raise UsageError(
                f"option {option_of('task.metric_options')}: {' and '.join(recipe.task.metrics)} has no option {option}: "
                "leave it out"
            )


def options_of(name: str, recipe: Recipe) -> dict[str, str]:
    """Those of the task's metric options that apply to a metric."""
    return {key: value for key, value in recipe.task.metric_options.items() if key in metric(name).options}


def check_labels(records: Sequence[Record], recipe: Recipe) -> None:
    """Reject unlabelled training records, which nothing else notices if the recipe names the classes.

    Raises:
        UniclozeError: A record has no label; the message names its line.
    """
    for record in records:
        TASKS[recipe.task.kind].reference(record, recipe.task)


def check_answers(dev: TaskData, recipe: Recipe) -> None:
    """Reject a development file without references, or with references that the metrics cannot compare.

    Raises:
        UniclozeError: A record has no answer, an id is repeated where answers are compared by id, a library that a metric
            needs is not installed, or F1 finds no positive record.
    """
    task = TASKS[recipe.task.kind]
    references = [task.reference(record, recipe.task) for record in dev.records]
    if parts_of(recipe.task):
        return
    for name in recipe.task.metrics:
        compares = metric(name).compares
        wanted = references[:1] if compares == "texts" else references  # some metrics of texts are slow
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


def refuse_word_vectors(recipe: Recipe) -> None:
    """Reject word vectors for a model that has trained embeddings.

    Raises:
        UsageError: The recipe names some.
    """
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
    """Reject resuming a run with other records or another model: its evaluations would not be comparable.

    Raises:
        UniclozeError: A fingerprint differs.
    """
    other = next((what for what, fingerprint in now.items() if former.get(what) != fingerprint), None)
    if other is not None:
        raise UniclozeError(
            f"{out} holds a run with another {other}, or one that has changed since: give the new run another --out"
        )
