"""Scores entities in tag sequences as the script conlleval does (Tjong Kim Sang and Buchholz 2000)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from unicloze.errors import UniclozeError
from unicloze.evaluation.metrics.result import MetricResult, check_same_length


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
