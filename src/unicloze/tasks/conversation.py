"""Questions of a conversation about a passage, answered by a span of it, yes, no or unknown (CoQA; UniLM v1, Section 3.2).

A row is "[SOS] earlier questions and answers, question [EOS] window [EOS]". [SOS] predicts which of the four kinds applies
(the last [EOS] if the model reads from left to right); spans are predicted as in `unicloze.tasks.extraction`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze.arrays import Int32s
from unicloze.errors import UniclozeError
from unicloze.example import Examples
from unicloze.records.record import GoldAnswer, Record, answers_of, needed_answers, refuse_repeated
from unicloze.settings import HeadSettings, Recipe, TaskSettings
from unicloze.tasks import extraction
from unicloze.tasks.extraction import (
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
from unicloze.tasks.groups import Passages, task_of
from unicloze.tasks.task import Outputs, Prediction
from unicloze.text.tokenizers import Tokenizer
from unicloze.text.vocabulary import Vocabulary

ANSWERS = "span", "yes", "no", "unknown"
"""Kinds of answers: the classes of the head `answer`."""
_SPAN, _UNKNOWN = ANSWERS.index("span"), ANSWERS.index("unknown")
_WORD = re.compile(r"\w+")
_ARTICLES = {"a", "an", "the"}


@dataclass(frozen=True, kw_only=True)
class ConversationSettings(Passages):
    """Settings of conversational question answering."""

    kind: str = "conversation"

    one_slot = "the kind of an answer is predicted"


def heads(settings: Passages) -> Mapping[str, HeadSettings]:
    """The heads of a span, and a head for the kind of the answer."""
    return {**extraction.span_heads(settings), "answer": settings.head_settings("classes", outputs=len(ANSWERS))}


def checked(settings: TaskSettings, records: Sequence[Record]) -> TaskSettings:
    """The unchanged settings, once every record has an answer."""
    for record in records:
        if not needed_answers(record, settings):
            raise UniclozeError(f"{record.place}: there is no answer to train on: correct the record or leave it out")
    return settings


def encode(records: Sequence[Record], tokenizer: Tokenizer, recipe: Recipe) -> list[Window]:
    """The windows of all records, record by record.

    Earlier turns precede a question, as many of their last tokens as fit. The training answer is the first annotator's: yes,
    no or unknown if it is just that word, else the span of the rationale with the highest F1. The label of a window without
    the answer, or without the rationale of a yes or no, is unknown.
    """
    task = task_of(recipe, ConversationSettings)
    refuse_repeated(records)
    passages = encode_passages([record.text(task, "context") for record in records], tokenizer)
    dialogues = [[*history_of(record, task), record.text(task, "question")] for record in records]
    unique = list(dict.fromkeys(text for dialogue in dialogues for text in dialogue))
    known = dict(zip(unique, tokenizer.encode_batch(unique), strict=True))
    room = room_for_question(recipe)
    windows: list[Window] = []
    cut = several = unreached = 0
    for number, (record, dialogue, passage) in enumerate(zip(records, dialogues, passages, strict=True)):
        question = _last_tokens([known[text] for text in dialogue], room)
        bounds = window_bounds(len(passage), task.max_length - specials_of(recipe) - len(question), task.stride)
        answers = answers_of(record, task)
        labels: Sequence[Mapping[str, int] | None] = [None] * len(bounds)
        if answers is not None:
            labels = _labels(answers, record, passage, bounds, task)
        is_cut = len(known[dialogue[-1]]) > room
        cut += is_cut
        several += len(bounds) > 1
        wanted = _UNKNOWN if not answers else kind_of(answers[0].text)
        unreached += wanted != _UNKNOWN and all(label and label["answer"] == _UNKNOWN for label in labels)
        separators = recipe.use.separators
        windows += extraction.windows_of_record(number, question, passage, bounds, labels, separators, cut=is_cut)
    extraction.note_windows(len(records), cut=cut, several=several, unreached=unreached, recipe=recipe)
    return windows


def history_of(record: Record, settings: TaskSettings) -> list[str]:
    """The questions and answers before a question, in order; empty if the record has no history."""
    given, turn = record.get(settings, "history"), record.get(settings, "turn")
    if given is None and isinstance(turn, int) and turn > 1:
        raise UniclozeError(
            f"{record.place}: there is no history, as the file has no answers to the earlier turns: give the official "
            "file with answers, or records with a field 'history'"
        )
    turns = [] if given is None else given
    if not isinstance(turns, list) or not all(
        isinstance(turn, list) and len(turn) == 2 and all(isinstance(text, str) for text in turn) for turn in turns
    ):
        raise UniclozeError(f"{record.place}: the history is not a list of [question, answer]: correct the record")
    return [text for turn in turns for text in turn]


def _last_tokens(texts: Sequence[Int32s], room: int) -> Int32s:
    """The last tokens of a dialogue that fit; if the question alone is longer, its first tokens."""
    return texts[-1][:room] if len(texts[-1]) > room else np.concatenate(texts)[-room:]


def kind_of(answer: str) -> int:
    """Index in `ANSWERS` of an answer's kind."""
    words = _WORD.findall(answer.lower())
    return ANSWERS.index(words[0]) if len(words) == 1 and words[0] in ANSWERS[1:] else _SPAN


