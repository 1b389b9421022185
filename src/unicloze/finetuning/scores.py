"""What predictions are worth, by the metrics of their task: those of a model, or of a file beside the records it is of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unicloze.errors import UsageError
from unicloze.evaluation.metrics.coqa import Gold
from unicloze.evaluation.metrics.read_files import check_match, value_of
from unicloze.evaluation.metrics.registry import measurable, metric
from unicloze.evaluation.metrics.result import MetricResult
from unicloze.evaluation.metrics.row_files import Item, read_items
from unicloze.evaluation.metrics.spread import standard_errors
from unicloze.finetuning.checks import check_metrics, options_of
from unicloze.records import read_records
from unicloze.records.record import Record, refuse_repeated
from unicloze.settings import Recipe
from unicloze.tasks import TASKS
from unicloze.tasks.task import Prediction

BY_ID: Mapping[str, Callable[[Any], Any]] = {
    "squad": lambda texts: texts,
    "coqa": lambda answers: Gold(**answers) if isinstance(answers, Mapping) else Gold(answers=answers),
}
"""Metrics that compare answers by the id of their question, and what they compare a task's reference as."""


def measure(predictions: Sequence[Prediction], records: Sequence[Record], recipe: Recipe) -> Mapping[str, MetricResult]:
    """What predictions are worth, by the metrics of the task.

    Raises:
        UsageError: There is no such metric (`task.metrics`).
        UniclozeError: A record has no answer, two of those whose answers are compared by their id have the same, or a
            library that the metric needs is absent.
    """
    answers, references = _answers(predictions), _references(records, recipe)
    return {
        name: _compared(name, answers, references, records, options_of(name, recipe)) for name in recipe.task.metrics
    }


def _compared(
    name: str, answers: Sequence[Any], references: Sequence[Any], records: Sequence[Record], options: Mapping[str, str]
) -> MetricResult:
    by_id = BY_ID.get(metric(name).compares)
    if by_id is None:
        return metric(name)(answers, references, **options)
    refuse_repeated(records)
    ids = [record.id for record in records]
    right = dict(zip(ids, map(by_id, references), strict=True))
    return metric(name)(dict(zip(ids, answers, strict=True)), right, **options)


def with_errors(
    results: Mapping[str, MetricResult], predictions: Sequence[Prediction], records: Sequence[Record], recipe: Recipe
) -> Mapping[str, MetricResult]:
    """The results with the standard errors of their values, where they have one that is quickly found."""
    references, answers = _references(records, recipe), _answers(predictions)
    errors = {
        name: standard_errors(name, answers, references, **options_of(name, recipe)) for name in recipe.task.metrics
    }
    return {name: dataclasses.replace(result, errors=errors.get(name, {})) for name, result in results.items()}


def _references(records: Sequence[Record], recipe: Recipe) -> list[Any]:
    return [TASKS[recipe.task.kind].reference(record, recipe.task) for record in records]


def _answers(predictions: Sequence[Prediction]) -> list[Any]:
    return [prediction["prediction"] for prediction in predictions]


@dataclass(frozen=True)
class TaskScores:
    """What predictions of a task are worth.

    Args:
        results: By metric.
    """

    results: Mapping[str, MetricResult]

    def to_dict(self) -> dict[str, Any]:
        """The fields as a JSON-serialisable dictionary."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return "\n".join(map(str, self.results.values()))


def measure_file(
    predictions: Path,
    references: Path,
    recipe: Recipe,
    name: str | None = None,
    options: Mapping[str, str] | None = None,
) -> TaskScores:
    """What a file of predictions is worth, beside the records of its task, with standard errors.

    Args:
        predictions: .jsonl or .tsv as `predict` writes it, or .txt with a prediction a line.
        references: The labelled records, in the same order, as fine-tuning takes them.
        recipe: Of the task.
        name: The metric; those of the task if not given.
        options: Options of the metrics, beside those of the task.

    Raises:
        UsageError: The recipe is of no task, or there is no such metric or option.
        UniclozeError: A file cannot be read, a line is broken, or the lines do not match.
    """
    if not recipe.task.kind:
        raise UsageError(f"{recipe.name} is no recipe of a task: see `unicloze recipes`.")
    names = measurable(recipe.task.metrics) if name is None else [name]
    if not names:
        raise UsageError(f"The recipe {recipe.name} names no metric: name one.")
    used = {option: value for name in names for option, value in options_of(name, recipe).items()}
    recipe = dataclasses.replace(recipe, task=dataclasses.replace(recipe.task, metrics=names, metric_options=used))
    check_metrics(recipe)
    records, items = read_records(references, recipe.task), read_items(predictions, ("prediction",))
    wanted = [Item(value=None, place=record.place, id=record.get(recipe.task, "id")) for record in records]
    check_match(predictions, items, references, wanted)
    right, results = _references(records, recipe), {}
    for name in names:
        compares = metric(name).compares
        answers = [value_of(item, compares) for item in items]
        # the number of a choice is read as a text, as the name of a class is, and white space around it does not count
        comparable = [str(label).strip() for label in right] if compares == "labels" else right
        given = {**options_of(name, recipe), **(options or {})}
        result = _compared(name, answers, comparable, records, given)
        results[name] = dataclasses.replace(result, errors=standard_errors(name, answers, comparable, **given))
    return TaskScores(results)


def headline(results: Mapping[str, MetricResult], recipe: Recipe) -> float:
    """The one number that chooses the best checkpoint: more is better."""
    first = metric(recipe.task.metrics[0])
    value = results[recipe.task.metrics[0]].values[first.headline]
    # A correlation of constant predictions is no number: nothing is worse.
    return -np.inf if np.isnan(value) else value if first.higher_is_better else -value
