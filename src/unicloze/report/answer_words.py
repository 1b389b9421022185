"""Puts the labels of predictions into words: mostly tokens, but also segment-pair relations and yes-no questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from unicloze.example import predicts_tokens
from unicloze.text.tokenizers import Tokenizer

Labels = npt.NDArray[np.integer]

_RELATIONS = "follows", "does not follow"


def _relations(labels: Labels) -> list[str]:
    return [_RELATIONS[label] for label in labels.tolist()]


def _questions(labels: Labels) -> list[str]:
    """A question, as the labels are the original tokens and only the model knows which ones it replaced."""
    return ["replaced?"] * len(labels)


_IN_WORDS: Mapping[str, Callable[[Labels], list[str]]] = {
    "nsp": _relations,
    "sop": _relations,
    "rtd": _questions,
}
"""Functions that put labels into words, for targets whose labels are not tokens."""


def spell(target: str, labels: Labels, tokenizer: Tokenizer) -> list[str]:
    """The labels of one target in words."""
    return tokenizer.tokens(labels) if predicts_tokens(target) else _IN_WORDS[target](labels)
