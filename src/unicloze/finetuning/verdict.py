"""Interprets the scores of a fine-tuning: against a baseline, and against its earlier evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from unicloze.evaluation.metrics.result import MetricResult
from unicloze.finetuning.scores import chosen_value, headline, measure
from unicloze.records.record import Record
from unicloze.settings import Recipe
from unicloze.tasks import TASKS
from unicloze.tasks.several import most_common, parts_of
from unicloze.tasks.task import Baseline
from unicloze.training.verdict import STANDARD_ERRORS

RISE = 0.5
"""Points that the last evaluation must gain to count as still improving."""
FALL = 2.0
"""Points from the best to the last evaluation that count as a decline."""


@dataclass(frozen=True)
class BaselineScores:
    """Scores of a baseline on the development file.

    Args:
        name: Description of the baseline.
        results: Results by metric.
    """

    name: str
    results: Mapping[str, MetricResult]

    def to_dict(self) -> dict[str, Any]:
        """The fields as a JSON-serialisable dictionary."""
        return asdict(self)


def baseline_scores(train: Sequence[Record], dev: Sequence[Record], recipe: Recipe) -> BaselineScores | None:
    """Scores of a task's baseline; None if the task has none for these records."""
    if parts_of(recipe.task) and recipe.task.kind == "generation":
        baseline: Baseline | None = most_common(train, dev)
    else:
        baseline = TASKS[recipe.task.kind].baseline(train, dev, recipe)
    if baseline is None:
        return None
    predictions = [{"id": one.id, "prediction": answer} for one, answer in zip(dev, baseline.answers, strict=True)]
    return BaselineScores(baseline.name, measure(predictions, dev, recipe))


def verdict_on(
    scores: Mapping[str, MetricResult], headlines: Sequence[float], baseline: BaselineScores | None, recipe: Recipe
) -> str:
    """Interpretation of the scores of the best evaluation, in words.

    Args:
        scores: Scores by metric, with standard errors where known.
        headlines: Value of each evaluation by the metric that selects the checkpoint, in order; higher is better.
        baseline: The baseline to beat, if any.
        recipe: Recipe of the task.
    """
    key = chosen_value(recipe)
    first = key if key in scores else recipe.task.metrics[0]
    error = scores[first].errors.get(key, 0.0)
    said = [] if baseline is None else [_against(headline(scores, recipe), error, baseline, recipe)]
    if scores[first].units.get(key, "%") == "%":
        said.append(_course(headlines))
    return "; ".join(filter(None, said))


def _against(value: float, error: float, baseline: BaselineScores, recipe: Recipe) -> str:
    floor, key = headline(baseline.results, recipe), chosen_value(recipe)
    first = key if key in baseline.results else recipe.task.metrics[0]
    shown = f"{baseline.name} ({key} {baseline.results[first].values[key]:.2f})"
    difference = value - floor
    if difference <= 0:
        return f"no better than {shown}"
    if difference <= STANDARD_ERRORS * error:
        return f"{difference:.2f} better than {shown}, which is within {STANDARD_ERRORS:g} standard errors"
    return f"{difference:.2f} better than {shown}"


def _course(headlines: Sequence[float]) -> str:
    """Advice from the course of the evaluations; may be empty."""
    if len(headlines) < 2:
        return ""
    best, last = max(headlines), headlines[-1]
    if last == best and last - max(headlines[:-1]) >= RISE:
        return "still improving at the last evaluation: raise finetuning.epochs"
    if best - last >= FALL:
        return f"the last evaluation is {best - last:.2f} below the best one, which is kept: fewer epochs are enough"
    return ""
