"""Scores how well the probabilities of a classifier match how often it is right (Guo et al. 2017)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unicloze.evaluation.metrics.result import MetricResult, check_same_length

BINS = 15
"""Number of bins of equal width (Guo et al. 2017, Section 5)."""
LEAST = 1e-6
"""Lowest probability that counts: predictions have six digits."""


def calibration(
    predictions: Sequence[Mapping[str, float] | Sequence[float]], references: Sequence[str | int]
) -> MetricResult:
    """Expected calibration error: the mean distance between confidence and accuracy, over bins of confidence.

    The confidence of a prediction is the probability of the most likely class. `confidence` is its mean: above the accuracy,
    the classifier is overconfident. `log_loss` is the mean of -log p of the right class.
    """
    check_same_length(predictions, references)
    shares: list[dict[Any, float]] = [
        dict(each if isinstance(each, Mapping) else enumerate(each)) for each in predictions
    ]
    said = [max(each, key=each.__getitem__) for each in shares]
    given = [
        {str(label): share for label, share in each.items()}.get(str(right), 0.0)
        for each, right in zip(shares, references, strict=True)
    ]
    confidence = np.array([each[label] for each, label in zip(shares, said, strict=True)])
    right = np.array([str(label) == str(reference) for label, reference in zip(said, references, strict=True)])
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)  # a bin holds its upper end
    gap = np.abs(np.bincount(bins, weights=confidence - right, minlength=BINS)).sum() / len(right)
    values = {"ece": 100 * float(gap), "confidence": 100 * float(confidence.mean())}
    values["log_loss"] = -float(np.log(np.maximum(given, LEAST)).mean())
    return MetricResult(metric="calibration", values=values, units={"log_loss": "nats"}, items=len(right))
