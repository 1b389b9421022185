"""Reads the history and predictions of a fine-tuning run, even if the run was killed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unicloze.evaluation.metrics.registry import METRICS
from unicloze.files import DEV_PREDICTIONS, DEV_SAMPLES
from unicloze.report.history import Event, History, mapping, number, sequence

Answers = Sequence[Event]


@dataclass(frozen=True, kw_only=True)
class TaskRun:
    """The recorded data of a fine-tuning run."""

    history: History  # the ledger's history
    # predictions of the best checkpoint on the development file, with references; empty if there is no such file
    answers: Answers
    samples: Answers  # A sample of them with their records

    @classmethod
    def read(cls, run: Path) -> TaskRun:
        """Read the directory of a finished or unfinished run."""
        return cls.of(History.read(run))

    @classmethod
    def of(cls, history: History) -> TaskRun:
        """The run of a history."""
        answers = [one for one in _lines(history.run / DEV_PREDICTIONS) if "prediction" in one and "reference" in one]
        return cls(history=history, answers=answers, samples=_lines(history.run / DEV_SAMPLES))

    @property
    def metrics(self) -> list[str]:
        """Its metrics; the first one selects the best checkpoint. Of several tasks, those of each and their mean."""
        task = mapping(self.history.recipe.get("task"))
        if sequence(task.get("parts")):
            return [str(name) for name in mapping(self.best.get("results"))]
        return [str(name) for name in sequence(task.get("metrics"))]

    @property
    def best_step(self) -> int | None:
        """Step of the best checkpoint; None if nothing was evaluated."""
        chosen = [step for step, event in self.history.evaluations.items() if event.get("kept")]
        if chosen:
            return max(chosen)
        values = {step: number(event.get("headline")) for step, event in self.history.evaluations.items()}
        found = {step: value for step, value in values.items() if value is not None}
        return max(found, key=lambda step: found[step]) if found else None

    @property
    def best(self) -> Event:
        """The best evaluation."""
        return self.history.evaluations.get(self.best_step or 0, {})

    def values(self, metric: str, event: Event | None = None) -> dict[str, float]:
        """The values of one metric in an evaluation; default: the best evaluation."""
        results = mapping((self.best if event is None else event).get("results"))
        found = {str(key): number(value) for key, value in mapping(mapping(results.get(metric)).get("values")).items()}
        return {key: value for key, value in found.items() if value is not None}

    @property
    def verdict(self) -> str:
        """The verdict recorded at the end of the run; empty before."""
        return str(self.history.last.get("verdict") or "")

    @property
    def baseline(self) -> Event:
        """The baseline without a model: its `name`, and `results` as in an evaluation; empty if unknown."""
        return mapping(self.history.start.get("baseline"))

    def unit(self, metric: str, key: str) -> str:
        """The unit of a value."""
        result = mapping(mapping(self.best.get("results")).get(metric))
        return str(mapping(result.get("units")).get(key, "%"))

    def errors(self, metric: str) -> dict[str, float]:
        """Standard errors of a metric's values, which the end of the run records; empty before or if unknown."""
        found = mapping(mapping(self.history.last.get("errors")).get(metric))
        return {str(key): error for key, value in found.items() if (error := number(value)) is not None}

    def points(self, metric: str, key: str) -> list[tuple[float, float]]:
        """One value of a metric over the steps."""
        each = ((step, self.values(metric, event)) for step, event in self.history.evaluations.items())
        return [(float(step), values[key]) for step, values in each if key in values]


def headline_of(metric: str, values: Mapping[str, Any]) -> str:
    """The name of a metric's main value."""
    known = METRICS.get(metric)
    return known.headline if known and known.headline in values else next(iter(values), "")


def shown(value: float, unit: str = "%") -> str:
    """A value with its unit, which is omitted for percent."""
    return f"{value:.2f}" if unit == "%" else f"{value:.4g} {unit}".rstrip()


def _lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a .jsonl file, skipping incomplete lines; empty if the file is missing."""
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found
