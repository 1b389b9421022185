"""Reads records from whole JSON documents: SQuAD, CoQA, or a list of objects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unicloze.errors import UniclozeError
from unicloze.records.plain_files import parse_json

Found = tuple[str, dict[str, Any]]
"""A record's place in its file, and its fields."""


def json_records(text: str, path: Path) -> Iterator[Found]:
    """The records of a JSON document: a list, or the format of SQuAD or CoQA, detected from its first entry."""
    document = parse_json(text, str(path))
    if isinstance(document, list):
        return _listed(document, path)
    data = _get(document, "data", list, str(path))
    is_coqa = bool(data) and isinstance(data[0], dict) and "story" in data[0]
    return (_coqa if is_coqa else _squad)(data, path)


def listed(text: str, path: Path) -> Iterator[Found]:
    """The objects of a list."""
    document = parse_json(text, str(path))
    if not isinstance(document, list):
        raise UniclozeError(f"{path}: this is not a list of records; fix the file")
    return _listed(document, path)


def squad(text: str, path: Path) -> Iterator[Found]:
    """The questions of SQuAD (Rajpurkar et al. 2016, 2018).

    Each has `id`, `title`, and, if in the file, `context`, `question` and `answers` with `text` and `answer_start`; the
    answers are empty if the question is marked as impossible.
    """
    return _squad(_get(parse_json(text, str(path)), "data", list, str(path)), path)


def coqa(text: str, path: Path) -> Iterator[Found]:
    """The turns of CoQA's conversations (Reddy et al. 2019).

    Each has `id`, `story`, `turn`, `domain`, and, if in the file, `history` (earlier questions and answers), `context`,
    `question`, `answers` (of all annotators), `rationale` and `rationale_start` (-1 without a rationale).
    """
    return _coqa(_get(parse_json(text, str(path)), "data", list, str(path)), path)


def _listed(entries: list[Any], path: Path) -> Iterator[Found]:
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise UniclozeError(f"{path}, entry {number}: a record must be a JSON object; this is not one")
        yield f"entry {number}", entry


def _squad(data: list[Any], path: Path) -> Iterator[Found]:
    for article in data:
        title = article.get("title", "") if isinstance(article, dict) else ""
        place = f"{path}, article '{title}'"
        for paragraph in _get(article, "paragraphs", list, place):
            context = _held(paragraph, "context", "context", place)
            for question in _get(paragraph, "qas", list, place):
                name = _get(question, "id", str, place)
                fields = {"id": name, "title": title, **context}
                fields |= _held(question, "question", "question", f"{path}, question {name}")
                if "answers" in question:
                    fields["answers"] = [] if question.get("is_impossible") else question["answers"]
                yield f"question {name}", fields


def _coqa(data: list[Any], path: Path) -> Iterator[Found]:
    for story in data:
        name = _get(story, "id", str, f"{path}, a story")
        place = f"{path}, story {name}"
        context = _held(story, "story", "context", place)
        answers = _get(story, "answers", list, place) if "answers" in story else None
        others = _get(story, "additional_answers", dict, place) if "additional_answers" in story else {}
        history: list[list[str]] = []
        for number, question in enumerate(_get(story, "questions", list, place)):
            turn = _get(question, "turn_id", int, place)
            here = f"{place}, turn {turn}"
            fields: dict[str, Any] = {"id": f"{name}-{turn}", "story": name, "turn": turn, **context}
            fields |= _held(question, "input_text", "question", here)
            if answers is not None or number == 0:
                fields["history"] = list(history)
            if answers is not None:
                several = [_nth(each, number, turn, here) for each in (answers, *others.values())]
                fields["answers"] = [_get(one, "input_text", str, here) for one in several]
                fields["rationale"] = several[0].get("span_text", "")
                fields["rationale_start"] = several[0].get("span_start", -1)
                history.append([fields.get("question", ""), fields["answers"][0]])
            fields["domain"] = str(story.get("source", ""))
            yield f"story {name}, turn {turn}", fields


def _held(record: Any, name: str, role: str, place: str) -> dict[str, str]:
    """A text by its role; empty if the file leaves it out, as reference files may."""
    return {role: _get(record, name, str, place)} if isinstance(record, dict) and name in record else {}


def _nth(answers: Any, number: int, turn: int, place: str) -> Any:
    if not isinstance(answers, list) or len(answers) <= number:
        raise UniclozeError(f"{place}: an annotator's answer is missing; fix the file")
    answer = answers[number]
    if isinstance(answer, dict) and answer.get("turn_id", turn) != turn:
        raise UniclozeError(
            f"{place}: the answer in its place is for turn {answer['turn_id']}; put each annotator's answers in the order of "
            "the questions"
        )
    return answer


def _get(record: Any, name: str, kind: type, place: str) -> Any:
    value = record.get(name) if isinstance(record, dict) else None
    if not isinstance(value, kind):
        raise UniclozeError(
            f"{place}: '{name}' is missing or has a different type from SQuAD's and CoQA's files; fix the file"
        )
    return value
