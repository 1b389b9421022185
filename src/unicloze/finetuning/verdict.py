"""Interprets the scores of a fine-tuning: against a baseline, and against its earlier evaluations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
        answers: Its answers, to be compared with a model's on the same records.
    """

    name: str
    results: Mapping[str, MetricResult]
    answers: Sequence[Any] = ()

    def to_dict(self) -> dict[str, Any]:
        """The name and the results as a JSON-serialisable dictionary."""
        return {"name": self.name, "results": {name: asdict(result) for name, result in self.results.items()}}


def baseline_scores(train: Sequence[Record], dev: Sequence[Record], recipe: Recipe) -> list[BaselineScores]:
    """Scores of a task's baselines, the simplest first; those that do not apply to these records are left out."""
    task = TASKS[recipe.task.kind]
    if parts_of(recipe.task) and recipe.task.kind == "generation":
        baselines: list[Baseline | None] = [most_common(train, dev)]
    else:
        baselines = [task.baseline(train, dev, recipe), task.rival(train, dev, recipe)]
    scored = []
    for baseline in filter(None, baselines):
        answers = [{"id": one.id, "prediction": answer} for one, answer in zip(dev, baseline.answers, strict=True)]
        scored.append(BaselineScores(baseline.name, measure(answers, dev, recipe), baseline.answers))
    return scored


def verdict_on(
    scores: Mapping[str, MetricResult],
    headlines: Sequence[float],
    baselines: Sequence[BaselineScores],
    recipe: Recipe,
    difference: Callable[[BaselineScores], float | None] = lambda _: None,
) -> str:
    """Interpretation of the scores of the best evaluation, in words."""
    key = chosen_value(recipe)
    first = key if key in scores else recipe.task.metrics[0]
    value = headline(scores, recipe)
    said = [_against(value, difference(baseline), baseline, recipe) for baseline in baselines]
    if scores[first].units.get(key, "%") == "%":
        said.append(_course(headlines, scores[first].errors.get(key)))
    return "; ".join(filter(None, said))


def _against(value: float, error: float | None, baseline: BaselineScores, recipe: Recipe) -> str:
    floor, key = headline(baseline.results, recipe), chosen_value(recipe)
    first = key if key in baseline.results else recipe.task.metrics[0]
    shown = f"{baseline.name} ({key} {baseline.results[first].values[key]:.2f})"
    difference = value - floor
    if difference == 0:
        return f"equal to {shown}"
    what = f"{abs(difference):.2f} {'better' if difference > 0 else 'worse'} than {shown}"
    if error is None:
        return f"{what}; the standard error of the difference is not known"
    if abs(difference) <= STANDARD_ERRORS * error:
        return f"no different from {shown}: {difference:+.2f} with a standard error of {error:.2f}"
    what += f", with a standard error of {error:.2f}"
    return what if difference > 0 else f"{what}: use that instead, or more records or another model"


def _course(headlines: Sequence[float], error: float | None) -> str:
    """Advice from the course of the evaluations, beyond one standard error; empty if the error is not known."""
    if len(headlines) < 2 or error is None:
        return ""
    best, last = max(headlines), headlines[-1]
    if last == best and last - max(headlines[:-1]) >= max(RISE, error):
        return "still improving at the last evaluation: raise finetuning.epochs"
    if best - last >= max(FALL, error):
        return f"the last evaluation is {best - last:.2f} below the best one: fewer epochs are enough"
    return ""
