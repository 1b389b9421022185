"""Correlation of predicted numbers with the right ones, computed by scipy."""

from __future__ import annotations

import math
from collections.abc import Sequence

from unicloze.errors import UniclozeError
from unicloze.evaluation.metrics.result import MetricResult, check_same_length, library


def correlation(
    predictions: Sequence[float], references: Sequence[float], *, metric: str = "correlation"
) -> MetricResult:
    """Pearson's and Spearman's correlation (STS-B), times 100.

    If all predictions or all references are equal, both are undefined, and the note says why.
    """
    check_same_length(predictions, references)
    for name, numbers in (("Prediction", predictions), ("Reference", references)):
        for place, number in enumerate(numbers, start=1):
            if not math.isfinite(number):
                raise UniclozeError(f"{name} {place:,} is {number}: give finite numbers.")
    statistics = library("scipy.stats", "metrics")
    note, pearson, spearman = "", 0.0, 0.0
    if len(set(predictions)) == 1 or len(set(references)) == 1:
        note = "All predictions or all references are equal, so there is no correlation: given as 0."
    else:
        pearson = float(statistics.pearsonr(predictions, references).statistic)
        spearman = float(statistics.spearmanr(predictions, references).statistic)
    values = {"pearson": 100 * pearson, "spearman": 100 * spearman}
    undefined = list(values) if note else []
    return MetricResult(metric=metric, values=values, items=len(predictions), note=note, undefined=undefined)
