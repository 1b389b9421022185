"""Diversity of responses, as the DSTC7 challenge measures it (UniLM v1, Table 10)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from unicloze.errors import UniclozeError
from unicloze.evaluation.metrics.ngrams import Ngram, ngrams
from unicloze.evaluation.metrics.profiles import words
from unicloze.evaluation.metrics.result import MetricResult


def diversity(predictions: Sequence[str], references: Sequence[Sequence[str]] = ()) -> MetricResult:
    """Entropy-4, Distinct-1, Distinct-2 and the average length of texts, in words and punctuation marks."""
    if not predictions:
        raise UniclozeError("There is no text to measure: give at least one prediction.")
    tokens = [words(text) for text in predictions]
    counts = {n: Counter[Ngram]() for n in (1, 2, 4)}
    for one in tokens:
        for n, count in counts.items():
            count.update(ngrams(one, n))
    return MetricResult(
        metric="diversity",
        values={
            "entropy_4": _entropy(counts[4]),
            "distinct_1": len(counts[1]) / max(counts[1].total(), 1),
            "distinct_2": len(counts[2]) / max(counts[2].total(), 1),
            "average_length": counts[1].total() / len(tokens),
        },
        items=len(tokens),
        units={"entropy_4": "nats", "distinct_1": "", "distinct_2": "", "average_length": "tokens"},
    )


def _entropy(counts: Counter[Ngram]) -> float:
    total = counts.total()
    return sum((count / total * math.log(total / count) for count in counts.values()), 0.0)
