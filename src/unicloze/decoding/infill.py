"""Fills masks in a text: all at once (AE), or step by step in any order (PAR)."""

from __future__ import annotations

import dataclasses
import re
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch

from unicloze.decoding.abilities import lacks, objective_of, part_with
from unicloze.decoding.inputs import (
    SPECIALS_OF_A_WINDOW,
    check_numbers,
    check_text,
    logits_of,
    longest_text,
    one_segment,
    rows_at_once,
)
from unicloze.decoding.uses import check_predicts_tokens, instead
from unicloze.errors import UsageError
from unicloze.example import Examples, Target
from unicloze.objectives import LayOut, defined
from unicloze.settings import ObjectiveSettings, Order
from unicloze.text.tokenizers import MASK, Tokenizer
from unicloze.training.loading import LoadedModel

Guesses = list[tuple[int, float]]

_ROWS_AT_ONCE = 32
_SIGNS_OF_LINES = str.maketrans({"\n": "\u23ce", "\r": "\u240d", "\t": "\u21e5"})
_SIGNS = _SIGNS_OF_LINES | str.maketrans({" ": "\u2423", "\xa0": "\u2423"})


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
class FillResult:
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

    def to_dict(self) -> dict[str, Any]:
        """The fields as a JSON-serialisable dictionary."""
        return dataclasses.asdict(self)

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
        UniclozeError: The tokenizer splits masks, or the model predicts nan.
    """
    if order is not None and not isinstance(order, str):
        order = list(order)
    elif order is not None and order not in get_args(Order):
        raise UsageError(f"order is {order!r}: give one of {', '.join(get_args(Order))}")
    if top_k < 1:
        raise UsageError(f"top_k is {top_k}: give 1 or more")
    check_text(text, "the text")
    objective = objective_of(model.recipe)
    if model.recipe.task.kind:
        check_predicts_tokens(model, "fill masks")
    at_once, in_order = part_with(objective, "cloze"), part_with(objective, "stepwise")
    if in_order is None and at_once is None:
        orders = ", ".join(get_args(Order))
        raise UsageError(
            f"{lacks(objective, 'cloze', 'filling masks')}, neither all at once nor in an order ({orders}): use a model of "
            f"another objective, such as unilmv2 or masked; {instead(model)}"
        )
    if order is not None and in_order is None:
        raise UsageError(
            f"{lacks(objective, 'stepwise', 'an order')}, all masks are filled at once: leave out order {order!r}"
        )
    if at_once is None and order is None:
        order = "confidence"
    cloze = _Cloze.read(text, model.tokenizer)
    if isinstance(order, list) and sorted(order) != list(range(1, len(cloze.places) + 1)):
        raise UsageError(
            f"the order {' '.join(map(str, order))} does not name each of the {len(cloze.places)} masks once: number them "
            "from 1, left to right"
        )
    settings = at_once if order is None else in_order
    assert settings is not None
    filler = _Filler(model, cloze, top_k, settings, stepwise=order is not None)
    filler.run(order)
    spell = model.tokenizer.tokens
    masks = []
    for place, (start, end) in zip(cloze.places, cloze.spans, strict=True):
        ids, probabilities = zip(*filler.guesses[place], strict=True)
        top = list(zip(spell(ids), probabilities, strict=True))
        masks.append(
            MaskFill(
                start=start,
                end=end,
                position=place + 1,
                step=int(filler.steps[place]) + 1,
                token=top[0][0],
                top=top,
                readable=[cloze.readable(token, start, model.tokenizer) for token in ids],
            )
        )
    return FillResult(
        text=text,
        filled=cloze.splice([int(filler.tokens[place]) for place in cloze.places], model.tokenizer),
        target=filler.target,
        order=order,
        masks=masks,
        note=_note(cloze.tokens, model.tokenizer),
    )


def filled_row(model: LoadedModel, result: FillResult) -> Examples:
    """The row that predicts all masks of a filled text in the order in which they were filled.

    Args:
        model: The model that filled it.
        result: The filled text.

    Raises:
        UsageError: The text is longer than the model reads at once.
    """
    objective, vocabulary = objective_of(model.recipe), model.tokenizer.vocabulary
    settings = part_with(objective, "cloze" if result.order is None else "stepwise")
    assert settings is not None
    able = defined(settings)
    lay_out = able.cloze if result.order is None else able.stepwise
    assert lay_out is not None
    tokens = model.tokenizer.encode(result.text)
    if len(tokens) > longest_text(model):
        raise UsageError(
            f"the text has {len(tokens)} tokens, but the model reads {longest_text(model)} at once: give a shorter text"
        )
    steps = np.full((1, len(tokens) + SPECIALS_OF_A_WINDOW), -1, dtype=np.int32)
    for mask in result.masks:
        token = model.tokenizer.token_id(mask.token)
        assert token is not None
        tokens[mask.position - 1], steps[0, mask.position] = token, mask.step - 1
    return lay_out(one_segment([tokens], vocabulary), steps, vocabulary, settings)


def _note(tokens: npt.NDArray[np.int32], tokenizer: Tokenizer) -> str | None:
    unknown = int((tokens == tokenizer.vocabulary.unk).sum())
    if not unknown:
        return None
    what = "1 token not in the vocabulary is" if unknown == 1 else (f"{unknown} tokens not in the vocabulary are")
    return f"{what} read as {tokenizer.tokens([tokenizer.vocabulary.unk])[0]}"


@dataclass(frozen=True)
class _Cloze:
    """A text with masks.

    Args:
        text: The text.
        spans: First character of each mask and first character after it.
        tokens: Token ids of the whole text. *Shape:* (tokens,)
        places: Index of each mask's token.
        spaced: Whether tokens include the preceding space, so that a mask covers the space before it as well.
    """

    text: str
    spans: list[tuple[int, int]]
    tokens: npt.NDArray[np.int32]
    places: list[int]
    spaced: bool

    @classmethod
    def read(cls, text: str, tokenizer: Tokenizer) -> _Cloze:
        masks = "|".join(re.escape(mask) for mask in tokenizer.masks)
        spans = [match.span() for match in re.finditer(masks, text)]
        if not spans:
            raise UsageError(f'the text has no mask: put {MASK} in place of a word, as in "The {MASK} of a list."')
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
        touches = _spells(before[-1:]) or any(end == len(before) for _, end in self.spans)
        is_piece = word == surface and touches and _spells(word[0])
        return ("##" if is_piece else "") + word.translate(_SIGNS_OF_LINES)

    def runs(self) -> list[list[int]]:
        """Indices of the masks, grouped into runs of adjacent masks."""
        runs = [[0]]
        for i, (left, right) in enumerate(pairwise(self.places), start=1):
            if right == left + 1:
                runs[-1].append(i)
            else:
                runs.append([i])
        return runs

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
                    touches = not between and part[0] > run[0] and _spells(filled[-1:]) and _spells(word[:1])
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


class _Filler:
    """State of filling one text.

    Args:
        loaded: The model.
        cloze: The text.
        top_k: Number of guesses to keep for each mask.
        settings: Objective that defines the predictions.
        stepwise: Predict step by step; otherwise all at once.
    """

    def __init__(
        self, loaded: LoadedModel, cloze: _Cloze, top_k: int, settings: ObjectiveSettings, *, stepwise: bool
    ) -> None:
        able = defined(settings)
        lay_out = able.stepwise if stepwise else able.cloze
        assert lay_out is not None
        self.loaded, self.cloze, self.top_k, self.settings = loaded, cloze, top_k, settings
        self.lay_out: LayOut = lay_out
        self.target = ""
        self.limit = longest_text(loaded)
        self.tokens = cloze.tokens.copy()  # with the masks filled so far
        self.steps = np.full(len(self.tokens), -1, dtype=np.int32)  # step that filled each token; -1: none
        self.guesses: dict[int, Guesses] = {}  # by token index; final once the mask is filled
        if len(self.tokens) > self.limit:
            warnings.warn(
                f"the text has {len(self.tokens)} tokens, but the model reads {self.limit} at once: each mask is filled "
                "from the tokens around it",
                stacklevel=3,
            )

    def run(self, order: Order | list[int] | None) -> None:
        """Fill all masks."""
        places = self.cloze.places
        if order is None:
            self._predict(self._windows(places), step=0)
            self._fill(places, step=0)
        elif order == "left-to-right" or isinstance(order, list):
            turns = [places[number - 1] for number in order] if isinstance(order, list) else places
            for step, place in enumerate(turns):
                self._predict(self._windows([place]), step=step)
                self._fill([place], step=step)
        elif order == "span":
            for step, run in enumerate(self.cloze.runs()):
                together = [places[i] for i in run]
                if len(together) > self.limit:
                    raise UsageError(
                        f"{len(together)} adjacent masks are more than the model reads at once, {self.limit}: "
                        "give the order left-to-right or confidence"
                    )
                self._predict({self._start(together[0], together[-1]): together}, step=step)
                self._fill(together, step=step)
        else:
            self._run_by_confidence()

    def _run_by_confidence(self) -> None:
        remaining = list(self.cloze.places)
        outdated = remaining
        for step in range(len(remaining)):
            if outdated:
                self._predict(self._windows(outdated), step=step, alone=True)
            surest = max(remaining, key=lambda place: (self.guesses[place][0][1], -place))
            self._fill([surest], step=step)
            remaining = [place for place in remaining if place != surest]
            outdated = [p for p in remaining if 0 <= surest - self._start(p, p) < self.limit]

    def _start(self, first: int, last: int) -> int:
        """Index of the first token of the window centred on tokens `first` to `last`."""
        centred = (first + last + 1) // 2 - self.limit // 2
        return max(0, min(centred, len(self.tokens) - self.limit))

    def _windows(self, places: Iterable[int]) -> dict[int, list[int]]:
        """The masks to predict in each window, by the window's first token."""
        windows: dict[int, list[int]] = {}
        for place in places:
            windows.setdefault(self._start(place, place), []).append(place)
        return windows

    def _fill(self, places: Sequence[int], *, step: int) -> None:
        for place in places:
            self.tokens[place] = self.guesses[place][0][0]
            self.steps[place] = step

    def _predict(self, windows: Mapping[int, list[int]], *, step: int, alone: bool = False) -> None:
        """Guess the requested masks from those filled before; all other open masks belong to a later step.

        Args:
            windows: Masks to guess, by the first token of the window they are guessed from.
            step: Number of this step.
            alone: Guess each mask as if it were the only one in this step.
        """
        steps = self.steps.copy()
        asked = [place for places in windows.values() for place in places]
        for place in self.cloze.places:
            if steps[place] < 0:
                steps[place] = step if place in asked or alone else step + 1
        row_steps, examples = self._examples(list(windows), steps)
        if alone:
            _part_step_mates(examples, step)
        ((self.target, target),) = examples.targets.items()
        asked_of_rows = [[place - start + 1 for place in places] for start, places in windows.items()]
        examples = dataclasses.replace(examples, targets={self.target: _predictions(target, row_steps, asked_of_rows)})
        rows = rows_at_once(examples.input_ids.shape[1], _ROWS_AT_ONCE)
        guesses = [row for part in examples.split(rows) for row in self._guesses(part)]
        for row_of_guesses, places in zip(guesses, windows.values(), strict=True):
            self.guesses.update(zip(places, row_of_guesses, strict=False))

    def _examples(self, starts: Sequence[int], steps: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], Examples]:
        """Steps, *Shape:* (rows, window), and examples of the windows that start at the given tokens."""
        vocabulary = self.loaded.tokenizer.vocabulary
        windows = one_segment([self.tokens[start : start + self.limit] for start in starts], vocabulary)
        row_steps = np.full(windows.token_ids.shape, -1, dtype=np.int32)
        row_steps[:, 1:-1] = [steps[start : start + self.limit] for start in starts]
        return row_steps, self.lay_out(windows, row_steps, vocabulary, self.settings)

    def _guesses(self, examples: Examples) -> list[list[Guesses]]:
        """The most likely ordinary tokens for each prediction of each row."""
        ordinary = torch.from_numpy(self.loaded.tokenizer.vocabulary.ordinary).long()
        logits = logits_of(self.loaded, examples)[0].float().cpu()
        best = torch.softmax(logits[:, :, ordinary], dim=-1).topk(min(self.top_k, len(ordinary)), dim=-1)
        check_numbers(best.values)
        ids = ordinary[best.indices].tolist()
        return [
            [list(zip(*pair, strict=True)) for pair in zip(row_ids, row_values, strict=True)]
            for row_ids, row_values in zip(ids, best.values.tolist(), strict=True)
        ]


