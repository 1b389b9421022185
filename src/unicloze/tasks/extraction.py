"""Questions about a passage, answered by a span of it (SQuAD, CoQA; UniLMv2, Section 4.2; UniLM v1, Section 3.2).

A row is "[SOS] question [EOS] window [EOS]". Start and end are chosen among the tokens of the window and [SOS], which means
no answer in this window; a model that reads from left to right uses the last [EOS] instead. With `task.no_answer` `class`
the same slot also predicts whether the window contains an answer; in a conversation it predicts whether the answer is a
span, yes, no or unknown, and earlier questions and answers stand before the question. Long passages are read in overlapping
windows; the best span of all windows is the answer.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from unicloze.arrays import Int32s
from unicloze.errors import UniclozeError
from unicloze.example import Examples
from unicloze.keyed import Bits
from unicloze.records.record import GoldAnswer, Record, answers_of, needed_answers, refuse_repeated
from unicloze.rules import Needs, setting
from unicloze.settings import HeadSettings, Recipe, TaskSettings
from unicloze.tasks.rows import Row, RowTarget, RowTask, lay_out, pooled_slots, pooling_of, task_format
from unicloze.tasks.task import Baseline, Outputs, Passages, Prediction, task_of
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
    tokens = zip(unique, tokenizer.encode_batch_with_offsets(unique), strict=True)
    known = {text: _passage(text, *encoded) for text, encoded in tokens}
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
    slots: int  # length of its row
    cut: bool  # whether the question lacks its end


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
    windows: Sequence[Window], outputs: Sequence[Outputs], task: Passages
) -> tuple[list[dict[str, Any]], float]:
    """The best spans over all windows of a passage, as listed in a prediction, and the lowest score of no answer.

    A span found in several windows counts once, with its highest score. Scores are sums of the logits of start and end.
    """
    scores: dict[tuple[int, int], float] = {}
    nowhere = np.inf
    for window, output in zip(windows, outputs, strict=True):
        tokens = window.last - window.first
        starts, ends = (output[name][0, : tokens + 1].astype(np.float64) for name in ("start", "end"))
        nowhere = min(nowhere, float(starts[NOWHERE] + ends[NOWHERE]))
        best = best_spans(starts[1:], ends[1:], longest=task.max_answer, most=task.n_best)
        for first, last, score in zip(*(column.tolist() for column in best), strict=True):
            span = window.first + first, window.first + last
            scores[span] = max(score, scores.get(span, -np.inf))
    spans = []
    for bounds, score in sorted(scores.items(), key=lambda item: (-item[1], item[0]))[: task.n_best]:
        start, text = windows[0].passage.span(*bounds)
        spans.append({"text": text, "start": start, "score": round(score, 6)})
    return spans, nowhere


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
    no_answer: Literal["span", "class"] = setting("span", _UNANSWERABLE)
    no_answer_threshold: float | None = setting(None, _UNANSWERABLE)

    one_slot = "no answer is scored"


@dataclass(frozen=True, kw_only=True)
class ConversationSettings(Passages):
    """Settings of conversational question answering."""

    kind: str = "conversation"

    one_slot = "the kind of an answer is predicted"


NONE = "none"
"""The target for windows without an answer: 1 if a window has none."""
ANSWERS = "span", "yes", "no", "unknown"
"""Kinds of answers: the classes of the head `answer`."""
_SPAN, _UNKNOWN = ANSWERS.index("span"), ANSWERS.index("unknown")
_WORD = re.compile(r"\w+")
_ARTICLES = {"a", "an", "the"}


def predicts_none(settings: ExtractionSettings) -> bool:
    """Whether a class predicts that a question has no answer."""
    return settings.no_answer == "class" and settings.unanswerable is not False


Answers = Sequence[GoldAnswer]
Bounds = Sequence[tuple[int, int]]
"""First token of each window of a passage, and the token after its last."""
Questions = Iterator[tuple[Int32s, bool]]
"""The tokens before each passage, and whether they lack a part of the question."""
Labels = tuple[list[dict[str, int]], bool]
"""The answer in each window for each target, and whether it fits in no window."""


class _Questions(RowTask):
    """Questions about passages that may be longer than a row."""

    def classes(self, settings: Any) -> Mapping[str, int]:
        """Number of classes of each head that predicts from the slot of the whole row."""
        raise NotImplementedError

    def questions(self, records: Sequence[Record], tokenizer: Tokenizer, task: Any, room: int) -> Questions:
        """The questions of records."""
        raise NotImplementedError

    def labels(self, answers: Answers, record: Record, passage: Passage, bounds: Bounds, task: Any) -> Labels:
        """The answer to a record."""
        raise NotImplementedError

    def heads(self, settings: Any) -> Mapping[str, HeadSettings]:
        """Heads that choose the slots where the answer starts and ends, and those of the classes."""
        classes = {name: settings.head_settings("classes", outputs=n) for name, n in self.classes(settings).items()}
        return {**dict.fromkeys(("start", "end"), settings.head_settings("choice")), **classes}

    def encode(self, records: Sequence[Record], tokenizer: Tokenizer, recipe: Recipe) -> list[Window]:
        """The windows of all records, record by record.

        Warns once how many questions are cut, how many passages are read in windows, and how many answers fit in none.
        """
        task, specials = task_of(recipe, Passages), 2 + recipe.use.separators  # [SOS], between and at the end [EOS]
        room = min(task.max_question, (task.max_length - specials) // 2)  # at least as many remain for the passage
        refuse_repeated(records)
        passages = encode_passages([record.text(task, "context") for record in records], tokenizer)
        windows: list[Window] = []
        several = unreached = all_cut = 0
        for number, (record, passage, (question, cut)) in enumerate(
            zip(records, passages, self.questions(records, tokenizer, task, room), strict=True)
        ):
            beside = specials + len(question)
            bounds = window_bounds(len(passage), task.max_length - beside, task.stride)
            answers, lost = answers_of(record, task), False
            labels: Sequence[Mapping[str, int] | None] = [None] * len(bounds)
            if answers is not None:
                labels, lost = self.labels(answers, record, passage, bounds, task)
            several, unreached, all_cut = several + (len(bounds) > 1), unreached + lost, all_cut + cut
            of_record: dict[str, Any] = {"record": number, "question": question, "passage": passage, "cut": cut}
            windows += [
                Window(**of_record, first=first, last=last, labels=label, slots=beside + last - first)
                for (first, last), label in zip(bounds, labels, strict=True)
            ]
        counts = {
            f"questions are longer than {room} tokens (task.max_question) and were cut": all_cut,
            f"passages are longer than a row (task.max_length {task.max_length}) and read in windows": several,
            "answers fit in no window and count as having no answer": unreached,
        }
        notes = [f"{count} {what}" for what, count in counts.items() if count]
        if notes:
            warnings.warn(f"of {len(records)} records {'; '.join(notes)}", stacklevel=2)
        return windows

    def lay_out(self, rows: Sequence[Any], vocabulary: Vocabulary, recipe: Recipe, keys: Bits | None) -> Examples:
        """Windows to examples."""
        written, pooling = task_format(recipe, vocabulary), pooling_of(recipe)
        names, laid_out = ("start", "end", *self.classes(recipe.task)), []
        for window in rows:
            tokens = window.passage.ids[window.first : window.last]
            input_ids, segment_ids = written.row((window.question, tokens))
            before = len(window.question) + len(written.start) + len(written.between)
            whole = pooled_slots(len(input_ids), pooling)
            choices = np.concatenate([whole, np.arange(before, before + len(tokens))])
            targets = {}
            for name in names:
                labels = None if window.labels is None else [window.labels[name]]
                targets[name] = RowTarget(slots=[choices if name in ("start", "end") else whole], labels=labels)
            laid_out.append(Row(record=window.record, input_ids=input_ids, segment_ids=segment_ids, targets=targets))
        return lay_out(laid_out, vocabulary, recipe)


_SENTENCE = re.compile(r".+?(?:[.!?](?=\s)|[\u3002\uff01\uff1f\u0964\u061f\u06d4]|\n|\Z)", re.DOTALL)


_INITIAL = re.compile(r"\b(?:[^\W\d_]|Mr|Mrs|Ms|Dr|St|Prof|Gen|Sen|Rep|Gov|Lt|Col|Sgt|Jr|Sr|No|Sept|vs)\.\Z")
"""An initial or another short form at the end of a text, whose full stop ends no sentence."""


def sentences(text: str, most: int | None = None) -> list[str]:
    """The first sentences of a text, all by default."""
    return list(itertools.islice(_sentences(text), most))


def _sentences(text: str) -> Iterator[str]:
    begun = ""
    for match in _SENTENCE.finditer(text):
        begun += match[0]
        if match.end() < len(text) and _INITIAL.search(begun):
            continue
        if begun.strip():
            yield begun.strip()
        begun = ""


class Extraction(_Questions):
    """Finds the span of a passage that answers a question, or none."""

    def classes(self, settings: ExtractionSettings) -> Mapping[str, int]:
        """With `task.no_answer` `class`, no answer is a class."""
        return {NONE: 2} if predicts_none(settings) else {}

    def resolve(self, settings: Any, records: Sequence[Record]) -> ExtractionSettings:
        """The settings with `unanswerable` determined from the training records, unless given.

        Warns how many answers were not found at their `answer_start`.
        """
        extraction: ExtractionSettings = settings
        moved = unanswerable = 0
        for record in records:
            answers = needed_answers(record, extraction)
            unanswerable += not answers
            for answer in answers[:1]:
                start = locate(answer, record.text(extraction, "context"))
                if start is None:
                    lacks = f"the passage does not contain the answer '{answer.text:.60}'"
                    raise UniclozeError(f"{record.place}: {lacks}: correct the record or leave it out")
                moved += answer.start not in (None, start)
        if moved:
            off = f"{moved} of {len(records)} answers are not at their answer_start"
            warnings.warn(f"{off}; the nearest occurrence in the passage is used", stacklevel=2)
        if extraction.unanswerable is not None:
            return extraction
        return dataclasses.replace(extraction, unanswerable=unanswerable > 0)

    def questions(self, records: Sequence[Record], tokenizer: Tokenizer, task: Any, room: int) -> Questions:
        """The beginning of each question."""
        for tokens in tokenizer.encode_batch([record.text(task, "question") for record in records]):
            yield tokens[:room], len(tokens) > room

    def labels(self, answers: Answers, record: Record, passage: Passage, bounds: Bounds, task: Any) -> Labels:
        """The first of several answers is the training answer."""
        span = span_of(answers[0], passage) if answers else None
        labels = [span_labels(span, *window) for window in bounds]
        labels = [{**label, NONE: int(label["start"] == NOWHERE)} for label in labels]
        return labels, bool(answers) and all(label[NONE] for label in labels)

    def predict(self, record: Record, rows: Sequence[Window], outputs: Sequence[Outputs], recipe: Recipe) -> Prediction:
        """The best answers to a question over all windows of its passage.

        `score` is that of the best answer; `n_best` lists the best answers with their first characters. If questions may
        have no answer, `no_answer_score` is the lowest score of no answer over all windows. The prediction is empty, and
        `na_probability` above a half, if it exceeds `score` by more than the threshold. If a class predicts no answer, its
        lowest log-odds over all windows, `no_answer_log_odds`, are compared with the threshold instead.
        """
        task = task_of(recipe, ExtractionSettings)
        spans, nowhere = best_of_windows(rows, outputs, task)
        best = spans[0] if spans else {"text": "", "score": None}
        prediction: Prediction = {"prediction": best["text"], "score": best["score"]}
        if not task.unanswerable:
            return {**prediction, "n_best": spans}
        if predicts_none(task):
            odds = min(float(output[NONE][0, 1]) - float(output[NONE][0, 0]) for output in outputs)
            prediction["no_answer_log_odds"] = round(odds, 6)
        else:
            prediction["no_answer_score"] = round(nowhere, 6)
        return with_threshold({**prediction, "n_best": spans}, task.no_answer_threshold or 0.0)

    def reference(self, record: Record, settings: Any) -> list[str]:
        """The right answers; empty if the question is unanswerable."""
        return [answer.text for answer in needed_answers(record, settings)]

    def baseline(self, train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> Baseline | None:
        """No answer to any question, if questions may be unanswerable."""
        unanswerable = task_of(recipe, ExtractionSettings).unanswerable
        return Baseline("never giving an answer", [""] * len(records)) if unanswerable else None

    def rival(self, train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> Baseline | None:
        """The sentence of the passage that shares the most words with the question, rare words counting most."""
        passages = dict.fromkeys(record.text(recipe.task, "context") for record in [*train, *records])
        split = {text: [(one, {*_WORD.findall(one.lower())}) for one in sentences(text)] for text in passages}
        seen = Counter(word for of_text in split.values() for _, words in of_text for word in words)
        answers = []
        for record in records:
            asked = {*_WORD.findall(record.text(recipe.task, "question").lower())}
            every = split[record.text(recipe.task, "context")] or [("", set())]
            answers.append(max(every, key=lambda one: sum(1 / (1 + seen[word]) for word in asked & one[1]))[0])
        return Baseline("the sentence of the passage closest to the question", answers)


def locate(answer: GoldAnswer, context: str) -> int | None:
    """The first character of an answer: its `start`, else the nearest occurrence; None if there is none.

    An answer without `start` prefers an occurrence as whole words to one within a word, such as the "he" in "the".
    """
    wanted = answer.start or 0
    if answer.start is not None and wanted >= 0 and context.startswith(answer.text, wanted):
        return wanted
    places = [found.start() for found in re.finditer(f"(?={re.escape(answer.text)})", context)]
    if answer.start is None:
        return min(places, key=lambda place: _in_word(place, place + len(answer.text), context), default=None)
    return min(places, key=lambda place: abs(place - wanted), default=None)


def span_of(answer: GoldAnswer, passage: Passage) -> tuple[int, int] | None:
    """The first and the last token of an answer; None if it is not in the passage or has no token."""
    start = locate(answer, passage.text)
    return None if start is None else passage.covering(start, start + len(answer.text))


def _in_word(first: int, last: int, context: str) -> bool:
    """Whether a part of a text begins or ends within a word."""
    return any(0 < end < len(context) and context[end - 1 : end + 1].isalnum() for end in (first, last))


class Conversation(_Questions):
    """Answers a question in a conversation: a span, yes, no or unknown."""

    def classes(self, settings: Any) -> Mapping[str, int]:
        """The kind of the answer."""
        return {"answer": len(ANSWERS)}

    def resolve(self, settings: Any, records: Sequence[Record]) -> TaskSettings:
        """The unchanged settings, once every record has an answer."""
        for record in records:
            if not needed_answers(record, settings):
                raise UniclozeError(f"{record.place}: there is no answer to train on: correct it or leave it out")
        return super().resolve(settings, records)

    def questions(self, records: Sequence[Record], tokenizer: Tokenizer, task: Any, room: int) -> Questions:
        """Earlier turns and the question, as many of their last tokens as fit; the beginning of a question that is longer."""
        dialogues = [[*history_of(record, task), record.text(task, "question")] for record in records]
        unique = list(dict.fromkeys(text for dialogue in dialogues for text in dialogue))
        known = dict(zip(unique, tokenizer.encode_batch(unique), strict=True))
        for dialogue in dialogues:
            last = known[dialogue[-1]]
            cut = len(last) > room
            yield last[:room] if cut else np.concatenate([known[text] for text in dialogue])[-room:], cut

    def labels(self, answers: Answers, record: Record, passage: Passage, bounds: Bounds, task: Any) -> Labels:
        """The first annotator's answer: yes, no or unknown if it is just that word, else a span of the rationale.

        The span is that with the highest F1. A window without the answer, or the rationale of a yes or no, is unknown.
        """
        kind = kind_of(answers[0].text) if answers else _UNKNOWN
        start, end = _rationale(record, passage, task)
        where = (start, end) if kind != _SPAN else closest_span(answers[0].text, passage.text, start, end)
        tokens = None if where is None or kind == _UNKNOWN else passage.covering(*where)
        labels = []
        for first, last in bounds:
            here = span_labels(tokens, first, last)
            holds = here["start"] != NOWHERE or (kind != _SPAN and _evidence(tokens, first, last, bounds))
            span = here if kind == _SPAN else {"start": NOWHERE, "end": NOWHERE}
            labels.append({**span, "answer": kind if holds else _UNKNOWN})
        return labels, kind != _UNKNOWN and all(label["answer"] == _UNKNOWN for label in labels)

    def predict(self, record: Record, rows: Sequence[Window], outputs: Sequence[Outputs], recipe: Recipe) -> Prediction:
        """The answer to a question: the most likely of yes, no, unknown and the best span.

        Over several windows, span, yes and no take their highest log-probability and unknown its lowest. `scores` holds these
        log-probabilities.
        """
        spans, _ = best_of_windows(rows, outputs, task_of(recipe, ConversationSettings))
        logits = np.stack([output["answer"][0] for output in outputs]).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        scores = logs.max(axis=0)
        scores[_UNKNOWN] = logs[:, _UNKNOWN].min()
        if not spans:
            scores[_SPAN] = -np.inf
        kind = ANSWERS[int(scores.argmax())]
        known = zip(ANSWERS, scores.tolist(), strict=True)
        of_kinds = {name: round(score, 6) for name, score in known if np.isfinite(score)}
        said = spans[0]["text"] if kind == "span" else kind
        return {"prediction": said, "scores": of_kinds, "n_best": spans, **turn_of(record, recipe.task)}

    def reference(self, record: Record, settings: Any) -> dict[str, Any]:
        """The answers of all annotators, and the domain of the story."""
        answers = [answer.text for answer in needed_answers(record, settings)]
        if not answers:
            raise UniclozeError(f"{record.place}: there is no answer to compare with: correct it or leave it out")
        return {"answers": answers, "domain": str(record.get(settings, "domain") or "")}

    def baseline(self, train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> Baseline:
        """The most common first answer of the training records."""
        return Baseline.always(Counter(needed_answers(one, recipe.task)[0].text for one in train), len(records))


def history_of(record: Record, settings: TaskSettings) -> list[str]:
    """The questions and answers before a question, in order; empty if the record has no history."""
    given, turn = record.get(settings, "history"), record.get(settings, "turn")
    if given is None and isinstance(turn, int) and turn > 1:
        cure = "give the official file with answers, or records with a field 'history'"
        lacks = "there is no history, as the file has no answers to the earlier turns"
        raise UniclozeError(f"{record.place}: {lacks}: {cure}")
    turns = [] if given is None else given
    if not isinstance(turns, list) or not all(
        isinstance(turn, list) and len(turn) == 2 and all(isinstance(text, str) for text in turn) for turn in turns
    ):
        raise UniclozeError(f"{record.place}: the history is not a list of [question, answer]: correct the record")
    return [text for turn in turns for text in turn]


def kind_of(answer: str) -> int:
    """Index in `ANSWERS` of an answer's kind."""
    words = _WORD.findall(answer.lower())
    return ANSWERS.index(words[0]) if len(words) == 1 and words[0] in ANSWERS[1:] else _SPAN


