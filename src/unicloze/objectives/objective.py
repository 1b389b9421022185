"""What an objective is: functions that lay out rows, and the settings they read."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from unicloze.settings import ObjectiveSettings

if TYPE_CHECKING:
    from unicloze.example import Examples
    from unicloze.objectives.generation_layout import GenerationLayout
    from unicloze.objectives.masking import Rates, Steps
    from unicloze.text.tokenizers import Vocabulary
    from unicloze.text.windows import Windows

S = TypeVar("S", bound=ObjectiveSettings)

Ability = Literal["cloze", "stepwise", "causal"]
LayOut = Callable[["Windows", "Steps", "Vocabulary", Any], "Examples"]
"""Lays out rows that predict given tokens."""


@dataclass(frozen=True, kw_only=True)
class Objective(Generic[S]):
    """One objective, as functions; what follows from its settings alone stands in their class.

    `cloze`, `stepwise` and `causal` lay out rows with one target and nothing drawn at random, to measure and to use a
    model by; None where a model trained by this objective does not define that.

    Args:
        settings: The class of its settings.
        make: Rows to train on, pure in its arguments: windows, vocabulary, settings, and the mask rate of each row (that of
            the settings if None). Every random draw is keyed by `windows.keys`.
        cloze: Predict the tokens with a step >= 0 all at once from the rest (autoencoding). The j-th prediction of a row is
            its j-th such token by step, then position.
        stepwise: Predict them step by step, each step seeing the tokens of earlier ones; in the same order.
        causal: Predict every maskable token from those left of it. The j-th prediction of a row is its j-th maskable token.
        defines: Which of these three settings train for; all that there are if not given.
        causal_masks: Whether `causal` masks the whole text, more of it than most rows of training do.
        generates: How a model writes a text, or None where settings do not train for it; it cannot if not given.
        check: Refuses text that the objective can do nothing with; called with some windows before the first step.
    """

    settings: type[S]
    make: Callable[[Windows, Vocabulary, S, Rates | None], Examples]
    cloze: Callable[[Windows, Steps, Vocabulary, S], Examples] | None = None
    stepwise: Callable[[Windows, Steps, Vocabulary, S], Examples] | None = None
    causal: Callable[[Windows, Vocabulary, S], Examples] | None = None
    defines: Callable[[S], Collection[Ability]] | None = None
    causal_masks: bool = False
    generates: Callable[[S, Vocabulary], GenerationLayout | None] | None = None
    check: Callable[[Windows, Vocabulary, S], None] | None = None
