"""Extractive question answering: the answer is a span of the passage (SQuAD; UniLMv2, Section 4.2; UniLM v1, Section 3.2).

A row is "[SOS] question [EOS] window [EOS]". Start and end are chosen among the tokens of the window and [SOS], which means
no answer in this window; a model that reads from left to right uses the last [EOS] instead. With `task.no_answer` `class`
the same slot also predicts whether the window contains an answer. Long passages are read in overlapping windows; the best
span of all windows is the answer.
"""

from __future__ import annotations

import dataclasses
import math
import unicodedata
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
from unicloze.settings import HeadSettings, Recipe, TaskPooling, TaskSettings
from unicloze.tasks.groups import Passages, task_of
from unicloze.tasks.rows import Row, RowTarget, TextFormat, pooled_slots, pooling_of, task_format
from unicloze.tasks.rows import lay_out as lay_out_rows
from unicloze.tasks.task import Outputs, Prediction
from unicloze.text.tokenizers import Tokenizer
from unicloze.text.vocabulary import Vocabulary

NOWHERE = 0
"""Choice of a span's start and end that means no answer: the slot of the whole row, [SOS], or the last [EOS] if the model
reads from left to right. The tokens of the window are choices 1, 2, ..."""


# Character positions refer to the original passage: a span's text is a slice of it, whatever the tokenizer does to
# case, accents or white space.


@dataclass(frozen=True, kw_only=True)
class Passage:
    """A text with its tokens and their character positions."""

    text: str  # the text
    ids: Int32s  # *Shape:* (tokens,)
    starts: Int32s  # First character of each token. *Shape:* (tokens,)
    ends: Int32s  # End of each token in characters (exclusive). *Shape:* (tokens,)

    def __len__(self) -> int:
        return len(self.ids)

    def covering(self, start: int, end: int) -> tuple[int, int] | None:
        """First and last of the fewest tokens that cover the characters from `start` to `end` (exclusive).

        White space at either end is ignored, since byte-level tokens include the space before a word. None if no token is
        there.
        """
        text = self.text[start:end]
        start, end = start + len(text) - len(text.lstrip()), start + len(text.rstrip())
        if start >= end:
            return None
        first = int(np.searchsorted(self.ends, start, side="right"))
        last = int(np.searchsorted(self.starts, end, side="left")) - 1
        return (first, last) if first <= last else None

    def span(self, first: int, last: int) -> tuple[int, str]:
        """First character and text of a span of tokens, without surrounding white space."""
        start = int(self.starts[first])
        text = self.text[start : int(self.ends[last])]
        return start + len(text) - len(text.lstrip()), text.strip()


def encode_passages(texts: Sequence[str], tokenizer: Tokenizer) -> list[Passage]:
    """The passages of some texts; repeated texts are encoded once."""
    unique = list(dict.fromkeys(texts))
    known = {
        text: _passage(text, ids, offsets)
        for text, (ids, offsets) in zip(unique, tokenizer.encode_batch_with_offsets(unique), strict=True)
    }
    return [known[text] for text in texts]


def _passage(text: str, ids: Int32s, offsets: Int32s) -> Passage:
    starts, ends = np.ascontiguousarray(offsets[:, 0]), offsets[:, 1].copy()
    if not text.isascii():  # combining characters may be missing from a token: stripped or composed
        following = np.append(starts[1:], len(text))
        for token in np.flatnonzero(following > ends):
            while ends[token] < following[token] and _goes_on(text[ends[token]]):
                ends[token] += 1
    return Passage(text=text, ids=ids, starts=starts, ends=ends)


def _goes_on(character: str) -> bool:
    """Whether a character continues the one before it: an accent, or a vowel or final consonant of a Korean syllable."""
    return unicodedata.category(character).startswith("M") or "\u1160" <= character <= "\u11ff"


@dataclass(frozen=True, kw_only=True)
class Window:
    """A question with a window of its passage, read as one row."""

    record: int  # index of the record
    question: Int32s  # Tokens before the passage, without special tokens. *Shape:* (tokens,)
    passage: Passage  # the whole passage
    first: int  # index of the window's first token in the passage
    last: int  # index after its last token
    # The answer for each target of the task; `start` and `end` are choices. None if unknown.
    labels: Mapping[str, int] | None
    separators: int = 1  # number of [EOS] between question and window
    cut: bool = False  # whether the question lacks its end

    @property
    def slots(self) -> int:
        """Length of its row."""
        return len(self.question) + self.last - self.first + 2 + self.separators


