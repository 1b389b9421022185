"""Counts n-grams of tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

Ngram = tuple[str, ...]


def ngrams(tokens: Sequence[str], n: int) -> Counter[Ngram]:
    """Count each n-gram."""
    return Counter(zip(*(tokens[start:] for start in range(n)), strict=False))


def highest_counts(texts: Iterable[Sequence[str]], n: int) -> Counter[Ngram]:
    """The highest count of each n-gram in any one text."""
    highest: Counter[Ngram] = Counter()
    for tokens in texts:
        highest |= ngrams(tokens, n)
    return highest


def matches(counts: Counter[Ngram], highest: Counter[Ngram]) -> Counter[Ngram]:
    """Counts clipped to those of the references."""
    return counts & highest
