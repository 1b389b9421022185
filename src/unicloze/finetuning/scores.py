"""Scores predictions with the metrics of their task: those of a model, or of a file."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from unicloze.errors import UsageError
from unicloze.evaluation.metrics.answers import Gold, best_threshold, token_f1
from unicloze.evaluation.metrics.files import Item, check_match, read_items, value_of
from unicloze.evaluation.metrics.labels import calibration
from unicloze.evaluation.metrics.registry import measurable, metric
from unicloze.evaluation.metrics.result import Compared, MetricResult
from unicloze.evaluation.metrics.standard_errors import standard_errors
from unicloze.finetuning.checks import check_metrics, options_of
from unicloze.finetuning.data import TaskData
from unicloze.records.record import Record, refuse_repeated
from unicloze.settings import Recipe
from unicloze.tasks import TASKS
from unicloze.tasks.extraction import ExtractionSettings, no_answer_margin, with_threshold
from unicloze.tasks.groups import Labelled
from unicloze.tasks.several import TaskPart, by_part, metrics_of, parts_of, records_of
from unicloze.tasks.task import Prediction


def with_best_threshold(
    recipe: Recipe, data: TaskData, predictions: Sequence[Prediction]
) -> tuple[Recipe, Sequence[Prediction]]:
    """The recipe with the no-answer threshold of the best F1, halfway to the next margin, and its predictions.

    Both are returned unchanged if the task has no unanswerable questions or the recipe already has a threshold.
    """
    task = recipe.task
    if not isinstance(task, ExtractionSettings) or not task.unanswerable or task.no_answer_threshold is not None:
        return recipe, predictions
    right = [TASKS[task.kind].reference(record, task) for record in data.records]
    margins = {said["id"]: no_answer_margin(said) for said in predictions}
    kept = {said["id"]: _f1_if_kept(said, texts) for said, texts in zip(predictions, right, strict=True)}
    answerable = {said["id"] for said, texts in zip(predictions, right, strict=True) if texts}
    _, threshold = best_threshold(margins, kept, answerable)
    above = min((margin for margin in margins.values() if threshold < margin < math.inf), default=threshold)
    threshold = (threshold + above) / 2
    chosen = dataclasses.replace(recipe, task=dataclasses.replace(task, no_answer_threshold=threshold))
    return chosen, with_threshold(predictions, threshold)


def _f1_if_kept(prediction: Prediction, right: Sequence[str]) -> float:
    """F1 of the best answer, ignoring the no-answer score."""
    text = prediction["n_best"][0]["text"] if prediction["n_best"] else ""
    return max(token_f1(text, wanted) for wanted in right or [""])


AVERAGED = "classification", "regression"
"""Kinds of tasks whose predictions can be averaged."""


def check_averaged(recipes: Sequence[Recipe]) -> None:
    """Reject models whose predictions cannot be averaged."""
    first, *others = (recipe.task for recipe in recipes)
    if first.kind not in AVERAGED:
        raise UsageError(f"predictions of task.kind {first.kind} are not averaged: leave out also")
    for other in others:
        labels = [task.labels if isinstance(task, Labelled) else None for task in (first, other)]
        if other.kind != first.kind or labels[0] != labels[1]:
            raise UsageError("also names a model of another task or with other classes: give models of one task")


def averaged(each: Sequence[Sequence[Prediction]]) -> list[Prediction]:
    """The mean of the probabilities, or of the quantities, that several models predict for the same records."""
    found: list[Prediction] = []
    for of_record in zip(*each, strict=True):
        first = next((one for one in of_record if "truncated" in one), of_record[0])
        if "probabilities" not in first:
            found.append({**first, "prediction": float(np.mean([one["prediction"] for one in of_record]))})
            continue
        mean = {
            label: float(np.mean([one["probabilities"][label] for one in of_record]))
            for label in first["probabilities"]
        }
        said = {label: round(share, 6) for label, share in mean.items()}
        found.append({**first, "prediction": max(mean, key=lambda label: mean[label]), "probabilities": said})
    return found


MEAN = "mean of tasks"
"""Result that selects the best checkpoint of several tasks: the mean of the first metric of each."""

BY_ID: Mapping[str, Callable[[Any], Any]] = {
    "squad": lambda texts: texts,
    "coqa": lambda answers: Gold(**answers) if isinstance(answers, Mapping) else Gold(answers=answers),
}
"""Metrics that compare answers by question id, and how each takes a task's reference."""


