"""Extractive question answering: the answer is a span of the passage (SQuAD; UniLMv2, Section 4.2; UniLM v1, Section 3.2).

A row is "[SOS] question [EOS] window [EOS]". Start and end are chosen among the tokens of the window and [SOS], which means
no answer in this window; a model that reads from left to right uses the last [EOS] instead. With `task.no_answer` `class`
the same slot also predicts whether the window contains an answer. Long passages are read in overlapping windows; the best
span of all windows is the answer.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from unicloze.arrays import Int32s
from unicloze.errors import UniclozeError
from unicloze.example import Examples
from unicloze.records.record import GoldAnswer, Record, answers_of, needed_answers, refuse_repeated
from unicloze.rules import Needs
from unicloze.settings import HeadSettings, Recipe, TaskSettings
from unicloze.tasks.groups import Passages, task_of
from unicloze.tasks.passages import (
    NOWHERE,
    Passage,
    Window,
    best_of_windows,
    encode_passages,
    lay_out_windows,
    room_for_question,
    span_labels,
    specials_of,
    window_bounds,
)
from unicloze.tasks.task import Outputs, Prediction
from unicloze.text.tokenizers import Tokenizer
from unicloze.text.vocabulary import Vocabulary

_UNANSWERABLE = Needs(
    "questions without an answer (task.unanswerable)", lambda recipe: recipe.task.unanswerable is not False
)


@dataclass(frozen=True, kw_only=True)
class ExtractionSettings(Passages):
    """Settings of extractive question answering.

    Args:
        unanswerable: Whether questions may have no answer in their passage (SQuAD 2.0); default: whether the training file
            has such questions.
        no_answer: How to detect no answer: a `span` at the slot of the whole row, scored against the others (BERT), or a
            `class` predicted from that slot ([SOS]; UniLMv2, Section 4.2).
        no_answer_threshold: Minimum margin of no answer's score over the best answer's to predict no answer; with `class`,
            minimum log-odds. Default: chosen on the development file, 0 without one.
    """

    kind: str = "extraction"
    unanswerable: bool | None = None
    no_answer: Literal["span", "class"] = "span"
    no_answer_threshold: float | None = None

    one_slot = "no answer is scored"
    needs: ClassVar = dict.fromkeys(("no_answer", "no_answer_threshold"), (_UNANSWERABLE,))


NONE = "none"
"""The target for windows without an answer: 1 if a window has none."""


def span_heads(settings: Passages) -> dict[str, HeadSettings]:
    """Heads that choose the slots where the answer starts and ends."""
    return dict.fromkeys(("start", "end"), settings.head_settings("choice"))


def heads(settings: ExtractionSettings) -> Mapping[str, HeadSettings]:
    """The heads of a span, and with `task.no_answer` `class` a head for no answer."""
    none = {NONE: settings.head_settings("classes", outputs=2)} if predicts_none(settings) else {}
    return {**span_heads(settings), **none}


def predicts_none(settings: ExtractionSettings) -> bool:
    """Whether a class predicts that a question has no answer."""
    return settings.no_answer == "class" and settings.unanswerable is not False


def lay_out(
    rows: Sequence[Window], vocabulary: Vocabulary, recipe: Recipe, _keys: npt.NDArray[np.uint64] | None
) -> Examples:
    """Windows to examples."""
    asked = predicts_none(task_of(recipe, ExtractionSettings))
    return lay_out_windows(rows, vocabulary, recipe, classes=(NONE,) if asked else ())


def with_unanswerable(settings: ExtractionSettings, records: Sequence[Record]) -> ExtractionSettings:
    """The settings with `unanswerable` determined from the training records, unless given.

    Warns how many answers were not found at their `answer_start`.
    """
    moved = unanswerable = 0
    for record in records:
        answers = needed_answers(record, settings)
        if answers:
            context = record.text(settings, "context")
            place = locate(answers[0], context)
            if place is None:
                raise UniclozeError(
                    f"{record.place}: the passage does not contain the answer '{answers[0].text:.60}': correct the record or "
                    "leave it out"
                )
            moved += answers[0].start not in (None, place)
        else:
            unanswerable += 1
    if moved:
        warnings.warn(
            f"{moved} of {len(records)} answers are not at their answer_start; the nearest occurrence in the passage is "
            "used",
            stacklevel=2,
        )
    if settings.unanswerable is not None:
        return settings
    return dataclasses.replace(settings, unanswerable=unanswerable > 0)


def locate(answer: GoldAnswer, context: str) -> int | None:
    """The first character of an answer: its `start`, else the nearest occurrence; None if there is none.

    An answer without `start` prefers an occurrence as whole words to one within a word, such as the "he" in "the".
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
    """The windows of all records, record by record; the first of several answers is the training answer.

    Warns once how many questions are cut, how many passages are read in several windows, and how many answers fit in none.
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
        bounds = window_bounds(len(passage), task.max_length - specials_of(recipe) - len(shown), task.stride)
        labels = [None if answers is None else _labels(span, first, last) for first, last in bounds]
        several += len(bounds) > 1
        unreached += bool(answers) and not any(label and label["start"] for label in labels)
        is_cut = len(question) > room
        windows += windows_of_record(number, shown, passage, bounds, labels, recipe.use.separators, cut=is_cut)
    cut = sum(len(question) > room for question in questions)
    note_windows(len(records), cut=cut, several=several, unreached=unreached, recipe=recipe)
    return windows


def _labels(span: tuple[int, int] | None, first: int, last: int) -> dict[str, int]:
    labels = span_labels(span, first, last)
    return {**labels, NONE: int(labels["start"] == NOWHERE)}


def span_of(answer: GoldAnswer, passage: Passage) -> tuple[int, int] | None:
    """The first and the last token of an answer; None if it is not in the passage or has no token."""
    place = locate(answer, passage.text)
    return None if place is None else passage.covering(place, place + len(answer.text))


def windows_of_record(
    number: int,
    question: Int32s,
    passage: Passage,
    bounds: Sequence[tuple[int, int]],
    labels: Sequence[Mapping[str, int] | None],
    separators: int,
    *,
    cut: bool,
) -> list[Window]:
    """The windows of one record."""
    return [
        Window(
            record=number,
            question=question,
            passage=passage,
            first=first,
            last=last,
            labels=label,
            separators=separators,
            cut=cut,
        )
        for (first, last), label in zip(bounds, labels, strict=True)
    ]


def note_windows(records: int, *, cut: int, several: int, unreached: int, recipe: Recipe) -> None:
    """Warn once about records that do not fit in a row."""
    task = recipe.task
    said = []
    if cut:
        said.append(
            f"{cut} questions are longer than {room_for_question(recipe)} tokens (task.max_question) and were cut"
        )
    if several:
        said.append(f"{several} passages are longer than a row (task.max_length {task.max_length}) and read in windows")
    if unreached:
        said.append(f"{unreached} answers fit in no window and count as having no answer")
    if said:
        warnings.warn(f"of {records} records {'; '.join(said)}", stacklevel=3)


def predict(
    records: Sequence[Record], rows: Sequence[Window], outputs: Sequence[Outputs], recipe: Recipe
) -> list[Prediction]:
    """The best answers to each question over all windows of its passage.

    `score` is that of the best answer; `n_best` lists the best answers with their first characters. If questions may have no
    answer, `no_answer_score` is the lowest score of no answer over all windows. The prediction is empty, and
    `na_probability` above a half, if it exceeds `score` by more than the threshold. If a class predicts no answer, its lowest
    log-odds over all windows, `no_answer_log_odds`, are compared with the threshold instead.
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
        if task.unanswerable and predicts_none(task):
            odds = min(float(output[NONE][0, 1]) - float(output[NONE][0, 0]) for output in said)
            prediction["no_answer_log_odds"] = round(odds, 6)
        elif task.unanswerable:
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
    """Margin of the score of no answer over that of the best answer, or the log-odds of no answer."""
    score = prediction["score"]
    if "no_answer_log_odds" in prediction:
        return math.inf if score is None else float(prediction["no_answer_log_odds"])
    return math.inf if score is None else float(prediction["no_answer_score"] - score)


def with_threshold(predictions: Sequence[Prediction], threshold: float) -> list[Prediction]:
    """The predictions for a threshold: empty if the margin of no answer exceeds it."""
    decided = []
    for prediction in predictions:
        margin = no_answer_margin(prediction)
        text = "" if margin > threshold or not prediction["n_best"] else prediction["n_best"][0]["text"]
        above = min(700.0, max(-700.0, margin - threshold))
        changed = {"prediction": text, "na_probability": 1 / (1 + math.exp(-above))}
        decided.append({**prediction, **changed})
    return decided


def reference(record: Record, settings: TaskSettings) -> list[str]:
    """The right answers; empty if the question is unanswerable."""
    return [answer.text for answer in needed_answers(record, settings)]
