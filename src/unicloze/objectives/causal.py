"""Causal language models: predict every token from the tokens before it (GPT, GPT-2, GPT-3).

A row is the unchanged window. From left to right, the slot of [SOS] predicts the first token, the slot of each token the
next one, and the slot of the last token [EOS]; right to left is the mirror image, and [SOS] ends the text. `lm` is predicted
at these slots. [EOS] and [SOS] are predicted only where a document ends or begins, not where a window was cut out of one.
`Examples.local` holds the visibility of local layers (GPT-3).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from unicloze import visibility
from unicloze.arrays import Flags, ranks
from unicloze.errors import UsageError
from unicloze.example import Examples, Kind, Target
from unicloze.objectives.generation_format import GenerationFormat, layout
from unicloze.objectives.groups import Directed
from unicloze.objectives.objective import Ability, Objective
from unicloze.objectives.row_builder import unknown_words
from unicloze.rules import NOT_NEGATIVE, Needs, Problem
from unicloze.settings import Reading, Recipe
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows
from unicloze.visibility import Intervals


class _Rows(Protocol):
    def __call__(self, lengths: npt.NDArray[np.int32], *, capacity: int) -> Intervals: ...


@dataclass(frozen=True)
class _Direction:
    """A reading direction: its visibility, and the offset from an answer to the slot that predicts it."""

    rows: _Rows
    shift: int


_DIRECTIONS: Mapping[str, _Direction] = {
    "left_to_right": _Direction(visibility.left_to_right_rows, -1),
    "right_to_left": _Direction(visibility.right_to_left_rows, 1),
}


@dataclass(frozen=True, kw_only=True)
class CausalSettings(Directed):
    """Settings of causal language models.

    Args:
        local_width: Number of slots to the left that a slot attends to in layers with `model.layer_visibility` `local`
            (GPT-3).
    """

    name: str = "causal"
    local_width: int | None = None

    known_targets = ("lm",)
    in_order = True
    ranges: ClassVar = {"local_width": NOT_NEGATIVE}
    needs: ClassVar = {
        "local_width": (
            Needs("'local' in model.layer_visibility", lambda recipe: "local" in recipe.model.layer_visibility),
        )
    }

    @property
    def reading(self) -> Reading:
        """How the rows read a text, including the width of local layers."""
        return super().reading._replace(local_width=self.local_width)

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Reject directions in which a slot would see its answer."""
        yield from super().problems(recipe)
        if self.visibility not in _DIRECTIONS:
            yield "objective.visibility", f"objective causal needs {' or '.join(_DIRECTIONS)}"


def causal(
    windows: Windows,
    vocabulary: Vocabulary,
    settings: CausalSettings,
    rates: npt.NDArray[np.float64] | None = None,
) -> Examples:
    """Rows that predict each token from those before it, without random draws.

    [UNK] and special tokens at a cut are visible but never predicted.

    Args:
        windows: The text.
        vocabulary: Provides the id of [UNK].
        settings: Reading direction and width of local layers.
        rates: Not used: nothing is masked.
    """
    answers = np.arange(windows.token_ids.shape[1]) < windows.lengths[:, None]
    answers &= ~unknown_words(windows.token_ids, vocabulary)
    return lay_out(windows, settings, answers=answers if windows.cut is None else answers & ~windows.cut)


def chain(windows: Windows, vocabulary: Vocabulary, settings: CausalSettings) -> Examples:
    """Rows that predict every maskable token from those before it in the reading direction, by ascending position."""
    return lay_out(windows, settings, answers=windows.maskable)


def lay_out(windows: Windows, settings: CausalSettings, *, answers: Flags) -> Examples:
    """Rows that predict the given tokens, except those without a slot before them.

    Args:
        windows: The text.
        settings: Reading direction and width of local layers.
        answers: The tokens to predict. *Shape:* (rows, window)
    """
    direction = _DIRECTIONS.get(settings.visibility)
    if direction is None:
        raise UsageError(
            f"objective.visibility is {settings.visibility}, which lets a slot see its own answer: set "
            f"--objective.visibility {' or '.join(_DIRECTIONS)}."
        )
    rows, window = windows.token_ids.shape
    position = np.arange(window, dtype=np.int32)
    intervals = direction.rows(windows.lengths, capacity=window)
    named = np.array(settings.reading.segments, dtype=np.int32)
    return Examples(
        input_ids=windows.token_ids,
        position_ids=np.tile(position, (rows, 1)),
        segment_ids=named[windows.segment_ids],
        kinds=np.where(position < windows.lengths[:, None], Kind.CONTEXT, Kind.PADDING).astype(np.uint8),
        steps=np.full((rows, window), -1, dtype=np.int32),
        intervals=intervals,
        local=None if settings.local_width is None else visibility.nearby(intervals, settings.local_width),
        lengths=windows.lengths,
        mutual=np.zeros(rows, dtype=np.int32),
        text_tokens=windows.lengths,
        targets={"lm": _target(windows, answers, direction.shift)},
    )


def _target(windows: Windows, answers: Flags, shift: int) -> Target:
    slot = np.arange(windows.token_ids.shape[1], dtype=np.int32) + np.int32(shift)
    row, position = np.nonzero(answers & (slot >= 0) & (slot < windows.lengths[:, None]))
    counts = np.bincount(row, minlength=len(windows))
    rank = ranks(row, len(windows))
    shape = len(windows), windows.token_ids.shape[1] - 1
    slots, labels = np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.int32)
    slots[row, rank] = position + shift
    labels[row, rank] = windows.token_ids[row, position]
    weights = (np.arange(shape[1]) < counts[:, None]).astype(np.float32)
    return Target(slots=slots, labels=labels, weights=weights)


def _generates(settings: CausalSettings, vocabulary: Vocabulary) -> GenerationFormat | None:
    return layout(settings, vocabulary, predicts="next", decoder_only=True) if _to_the_right(settings) else None


def _defines(settings: CausalSettings) -> set[Ability]:
    return {"causal"} if _to_the_right(settings) else set()


def _to_the_right(settings: CausalSettings) -> bool:
    return settings.visibility == "left_to_right"


OBJECTIVES: Mapping[str, Objective[Any]] = {
    "causal": Objective(
        settings=CausalSettings,
        make=causal,
        causal=chain,
        defines=_defines,
        generates=_generates,
    )
}