def specials_of(recipe: Recipe) -> int:
    """Number of special tokens in a row: [SOS], the separators, and [EOS] at the end."""
    return 2 + recipe.use.separators


def room_for_question(recipe: Recipe) -> int:
    """Maximum tokens of a question in a row; at least as many remain for the passage."""
    return min(task_of(recipe, Passages).max_question, (recipe.task.max_length - specials_of(recipe)) // 2)


def window_bounds(tokens: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Start and end (exclusive) of each window; neighbours overlap by at least half a window."""
    step = min(stride, max(1, room // 2))
    further = -(-max(0, tokens - room) // step)
    return [(first, min(tokens, first + room)) for first in range(0, further * step + 1, step)]


def span_labels(span: tuple[int, int] | None, first: int, last: int) -> dict[str, int]:
    """The choices of a span's start and end in the window of tokens from `first` to `last` (exclusive)."""
    if span is None or span[0] < first or span[1] >= last:
        return {"start": NOWHERE, "end": NOWHERE}
    return {"start": span[0] - first + 1, "end": span[1] - first + 1}


def lay_out_windows(
    rows: Sequence[Window], vocabulary: Vocabulary, recipe: Recipe, *, classes: Sequence[str] = ()
) -> Examples:
    """Convert windows to examples."""
    written = task_format(recipe, vocabulary)
    names, pooling = ("start", "end", *classes), pooling_of(recipe)
    return lay_out_rows([_row(row, written, names, pooling) for row in rows], vocabulary, recipe)


def _row(window: Window, written: TextFormat, names: Sequence[str], pooling: TaskPooling) -> Row:
    tokens = window.passage.ids[window.first : window.last]
    input_ids, segment_ids = written.row((window.question, tokens))
    before = len(window.question) + len(written.start) + len(written.between)
    whole = pooled_slots(len(input_ids), pooling)
    choices = np.concatenate([whole, np.arange(before, before + len(tokens))])
    targets = {
        name: RowTarget(
            slots=[choices if name in ("start", "end") else whole],
            labels=None if window.labels is None else [window.labels[name]],
        )
        for name in names
    }
    return Row(record=window.record, input_ids=input_ids, segment_ids=segment_ids, targets=targets)


@dataclass(frozen=True, kw_only=True)
class Span:
    """A span of a passage and its score."""

    text: str  # A slice of the passage
    start: int  # its first character
    score: float  # the logit of its start plus that of its end


def best_spans(
    starts: npt.NDArray[np.floating], ends: npt.NDArray[np.floating], *, longest: int, most: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.floating]]:
    """The spans with the highest sums of the scores of their start and end, the best first."""
    tokens = len(starts)
    if not tokens:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), starts[:0]
    width = min(longest, tokens)
    padded = np.concatenate([ends, np.full(width - 1, -np.inf, dtype=ends.dtype)])
    scores = (starts[:, None] + np.lib.stride_tricks.sliding_window_view(padded, width)).ravel()
    count = min(most, tokens * width - width * (width - 1) // 2)
    top = np.argpartition(scores, scores.size - count)[scores.size - count :]
    top = top[np.lexsort((top, -scores[top]))]
    first, length = np.divmod(top, width)
    return first, first + length, scores[top]


def best_of_windows(
    windows: Sequence[Window],
    outputs: Sequence[Mapping[str, npt.NDArray[np.float32]]],
    *,
    longest: int,
    most: int,
) -> tuple[list[Span], float]:
    """The best spans over all windows of a passage, and the lowest score of no answer.

    A span found in several windows counts once, with its highest score. Scores are sums of logits.
    """
    found: dict[tuple[int, int], float] = {}
    nowhere = np.inf
    for window, output in zip(windows, outputs, strict=True):
        tokens = window.last - window.first
        starts, ends = (output[name][0, : tokens + 1].astype(np.float64) for name in ("start", "end"))
        nowhere = min(nowhere, float(starts[NOWHERE] + ends[NOWHERE]))
        for first, last, score in zip(
            *(column.tolist() for column in best_spans(starts[1:], ends[1:], longest=longest, most=most)), strict=True
        ):
            span = window.first + first, window.first + last
            found[span] = max(score, found.get(span, -np.inf))
    passage = windows[0].passage
    best = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:most]
    spans = [(passage.span(*span), score) for span, score in best]
    return [Span(text=text, start=start, score=score) for (start, text), score in spans], nowhere


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
