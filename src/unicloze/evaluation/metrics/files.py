"""Reads predictions and references from .txt, .tsv, .jsonl and .json files, also gzipped.

An item is a line of .txt, a row under a header of .tsv, or an object of .jsonl. Predictions are in the column or field
`prediction`; references in `reference`, as a list in `references`, or in several files with equal numbers of lines, where a
blank line means that there is no further reference. Tags are separated by spaces. .json files are in the formats of SQuAD
and CoQA; predictions for SQuAD may also be .jsonl with an `id`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.metrics.answers import Answer, Gold, Turn
from unicloze.evaluation.metrics.result import Compared
from unicloze.records.files import Reader, jsonl, kind_of, listed, parse_json, read_text, separated
from unicloze.records.files import coqa as coqa_records
from unicloze.records.files import squad as squad_records
from unicloze.records.record import Record, as_records, needed_answers, refuse_repeated
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
        raise UniclozeError(
            f"{path} is not of a known kind: give a file that ends in {', '.join(_READERS)}, optionally with .gz."
        )
    if text in ("", "\n"):
        raise UniclozeError(f"{path} is empty: give a file with one item per line.")
    records = as_records(_READERS[kind](text, path), path, headed=kind == ".tsv")
    return [_item(record, (_LINE,) if kind == ".txt" else fields) for record in records]


def _item(record: Record, fields: Sequence[str]) -> Item:
    held = record.fields
    name = next((name for name in fields if name in held), fields[-1])
    value = held[name] if name in held else record.needed(TaskSettings(), name)
    number = held.get("index") if record.headed else None
    return Item(value=value, place=record.place, id=held.get("id", number), fields=held)


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


PLAIN = TaskSettings()
"""Settings that keep the field names of the files."""


def read_squad(path: Path) -> dict[str, list[str]]:
    """The right answers by question id; an empty list if unanswerable."""
    return {
        record.id: [answer.text for answer in needed_answers(record, PLAIN)]
        for record in _different(path, squad_records)
    }


def _different(path: Path, read: Reader) -> list[Record]:
    """The records of a file, checked to have distinct ids."""
    records = as_records(read(read_text(path), path), path)
    refuse_repeated(records)
    return records


def read_squad_predictions(path: Path) -> dict[str, Answer]:
    """Answers from the official `{id: text}`, or from .jsonl with `id`, `prediction` and, if known, `na_probability`."""
    if kind_of(path) == ".jsonl":
        return _answer_lines(path)
    answers = _mapping(path, str, '{"ID OF THE QUESTION": "ANSWER"}')
    return {name: Answer(text=text) for name, text in answers.items()}


def _answer_lines(path: Path) -> dict[str, Answer]:
    answers: dict[str, Answer] = {}
    for item in read_items(path, ("prediction",)):
        if item.id is None or not isinstance(item.value, str):
            raise UniclozeError(f'{item.place} has no "id" or no text in "prediction": fix the line.')
        if str(item.id) in answers:
            raise UniclozeError(f"{item.place} answers the question {item.id} a second time: remove one of the lines.")
        answers[str(item.id)] = answer_of(item)
    return answers


def answer_of(item: Item) -> Answer:
    """The answer on a line, with its `na_probability` if given."""
    if not isinstance(item.value, str):
        raise UniclozeError(f"{item.place} has {item.value!r:.40}, which is not a text: fix the line.")
    given = item.fields.get("na_probability")
    certainty = None if given is None else _finite(given)
    if given is not None and certainty is None:
        raise UniclozeError(f'{item.place} has {given!r:.40} in "na_probability": give a finite number.')
    return Answer(text=item.value, na_probability=certainty)


def _finite(value: Any) -> float | None:
    """A JSON value as a float; None if it is not a finite number."""
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    return number if math.isfinite(number) else None


def read_na_probabilities(path: Path) -> dict[str, float]:
    """No-answer scores by question id, from `{id: number}`."""
    numbers: dict[str, float] = {}
    for name, given in _mapping(path, (int, float), '{"ID OF THE QUESTION": 0.5}').items():
        number = _finite(given)
        if number is None:
            raise UniclozeError(f"{path} has {given!s:.40} for {name}: give finite numbers.")
        numbers[name] = number
    return numbers


def read_coqa(path: Path) -> dict[Turn, Gold]:
    """The answers of all annotators to each turn."""
    return {
        Turn(record.fields["story"], record.fields["turn"]): Gold(
            answers=record.texts(PLAIN, "answers"), domain=record.fields["domain"]
        )
        for record in _different(path, coqa_records)
    }


def read_coqa_predictions(path: Path) -> dict[Turn, str]:
    """Answers from a list of `{"id": STORY, "turn_id": NUMBER, "answer": TEXT}`."""
    answers: dict[Turn, str] = {}
    for record in as_records(listed(read_text(path), path), path):
        number = record.needed(PLAIN, "turn_id")
        if not isinstance(number, int):
            raise UniclozeError(f"{record.place}: the field 'turn_id' is not a whole number")
        turn = Turn(record.text(PLAIN, "id"), number)
        if turn in answers:
            raise UniclozeError(
                f"{record.place} answers turn {turn.number} of the story {turn.story} again: remove one of them."
            )
        answers[turn] = record.text(PLAIN, "answer")
    return answers


def _mapping(path: Path, kind: type | tuple[type, ...], example: str) -> Mapping[str, Any]:
    record = parse_json(read_text(path), str(path), unique=True)
    if not isinstance(record, dict):
        raise UniclozeError(f"{path} is not a JSON object such as {example}: fix it.")
    for name, value in record.items():
        if not isinstance(value, kind) or isinstance(value, bool):
            raise UniclozeError(f"{path} has {value!r:.40} for {name}: give an object such as {example}.")
    return record


_VALUES: Mapping[Compared, Callable[[Item], Any]] = {
    "squad": answer_of,
    "coqa": _text,
    "texts": _text,
    "labels": _label,
    "numbers": _number,
    "tags": _tags,
}
