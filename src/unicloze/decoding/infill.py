"""Fills masks in a text: all at once (AE), or step by step in any order (PAR)."""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import get_args

import numpy as np
import numpy.typing as npt
import torch

from unicloze.arrays import Flags, Int32s
from unicloze.characters import last_of
from unicloze.decoding import inputs
from unicloze.decoding.inputs import lacks, longest_text, objective_of, part_with
from unicloze.errors import UsageError
from unicloze.example import Examples, Kind
from unicloze.files import Plain, PlainList
from unicloze.objectives import Ability
from unicloze.progress import Progress
from unicloze.settings import Order
from unicloze.text.tokenizers import Tokenizer
from unicloze.text.vocabulary import MASK, Vocabulary
from unicloze.training.loading import LoadedModel

_SIGNS_OF_LINES = str.maketrans({"\n": "\u23ce", "\r": "\u240d", "\t": "\u21e5"})
_OTHER_MASK = re.compile(r"[\[<({]\W?mask\W?[\])}>]|(?-i:\bMASK\b)|_{2,}|<extra_id_0>", re.IGNORECASE)
"""How other models and people write a mask."""
_SIGNS = _SIGNS_OF_LINES | str.maketrans({" ": "\u2423", "\xa0": "\u2423"})


@dataclass(frozen=True)
class Cloze:
    """A text with masks."""

    text: str  # the text
    spans: list[tuple[int, int]]  # first character of each mask and first character after it
    tokens: npt.NDArray[np.int32]  # Token ids of the whole text. *Shape:* (tokens,)
    places: list[int]  # index of each mask's token
    spaced: bool  # whether tokens include the preceding space, so that a mask covers the space before it as well

    @classmethod
    def read(cls, text: str, tokenizer: Tokenizer) -> Cloze:
        """Find the masks of a text."""
        masks = "|".join(re.escape(mask) for mask in tokenizer.masks)
        spans = [match.span() for match in re.finditer(masks, text)]
        if not spans:
            other = _OTHER_MASK.search(text)
            meant = "" if other is None else f"; did you mean {MASK} by '{other[0]}'?"
            raise UsageError(
                f'the text has no mask: put {MASK} in place of a word, as in "The {MASK} of a list."{meant}'
            )
        tokens = tokenizer.encode(text)
        places = np.flatnonzero(tokens == tokenizer.vocabulary.mask).tolist()
        return cls(text, spans, tokens, places, tokenizer.spaced)

    def readable(self, token: int, start: int, tokenizer: Tokenizer) -> str:
        """A token formatted for display, as it would appear in place of the mask at character `start`."""
        if not self.spaced:
            return tokenizer.tokens([token])[0]
        surface = _surface(tokenizer, [token])
        word = surface.removeprefix(" ")
        if not word.strip():
            return surface.translate(_SIGNS)
        before = self.text[:start].removesuffix(" ")
        touches = _spells(last_of(before)) or any(end == len(before) for _, end in self.spans)
        is_piece = word == surface and touches and _spells(word[0])
        return ("##" if is_piece else "") + word.translate(_SIGNS_OF_LINES)

    def runs(self) -> list[list[int]]:
        """Indices of the masks, grouped into runs of adjacent masks."""
        starts = [0, *(i for i, (left, right) in enumerate(pairwise(self.places), start=1) if right > left + 1)]
        return [list(range(*ends)) for ends in pairwise([*starts, len(self.places)])]

    def splice(self, fills: Sequence[int], tokenizer: Tokenizer) -> str:
        """The text with each mask replaced by a token; of the rest, only white space changes.

        A word piece is joined to the text on its left.
        """
        filled, last = "", 0
        for run in self.runs():
            # The bytes of one character may be spread over several tokens, so a run is decoded as a whole.
            for part in [run] if self.spaced else [[i] for i in run]:
                between = self.text[last : self.spans[part[0]][0]]
                surface = _surface(tokenizer, [fills[i] for i in part])
                if self.spaced:
                    kept = between.removesuffix(" ")
                    at_start = not filled and not between
                    filled += kept + (surface.removeprefix(" ") if at_start else surface)
                elif not surface.startswith(" "):
                    filled = (filled + between).rstrip() + surface
                else:
                    word = surface[1:]
                    touches = not between and part[0] > run[0] and _spells(last_of(filled)) and _spells(word[:1])
                    filled += between + (" " if touches else "") + word
                last = self.spans[part[-1]][1]
        return filled + self.text[last:]


