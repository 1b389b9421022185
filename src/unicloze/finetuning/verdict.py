"""What the scores of a fine-tuning mean, in a sentence: against a baseline, and against its own earlier evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from unicloze.evaluation.metrics.registry import metric
from unicloze.evaluation.metrics.result import MetricResult
from unicloze.finetuning.scores import headline, measure
from unicloze.records.record import Record
from unicloze.settings import Recipe
from unicloze.tasks import TASKS
from unicloze.training.verdict import STANDARD_ERRORS

RISE = 0.5
"""A last rise counts from so many points on."""
FALL = 2.0
"""A fall from the best evaluation to the last one counts from so many points on."""


@dataclass(frozen=True)
class BaselineScores:
    """What a baseline is worth on the development file.

    Args:
        name: What it does.
        results: By metric.
    """

    name: str
    results: Mapping[str, MetricResult]

    def to_dict(self) -> dict[str, Any]:
        """The fields as a JSON-serialisable dictionary."""
        return asdict(self)


def baseline_scores(train: Sequence[Record], dev: Sequence[Record], recipe: Recipe) -> BaselineScores | None:
    """What the baseline of a task is worth; None where the task has none for these records."""
    baseline = TASKS[recipe.task.kind].baseline(train, dev, recipe)
    if baseline is None:
        return None
    predictions = [{"id": one.id, "prediction": answer} for one, answer in zip(dev, baseline.answers, strict=True)]
    return BaselineScores(baseline.name, measure(predictions, dev, recipe))


def verdict_on(
    scores: Mapping[str, MetricResult], headlines: Sequence[float], baseline: BaselineScores | None, recipe: Recipe
) -> str:
    """What the scores of the best evaluation mean, in words.

    Args:
        scores: By metric, with standard errors where they are known.
        headlines: What each evaluation was worth by the metric that chooses the checkpoint, in order: more is better.
        baseline: What a model has to beat; none where there is none.
        recipe: Of the task.
    """
    first = recipe.task.metrics[0]
    key = metric(first).headline
    error = scores[first].errors.get(key, 0.0)
    said = [] if baseline is None else [_against(headline(scores, recipe), error, baseline, recipe)]
    if scores[first].units.get(key, "%") == "%":
        said.append(_course(headlines))
    return "; ".join(filter(None, said))


def _against(value: float, error: float, baseline: BaselineScores, recipe: Recipe) -> str:
    floor, first = headline(baseline.results, recipe), recipe.task.metrics[0]
    key = metric(first).headline
    shown = f"{baseline.name} ({key} {baseline.results[first].values[key]:.2f})"
    difference = value - floor
    if difference <= 0:
        return f"no better than {shown}"
    if difference <= STANDARD_ERRORS * error:
        return f"{difference:.2f} better than {shown}, which is within {STANDARD_ERRORS:g} standard errors"
    return f"{difference:.2f} better than {shown}"


def _course(headlines: Sequence[float]) -> str:
    """What the evaluations suggest to change."""
    if len(headlines) < 2:
        return ""
    best, last = max(headlines), headlines[-1]
    if last == best and last - max(headlines[:-1]) >= RISE:
        return "still improving at the last evaluation: raise finetuning.epochs"
    if best - last >= FALL:
        return f"the last evaluation is {best - last:.2f} below the best one, which is kept: fewer epochs are enough"
    return ""
