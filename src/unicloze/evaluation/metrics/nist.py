"""NIST (Doddington 2002) as the script mteval-v13a computes it: n-grams weighted by their information."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from unicloze.evaluation.metrics.ngrams import Ngram, highest_counts, matches, ngrams
from unicloze.evaluation.metrics.result import MetricResult, check_texts, library

TOKENIZE = "13a", "none"
_BETA = math.log(0.5) / math.log(1.5) ** 2
"""Makes the penalty one half when a prediction has two thirds of the words."""


def nist(predictions: Sequence[str], references: Sequence[Sequence[str]], *, tokenize: str = "13a") -> MetricResult:
    """NIST of 1- to 4-grams (NIST-4, as in DSTC7) and of 1- to 5-grams (the script's default).

    The information of an n-gram is log2(count of its first n - 1 words / count of the n-gram), over all references of the
    corpus. A matched n-gram counts at most as often as in the reference with the most occurrences; each sum is divided by
    the number of n-grams predicted. The length penalty compares all predicted words with the mean reference length.
    """
    check_texts(predictions, references)
    split = _Tokens(tokenize)
    found = [split(text) for text in predictions]
    wanted = [[split(text) for text in several] for several in references]
    information = _information(wanted)
    sums = [_gain(found, wanted, information, n) for n in range(1, 6)]
    length = sum(sum(map(len, several)) / len(several) for several in wanted)
    penalty = _penalty(sum(map(len, found)) / length) if length else 0.0
    return MetricResult(
        metric="nist",
        values={"nist_4": penalty * sum(sums[:4]), "nist_5": penalty * sum(sums), "length_penalty": penalty},
        items=len(predictions),
        units={"nist_4": "bits", "nist_5": "bits", "length_penalty": ""},
        note=f"Tokens: {tokenize}.",
    )


class _Tokens:
    """Splits a text into tokens."""

    def __init__(self, tokenize: str) -> None:
        self._tokenize = (
            library("sacrebleu.tokenizers.tokenizer_13a", "metrics").Tokenizer13a() if tokenize == "13a" else None
        )

    def __call__(self, text: str) -> list[str]:
        tokens: list[str] = (self._tokenize(text).lower() if self._tokenize else text).split()
        return tokens


def _information(references: Sequence[Sequence[Sequence[str]]]) -> dict[Ngram, float]:
    """Information in bits of each n-gram of the references."""
    counts: Counter[Ngram] = Counter()
    for several in references:
        for tokens in several:
            counts[()] += len(tokens)
            for n in range(1, 6):
                counts.update(ngrams(tokens, n))
    return {ngram: math.log2(counts[ngram[:-1]] / count) for ngram, count in counts.items() if ngram}


def _gain(
    predictions: Sequence[Sequence[str]],
    references: Sequence[Sequence[Sequence[str]]],
    information: dict[Ngram, float],
    n: int,
) -> float:
    """Bits of the matched n-grams per predicted n-gram."""
    bits, total = 0.0, 0
    for tokens, several in zip(predictions, references, strict=True):
        counts = ngrams(tokens, n)
        total += counts.total()
        matched = matches(counts, highest_counts(several, n))
        bits += sum(information[ngram] * count for ngram, count in matched.items())
    return bits / max(total, 1)


def _penalty(ratio: float) -> float:
    return math.exp(_BETA * math.log(min(ratio, 1.0)) ** 2) if ratio > 0 else 0.0
