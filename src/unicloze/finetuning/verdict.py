"""What the scores of a fine-tuning mean, in a sentence: against a baseline, and against its own earlier evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from unicloze.evaluation.metrics.registry import metric
from unicloze.evaluation.metrics.result import MetricResult
from unicloze.finetuning.scores import headline, measure
from unicloze.settings import Recipe
from unicloze.tasks import TASKS
from unicloze.tasks.records import Record

STANDARD_ERRORS = 2.0
"""A difference counts from so many standard errors on."""
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

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BaselineScores:
        """The scores that `to_dict` wrote."""
        return cls(values["name"], {name: MetricResult(**result) for name, result in values["results"].items()})

    def to_dict(self) -> dict[str, Any]:
        """Its fields, fit for JSON."""
        return asdict(self)

    def headline(self, recipe: Recipe) -> float:
        """The value that the best checkpoint is compared with: more is better."""
        return headline(self.results, recipe)


def baseline_scores(train: Sequence[Record], dev: Sequence[Record], recipe: Recipe) -> BaselineScores | None:
    """What the baseline of a task is worth; None where the task has none for these records."""
    baseline = TASKS[recipe.task.kind].baseline(train, dev, recipe)
    if baseline is None:
        return None
    predictions = [{"id": one.id, "prediction": answer} for one, answer in zip(dev, baseline.answers, strict=True)]
    return BaselineScores(baseline.name, measure(predictions, dev, recipe))


def verdict(
    value: float, error: float | None, evaluations: Sequence[float], baseline: BaselineScores | None, recipe: Recipe
) -> str:
    """What a score means, in one sentence or two.

    Args:
        value: Of the metric that chooses the checkpoint, at the best evaluation: more is better.
        error: Its standard error, where it is known.
        evaluations: The same value at each evaluation, in order.
        baseline: What a model has to beat.
        recipe: Of the task.
    """
    said = [] if baseline is None else [_against(value, error, baseline, recipe)]
    course = _course(evaluations)
    return "; ".join([*said, course] if course else said)


def _against(value: float, error: float | None, baseline: BaselineScores, recipe: Recipe) -> str:
    first = metric(recipe.task.metrics[0])
    floor = baseline.headline(recipe)
    shown = f"{baseline.name} ({first.headline} {abs(floor):.2f})"
    difference, margin = value - floor, STANDARD_ERRORS * (error or 0.0)
    if difference <= 0:
        return f"no better than {shown}"
    if difference <= margin:
        return f"hardly better than {shown}: the difference of {difference:.2f} is within {STANDARD_ERRORS:g} standard errors"
    return f"{difference:.2f} better than {shown}"


def _course(evaluations: Sequence[float]) -> str:
    """What the evaluations so far suggest to change."""
    if len(evaluations) < 2:
        return ""
    best, last = max(evaluations), evaluations[-1]
    if last == best and last - max(evaluations[:-1]) >= RISE:
        return "still improving at the last evaluation: raise finetuning.epochs"
    if best - last >= FALL:
        return f"{best - last:.2f} worse at the last evaluation than at the best one, which is kept: fewer epochs are enough"
    return ""
