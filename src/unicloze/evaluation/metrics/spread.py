"""Standard errors: how far a metric's values may be off because the test set is only so large."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unicloze import keyed
from unicloze.errors import UsageError
from unicloze.evaluation.metrics.result import MetricResult

_STREAM = 0


def binomial_error(percent: float, items: int) -> float:
    """Standard error in percent of a share of so many items that are right or wrong, such as an accuracy.

    Raises:
        UsageError: There is no item.
    """
    if items < 1:
        raise UsageError(f"items is {items}: give 1 or more.")
    share = percent / 100
    return 100 * math.sqrt(share * (1 - share) / items)


def bootstrap_errors(
    metric: Callable[[Sequence[Any], Sequence[Any]], MetricResult],
    predictions: Sequence[Any],
    references: Sequence[Any],
    *,
    samples: int = 1000,
    seed: int = 0,
) -> dict[str, float]:
    """Standard error of each value of any metric: its standard deviation over test sets drawn anew from this one.

    Each sample has as many items as there are, drawn with replacement; which ones depends on the seed and the number of the
    sample alone (Efron 1979).

    Args:
        metric: Takes predictions and references in the same order.
        predictions: The predictions.
        references: The references.
        samples: Samples to draw, 2 or more.
        seed: Names the draws.

    Returns:
        Standard errors by name of the value, in its unit; samples that lack the value do not count.

    Raises:
        UsageError: There are too few samples, or no item.
    """
    if samples < 2 or not predictions:
        raise UsageError(f"{samples} samples of {len(predictions)} items: give 2 samples and 1 item or more.")
    places = np.arange(len(predictions))
    rows = []
    for number in range(samples):
        drawn = keyed.below(keyed.bits(keyed.key(seed, number), _STREAM, places), len(predictions))
        rows.append(metric([predictions[i] for i in drawn], [references[i] for i in drawn]).values)
    drawn_values = {name: [row[name] for row in rows if name in row] for name in dict.fromkeys(itertools.chain(*rows))}
    return {name: float(np.std(values, ddof=1)) for name, values in drawn_values.items() if len(values) > 1}