def _labels(
    answers: Sequence[GoldAnswer],
    record: Record,
    passage: Passage,
    bounds: Sequence[tuple[int, int]],
    settings: TaskSettings,
) -> list[Mapping[str, int]]:
    kind = kind_of(answers[0].text) if answers else _UNKNOWN
    start, end = _rationale(record, passage, settings)
    where = (start, end) if kind != _SPAN else closest_span(answers[0].text, passage.text, start, end)
    tokens = None if where is None or kind == _UNKNOWN else passage.covering(*where)
    labels: list[Mapping[str, int]] = []
    for first, last in bounds:
        here = span_labels(tokens, first, last)
        holds = here["start"] != NOWHERE or (kind != _SPAN and _evidence(tokens, first, last, bounds))
        span = here if kind == _SPAN else {"start": NOWHERE, "end": NOWHERE}
        labels.append({**span, "answer": kind if holds else _UNKNOWN})
    return labels


def _evidence(tokens: tuple[int, int] | None, first: int, last: int, bounds: Sequence[tuple[int, int]]) -> bool:
    """Whether no window contains more of the rationale than this one."""
    if tokens is None:
        return False
    shared = [min(end, tokens[1] + 1) - max(begin, tokens[0]) for begin, end in bounds]
    return min(last, tokens[1] + 1) - max(first, tokens[0]) == max(shared)


def _rationale(record: Record, passage: Passage, settings: TaskSettings) -> tuple[int, int]:
    """Start and end of the rationale in characters; the whole passage if there is none."""
    text, start = record.get(settings, "rationale"), record.get(settings, "rationale_start")
    if not isinstance(text, str) or not text.strip():
        return 0, len(passage.text)
    known = start if isinstance(start, int) and start >= 0 else None
    place = extraction.locate(GoldAnswer(text, known), passage.text)
    return (0, len(passage.text)) if place is None else (place, place + len(text))


def closest_span(answer: str, text: str, start: int, end: int) -> tuple[int, int] | None:
    """Start and end, in characters, of the span whose words have the highest F1 with an answer; the shortest of equals.

    Articles are ignored. Without common words, the result is the searched range, or None if that is the whole text.
    """
    wanted = Counter(word for word in _WORD.findall(answer.lower()) if word not in _ARTICLES)
    words = [match for match in _WORD.finditer(text, start, end) if match[0].lower() not in _ARTICLES]
    marks = [place for place, match in enumerate(words) if match[0].lower() in wanted]
    total, best, found = wanted.total(), (0.0, 0), None
    for number, first in enumerate(marks):
        seen: Counter[str] = Counter()
        common = 0
        for last in marks[number:]:
            length = last - first + 1
            if 2 * total / (length + total) < best[0]:
                break
            word = words[last][0].lower()
            seen[word] += 1
            common += seen[word] <= wanted[word]
            score = 2 * common / (length + total), -length
            if score > best:
                best, found = score, (words[first].start(), words[last].end())
    whole = None if (start, end) == (0, len(text)) else (start, end)
    return found or whole


def lay_out(
    rows: Sequence[Window], vocabulary: Vocabulary, recipe: Recipe, _keys: npt.NDArray[np.uint64] | None
) -> Examples:
    """Windows to examples."""
    return lay_out_windows(rows, vocabulary, recipe, classes=("answer",))


def predict(
    records: Sequence[Record], rows: Sequence[Window], outputs: Sequence[Outputs], recipe: Recipe
) -> list[Prediction]:
    """The answer to each question: the most likely of yes, no, unknown and the best span.

    Over several windows, span, yes and no take their highest log-probability and unknown its lowest. `scores` holds these
    log-probabilities.
    """
    task = task_of(recipe, ConversationSettings)
    found: list[Prediction] = []
    for record, (windows, said) in zip(records, extraction.grouped(rows, outputs, len(records)), strict=True):
        spans, _ = best_of_windows(windows, said, longest=task.max_answer, most=task.n_best)
        each = np.stack([_log_softmax(output["answer"][0]) for output in said])
        scores = each.max(axis=0)
        scores[_UNKNOWN] = each[:, _UNKNOWN].min()
        if not spans:
            scores[_SPAN] = -np.inf
        kind = ANSWERS[int(scores.argmax())]
        prediction: Prediction = {
            "id": record.id,
            "prediction": spans[0].text if kind == "span" else kind,
            "scores": {
                name: round(float(score), 6) for name, score in zip(ANSWERS, scores, strict=True) if np.isfinite(score)
            },
            "n_best": [{"text": one.text, "start": one.start, "score": round(one.score, 6)} for one in spans],
            **turn_of(record, task),
        }
        found.append(prediction)
    return found


def turn_of(record: Record, settings: TaskSettings) -> dict[str, Any]:
    """Story and turn number, which identify answers in CoQA's official format; empty for other records."""
    named = {role: record.get(settings, role) for role in ("story", "turn")}
    return {} if None in named.values() else named


def _log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max()
    result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result


def reference(record: Record, settings: TaskSettings) -> dict[str, Any]:
    """The answers of all annotators, and the domain of the story."""
    answers = [answer.text for answer in needed_answers(record, settings)]
    if not answers:
        raise UniclozeError(
            f"{record.place}: there is no reference answer to compare with: correct the record or leave it out"
        )
    return {"answers": answers, "domain": str(record.get(settings, "domain") or "")}
