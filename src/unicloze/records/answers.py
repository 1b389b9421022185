"""Reads the answers to a question, in any of the forms used in records."""

from __future__ import annotations

from typing import NamedTuple

from unicloze.errors import UniclozeError
from unicloze.records.record import Record
from unicloze.settings import TaskSettings


class GoldAnswer(NamedTuple):
    """An answer and its first character in the passage, if the file gives it."""

    text: str
    start: int | None


def answers_of(record: Record, settings: TaskSettings) -> list[GoldAnswer] | None:
    """The answers of a record: an empty list if it is unanswerable, None if the field is missing.

    Accepts a list of texts, a list of objects with `text` and perhaps `answer_start`, or one object with a list of each.
    """
    given = record.get(settings, "answers")
    if given is None:
        return None
    if isinstance(given, dict) and isinstance(given.get("text"), list):
        starts = given.get("answer_start") or [None] * len(given["text"])
        if not isinstance(starts, list) or len(starts) != len(given["text"]):
            raise UniclozeError(f"{record.place}: answer_start and text differ in number: fix the record")
        given = [{"text": text, "answer_start": start} for text, start in zip(given["text"], starts, strict=True)]
    found = []
    for answer in given if isinstance(given, list) else [None]:
        text, start = (answer.get("text"), answer.get("answer_start")) if isinstance(answer, dict) else (answer, None)
        if not isinstance(text, str) or not (start is None or type(start) is int):
            raise UniclozeError(
                f"{record.place}: the answers are not a list of texts or of "
                '{"text": ..., "answer_start": ...}: fix the record'
            )
        if text.strip():
            found.append(GoldAnswer(text, start))
    return found


def needed_answers(record: Record, settings: TaskSettings) -> list[GoldAnswer]:
    """The answers of a record that must have a list of them, possibly empty."""
    answers = answers_of(record, settings)
    if answers is None:
        name = settings.fields.get("answers", "answers")
        raise UniclozeError(
            f"{record.place}: the field '{name}' is missing (it has {', '.join(map(str, record.fields))}); an unanswerable "
            "question has an empty list"
        )
    return answers
