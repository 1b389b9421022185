"""Compares answers like the official scripts of SQuAD and CoQA."""

from __future__ import annotations

import re
import string
from collections import Counter
from functools import lru_cache

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


@lru_cache(maxsize=2**16)
def normalise(answer: str) -> str:
    """Lower-case an answer and remove ASCII punctuation, English articles and extra white space."""
    return " ".join(_ARTICLE.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, reference: str) -> float:
    """1 if both are the same once normalised, else 0."""
    return float(normalise(prediction) == normalise(reference))


def token_f1(prediction: str, reference: str) -> float:
    """F1 of the words in common, from 0 to 1; if either has no words, 1 if both have none, else 0."""
    found, wanted = normalise(prediction).split(), normalise(reference).split()
    if not found or not wanted:
        return float(found == wanted)
    common = sum((Counter(found) & Counter(wanted)).values())
    return 2 * common / (len(found) + len(wanted))
