"""What a comparison found of each recipe: what it scored and what it spent."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A figure over the seeds.

    Args:
        mean: Its mean.
        deviation: Its standard deviation over the seeds, None for a single one.
    """

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Mean and sample standard deviation."""
        return cls(mean=statistics.fmean(values), deviation=statistics.stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What fine-tuning on one probe took, the mean over the seeds.

    Args:
        flops: Floating-point operations of its training steps.
        seconds: Wall-clock time with its evaluations, over its starts.
    """

    flops: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contestant's results.

    Args:
        name: Of its recipe.
        objective: What it trains on.
        parameters: Weights that are trained, tied ones counted once.
        steps: Optimiser steps.
        text_tokens: Text tokens it was trained on.
        flops: Floating-point operations spent: slots and predictions.
        seconds: Wall-clock time of a run, over its starts.
        scores: Figures by measure over the seeds; None where the objective does not define it.
        reads: How it is fine-tuned on probes: who reads whom, and the pooled slot, as its recipe declares (`use`).
        probes: By the name of a probe what fine-tuning on it took; no part of what stands above.
    """

    name: str
    objective: str
    parameters: int
    steps: int
    text_tokens: float
    flops: float
    seconds: float
    scores: Mapping[str, Spread | None]
    reads: str = ""
    probes: Mapping[str, Spent] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ProbeColumn:
    """What the scores of a probe are of.

    Args:
        name: Of the recipe of its task.
        metric: What measures it.
        value: The value of the metric that is the score.
        unit: Its unit, empty for a plain number.
        higher_is_better: Whether more of it is better.
        files: The training and the development file, as they were given.
        records: Number of records in each.
        settings: Settings of the fine-tuning that are most asked for, by dotted name.
        not_defined: Why a recipe has no score, by the name of the recipe.
    """

    name: str
    metric: str
    value: str
    unit: str
    higher_is_better: bool
    files: tuple[str, str]
    records: tuple[int, int]
    settings: Mapping[str, Any]
    not_defined: Mapping[str, str]

    @property
    def key(self) -> str:
        """Its name among the scores of a row."""
        return probe_key(self.name)

    @property
    def title(self) -> str:
        """What its scores are called."""
        return f"{self.name}, {self.value} {self.unit}".rstrip()


def probe_key(name: str) -> str:
    """The name of a probe's score among those of a run."""
    return f"probe.{name}"
