"""Counting n-grams of tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

Ngram = tuple[str, ...]


def ngrams(tokens: Sequence[str], n: int) -> Counter[Ngram]:
    """How often each n-gram occurs."""
    return Counter(zip(*(tokens[start:] for start in range(n)), strict=False))


def highest_counts(texts: Iterable[Sequence[str]], n: int) -> Counter[Ngram]:
    """Of each n-gram its count in the text that has most of it."""
    highest: Counter[Ngram] = Counter()
    for tokens in texts:
        highest |= ngrams(tokens, n)
    return highest


def matches(counts: Counter[Ngram], highest: Counter[Ngram]) -> Counter[Ngram]:
    """Counts cut down to those of the references."""
    return counts & highest
