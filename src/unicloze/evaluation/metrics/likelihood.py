"""Language models by what they find likely: LAMBADA's last words, perplexity, bits per character."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from unicloze.errors import UsageError
from unicloze.evaluation.metrics.result import MetricResult, check_texts

_AROUND = re.compile(r"^\W+|\W+$")


def lambada(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> MetricResult:
    """Share of the passages whose last word is right (Paperno et al. 2016).

    Args:
        predictions: The predicted word, or a text that ends in it.
        references: The passages, or their last words. Punctuation around a word is left out of account, case is not.

    Raises:
        UniclozeError: Predictions and references do not match.
    """
    check_texts(predictions, references)
    right = sum(
        last_word(prediction) in {last_word(one) for one in several} - {""}
        for prediction, several in zip(predictions, references, strict=True)
    )
    return MetricResult(metric="lambada", values={"accuracy": 100 * right / len(predictions)}, items=len(predictions))


def last_word(text: str) -> str:
    """The last word of a text without the punctuation around it; empty if there is none."""
    words = [word for word in (_AROUND.sub("", piece) for piece in text.split()) if word]
    return words[-1] if words else ""


def perplexity(log_likelihood: float, tokens: int) -> float:
    """How many equally likely tokens a model is torn between at each place.

    Args:
        log_likelihood: Of a text, in nats.
        tokens: The tokens, or words, it is shared among.

    Raises:
        UsageError: There are none.
    """
    _check(tokens, "tokens")
    return math.exp(-log_likelihood / tokens)


def bits_per_character(log_likelihood: float, characters: int) -> float:
    """What a model needs to spell a text, whatever its tokens are.

    Args:
        log_likelihood: Of a text, in nats.
        characters: Characters (Unicode code points) of the text.

    Raises:
        UsageError: There are none.
    """
    _check(characters, "characters")
    return -log_likelihood / math.log(2) / characters


def _check(count: int, of: str) -> None:
    if count < 1:
        raise UsageError(f"The text has {count} {of}: give one with at least one.")