def _part_step_mates(examples: Examples, step: int) -> None:
    """Restrict each token of a step to its own mask, so that it is predicted as if it were alone in the step."""
    row, slot = np.nonzero(examples.steps == step)
    first, last = examples.intervals[row, slot, 2:].T
    mates = (first <= slot) & (slot < last)
    row, slot = row[mates], slot[mates]
    examples.intervals[row, slot, 2:] = np.stack([slot, slot + 1], axis=1)


def _predictions(target: Target, steps: npt.NDArray[np.int32], positions: Sequence[Sequence[int]]) -> Target:
    """The predictions of a target, ordered by step and position, for the given positions of each row."""
    most = max(map(len, positions))
    slots = np.zeros((len(positions), most, *target.slots.shape[2:]), dtype=np.int32)
    weights = np.zeros((len(positions), most), dtype=np.float32)
    for row, asked in enumerate(positions):
        masked = np.flatnonzero(steps[row] >= 0)
        rank = {int(position): j for j, position in enumerate(masked[np.argsort(steps[row, masked], kind="stable")])}
        slots[row, : len(asked)] = target.slots[row, [rank[position] for position in asked]]
        weights[row, : len(asked)] = 1.0
    return Target(slots=slots, labels=np.zeros(weights.shape, dtype=np.int32), weights=weights)