T = TypeVar("T")
Said = Callable[[Compared], Sequence[Any]]
"""Gives the answers to all records, read for what a metric compares."""


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """Compares answers to records with the right ones: of a task, or of a part of `task.parts`."""

    recipe: Recipe  # recipe of the task
    records: Sequence[Record]  # its records
    numbers: Sequence[int]  # their indices among all records
    metrics: Sequence[str]  # names of its metrics
    part: TaskPart | None = None  # the part; None for a whole task

    def name(self, value: str) -> str:
        """Name of a metric or value among those of all parts."""
        return value if self.part is None else f"{self.part.label} {value}"

    def references(self, name: str) -> list[Any]:
        """The right answers, as a metric compares them."""
        task = self.recipe.task
        right = [TASKS[task.kind].reference(record, task) for record in self.records]
        if self.part is None:
            return right
        compares = metric(name).compares
        return [
            self.part.reference_of(record, reference, compares=compares)
            for record, reference in zip(self.records, right, strict=True)
        ]

    def answers(self, name: str, said: Said) -> list[Any]:
        """The answers to its records, as a metric compares them."""
        compares = metric(name).compares
        if self.part is None:
            every = said(compares)
            return [every[number] for number in self.numbers]
        every = said("tags" if "tags" in self.part.compares else "texts")
        return [self.part.answer_of(every[number], compares=compares) for number in self.numbers]

    def result(self, name: str, said: Said, *, errors: bool = False) -> MetricResult:
        """The result of one of its metrics, with standard errors if they are wanted."""
        answers, right, options = self.answers(name, said), self.references(name), options_of(name, self.recipe)
        found = _compared(name, answers, right, self.records, options)
        if errors:
            found = dataclasses.replace(found, errors=standard_errors(name, answers, right, **options))
        return dataclasses.replace(
            found,
            values=self._named(found.values),
            units=self._named(found.units),
            errors=self._named(found.errors),
            undefined=[self.name(key) for key in found.undefined],
        )

    def _named(self, values: Mapping[str, T]) -> dict[str, T]:
        return {self.name(key): value for key, value in values.items()}


def scorers(records: Sequence[Record], recipe: Recipe) -> list[Scorer]:
    """One scorer for a task, or one for each part that has answers to compare."""
    parts = parts_of(recipe.task)
    if not parts:
        return [Scorer(recipe=recipe, records=records, numbers=range(len(records)), metrics=recipe.task.metrics)]
    of = by_part(records)
    return [
        Scorer(recipe=recipe, records=[records[number] for number in own], numbers=own, metrics=part.metrics, part=part)
        for part in parts
        if not part.unsupervised and (own := of.get(part.label, []))
    ]


def measure(
    predictions: Sequence[Prediction], records: Sequence[Record], recipe: Recipe, *, errors: bool = False
) -> Mapping[str, MetricResult]:
    """Score predictions with the metrics of the task or of its parts, and the probabilities of classes by calibration.

    Args:
        predictions: One prediction per record.
        records: The records.
        recipe: Recipe of the task.
        errors: Whether to estimate the standard errors of values for which it is quick.

    Raises:
        UsageError: A metric in `task.metrics` does not exist.
        UniclozeError: A record has no answer, an id is repeated where answers are compared by id, or a library that a
            metric needs is not installed.
    """
    answers = [prediction["prediction"] for prediction in predictions]
    results = _measured(lambda _: answers, records, recipe, errors=errors)
    probabilities = [prediction["probabilities"] for prediction in predictions if "probabilities" in prediction]
    if probabilities and len(probabilities) == len(predictions) and not parts_of(recipe.task):
        right = [TASKS[recipe.task.kind].reference(record, recipe.task) for record in records]
        results["calibration"] = calibration(probabilities, right)
    return results


def check_answers(records: Sequence[Record], recipe: Recipe) -> None:
    """Reject a development file without references, or with references that the metrics cannot compare."""
    for scorer in scorers(records, recipe):
        for name in scorer.metrics:
            compares, references = metric(name).compares, scorer.references(name)
            wanted = references[:1] if compares == "texts" else references  # some metrics of texts are slow
            tried = [texts[0] for texts in wanted] if compares == "texts" else wanted
            if compares in ("texts", "labels", "numbers", "tags"):
                try:
                    metric(name)(tried, wanted, **options_of(name, recipe))
                except UsageError as error:
                    of = "task.metrics names" if scorer.part is None else f"{scorer.part.label} of task.parts names"
                    raise UsageError(f"{of} {name}, which does not fit the development file: {error}") from error
            else:
                refuse_repeated(scorer.records)


def _measured(said: Said, records: Sequence[Record], recipe: Recipe, *, errors: bool) -> dict[str, MetricResult]:
    every = scorers(records, recipe)
    results = {
        scorer.name(name): scorer.result(name, said, errors=errors) for scorer in every for name in scorer.metrics
    }
    return {**_mean_of(every, results), **results} if parts_of(recipe.task) else results


