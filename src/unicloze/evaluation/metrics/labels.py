"""Metrics of labels: classes, quantities and entities, what GLUE reports of them, and calibration."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from unicloze.errors import UniclozeError, UsageError
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


@dataclass(frozen=True, kw_only=True)
class GlueTask:
    """Metric of a task."""

    metric: str  # name of the metric
    values: tuple[str, ...]  # its values reported in papers; the first is that of UniLM v1's Table 11
    selects: str = "accuracy"  # the value of UniLMv2's Table 3, by which its grid of settings (Table 9) chooses


GLUE: Mapping[str, GlueTask] = {
    "cola": GlueTask(metric="matthews", values=("matthews",), selects="matthews"),
    "sst-2": GlueTask(metric="accuracy", values=("accuracy",)),
    "mrpc": GlueTask(metric="f1", values=("f1", "accuracy")),
    "sts-b": GlueTask(metric="correlation", values=("spearman", "pearson"), selects="pearson"),
    "qqp": GlueTask(metric="f1", values=("f1", "accuracy")),
    "mnli": GlueTask(metric="accuracy", values=("accuracy",)),
    "qnli": GlueTask(metric="accuracy", values=("accuracy",)),
    "rte": GlueTask(metric="accuracy", values=("accuracy",)),
    "wnli": GlueTask(metric="accuracy", values=("accuracy",)),
    "ax": GlueTask(metric="matthews", values=("matthews",), selects="matthews"),
}
"""Metrics by task name. MNLI's applies to both its matched and mismatched sets; AX is the diagnostic set."""


class Entity(NamedTuple):
    """An entity of a kind: tokens `start` to `end - 1` of a sentence."""

    kind: str
    start: int
    end: int


def entity_f1(predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> MetricResult:
    """F1, precision and recall of entities, and accuracy of single tags.

    An entity is right if its kind and its first and last tokens are. Tags are `B-KIND`, `I-KIND` and `O`; an `I-` that does
    not continue an entity of its kind begins one, so both IOB1 and IOB2 work.
    """
    check_same_length(predictions, references)
    right: Counter[str] = Counter()
    found: Counter[str] = Counter()
    wanted: Counter[str] = Counter()
    same = total = 0
    for number, (tags, gold) in enumerate(zip(predictions, references, strict=True), start=1):
        _check_lengths(number, tags, gold)
        try:
            predicted, true = entities(tags), entities(gold)
        except UniclozeError as error:
            raise UniclozeError(f"Sentence {number:,}: {error}") from error
        right.update(one.kind for one in set(predicted) & set(true))
        found.update(one.kind for one in predicted)
        wanted.update(one.kind for one in true)
        same += sum(map(str.__eq__, tags, gold))
        total += len(gold)
    values = {
        "f1": _f1(right.total(), found.total(), wanted.total()),
        "precision": 100 * right.total() / max(found.total(), 1),
        "recall": 100 * right.total() / max(wanted.total(), 1),
        "accuracy": 100 * same / max(total, 1),
    }
    counted = {"f1": found.total() + wanted.total(), "precision": found.total(), "recall": wanted.total()}
    undefined = [name for name, count in (counted | {"accuracy": total}).items() if not count]
    values |= {f"f1_{kind}": _f1(right[kind], found[kind], wanted[kind]) for kind in sorted(found.keys() | wanted)}
    return MetricResult(metric="entity-f1", values=values, items=len(references), undefined=undefined)


def tag_accuracy(predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> MetricResult:
    """Percentage of right tags over all words, and of sentences with all tags right."""
    check_same_length(predictions, references)
    for number, (tags, gold) in enumerate(zip(predictions, references, strict=True), start=1):
        _check_lengths(number, tags, gold)
    total = sum(map(len, references))
    if not total:
        raise UniclozeError("There are no tags to compare: give sentences with tags.")
    same = sum(
        one == other for pair in zip(predictions, references, strict=True) for one, other in zip(*pair, strict=True)
    )
    whole = sum(list(tags) == list(gold) for tags, gold in zip(predictions, references, strict=True))
    values = {"accuracy": 100 * same / total, "sentences": 100 * whole / len(references)}
    return MetricResult(metric="tag-accuracy", values=values, items=len(references))


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence, in order."""
    result: list[Entity] = []
    open_kind, start = "", 0
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, kind = tag.partition("-")
        if tag != "O" and (prefix not in ("B", "I") or not kind):
            raise UniclozeError(f"the tag {tag!r} of token {place + 1} is not B-KIND, I-KIND or O: fix it.")
        if open_kind and (prefix != "I" or kind != open_kind):
            result.append(Entity(open_kind, start, place))
            open_kind = ""
        if tag != "O" and not open_kind:
            open_kind, start = kind, place
    return result


def _check_lengths(number: int, tags: Sequence[str], gold: Sequence[str]) -> None:
    if len(tags) != len(gold):
        raise UniclozeError(
            f"Sentence {number:,} has {len(tags)} predicted and {len(gold)} right tags: give one for each token."
        )


def _f1(right: int, found: int, wanted: int) -> float:
    return 200 * right / (found + wanted) if found + wanted else 0.0


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
    import numpy as np

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