def _evidence(tokens: tuple[int, int] | None, first: int, last: int, bounds: Bounds) -> bool:
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
    first = locate(GoldAnswer(text, known), passage.text)
    return (0, len(passage.text)) if first is None else (first, first + len(text))


def closest_span(answer: str, text: str, start: int, end: int) -> tuple[int, int] | None:
    """Start and end, in characters, of the span whose words have the highest F1 with an answer; the first of the shortest.

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


def turn_of(record: Record, settings: TaskSettings) -> dict[str, Any]:
    """Story and turn number, which identify answers in CoQA's official format; empty for other records."""
    named = {role: record.get(settings, role) for role in ("story", "turn")}
    return {} if None in named.values() else named


def no_answer_margin(prediction: Prediction) -> float:
    """Margin of the score of no answer over that of the best answer, or the log-odds of no answer."""
    score = prediction["score"]
    if score is None:
        return math.inf
    odds = prediction.get("no_answer_log_odds")
    return float(prediction["no_answer_score"] - score) if odds is None else float(odds)


def with_threshold(prediction: Prediction, threshold: float) -> Prediction:
    """The prediction for a threshold: empty if the margin of no answer exceeds it."""
    margin = no_answer_margin(prediction)
    text = "" if margin > threshold or not prediction["n_best"] else prediction["n_best"][0]["text"]
    above = min(700.0, max(-700.0, margin - threshold))
    return {**prediction, "prediction": text, "na_probability": 1 / (1 + math.exp(-above))}


TASKS = {
    "extraction": Extraction(
        purpose="Finds the span of a passage that answers a question, or none.",
        settings=ExtractionSettings,
        roles=("context", "question", "answers"),
        answers=("answers",),
        texts=("context", "question"),
        compares=("squad",),
    ),
    "conversation": Conversation(
        purpose="Answers a question in a conversation about a passage: a span, yes, no or unknown.",
        settings=ConversationSettings,
        roles=("context", "question", "history", "answers", "rationale", "rationale_start", "story", "turn", "domain"),
        answers=("answers", "rationale", "rationale_start"),
        texts=("context", "question"),
        compares=("coqa",),
    ),
}
