"""Reads predictions and references from .txt, .tsv, .jsonl and .json files, also gzipped.

An item is a line of .txt, a row under a header of .tsv, or an object of .jsonl. Predictions are in the column or field
`prediction`; references in `reference`, as a list in `references`, or in several files with equal numbers of lines, where a
blank line means that there is no further reference. Tags are separated by spaces. .json files are in the formats of SQuAD
and CoQA; predictions for SQuAD may also be .jsonl with an `id`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.metrics.answers import Answer, Gold, Turn
from unicloze.evaluation.metrics.result import Compared
from unicloze.records.files import Reader, json_records, jsonl, kind_of, parse_json, read_text, separated
from unicloze.records.record import Record, as_records, needed_answers, number_of, refuse_repeated
from unicloze.settings import TaskSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """The content of one line."""

    value: Any  # text in .txt and .tsv, any JSON in .jsonl
    place: str  # file and line
    id: Any = None  # the item's `id`, if it has one
    fields: Mapping[str, Any] = field(default_factory=dict)  # all fields of the line


def read_items(path: Path, fields: Sequence[str]) -> list[Item]:
    """The items of a file, in order."""
    text, kind = read_text(path), kind_of(path)
    if kind not in _READERS:
        raise UniclozeError(f"{path} is not of a known kind: give a file that ends in {', '.join(_READERS)}, or .gz.")
    if text in ("", "\n"):
        raise UniclozeError(f"{path} is empty: give a file with one item per line.")
    items = []
    for record in as_records(_READERS[kind](text, path), path, headed=kind == ".tsv"):
        names = (_LINE,) if kind == ".txt" else fields
        name = next((name for name in names if name in record.fields), names[-1])
        value = record.fields[name] if name in record.fields else record.needed(PLAIN, name)
        number = record.fields.get("index") if record.headed else None
        own = record.fields.get("id", number)
        items.append(Item(value=value, place=record.place, id=own, fields=record.fields))
    return items


PLAIN = TaskSettings()
"""Settings that keep the field names of the files."""
_LINE = "line"


def _lines(text: str, path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        yield number, {_LINE: line.removesuffix("\r")}


_READERS: Mapping[str, Reader] = {
    ".txt": _lines,
    ".tsv": partial(separated, delimiter="\t", quoted=False, blank=True),
    ".jsonl": jsonl,
}


def read_pairs(
    predictions: Path,
    references: Sequence[Path],
    compares: Compared,
    *,
    na_probabilities: Path | None = None,
    alone: bool = False,
) -> tuple[Any, Any]:
    """Predictions and references as the metrics take them; see `unicloze.evaluation.metrics.registry`.

    Some metrics measure predictions `alone`, without references.
    """
    if na_probabilities is not None and compares != "squad":
        raise UsageError("Only the metric squad takes no-answer probabilities: leave out --na-probabilities.")
    if not references and not alone:
        raise UsageError("No file of references is given: give one.")
    if len(references) > 1 and compares != "texts":
        raise UsageError(f"There are {len(references)} files of references: only texts can have more than one.")
    if compares == "squad":
        return read_squad_predictions(predictions, na_probabilities), read_squad(references[0])
    if compares == "coqa":
        return read_coqa_predictions(predictions), read_coqa(references[0])
    items = read_items(predictions, ("prediction",))
    several = [read_items(path, ("references", "reference")) for path in references]
    for path, wanted in zip(references, several, strict=True):
        check_match(predictions, items, path, wanted)
    values = [value_of(item, compares) for item in items]
    if compares != "texts":
        return values, [value_of(item, compares) for item in several[0]]
    return values, [_texts(of_item) for of_item in zip(*several, strict=True)]


def value_of(item: Item, compares: Compared) -> Any:
    """The value of an item as the metrics take it; for SQuAD with its `na_probability` if given."""
    convert, what = _VALUES.get(compares, (_text, "a text"))
    value = convert(item.value)
    if value is None:
        raise UniclozeError(f"{item.place} has {item.value!r:.40}, which is not {what}: fix the line.")
    if compares != "squad":
        return value
    given = item.fields.get("na_probability")
    score = None if isinstance(given, str) else number_of(given)
    if given is not None and score is None:
        raise UniclozeError(f'{item.place} has {given!r:.40} in "na_probability": give a finite number.')
    return Answer(text=value, na_probability=score)


def check_match(predictions: Path, found: Sequence[Item], references: Path, wanted: Sequence[Item]) -> None:
    """Check that predictions and references are equal in number, and in ids if both have them."""
    for prediction, reference in zip(found, wanted, strict=False):
        if None not in (prediction.id, reference.id) and str(prediction.id) != str(reference.id):
            other = f"{reference.place} the id {reference.id}: put both files in the same order."
            raise UniclozeError(f"{prediction.place} has the id {prediction.id}, but {other}")
    if len(found) != len(wanted):
        longer, shorter = (found, references) if len(found) > len(wanted) else (wanted, predictions)
        counts = f"{predictions} has {len(found):,} items and {references} {len(wanted):,}"
        raise UniclozeError(f"{counts}: nothing in {shorter} matches {longer[min(len(found), len(wanted))].place}.")


def _texts(items: Sequence[Item]) -> list[str]:
    """All references of one item, without blank ones unless all are blank."""
    texts: list[str] = []
    for item in items:
        values = item.value if isinstance(item.value, list) else [item.value]
        texts += [value_of(dataclasses.replace(item, value=value), "texts") for value in values]
    if not texts:
        raise UniclozeError(f"{items[0].place} has no reference: give at least one.")
    return [text for text in texts if text.strip()] or [""]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _label(value: Any) -> str | None:
    is_label = isinstance(value, str | int) and not isinstance(value, bool)
    return str(value).strip() or None if is_label else None


def _tags(value: Any) -> list[str] | None:
    tags = value.split() if isinstance(value, str) else value
    return tags if isinstance(tags, list) and all(isinstance(tag, str) for tag in tags) else None


_VALUES: Mapping[Compared, tuple[Callable[[Any], Any], str]] = {
    "labels": (_label, "a label"),
    "numbers": (number_of, "a finite number"),
    "tags": (_tags, "a list of tags"),
}
"""Converts a value to what a metric compares, None if it cannot be, and what it should be; the others compare texts."""


def read_squad(path: Path) -> dict[str, list[str]]:
    """The right answers by question id; an empty list if unanswerable."""
    return {record.id: [answer.text for answer in needed_answers(record, PLAIN)] for record in _distinct(path)}


def _distinct(path: Path) -> list[Record]:
    """The records of a file, checked to have distinct ids."""
    records = as_records(json_records(read_text(path), path), path)
    refuse_repeated(records)
    return records


def read_squad_predictions(path: Path, na_probabilities: Path | None = None) -> dict[str, Answer]:
    """Answers from the official `{id: text}`, or from .jsonl with `id`, `prediction` and, if known, `na_probability`.

    No-answer scores may also be in a file of their own, `{id: number}`.
    """
    answers: dict[str, Answer] = {}
    if kind_of(path) == ".jsonl":
        for item in read_items(path, ("prediction",)):
            if item.id is None or not isinstance(item.value, str):
                raise UniclozeError(f'{item.place} has no "id" or no text in "prediction": fix the line.')
            if str(item.id) in answers:
                raise UniclozeError(f"{item.place} answers the question {item.id} a second time: remove one line.")
            answers[str(item.id)] = value_of(item, "squad")
    else:
        answers = {name: Answer(text=text) for name, text in _by_id(path, _text, '"ANSWER"').items()}
    if na_probabilities is None:
        return answers
    scores = _by_id(na_probabilities, lambda value: None if isinstance(value, str) else number_of(value), "0.5")
    if missing := answers.keys() - scores:
        raise UniclozeError(f"{na_probabilities} lacks {len(missing):,} answers, such as {min(missing)}: give all.")
    return {name: dataclasses.replace(one, na_probability=scores[name]) for name, one in answers.items()}


def _by_id(path: Path, convert: Callable[[Any], Any], example: str) -> dict[str, Any]:
    """The values of a JSON object by question id."""
    document = parse_json(read_text(path), str(path), unique=True)
    form = f'a JSON object such as {{"ID OF THE QUESTION": {example}}}'
    if not isinstance(document, dict):
        raise UniclozeError(f"{path} is not {form}: fix it.")
    values = {name: convert(value) for name, value in document.items()}
    if (strange := next((name for name, value in values.items() if value is None), None)) is not None:
        raise UniclozeError(f"{path} has {document[strange]!r:.40} for {strange}: give {form}.")
    return values


def read_coqa(path: Path) -> dict[Turn, Gold]:
    """The answers of all annotators to each turn."""
    return {
        Turn(record.text(PLAIN, "story"), record.needed(PLAIN, "turn")): Gold(
            answers=record.texts(PLAIN, "answers"), domain=record.text(PLAIN, "domain")
        )
        for record in _distinct(path)
    }


def read_coqa_predictions(path: Path) -> dict[Turn, str]:
    """Answers from a list of `{"id": STORY, "turn_id": NUMBER, "answer": TEXT}`."""
    answers: dict[Turn, str] = {}
    for record in as_records(json_records(read_text(path), path), path):
        number = record.needed(PLAIN, "turn_id")
        if not isinstance(number, int):
            raise UniclozeError(f"{record.place}: the field 'turn_id' is not a whole number")
        turn = Turn(record.text(PLAIN, "id"), number)
        if turn in answers:
            raise UniclozeError(f"{record.place} answers turn {number} of the story {turn.story} again: remove one.")
        answers[turn] = record.text(PLAIN, "answer")
    return answers
