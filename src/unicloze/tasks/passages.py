"""Reads passages in windows, "[SOS] question [EOS] window [EOS]", and converts token spans to text.

Character positions refer to the original passage: a span's text is a slice of it, whatever the tokenizer does to case,
accents or white space.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unicloze.arrays import Int32s
from unicloze.example import Examples
from unicloze.settings import Recipe, TaskPooling
from unicloze.tasks.groups import Passages, task_of
from unicloze.tasks.rows import Row, RowTarget, TextFormat, lay_out, pooled_slots, pooling_of, task_format
from unicloze.text.tokenizers import Tokenizer
from unicloze.text.vocabulary import Vocabulary

NOWHERE = 0
"""Choice of a span's start and end that means no answer: the slot of the whole row, [SOS], or the last [EOS] if the model
reads from left to right. The tokens of the window are choices 1, 2, ..."""


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
    return lay_out([_row(row, written, names, pooling) for row in rows], vocabulary, recipe)


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
