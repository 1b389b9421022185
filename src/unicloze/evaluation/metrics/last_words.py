"""LAMBADA accuracy: compares the last words of predictions and references."""

from __future__ import annotations

import re
from collections.abc import Sequence

from unicloze.evaluation.metrics.result import MetricResult, check_texts

_AROUND = re.compile(r"^\W+|\W+$")


def lambada(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> MetricResult:
    """Percentage of passages whose last word is right (Paperno et al. 2016)."""
    check_texts(predictions, references)
    right = sum(
        last_word(prediction) in {last_word(one) for one in several} - {""}
        for prediction, several in zip(predictions, references, strict=True)
    )
    return MetricResult(metric="lambada", values={"accuracy": 100 * right / len(predictions)}, items=len(predictions))


def last_word(text: str) -> str:
    """The last word of a text without the punctuation around it; empty if there is none."""
    words = [word for word in (_AROUND.sub("", piece) for piece in text.split()) if word]
    return words[-1] if words else ""
