"""Extractive question answering: the answer is a span of the passage (SQuAD; UniLMv2, Section 4.2; UniLM v1, Section 3.2).

A row is "[SOS] question [EOS] window [EOS]". Its start and its end are chosen among the tokens of the window and [SOS], which
stands for no answer in this window; a model that reads from left to right has the last [EOS] in its place. Long passages are
read in windows that overlap; the best span of all is the answer.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from unicloze.errors import UniclozeError
from unicloze.records.answers import Answer, answers_of, needed_answers
from unicloze.records.record import Record, refuse_repeated
from unicloze.rules import Needs
from unicloze.settings import HeadSettings, Recipe, TaskSettings
from unicloze.tasks.groups import Passages, task_of
from unicloze.tasks.passages import (
    SPECIALS,
    Passage,
    Window,
    best_of_windows,
    encode_passages,
    room_for_question,
    span_labels,
    window_bounds,
)
from unicloze.tasks.rows import Ints
from unicloze.tasks.task import Outputs, Prediction
from unicloze.text.tokenizers import Tokenizer


@dataclass(frozen=True, kw_only=True)
class ExtractionSettings(Passages):
    """Settings of a task of answers that stand in a passage.

    Args:
        unanswerable: Whether questions may have no answer in their passage (SQuAD 2.0); whether one of the training file
            has none if not given.
        no_answer_threshold: How far the score of no answer must lie above that of the best answer for there to be none;
            chosen on the development file if not given, 0 without one.
    """

    kind: str = "extraction"
    unanswerable: bool | None = None
    no_answer_threshold: float | None = None

    one_slot = "that there is no answer is scored"
    needs: ClassVar = {
        "no_answer_threshold": (
            Needs(
                "questions without an answer (task.unanswerable)", lambda recipe: recipe.task.unanswerable is not False
            ),
        )
    }


def heads(settings: Passages) -> Mapping[str, HeadSettings]:
    """A choice of the slot where the answer starts, and of the one where it ends."""
    head = HeadSettings(kind="choice", dense=settings.head == "dense", dropout=settings.head_dropout)
    return dict.fromkeys(("start", "end"), head)


def with_unanswerable(settings: ExtractionSettings, records: Sequence[Record]) -> ExtractionSettings:
    """The settings with whether questions may have no answer, where that is not given.

    Says how many answers were found elsewhere than their `answer_start`.

    Raises:
        UniclozeError: A record has no list of answers, or its answer is not in its passage.
    """
    moved = unanswerable = 0
    for record in records:
        answers = needed_answers(record, settings)
        if answers:
            context = record.text(settings, "context")
            place = locate(answers[0], context)
            if place is None:
                raise UniclozeError(
                    f"{record.place}: the passage does not hold the answer '{answers[0].text:.60}': mend the record or leave "
                    "it out"
                )
            moved += answers[0].start not in (None, place)
        else:
            unanswerable += 1
    if moved:
        warnings.warn(
            f"{moved} of {len(records)} answers do not stand where their answer_start says; the nearest place in the passage "
            "is taken",
            stacklevel=2,
        )
    if settings.unanswerable is not None:
        return settings
    return dataclasses.replace(settings, unanswerable=unanswerable > 0)


def locate(answer: Answer, context: str) -> int | None:
    """The first character of an answer: where it says, else at the place nearest to that; None if it is nowhere.

    Of an answer that says nothing, a place as whole words goes before one within a word, such as the "he" in "the".
    """
    wanted = answer.start or 0
    if answer.start is not None and wanted >= 0 and context.startswith(answer.text, wanted):
        return wanted
    places = []
    place = context.find(answer.text)
    while place >= 0:
        places.append(place)
        place = context.find(answer.text, place + 1)
    if answer.start is None:
        return min(places, key=lambda place: _in_word(place, place + len(answer.text), context), default=None)
    return min(places, key=lambda place: abs(place - wanted), default=None)


def _in_word(first: int, last: int, context: str) -> bool:
    """Whether a part of a text begins or ends within a word."""
    return any(0 < end < len(context) and context[end - 1 : end + 1].isalnum() for end in (first, last))


def encode(records: Sequence[Record], tokenizer: Tokenizer, recipe: Recipe) -> list[Window]:
    """The windows of each record, those of a record together; the first of several answers is the one to learn.

    Says once how many questions are cut, how many passages are read in several windows, and how many answers fit in none.

    Raises:
        UniclozeError: A record lacks a field, or two have the same id; the message names the record.
    """
    task = task_of(recipe, ExtractionSettings)
    refuse_repeated(records)
    passages = encode_passages([record.text(task, "context") for record in records], tokenizer)
    questions = tokenizer.encode_batch([record.text(task, "question") for record in records])
    room = room_for_question(recipe)
    windows: list[Window] = []
    several = unreached = 0
    for number, (record, question, passage) in enumerate(zip(records, questions, passages, strict=True)):
        shown = question[:room]
        answers = answers_of(record, task)
        span = None if not answers else span_of(answers[0], passage)
        bounds = window_bounds(len(passage), task.max_length - SPECIALS - len(shown), task.stride)
        labels = [None if answers is None else span_labels(span, first, last) for first, last in bounds]
        several += len(bounds) > 1
        unreached += bool(answers) and not any(label and label["start"] for label in labels)
        windows += windows_of_record(number, shown, passage, bounds, labels)
    cut = sum(len(question) > room for question in questions)
    note_windows(len(records), cut=cut, several=several, unreached=unreached, recipe=recipe)
    return windows


def span_of(answer: Answer, passage: Passage) -> tuple[int, int] | None:
    """The first and the last token of an answer; None where it is not in the passage or has no token."""
    place = locate(answer, passage.text)
    return None if place is None else passage.covering(place, place + len(answer.text))


def windows_of_record(
    number: int,
    question: Ints,
    passage: Passage,
    bounds: Sequence[tuple[int, int]],
    labels: Sequence[Mapping[str, int] | None],
) -> list[Window]:
    """The windows of one record."""
    return [
        Window(record=number, question=question, passage=passage, first=first, last=last, labels=label)
        for (first, last), label in zip(bounds, labels, strict=True)
    ]


def note_windows(records: int, *, cut: int, several: int, unreached: int, recipe: Recipe) -> None:
    """Say once what of the records does not fit in a row."""
    task = recipe.task
    said = []
    if cut:
        said.append(f"{cut} questions are longer than {room_for_question(recipe)} tokens (task.max_question) and cut")
    if several:
        said.append(f"{several} passages are longer than a row (task.max_length {task.max_length}) and read in windows")
    if unreached:
        said.append(f"{unreached} answers fit in no window, which are learned as having none")
    if said:
        warnings.warn(f"of {records} records {'; '.join(said)}", stacklevel=3)


def predict(
    records: Sequence[Record], rows: Sequence[Window], outputs: Sequence[Outputs], recipe: Recipe
) -> list[Prediction]:
    """The best answers to each question over all windows of its passage.

    `score` is that of the best, `n_best` lists the best with their first characters. Where questions may have no answer,
    `no_answer_score` is the lowest score of no answer of all windows, and the prediction is empty if that lies more than
    the threshold above `score`; `na_probability` is above a half then.
    """
    task = task_of(recipe, ExtractionSettings)
    found: list[Prediction] = []
    for record, (windows, said) in zip(records, grouped(rows, outputs, len(records)), strict=True):
        spans, nowhere = best_of_windows(windows, said, longest=task.max_answer, most=task.n_best)
        prediction: Prediction = {
            "id": record.id,
            "prediction": spans[0].text if spans else "",
            "score": round(spans[0].score, 6) if spans else None,
        }
        if task.unanswerable:
            prediction["no_answer_score"] = round(nowhere, 6)
        prediction["n_best"] = [
            {"text": span.text, "start": span.start, "score": round(span.score, 6)} for span in spans
        ]
        found.append(prediction)
    return with_threshold(found, task.no_answer_threshold or 0.0) if task.unanswerable else found


def grouped(
    rows: Sequence[Window], outputs: Sequence[Outputs], records: int
) -> list[tuple[list[Window], list[Outputs]]]:
    """The windows and outputs of each record."""
    groups: list[tuple[list[Window], list[Outputs]]] = [([], []) for _ in range(records)]
    for row, output in zip(rows, outputs, strict=True):
        groups[row.record][0].append(row)
        groups[row.record][1].append(output)
    return groups


def no_answer_margin(prediction: Prediction) -> float:
    """How far the score of no answer lies above that of the best one."""
    score = prediction["score"]
    return math.inf if score is None else float(prediction["no_answer_score"] - score)


def with_threshold(predictions: Sequence[Prediction], threshold: float) -> list[Prediction]:
    """The predictions as they are under a threshold: empty where the margin of no answer lies above it."""
    decided = []
    for prediction in predictions:
        margin = no_answer_margin(prediction)
        text = "" if margin > threshold or not prediction["n_best"] else prediction["n_best"][0]["text"]
        above = min(700.0, max(-700.0, margin - threshold))
        changed = {"prediction": text, "na_probability": 1 / (1 + math.exp(-above))}
        decided.append({**prediction, **changed})
    return decided


def reference(record: Record, settings: TaskSettings) -> list[str]:
    """The right answers; none where the question is unanswerable."""
    return [answer.text for answer in needed_answers(record, settings)]
