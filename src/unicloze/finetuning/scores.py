"""Scores predictions with the metrics of their task: those of a model, or of a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unicloze.errors import UsageError
from unicloze.evaluation.metrics.calibration import calibration
from unicloze.evaluation.metrics.coqa import Gold
from unicloze.evaluation.metrics.read_files import check_match, value_of
from unicloze.evaluation.metrics.registry import measurable, metric
from unicloze.evaluation.metrics.result import MetricResult
from unicloze.evaluation.metrics.row_files import Item, read_items
from unicloze.evaluation.metrics.standard_errors import standard_errors
from unicloze.finetuning.checks import check_metrics, options_of
from unicloze.records.record import Record, refuse_repeated
from unicloze.settings import Recipe
from unicloze.tasks import TASKS
from unicloze.tasks.several import TaskPart, by_part, parts_of, records_of
from unicloze.tasks.task import Prediction

MEAN = "mean of tasks"
"""Result that selects the best checkpoint of several tasks: the mean of the first metric of each."""

BY_ID: Mapping[str, Callable[[Any], Any]] = {
    "squad": lambda texts: texts,
    "coqa": lambda answers: Gold(**answers) if isinstance(answers, Mapping) else Gold(answers=answers),
}
"""Metrics that compare answers by question id, and how each takes a task's reference."""


def measure(predictions: Sequence[Prediction], records: Sequence[Record], recipe: Recipe) -> Mapping[str, MetricResult]:
    """Score predictions with the metrics of the task, and the probabilities of classes by their calibration.

    Raises:
        UsageError: A metric in `task.metrics` does not exist.
        UniclozeError: A record has no answer, an id is repeated where answers are compared by id, or a library that a
            metric needs is not installed.
    """
    answers, references = _answers(predictions), _references(records, recipe)
    if parts := parts_of(recipe.task):
        return _of_parts(parts, answers, references, records)
    results = {
        name: _compared(name, answers, references, records, options_of(name, recipe)) for name in recipe.task.metrics
    }
    probabilities = [prediction["probabilities"] for prediction in predictions if "probabilities" in prediction]
    if probabilities and len(probabilities) == len(predictions):
        results["calibration"] = calibration(probabilities, references)
    return results


def _of_parts(
    parts: Sequence[TaskPart], answers: Sequence[Any], references: Sequence[Sequence[str]], records: Sequence[Record]
) -> Mapping[str, MetricResult]:
    """The mean of the tasks, by the first metric of each, and the scores of every task."""
    numbers, results, firsts = by_part(records), dict[str, MetricResult](), list[float]()
    for part in parts:
        own = numbers.get(part.label, [])
        if part.unsupervised or not own:
            continue
        for place, name in enumerate(part.metrics):
            compared = metric(name)
            said = [part.answer_of(answers[number], compares=compared.compares) for number in own]
            right = [
                references[number] if compared.compares in ("texts", "tags")
                else part.answer_of(references[number][0], compares=compared.compares)
                for number in own
            ]  # fmt: skip
            result = compared(said, right)
            values = {f"{part.label} {key}": value for key, value in result.values.items()}
            units = {f"{part.label} {key}": unit for key, unit in result.units.items()}
            results[f"{part.label} {name}"] = dataclasses.replace(result, values=values, units=units)
            if place == 0:
                value = result.values[compared.headline]
                firsts.append(value if compared.higher_is_better else -value)
    mean = float(np.mean(firsts)) if firsts else np.nan
    return {MEAN: MetricResult(metric=MEAN, values={MEAN: mean}, items=len(records)), **results}


def chosen_value(recipe: Recipe) -> str:
    """Name of the value that selects the best checkpoint."""
    return MEAN if parts_of(recipe.task) else metric(recipe.task.metrics[0]).headline


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
    """The results with the standard errors of those values for which they are quick to compute."""
    if parts_of(recipe.task):
        return results
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
    """Scores of the predictions of a task.

    Args:
        results: Results by metric.
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
    """Score a file of predictions against labelled records, with standard errors.

    Args:
        predictions: A .jsonl or .tsv file as `predict` writes it, or .txt with one prediction per line.
        references: The labelled records in the same order, in a format that fine-tuning reads.
        recipe: Recipe of the task.
        name: The metric; default: those of the task.
        options: Options of the metrics, in addition to those of the task.

    Raises:
        UsageError: The recipe has no task, or a metric or option does not exist.
        UniclozeError: A line is malformed, or the lines of the files do not match.
    """
    if not recipe.task.kind:
        raise UsageError(f"{recipe.name} is not a task recipe: see `unicloze recipes`.")
    names = measurable(recipe.task.metrics) if name is None else [name]
    if not names:
        raise UsageError(f"The recipe {recipe.name} has no metric: name one.")
    used = {option: value for name in names for option, value in options_of(name, recipe).items()}
    recipe = dataclasses.replace(recipe, task=dataclasses.replace(recipe.task, metrics=names, metric_options=used))
    check_metrics(recipe)
    records, items = records_of(references, recipe.task, dev=True), read_items(predictions, ("prediction",))
    wanted = [Item(value=None, place=record.place, id=record.get(recipe.task, "id")) for record in records]
    check_match(predictions, items, references, wanted)
    right, results = _references(records, recipe), {}
    for name in names:
        compares = metric(name).compares
        answers = [value_of(item, compares) for item in items]
        # labels and numbers of choices are compared as text, without surrounding white space
        comparable = [str(label).strip() for label in right] if compares == "labels" else right
        given = {**options_of(name, recipe), **(options or {})}
        result = _compared(name, answers, comparable, records, given)
        results[name] = dataclasses.replace(result, errors=standard_errors(name, answers, comparable, **given))
    return TaskScores(results)


def headline(results: Mapping[str, MetricResult], recipe: Recipe) -> float:
    """The value that selects the best checkpoint; higher is better."""
    if parts_of(recipe.task):
        return -np.inf if np.isnan(results[MEAN].values[MEAN]) else results[MEAN].values[MEAN]
    first = metric(recipe.task.metrics[0])
    value = results[recipe.task.metrics[0]].values[first.headline]
    # The correlation of constant predictions is NaN, which counts as the worst value.
    return -np.inf if np.isnan(value) else value if first.higher_is_better else -value
