"""Reads questions and answers in the JSON formats of SQuAD and CoQA."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unicloze.errors import UniclozeError
from unicloze.evaluation.metrics.coqa import Gold, Turn
from unicloze.evaluation.metrics.row_files import Item, read_items
from unicloze.evaluation.metrics.squad import Answer
from unicloze.records.answers import needed_answers
from unicloze.records.json_files import coqa, listed, squad
from unicloze.records.line_files import Reader
from unicloze.records.plain_files import kind_of, parse_json, read_text
from unicloze.records.record import Record, as_records, refuse_repeated
from unicloze.settings import TaskSettings

PLAIN = TaskSettings()
"""Settings that keep the field names of the files."""


def read_squad(path: Path) -> dict[str, list[str]]:
    """The right answers by question id; an empty list if unanswerable."""
    return {record.id: [answer.text for answer in needed_answers(record, PLAIN)] for record in _different(path, squad)}


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
        for record in _different(path, coqa)
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
