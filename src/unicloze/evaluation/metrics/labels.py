"""Scores class labels: accuracy, F1 and Matthews' correlation, computed by scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence

from unicloze.errors import UsageError
from unicloze.evaluation.metrics.result import MetricResult, check_same_length, library

Label = str | int
POSITIVE = "1"
"""GLUE's positive class."""


def accuracy(predictions: Sequence[Label], references: Sequence[Label]) -> MetricResult:
    """Percentage of right labels."""
    found, wanted = _labels(predictions, references)
    return _result("accuracy", {"accuracy": _accuracy(found, wanted)}, found)


def f1(predictions: Sequence[Label], references: Sequence[Label], *, positive: str = POSITIVE) -> MetricResult:
    """F1, precision and recall of one class, and accuracy (MRPC, QQP)."""
    found, wanted = _labels(predictions, references)
    if positive not in wanted and positive not in found:
        known = ", ".join(sorted(set(wanted))[:10])
        raise UsageError(f"No reference has the label {positive}: set the option positive to one of {known}.")
    precision, recall, score, _ = library("sklearn.metrics", "metrics").precision_recall_fscore_support(
        wanted, found, labels=[positive], average="micro", zero_division=0.0
    )
    values = {"f1": 100 * score, "precision": 100 * precision, "recall": 100 * recall}
    undefined = [name for name, labels in (("precision", found), ("recall", wanted)) if positive not in labels]
    values |= {"accuracy": _accuracy(found, wanted)}
    return _result("f1", values, found, note=f"Positive class: {positive}.", undefined=undefined)


def macro_f1(predictions: Sequence[Label], references: Sequence[Label]) -> MetricResult:
    """Mean F1 over all classes, and accuracy."""
    found, wanted = _labels(predictions, references)
    score = library("sklearn.metrics", "metrics").f1_score(wanted, found, average="macro", zero_division=0.0)
    return _result("macro-f1", {"macro_f1": 100 * score, "accuracy": _accuracy(found, wanted)}, found)


def matthews(predictions: Sequence[Label], references: Sequence[Label]) -> MetricResult:
    """Matthews' correlation coefficient (CoLA), times 100; undefined if all predictions or all references are equal."""
    found, wanted = _labels(predictions, references)
    sklearn = library("sklearn.metrics", "metrics")
    undefined = ["matthews"] if len(set(found)) == 1 or len(set(wanted)) == 1 else []
    score = 0.0 if undefined else sklearn.matthews_corrcoef(wanted, found)
    values = {"matthews": 100 * score, "accuracy": _accuracy(found, wanted)}
    return _result("matthews", values, found, undefined=undefined)


def _labels(predictions: Sequence[Label], references: Sequence[Label]) -> tuple[list[str], list[str]]:
    check_same_length(predictions, references)
    return list(map(str, predictions)), list(map(str, references))


def _accuracy(found: Sequence[str], wanted: Sequence[str]) -> float:
    return 100 * sum(map(str.__eq__, found, wanted)) / len(wanted)


def _result(
    metric: str, values: dict[str, float], found: Sequence[str], *, note: str = "", undefined: Sequence[str] = ()
) -> MetricResult:
    values = {name: float(value) for name, value in values.items()}
    return MetricResult(metric=metric, values=values, items=len(found), note=note, undefined=list(undefined))