def _mean_of(every: Sequence[Scorer], results: Mapping[str, MetricResult]) -> dict[str, MetricResult]:
    """The mean of the parts by the first metric of each; its standard error if that of each is known."""
    values, errors = [], []
    for scorer in every:
        first, result = metric(scorer.metrics[0]), results[scorer.name(scorer.metrics[0])]
        value = result.values[scorer.name(first.headline)]
        values.append(value if first.higher_is_better else -value)
        errors.append(result.errors.get(scorer.name(first.headline), np.nan))
    mean, error = (float(np.mean(values)), float(np.hypot.reduce(errors)) / len(values)) if values else (np.nan, np.nan)
    known = {} if np.isnan(error) else {MEAN: error}
    items = sum(len(scorer.records) for scorer in every)
    return {MEAN: MetricResult(metric=MEAN, values={MEAN: mean}, items=items, errors=known)}


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


def difference_error(
    predictions: Sequence[Any], others: Sequence[Any], records: Sequence[Record], recipe: Recipe
) -> float | None:
    """Standard error of the difference of two models in the value that selects the checkpoint, on the same records."""
    errors = []
    for scorer in scorers(records, recipe):
        name = scorer.metrics[0]
        one, other = scorer.answers(name, lambda _: predictions), scorer.answers(name, lambda _: others)
        options = options_of(name, recipe)
        found = standard_errors(name, one, scorer.references(name), against=other, **options)
        errors.append(found.get(metric(name).headline, np.nan))
    error = float(np.hypot.reduce(errors)) / len(errors) if errors else np.nan
    return None if np.isnan(error) else error


def headline_error(predictions: Sequence[Prediction], records: Sequence[Record], recipe: Recipe) -> float:
    """Standard error of the value that selects the checkpoint of a single task; 0 if it is not quick to compute."""
    (scorer,) = scorers(records, recipe)
    answers = [prediction["prediction"] for prediction in predictions]
    found = scorer.result(scorer.metrics[0], lambda _: answers, errors=True).errors
    return found.get(metric(scorer.metrics[0]).headline, 0.0)


@dataclass(frozen=True)
class Evaluation:
    """An evaluation on the development file."""

    step: int
    value: float  # of the metric that selects the checkpoint; higher is better
    error: float = 0.0  # its standard error
    loss: float | None = None  # mean of -log p of the right class; None if the model gives no probabilities


def kept(evaluations: Sequence[Evaluation]) -> Evaluation:
    """The evaluation whose weights are kept: the highest value so far.

    After a head fitted to few labels, the most likely one of those within a standard error of the highest value: so few
    records hardly tell values apart, and training on them ends overconfident. One that was passed over is not taken up when
    the one kept falls behind: its weights are gone, so the highest value is kept.
    """
    best = highest = evaluations[0]
    fitted = best.step == 0
    for one in evaluations[1:]:
        highest = one if one.value > highest.value else highest
        if fitted and one.loss is not None and best.loss is not None:
            least = highest.value - highest.error
            better = one.value >= least and (best.value < least or one.loss < best.loss)
        else:
            better = one.value > best.value
        best = one if better else best
    return best


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
    """Score a file of predictions against labelled records, with standard errors."""
    if not recipe.task.kind:
        raise UsageError(f"{recipe.name} is not a task recipe: see `unicloze recipes`.")
    recipe = _measuring(recipe, name, options or {})
    check_metrics(recipe)
    records, items = records_of(references, recipe.task, dev=True), read_items(predictions, ("prediction",))
    wanted = [Item(value=None, place=record.place, id=record.get(recipe.task, "id")) for record in records]
    check_match(predictions, items, references, wanted)
    return TaskScores(
        _measured(lambda compares: [value_of(item, compares) for item in items], records, recipe, errors=True)
    )


def _measuring(recipe: Recipe, name: str | None, options: Mapping[str, str]) -> Recipe:
    """The recipe with the metrics to measure, `name` or those whose programs are installed, and their options."""

    def wanted(names: Sequence[str]) -> list[str]:
        return measurable(names) if name is None else [name]

    task: Any = recipe.task
    if parts := parts_of(task):
        entries = [{**entry, "metrics": wanted(part.metrics)} for entry, part in zip(task.parts, parts, strict=True)]
        task = dataclasses.replace(task, parts=entries)
    else:
        task = dataclasses.replace(task, metrics=wanted(task.metrics))
    names = metrics_of(task)
    if not names:
        raise UsageError(f"The recipe {recipe.name} has no metric: name one.")
    own = {option: value for one in names for option, value in options_of(one, recipe).items()}
    return dataclasses.replace(recipe, task=dataclasses.replace(task, metric_options={**own, **options}))


def headline(results: Mapping[str, MetricResult], recipe: Recipe) -> float:
    """The value that selects the best checkpoint; higher is better."""
    if parts_of(recipe.task):
        return -np.inf if np.isnan(results[MEAN].values[MEAN]) else results[MEAN].values[MEAN]
    first = metric(recipe.task.metrics[0])
    value = results[recipe.task.metrics[0]].values[first.headline]
    # The correlation of constant predictions is NaN, which counts as the worst value.
    return -np.inf if np.isnan(value) else value if first.higher_is_better else -value