def _surface(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Text that tokens add after a word: with a leading space if they begin a new word."""
    anchor = tokenizer.encode("x").tolist()[-1:]
    return tokenizer.decode([*anchor, *ids]).removeprefix(tokenizer.decode(anchor))


def _spells(character: str) -> bool:
    """Whether a character belongs to a script that separates words with spaces."""
    return character.isalnum() and unicodedata.east_asian_width(character) not in ("W", "F")


Guesses = list[tuple[int, float]]

_ROWS_AT_ONCE, _TEXTS_AT_ONCE = 32, 256


@dataclass(frozen=True, kw_only=True)
class MaskFill:
    """What a mask was filled with.

    Args:
        start: First character of the mask in the given text.
        end: First character after it.
        position: Number of its token in the text, [SOS] being 0.
        step: The factorization step in which it was filled, from 1; 1 for all that are filled at once.
        token: What it was filled with, as the vocabulary spells it.
        top: The most likely tokens at that step with their probabilities, the most likely first.
        readable: The same tokens for people: a piece of a word has ## before it, white space alone has a visible sign.
    """

    start: int
    end: int
    position: int
    step: int
    token: str
    top: list[tuple[str, float]]
    readable: list[str]


@dataclass(frozen=True, kw_only=True)
class FillResult(Plain):
    """A text and its filled masks.

    Args:
        text: Text as given.
        filled: The text with its masks filled and nothing else changed.
        target: Prediction target used, such as `ae` or `par`.
        order: Filling order; None if all masks were filled at once, or the numbers of the masks, from 1, in a given order.
        masks: The masks, from left to right.
        note: Caveat about the text, if any.
    """

    text: str
    filled: str
    target: str
    order: Order | list[int] | None
    masks: list[MaskFill]
    note: str | None

    def __str__(self) -> str:
        given = " ".join(map(str, self.order)) if isinstance(self.order, list) else self.order
        how = f"{self.target}, all at once" if given is None else f"{self.target}, order {given}"
        lines = [self.filled, "", f"candidates ({how}):"]
        for number, mask in enumerate(self.masks, start=1):
            told = zip(mask.readable, mask.top, strict=True)
            candidates = "  ".join(f"{readable} {probability:.1%}" for readable, (_, probability) in told)
            step = "" if self.order is None else f"step {mask.step:<3} "
            lines.append(f"  [MASK] {number:<3} {step}{candidates}")
        return "\n".join([*lines, *(["", f"note: {self.note}"] if self.note else [])])


class FillResults(PlainList[FillResult]):
    """Filled texts of a file; `str` gives them one after the other."""

    def __str__(self) -> str:
        return "\n\n".join(map(str, self))


def fill(model: LoadedModel, text: str, *, top_k: int = 5, order: Order | Sequence[int] | None = None) -> FillResult:
    """Fill every mask of a text with its most likely token.

    Without an order, each mask is predicted from the text alone (AE). With an order, masks are predicted step by step
    (PAR), each from the text and the masks filled before (paper equations 4 and 6): `confidence` fills the most certain
    mask next, `left-to-right` one mask after the other, `span` all adjacent masks in one step, and a list of numbers the
    masks in that order. Special tokens are never predicted. If the text is longer than the model's window, each mask is
    filled from a window centred on it, with a warning.

    Args:
        model: The model.
        text: Text with one or more `[MASK]`, or the tokenizer's own mask token.
        top_k: Number of tokens to list for each mask.
        order: Prediction order, or the number of each mask, the leftmost being 1, in the order in which to fill them;
            default: all at once if the model's objective defines it, else `confidence`.

    Raises:
        UsageError: The text has no mask, the order is unknown, does not name each mask once or is not defined by the model's
            objective, or `top_k` is below 1.
        UniclozeError: The model predicts nan.
    """
    return _filled(model, [ready_to_fill(model, text, top_k=top_k, order=order)])[0]


def fill_texts(
    model: LoadedModel,
    texts: Sequence[str],
    *,
    top_k: int = 5,
    order: Order | None = None,
    place: str = "texts",
    progress: bool = False,
) -> FillResults:
    """Fill several texts as `fill` does, together."""
    asked = []
    for number, text in enumerate(texts, start=1):
        try:
            asked.append(ready_to_fill(model, text, top_k=top_k, order=order))
        except UsageError as error:
            raise UsageError(f"{place}:{number}: {error}") from error
    filled: list[FillResult] = []
    with Progress("fill", len(asked), "texts", show=progress) as bar:
        for first in range(0, len(asked), _TEXTS_AT_ONCE):
            filled += _filled(model, asked[first : first + _TEXTS_AT_ONCE])
            bar.update(len(filled) - first)
    return FillResults(filled)


def _filled(model: LoadedModel, asked: Sequence[ToFill]) -> list[FillResult]:
    deque(fill_together(model, asked), maxlen=0)
    return [text.result(model.tokenizer) for text in asked]


def _ability(order: Order | list[int] | None) -> Ability:
    return "cloze" if order is None else "stepwise"


@dataclass(kw_only=True)
class ToFill:
    """A text to fill, checked by `ready_to_fill`, and how far it is filled."""

    cloze: Cloze  # the text
    top_k: int  # number of tokens to list for each mask
    order: Order | list[int] | None  # prediction order
    limit: int  # tokens that the model reads at once
    target: str = ""  # name of the target that predicts the masks
    guesses: dict[int, Guesses] = field(default_factory=dict)  # by token index; final once the mask is filled

    @property
    def ability(self) -> Ability:
        """The ability that predicts its masks."""
        return _ability(self.order)

    def run(self) -> Iterator[list[_Window]]:
        """Fill all masks; the guesses of the windows must be set before the next ones are requested."""
        self.tokens = self.cloze.tokens.copy()  # with the masks filled so far
        self.steps = np.full(len(self.tokens), -1, dtype=np.int32)  # step that filled each token; -1: none
        places, order = self.cloze.places, self.order
        if order == "confidence":
            yield from self._run_by_confidence()
            return
        turns = [[place] for place in places]
        if order is None:
            turns = [places]
        elif order == "span":
            turns = [[places[i] for i in run] for run in self.cloze.runs()]
        elif isinstance(order, list):
            turns = [turns[number - 1] for number in order]
        for step, turn in enumerate(turns):
            together = order == "span"
            yield self._asked(turn, step=step, start=self._start(turn[0], turn[-1]) if together else None)
            self._fill(turn, step=step)

    def _run_by_confidence(self) -> Iterator[list[_Window]]:
        remaining = list(self.cloze.places)
        outdated = remaining
        for step in range(len(remaining)):
            if outdated:
                yield self._asked(outdated, step=step, alone=True)
            surest = max(remaining, key=lambda place: (self.guesses[place][0][1], -place))
            self._fill([surest], step=step)
            remaining = [place for place in remaining if place != surest]
            outdated = [place for place in remaining if 0 <= surest - self._start(place, place) < self.limit]

    def _start(self, first: int, last: int) -> int:
        """Index of the first token of the window centred on tokens `first` to `last`."""
        centred = (first + last + 1) // 2 - self.limit // 2
        return max(0, min(centred, len(self.tokens) - self.limit))

    def _fill(self, places: Sequence[int], *, step: int) -> None:
        self.tokens[places] = [self.guesses[place][0][0] for place in places]
        self.steps[places] = step

    def _asked(
        self, places: Sequence[int], *, step: int, start: int | None = None, alone: bool = False
    ) -> list[_Window]:
        """The windows that guess masks from those filled before, each centred on its masks if they are not all in one.

        All other open masks belong to a later step.
        """
        windows: dict[int, list[int]] = {}
        for place in places:
            windows.setdefault(self._start(place, place) if start is None else start, []).append(place)
        steps = self.steps.copy()
        still = [place for place in self.cloze.places if steps[place] < 0]
        steps[still] = [step if place in places or alone else step + 1 for place in still]
        return [
            _Window(
                of=self,
                tokens=self.tokens[first : first + self.limit],
                steps=steps[first : first + self.limit],
                places=asked,
                asked=np.isin(np.arange(first, min(first + self.limit, len(steps))), asked),
                alone=step if alone else None,
            )
            for first, asked in windows.items()
        ]

    def result(self, tokenizer: Tokenizer) -> FillResult:
        """The filled text."""
        cloze, unknown = self.cloze, tokenizer.vocabulary.unk
        masks = []
        for place, (start, end) in zip(cloze.places, cloze.spans, strict=True):
            ids, probabilities = zip(*self.guesses[place], strict=True)
            top = list(zip(tokenizer.tokens(ids), probabilities, strict=True))
            readable = [cloze.readable(token, start, tokenizer) for token in ids]
            masks.append(
                MaskFill(
                    start=start, end=end, position=place + 1, step=int(self.steps[place]) + 1, token=top[0][0], top=top,
                    readable=readable,
                )
            )  # fmt: skip
        note, missing = None, int((cloze.tokens == unknown).sum())
        if missing:
            what = "1 token not in the vocabulary is" if missing == 1 else f"{missing} tokens not in the vocabulary are"
            note = f"{what} read as {tokenizer.tokens([unknown])[0]}"
        filled = cloze.splice([int(self.tokens[place]) for place in cloze.places], tokenizer)
        return FillResult(text=cloze.text, filled=filled, target=self.target, order=self.order, masks=masks, note=note)


@dataclass(frozen=True, kw_only=True)
class _Window:
    """A part of a text that the model reads at once, and the masks that a step guesses in it."""

    of: ToFill  # receives the guesses
    tokens: Int32s  # Tokens without special tokens. *Shape:* (tokens,)
    steps: Int32s  # Their factorization steps. *Shape:* (tokens,)
    places: list[int]  # indices in the text of the masks to guess
    asked: Flags  # Which tokens these are. *Shape:* (tokens,)
    alone: int | None  # step whose masks are guessed as if each were the only one; None if they are guessed together


def ready_to_fill(
    model: LoadedModel, text: str, *, top_k: int = 5, order: Order | Sequence[int] | None = None
) -> ToFill:
    """Check what `fill` is asked for, without computing anything. Arguments and errors are those of `fill`."""
    if order is not None and not isinstance(order, str):
        order = list(order)
    elif order is not None and order not in get_args(Order):
        raise UsageError(f"order is {order!r}: give one of {', '.join(get_args(Order))}")
    if top_k < 1:
        raise UsageError(f"top_k is {top_k}: give 1 or more")
    inputs.check_text(text, "the text")
    objective = objective_of(model.recipe)
    inputs.check_predicts_tokens(model, "fill masks")
    at_once, in_order = part_with(objective, "cloze"), part_with(objective, "stepwise")
    if in_order is None and at_once is None:
        orders = ", ".join(get_args(Order))
        raise UsageError(
            f"{lacks(objective, 'cloze', 'filling masks')}, neither all at once nor in an order ({orders}): use a model of "
            f"another objective, such as unilmv2 or masked; {inputs.instead(model)}"
        )
    if order is not None and in_order is None:
        raise UsageError(
            f"{lacks(objective, 'stepwise', 'an order')}: leave out order {order!r}, and all masks are filled at once"
        )
    if at_once is None and order is None:
        order = "confidence"
    cloze, limit = Cloze.read(text, model.tokenizer), longest_text(model)
    if isinstance(order, list) and sorted(order) != list(range(1, len(cloze.places) + 1)):
        raise UsageError(
            f"the order {' '.join(map(str, order))} does not name each of the {len(cloze.places)} masks once: number them "
            "from 1, left to right"
        )
    longest = max(map(len, cloze.runs()))
    if order == "span" and longest > limit:
        raise UsageError(
            f"{longest} adjacent masks are more than the model reads at once, {limit}: give the order left-to-right or "
            "confidence"
        )
    if len(cloze.tokens) > limit:
        warnings.warn(
            f"the text has {len(cloze.tokens)} tokens, but the model reads {limit} at once: each mask is filled from the "
            "tokens around it",
            stacklevel=3,
        )
    return ToFill(cloze=cloze, top_k=top_k, order=order, limit=limit)


def fill_together(model: LoadedModel, texts: Sequence[ToFill]) -> Iterator[None]:
    """Fill several texts as `fill` does, each step of all of them together; `ToFill.result` then has what was found.

    A text's result does not depend on the others, up to rounding.
    """
    running = [text.run() for text in texts]
    while running:
        asked = [(run, windows) for run in running if (windows := next(run, None)) is not None]
        for ability in ("cloze", "stepwise"):
            together = [window for _, windows in asked for window in windows if window.of.ability == ability]
            yield from _answer(model, together)
        running = [run for run, _ in asked]


def filled_row(model: LoadedModel, result: FillResult) -> Examples:
    """The row that predicts all masks of a filled text in the order in which they were filled."""
    tokens, limit = model.tokenizer.encode(result.text), longest_text(model)
    if len(tokens) > limit:
        raise UsageError(f"the text has {len(tokens)} tokens, but the model reads {limit} at once: give a shorter text")
    steps = np.full(len(tokens), -1)
    for mask in result.masks:
        token = model.tokenizer.token_id(mask.token)
        assert token is not None
        tokens[mask.position - 1], steps[mask.position - 1] = token, mask.step - 1
    return inputs.rows_to_ask(model, _ability(result.order), [tokens], [steps])


def _answer(model: LoadedModel, windows: Sequence[_Window]) -> Iterator[None]:
    """Guess in windows predicted by one ability, in forward passes of similar lengths; yields after each."""
    for block in inputs.by_length([len(window.tokens) for window in windows], _ROWS_AT_ONCE):
        chosen = [windows[i] for i in block]
        parts = zip(*((window.tokens, window.steps, window.asked) for window in chosen), strict=True)
        examples = inputs.rows_to_ask(model, chosen[0].of.ability, *parts)
        for i, window in enumerate(chosen):
            if window.alone is not None:
                _part_step_mates(examples, i, window.alone)
        size, answered = inputs.rows_at_once(examples.input_ids.shape[1], _ROWS_AT_ONCE), iter(chosen)
        for part in examples.split(size):
            for logits, window in zip(inputs.logits_of(model, part)[0].float().cpu(), answered, strict=False):
                guesses = _guesses(logits[: len(window.places)], model.tokenizer.vocabulary, window.of.top_k)
                (window.of.target,) = examples.targets
                window.of.guesses.update(zip(window.places, guesses, strict=True))
            yield None


def _guesses(logits: torch.Tensor, vocabulary: Vocabulary, top_k: int) -> list[Guesses]:
    """The most likely ordinary tokens for each prediction."""
    ordinary = torch.from_numpy(vocabulary.ordinary).long()
    best = torch.softmax(logits[:, ordinary], dim=-1).topk(min(top_k, len(ordinary)), dim=-1)
    inputs.check_numbers(best.values)
    tokens = zip(ordinary[best.indices].tolist(), best.values.tolist(), strict=True)
    return [list(zip(*pair, strict=True)) for pair in tokens]


def _part_step_mates(examples: Examples, row: int, step: int) -> None:
    """Restrict each token of a row's step to its own mask, so that it is predicted as if it were alone in the step."""
    (slot,) = np.nonzero((examples.steps[row] == step) & (examples.kinds[row] == Kind.PSEUDO))
    first, last = examples.intervals[row, slot, 2:].T
    slot = slot[(first <= slot) & (slot < last)]
    examples.intervals[row, slot, 2:] = np.stack([slot, slot + 1], axis=1)
