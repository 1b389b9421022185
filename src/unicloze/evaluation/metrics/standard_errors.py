"""Standard errors: the uncertainty of a metric's values due to the size of the test set."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unicloze import keyed
from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.metrics.registry import metric
from unicloze.evaluation.metrics.result import MetricResult

_SAMPLES = 200
"""Bootstrap samples; with this many, a standard error is itself accurate to about 5 %."""
_MEANS = {"rouge", "coco", "lambada", "squad"}
"""Metrics whose values are means over items and are quick to compute for one item."""
_CLOSE = 1e-6
"""Maximum difference, in percentage points, for the mean over items to count as equal to the value."""


def binomial_error(percent: float, items: int) -> float:
    """Standard error, in percentage points, of a share of items, such as an accuracy."""
    if items < 1:
        raise UsageError(f"items is {items}: give 1 or more.")
    share = percent / 100
    return 100 * math.sqrt(share * (1 - share) / items)


def bootstrap_errors(
    measure: Callable[[Sequence[Any], Sequence[Any]], MetricResult],
    predictions: Sequence[Any],
    references: Sequence[Any],
    *,
    samples: int = 1000,
    seed: int = 0,
) -> dict[str, float]:
    """Standard error of each value of any metric: its standard deviation over bootstrap samples (Efron 1979).

    Each sample has as many items as the test set, drawn with replacement; the draws depend only on the seed and the sample's
    number.
    """
    if samples < 2 or not predictions:
        raise UsageError(f"{samples} samples of {len(predictions)} items: give 2 samples and 1 item or more.")
    places = np.arange(len(predictions))
    rows = []
    for number in range(samples):
        drawn = keyed.below(keyed.bits(keyed.key(seed, number), keyed.Stream.ONLY, places), len(predictions))
        result = measure([predictions[i] for i in drawn], [references[i] for i in drawn])
        rows.append({name: value for name, value in result.values.items() if name not in result.undefined})
    drawn_values = {name: [row[name] for row in rows if name in row] for name in dict.fromkeys(itertools.chain(*rows))}
    return {name: float(np.std(values, ddof=1)) for name, values in drawn_values.items() if len(values) > 1}


def standard_errors(
    name: str,
    predictions: Sequence[Any],
    references: Sequence[Any],
    *,
    against: Sequence[Any] | None = None,
    **options: Any,
) -> dict[str, float]:
    """Standard error of each value of a registered metric, for values where it is quick to compute.

    Accuracy has the binomial standard error. Labels, numbers and tags are bootstrapped (`bootstrap_errors`). Values that are
    means over items, like ROUGE and unlike BLEU, have the standard error of a mean.
    """
    chosen = metric(name)
    is_drawn = chosen.compares in ("labels", "numbers", "tags")
    if not predictions or not (is_drawn or name in _MEANS):
        return {}

    def values_of(found: Sequence[Any], wanted: Sequence[Any]) -> MetricResult:
        if chosen.compares == "squad":
            ids = [str(number) for number in range(len(found))]
            return chosen(dict(zip(ids, found, strict=True)), dict(zip(ids, wanted, strict=True)), **options)
        return chosen(found, wanted, **options)

    def differences(pairs: Sequence[Any], wanted: Sequence[Any]) -> MetricResult:
        one, other = (values_of(found, wanted) for found in zip(*pairs, strict=True))
        values = {key: one.values[key] - other.values[key] for key in one.values if key in other.values}
        undefined = {*one.undefined, *other.undefined}
        return dataclasses.replace(one, values=values, undefined=[key for key in values if key in undefined])

    measure = values_of if against is None else differences
    if against is not None:
        predictions = list(zip(predictions, against, strict=True))
    whole = measure(predictions, references)
    if name == "accuracy" and against is None:
        return {key: binomial_error(value, whole.items) for key, value in whole.values.items()}
    if is_drawn:

        def of_sample(found: Sequence[Any], wanted: Sequence[Any]) -> MetricResult:
            try:
                return measure(found, wanted)
            except UniclozeError:  # a sample without a single positive label has no F1
                return MetricResult(metric=name, values={}, items=len(found))

        return bootstrap_errors(of_sample, predictions, references, samples=_SAMPLES)
    each = [measure([p], [r]).values for p, r in zip(predictions, references, strict=True)]
    errors = {}
    for key, value in whole.values.items():
        alone = [values[key] for values in each if key in values]
        if len(alone) == len(each) > 1 and abs(float(np.mean(alone)) - value) <= _CLOSE:
            errors[key] = float(np.std(alone, ddof=1)) / math.sqrt(len(alone))
    return errors
