"""Writes training records for question answering from generated questions, including unanswerable ones.

UniLM v1 (Section 3.3, Table 9) trains on generated questions and on unanswerable ones made by changing them, four for every
five, but does not say how they are changed. Here a question is paired with another passage of its article that does not
contain the answer: it stays on the topic, like those of SQuAD 2.0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unicloze import keyed
from unicloze.errors import UniclozeError
from unicloze.files import Plain, replace_file
from unicloze.records import read_records
from unicloze.records.record import GoldAnswer, answers_of
from unicloze.settings import TaskSettings
from unicloze.tasks.extraction import locate

SHARE = 0.8
"""Unanswerable questions for each answerable one, as in UniLM v1."""
_TRIES = 64
"""Maximum passages of an article to search for one without the answer."""


@dataclass(frozen=True)
class Written(Plain):
    """Counts of the written records.

    Args:
        out: The written file.
        answerable: Records with an answer.
        unanswerable: Unanswerable records made from these.
        dropped: Records left out, since they have no question or their passage does not contain their answer.
    """

    out: Path
    answerable: int
    unanswerable: int
    dropped: int

    def __str__(self) -> str:
        written = f"{self.answerable:,} questions with an answer, {self.unanswerable:,} without"
        why = "left out for lack of a question or of an answer in their passage"
        return f"{self.out}: {written}; {self.dropped:,} records {why}"


def write_training_records(
    source: Path, out: Path, *, share: float = SHARE, seed: int = 0, settings: TaskSettings | None = None
) -> Written:
    """Write training records of the task `extraction` from a file of passages, questions and answers."""
    settings = settings or TaskSettings(kind="extraction")
    found: list[dict[str, Any]] = []
    records = read_records(source, settings)
    for record in records:
        context, question = record.text(settings, "context"), record.text(settings, "question")
        answers = answers_of(record, settings)
        if answers is None:
            answers = [GoldAnswer(record.text(settings, "answer"), None)]
        placed = [(answer.text, locate(answer, context)) for answer in answers]
        inside = [{"text": text, "answer_start": start} for text, start in placed if start is not None and text.strip()]
        if inside and question.strip():
            title = str(record.get(settings, "title") or "")
            found.append({"id": record.id, "title": title, "context": context, "question": question, "answers": inside})
    if not found:
        none = f"none of its {len(records):,} records has a question and an answer that occurs in its context"
        raise UniclozeError(f"{source}: {none}; there is nothing to write.")
    made = unanswerable(found, share=share, seed=seed)
    replace_file(out, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in [*found, *made]))
    return Written(out, len(found), len(made), len(records) - len(found))


def unanswerable(records: Sequence[Mapping[str, Any]], *, share: float = SHARE, seed: int = 0) -> list[dict[str, Any]]:
    """Unanswerable questions: each with another passage of its article that contains none of its answers.

    If an article has no such passage, the question is left out, so there may be fewer than the `share` of the records.
    """
    articles: dict[str, list[str]] = {}
    for title, context in dict.fromkeys((record["title"], record["context"]) for record in records):
        articles.setdefault(title, []).append(context)
    count = len(records)
    draws = keyed.key(seed, keyed.Purpose.OTHER_PASSAGE, np.arange(count))
    wanted = round(min(1.0, share) * count)
    made: list[dict[str, Any]] = []
    for number in keyed.permutation(np.arange(count), count, keyed.key(seed, keyed.Purpose.CHOSEN_RECORDS)[0]).tolist():
        if len(made) == wanted:
            break
        record = records[number]
        passage = _without_answer(record, articles[record["title"]], draws[number])
        if passage is not None:
            made.append({**record, "id": f"{record['id']}-unanswerable", "context": passage, "answers": []})
    return made


def _without_answer(record: Mapping[str, Any], passages: Sequence[str], draw: np.uint64) -> str | None:
    """Another passage of the record's article that contains none of its answers."""
    answers = [answer["text"].casefold() for answer in record["answers"]]
    first = int(draw % np.uint64(len(passages)))
    for step in range(min(_TRIES, len(passages))):
        passage = passages[(first + step) % len(passages)]
        folded = passage.casefold()
        if passage != record["context"] and not any(answer in folded for answer in answers):
            return passage
    return None
