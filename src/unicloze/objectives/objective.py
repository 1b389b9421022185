"""Defines an objective: functions that lay out rows, and their settings."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from unicloze.settings import ObjectiveSettings

if TYPE_CHECKING:
    from unicloze.example import Examples
    from unicloze.objectives.generation_format import GenerationFormat
    from unicloze.objectives.masking import Rates, Steps
    from unicloze.text.vocabulary import Vocabulary
    from unicloze.text.windows import Windows

S = TypeVar("S", bound=ObjectiveSettings)

Ability = Literal["cloze", "stepwise", "causal"]
LayOut = Callable[["Windows", "Steps", "Vocabulary", Any], "Examples"]
"""A function that lays out rows that predict given tokens."""


@dataclass(frozen=True, kw_only=True)
class Objective(Generic[S]):
    """One objective, as functions; whatever depends on its settings alone is in the settings class.

    `cloze`, `stepwise` and `causal` lay out rows with one target and no random draws, for evaluation and inference; None
    if a model trained with this objective cannot predict that way.
    """

    settings: type[S]  # the class of its settings
    # Training rows, a pure function of windows, vocabulary, settings, and the mask rate of each row (None: that of the
    # settings). Every random draw is keyed by `windows.keys`.
    make: Callable[[Windows, Vocabulary, S, Rates | None], Examples]
    # Predict all tokens with a step >= 0 at once from the rest (autoencoding). The j-th prediction of a row is its j-th
    # such token by step, then position.
    cloze: Callable[[Windows, Steps, Vocabulary, S], Examples] | None = None
    # predict the same tokens in the same order step by step, each step seeing the tokens of earlier steps
    stepwise: Callable[[Windows, Steps, Vocabulary, S], Examples] | None = None
    # Predict every maskable token from those left of it. The j-th prediction of a row is its j-th maskable token.
    causal: Callable[[Windows, Vocabulary, S], Examples] | None = None
    # which of these three abilities the settings train; default: all that are not None
    defines: Callable[[S], Collection[Ability]] | None = None
    at_masks: bool = False  # whether steps are predicted at masks in place, so that a stock model fills them too
    causal_masks: bool = False  # whether `causal` masks the whole text, which is more than most training rows do
    # how a model generates text, or None if the settings do not train it; default: it cannot generate
    generates: Callable[[S, Vocabulary], GenerationFormat | None] | None = None
    not_done: str = ""  # generation of its paper that is absent here, in words; empty if there is none
    # rejects text that the objective cannot use; called with some windows before the first step
    check: Callable[[Windows, Vocabulary, S], None] | None = None
