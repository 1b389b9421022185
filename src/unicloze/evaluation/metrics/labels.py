"""Metrics of labels: classes, quantities, entities, calibration."""

from __future__ import annotations

import importlib
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.metrics.result import MetricResult, check_same_length

Label = str | int
Tags = Sequence[Sequence[str]]
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
    values, undefined = _shares(*(each[positive] for each in _counts(found, wanted)))
    values["accuracy"] = _accuracy(found, wanted)
    return _result("f1", values, found, note=f"Positive class: {positive}.", undefined=undefined)


def macro_f1(predictions: Sequence[Label], references: Sequence[Label]) -> MetricResult:
    """Mean F1 over all classes, and accuracy."""
    found, wanted = _labels(predictions, references)
    right, said, gold = _counts(found, wanted)
    score = statistics.fmean(_shares(right[one], said[one], gold[one])[0]["f1"] for one in sorted(said | gold))
    return _result("macro-f1", {"macro_f1": score, "accuracy": _accuracy(found, wanted)}, found)


def matthews(predictions: Sequence[Label], references: Sequence[Label]) -> MetricResult:
    """Matthews' correlation coefficient (CoLA), times 100; undefined if all predictions or all references are equal."""
    found, wanted = _labels(predictions, references)
    undefined = ["matthews"] if len(set(found)) == 1 or len(set(wanted)) == 1 else []
    sklearn = importlib.import_module("sklearn.metrics")
    score = 0.0 if undefined else sklearn.matthews_corrcoef(wanted, found)
    values = {"matthews": 100 * score, "accuracy": _accuracy(found, wanted)}
    return _result("matthews", values, found, undefined=undefined)


def _counts(found: Sequence[str], wanted: Sequence[str]) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """How often each label is right, found and wanted."""
    right = Counter(one for one, other in zip(found, wanted, strict=True) if one == other)
    return right, Counter(found), Counter(wanted)


def _shares(right: int, found: int, wanted: int) -> tuple[dict[str, float], list[str]]:
    """F1, precision and recall in percent, given as 0 if undefined, and the names of those that are."""
    sizes = {"f1": (found + wanted) / 2, "precision": found, "recall": wanted}
    return {name: 100 * right / (size or 1) for name, size in sizes.items()}, [
        n for n, size in sizes.items() if not size
    ]


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


class Entity(NamedTuple):
    """An entity of a kind: tokens `start` to `end - 1` of a sentence."""

    kind: str
    start: int
    end: int


def entity_f1(predictions: Tags, references: Tags) -> MetricResult:
    """F1, precision and recall of entities, and accuracy of single tags.

    An entity is right if its kind and its first and last tokens are. Tags are `B-KIND`, `I-KIND` and `O`; an `I-` that does
    not continue an entity of its kind begins one, so both IOB1 and IOB2 work.
    """
    right, found, wanted = Counter[str](), Counter[str](), Counter[str]()
    same = total = 0
    for number, (tags, gold) in enumerate(_sentences(predictions, references), start=1):
        try:
            predicted, true = entities(tags), entities(gold)
        except UniclozeError as error:
            raise UniclozeError(f"Sentence {number:,}: {error}") from error
        right.update(one.kind for one in set(predicted) & set(true))
        found.update(one.kind for one in predicted)
        wanted.update(one.kind for one in true)
        same += sum(map(str.__eq__, tags, gold))
        total += len(gold)
    values, undefined = _shares(right.total(), found.total(), wanted.total())
    values["accuracy"] = 100 * same / max(total, 1)
    undefined += [] if total else ["accuracy"]
    kinds = sorted(found.keys() | wanted)
    values |= {f"f1_{kind}": _shares(right[kind], found[kind], wanted[kind])[0]["f1"] for kind in kinds}
    return MetricResult(metric="entity-f1", values=values, items=len(references), undefined=undefined)


def tag_accuracy(predictions: Tags, references: Tags) -> MetricResult:
    """Percentage of right tags over all words, and of sentences with all tags right."""
    sentences, total = _sentences(predictions, references), sum(map(len, references))
    if not total:
        raise UniclozeError("There are no tags to compare: give sentences with tags.")
    same = sum(sum(map(str.__eq__, tags, gold)) for tags, gold in sentences)
    whole = sum(list(tags) == list(gold) for tags, gold in sentences)
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


def _sentences(predictions: Tags, references: Tags) -> list[tuple[Sequence[str], Sequence[str]]]:
    check_same_length(predictions, references)
    sentences = list(zip(predictions, references, strict=True))
    for number, (tags, gold) in enumerate(sentences, start=1):
        if len(tags) != len(gold):
            counts = f"{len(tags)} predicted and {len(gold)} right tags"
            raise UniclozeError(f"Sentence {number:,} has {counts}: give one for each token.")
    return sentences


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
    stats = importlib.import_module("scipy.stats")
    note, pearson, spearman = "", 0.0, 0.0
    if len(set(predictions)) == 1 or len(set(references)) == 1:
        note = "All predictions or all references are equal, so there is no correlation: given as 0."
    else:
        pearson = float(stats.pearsonr(predictions, references).statistic)
        spearman = float(stats.spearmanr(predictions, references).statistic)
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
    shares: list[dict[Any, float]] = [dict(one if isinstance(one, Mapping) else enumerate(one)) for one in predictions]
    said = [max(each, key=each.__getitem__) for each in shares]
    pairs = zip(shares, references, strict=True)
    given = [{str(label): share for label, share in each.items()}.get(str(right), 0.0) for each, right in pairs]
    confidence = np.array([each[label] for each, label in zip(shares, said, strict=True)])
    right = np.array([str(label) == str(reference) for label, reference in zip(said, references, strict=True)])
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)  # a bin holds its upper end
    gap = np.abs(np.bincount(bins, weights=confidence - right, minlength=BINS)).sum() / len(right)
    values = {"ece": 100 * float(gap), "confidence": 100 * float(confidence.mean())}
    values["log_loss"] = -float(np.log(np.maximum(given, LEAST)).mean())
    return MetricResult(metric="calibration", values=values, units={"log_loss": "nats"}, items=len(right))
