"""Every metric by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from unicloze.evaluation.metrics.result import Metric, MetricResult, check_pairs


def accuracy(predictions: Sequence[str], references: Sequence[str]) -> MetricResult:
    """Share of the predictions that are right."""
    check_pairs(predictions, references)
    right = [one == other for one, other in zip(predictions, references, strict=True)]
    return MetricResult(metric="accuracy", values={"accuracy": 100 * float(np.mean(right))}, items=len(right))


def pearson(predictions: Sequence[float], references: Sequence[float]) -> MetricResult:
    """Linear correlation."""
    check_pairs(predictions, references)
    value = float(np.corrcoef(predictions, references)[0, 1])
    return MetricResult(metric="pearson", values={"pearson": 100 * value}, items=len(predictions))


METRICS: Mapping[str, Metric] = {
    "accuracy": Metric(purpose="Right classes.", compares="labels", function=accuracy, headline="accuracy"),
    "pearson": Metric(purpose="Linear correlation.", compares="numbers", function=pearson, headline="pearson"),
}
