"""Reads predictions and references from .txt, .tsv, .jsonl and .json files, also gzipped.

An item is a line of .txt, a row under a header of .tsv, or an object of .jsonl. Predictions are in the column or field
`prediction`; references in `reference`, as a list in `references`, or in several files with equal numbers of lines, where a
blank line means that there is no further reference. Tags are separated by spaces. .json files are in the formats of SQuAD
and CoQA; predictions for SQuAD may also be .jsonl with an `id`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.metrics.answer_files import (
    answer_of,
    read_coqa,
    read_coqa_predictions,
    read_na_probabilities,
    read_squad,
    read_squad_predictions,
)
from unicloze.evaluation.metrics.result import Compared
from unicloze.evaluation.metrics.row_files import Item, read_items


def read_pairs(
    predictions: Path, references: Sequence[Path], compares: Compared, *, na_probabilities: Path | None = None
) -> tuple[Any, Any]:
    """Predictions and references as the metrics take them; see `unicloze.evaluation.metrics.registry`."""
    if not references:
        raise UsageError("No file of references is given: give one.")
    if len(references) > 1 and compares != "texts":
        raise UsageError(f"There are {len(references)} files of references: only texts can have more than one.")
    if na_probabilities is not None and compares != "squad":
        raise UsageError("Only the metric squad takes no-answer probabilities: leave out --na-probabilities.")
    if compares == "squad":
        return _squad_predictions(predictions, na_probabilities), read_squad(references[0])
    if compares == "coqa":
        return read_coqa_predictions(predictions), read_coqa(references[0])
    found = read_items(predictions, ("prediction",))
    several = [read_items(path, ("references", "reference")) for path in references]
    for path, items in zip(references, several, strict=True):
        check_match(predictions, found, path, items)
    values = [value_of(item, compares) for item in found]
    if compares != "texts":
        return values, [value_of(item, compares) for item in several[0]]
    return values, [_texts(items) for items in zip(*several, strict=True)]


def read_predictions(path: Path) -> list[str]:
    """Texts to be measured without references."""
    return [_text(item) for item in read_items(path, ("prediction",))]


def value_of(item: Item, compares: Compared) -> Any:
    """The value of an item as the metrics take it."""
    return _VALUES[compares](item)


def _squad_predictions(path: Path, na_probabilities: Path | None) -> Mapping[str, Any]:
    answers = read_squad_predictions(path)
    if na_probabilities is None:
        return answers
    certainties = read_na_probabilities(na_probabilities)
    missing = answers.keys() - certainties
    if missing:
        raise UniclozeError(
            f"{na_probabilities} lacks {len(missing):,} answers, such as {min(missing)}: give all or none."
        )
    return {name: dataclasses.replace(one, na_probability=certainties[name]) for name, one in answers.items()}


def check_match(predictions: Path, found: Sequence[Item], references: Path, wanted: Sequence[Item]) -> None:
    """Check that predictions and references are equal in number, and in ids if both have them."""
    for prediction, reference in zip(found, wanted, strict=False):
        if None not in (prediction.id, reference.id) and str(prediction.id) != str(reference.id):
            raise UniclozeError(
                f"{prediction.place} has the id {prediction.id}, but {reference.place} the id {reference.id}: "
                "put both files in the same order."
            )
    if len(found) != len(wanted):
        longer, other = (found, references) if len(found) > len(wanted) else (wanted, predictions)
        raise UniclozeError(
            f"{predictions} has {len(found):,} items and {references} {len(wanted):,}: nothing in {other} matches "
            f"{longer[min(len(found), len(wanted))].place}."
        )


def _text(item: Item) -> str:
    if not isinstance(item.value, str):
        raise UniclozeError(f"{item.place} has {item.value!r:.40}, which is not a text: fix the line.")
    return item.value


def _texts(items: Sequence[Item]) -> list[str]:
    """All references of one item, without blank ones unless all are blank."""
    texts: list[str] = []
    for item in items:
        values = item.value if isinstance(item.value, list) else [item.value]
        texts += [_text(dataclasses.replace(item, value=value)) for value in values]
    if not texts:
        raise UniclozeError(f"{items[0].place} has no reference: give at least one.")
    return [text for text in texts if text.strip()] or [""]


def _label(item: Item) -> str:
    if not isinstance(item.value, str | int) or isinstance(item.value, bool) or not str(item.value).strip():
        raise UniclozeError(f"{item.place} has {item.value!r:.40}, which is not a label: give a string or an integer.")
    return str(item.value).strip()


def _number(item: Item) -> float:
    try:
        number = math.nan if isinstance(item.value, bool) else float(item.value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise UniclozeError(f"{item.place} has {item.value!r:.40}, which is not a finite number: fix the line.")
    return number


def _tags(item: Item) -> list[str]:
    tags = item.value.split() if isinstance(item.value, str) else item.value
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise UniclozeError(f"{item.place} has {item.value!r:.40}, which is not a list of tags: fix the line.")
    return tags


_VALUES: Mapping[Compared, Callable[[Item], Any]] = {
    "squad": answer_of,
    "coqa": _text,
    "texts": _text,
    "labels": _label,
    "numbers": _number,
    "tags": _tags,
}
