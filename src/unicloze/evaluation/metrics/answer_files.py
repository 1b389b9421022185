"""Questions and answers in the JSON that SQuAD and CoQA are published in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unicloze.errors import UniclozeError
from unicloze.evaluation.metrics.coqa import Gold, Turn
from unicloze.evaluation.metrics.plain_files import kind_of, parse_json, read_text
from unicloze.evaluation.metrics.row_files import Item, read_items
from unicloze.evaluation.metrics.squad import Answer


def read_squad(path: Path) -> dict[str, list[str]]:
    """The right answers by the id of their question; none where it is unanswerable.

    Raises:
        UniclozeError: The file cannot be read, is not in SQuAD's format, or an id occurs twice.
    """
    answers: dict[str, list[str]] = {}
    for article in _field(parse_json(read_text(path), str(path)), "data", list, path, "SQuAD"):
        for paragraph in _field(article, "paragraphs", list, path, "SQuAD"):
            for question in _field(paragraph, "qas", list, path, "SQuAD"):
                name = _field(question, "id", str, path, "SQuAD")
                if name in answers:
                    raise UniclozeError(f"{path} has the question {name} twice: remove one of them.")
                place = f"{path}, question {name},"
                texts = [
                    _field(answer, "text", str, place, "SQuAD")
                    for answer in _field(question, "answers", list, place, "SQuAD")
                ]
                answers[name] = [] if question.get("is_impossible") else texts
    return answers


def read_squad_predictions(path: Path) -> dict[str, Answer]:
    """Answers out of the official `{id: text}`, or out of .jsonl with `id`, `prediction` and, if known, `na_probability`.

    Raises:
        UniclozeError: The file cannot be read or holds something else, or an id occurs twice.
    """
    if kind_of(path) == ".jsonl":
        return _answer_lines(path)
    answers = _mapping(path, str, '{"ID OF THE QUESTION": "ANSWER"}')
    return {name: Answer(text=text) for name, text in answers.items()}


def _answer_lines(path: Path) -> dict[str, Answer]:
    answers: dict[str, Answer] = {}
    for item in read_items(path, ("prediction",)):
        if item.id is None or not isinstance(item.value, str):
            raise UniclozeError(f'{item.place} has no "id" or no text in "prediction": mend the line.')
        if str(item.id) in answers:
            raise UniclozeError(f"{item.place} answers the question {item.id} a second time: remove one of the lines.")
        answers[str(item.id)] = answer_of(item)
    return answers


def answer_of(item: Item) -> Answer:
    """The answer in a line, with its `na_probability` if it has one.

    Raises:
        UniclozeError: It has no text, or its certainty is no finite number.
    """
    if not isinstance(item.value, str):
        raise UniclozeError(f"{item.place} holds {item.value!r:.40}, which is no text: mend the line.")
    given = item.fields.get("na_probability")
    certainty = None if given is None else _finite(given)
    if given is not None and certainty is None:
        raise UniclozeError(f'{item.place} holds {given!r:.40} in "na_probability": give a finite number.')
    return Answer(text=item.value, na_probability=certainty)


def _finite(value: Any) -> float | None:
    """A number of JSON; None for what is no finite one."""
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    return number if math.isfinite(number) else None


def read_na_probabilities(path: Path) -> dict[str, float]:
    """How sure a model is of each question that it has no answer, out of `{id: number}`.

    Raises:
        UniclozeError: The file cannot be read or holds something else.
    """
    numbers: dict[str, float] = {}
    for name, given in _mapping(path, (int, float), '{"ID OF THE QUESTION": 0.5}').items():
        number = _finite(given)
        if number is None:
            raise UniclozeError(f"{path} has {given!s:.40} for {name}: give finite numbers.")
        numbers[name] = number
    return numbers


def read_coqa(path: Path) -> dict[Turn, Gold]:
    """The answers of all annotators to each turn.

    Raises:
        UniclozeError: The file cannot be read or is not in CoQA's format, or a turn occurs twice.
    """
    turns: dict[Turn, Gold] = {}
    for story in _field(parse_json(read_text(path), str(path)), "data", list, path, "CoQA"):
        name = _field(story, "id", str, path, "CoQA")
        place = f"{path}, story {name},"
        annotators = [_field(story, "answers", list, place, "CoQA")]
        if "additional_answers" in story:
            annotators += _field(story, "additional_answers", dict, place, "CoQA").values()
        for number, question in enumerate(_field(story, "questions", list, place, "CoQA")):
            turn = _field(question, "turn_id", int, place, "CoQA")
            texts = []
            for answers in annotators:
                if not isinstance(answers, list) or len(answers) <= number or not isinstance(answers[number], dict):
                    raise UniclozeError(f"{place} has no answer of an annotator to turn {turn}: mend it.")
                if answers[number].get("turn_id", turn) != turn:
                    raise UniclozeError(
                        f"{place} has an answer to turn {answers[number]['turn_id']} in the place of turn {turn}: put each "
                        "annotator's answers into the order of the questions."
                    )
                texts.append(_field(answers[number], "input_text", str, place, "CoQA"))
            if Turn(name, turn) in turns:
                raise UniclozeError(f"{path} has the turn {turn} of the story {name} twice: remove one of them.")
            turns[Turn(name, turn)] = Gold(answers=texts, domain=str(story.get("source", "")))
    return turns


def read_coqa_predictions(path: Path) -> dict[Turn, str]:
    """Answers out of a list of `{"id": STORY, "turn_id": NUMBER, "answer": TEXT}`.

    Raises:
        UniclozeError: The file cannot be read or holds something else, or a turn is answered twice.
    """
    records = parse_json(read_text(path), str(path))
    if not isinstance(records, list):
        raise UniclozeError(f'{path} is no list of {{"id": ..., "turn_id": ..., "answer": ...}}: mend it.')
    answers: dict[Turn, str] = {}
    for number, record in enumerate(records, start=1):
        place = f"{path}, answer {number},"
        turn = Turn(_field(record, "id", str, place, "CoQA"), _field(record, "turn_id", int, place, "CoQA"))
        if turn in answers:
            raise UniclozeError(
                f"{place} answers turn {turn.number} of the story {turn.story} again: remove one of them."
            )
        answers[turn] = _field(record, "answer", str, place, "CoQA")
    return answers


def _field(record: Any, name: str, kind: type, place: Path | str, format_name: str) -> Any:
    value = record.get(name) if isinstance(record, dict) else None
    if not isinstance(value, kind):
        raise UniclozeError(f'{place} is not in {format_name}\'s format: a "{name}" is missing or of another type.')
    return value


def _mapping(path: Path, kind: type | tuple[type, ...], example: str) -> Mapping[str, Any]:
    record = parse_json(read_text(path), str(path), unique=True)
    if not isinstance(record, dict):
        raise UniclozeError(f"{path} is no JSON object such as {example}: mend it.")
    for name, value in record.items():
        if not isinstance(value, kind) or isinstance(value, bool):
            raise UniclozeError(f"{path} has {value!r:.40} for {name}: give an object such as {example}.")
    return record
