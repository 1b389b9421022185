"""BLEU and ROUGE-L as coco-caption computes them (Chen et al. 2015); with METEOR, the usual metrics of question generation.

They take space-separated tokens and compare them unchanged: if only one side is lower-cased or tokenised, the profile
`uncased` converts both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from unicloze.evaluation.metrics.ngrams import highest_counts, matches, ngrams
from unicloze.evaluation.metrics.profiles import profiled
from unicloze.evaluation.metrics.result import MetricResult, check_texts

_BETA = 1.2


def coco(
    predictions: Sequence[str], references: Sequence[Sequence[str]], *, profile: str | None = None
) -> MetricResult:
    """BLEU-1 to BLEU-4 and ROUGE-L.

    BLEU is corpus BLEU, without smoothing and with the closest reference length. ROUGE-L is the mean over texts of F with
    beta 1.2, from the best precision and the best recall over the references.
    """
    found, wanted = tokens_of(predictions, references, profile)
    values = {f"bleu_{n}": score for n, score in enumerate(_bleu(found, wanted), start=1)}
    values["rouge_l"] = 100 * sum(map(_rouge_l, found, wanted)) / len(found)
    return MetricResult(metric="coco", values=values, items=len(found), note=note_of(profile))


def tokens_of(
    predictions: Sequence[str], references: Sequence[Sequence[str]], profile: str | None
) -> tuple[list[list[str]], list[list[list[str]]]]:
    """Predictions and references split at white space, after applying the profile if given."""
    check_texts(predictions, references)
    if profile is not None:
        predictions, references = profiled(predictions, references, profile)
    return [text.split() for text in predictions], [[text.split() for text in several] for several in references]


def note_of(profile: str | None) -> str:
    """Note of a result about the profile."""
    return f"Profile {profile}." if profile else ""


def _bleu(predictions: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> list[float]:
    """BLEU-1 to BLEU-4 in percent."""
    found = sum(map(len, predictions))
    wanted = sum(
        min((abs(len(one) - len(tokens)), len(one)) for one in several)[1]
        for tokens, several in zip(predictions, references, strict=True)
    )
    penalty = min(0.0, 1.0 - wanted / found) if found else 0.0
    scores, logs = [], 0.0
    for n in range(1, 5):
        matched = total = 0
        for tokens, several in zip(predictions, references, strict=True):
            counts = ngrams(tokens, n)
            total += counts.total()
            matched += matches(counts, highest_counts(several, n)).total()
        logs += math.log(matched / total) if matched else -math.inf
        scores.append(100 * math.exp(penalty + logs / n))
    return scores


def _rouge_l(prediction: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """F with beta 1.2, from 0 to 1."""
    common = [_common_subsequence(prediction, one) for one in references]
    precision = max(common) / len(prediction) if prediction else 0.0
    recall = max(length / len(one) if one else 0.0 for length, one in zip(common, references, strict=True))
    if not precision or not recall:
        return 0.0
    return (1 + _BETA**2) * precision * recall / (recall + _BETA**2 * precision)


def _common_subsequence(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest common subsequence, with each table row as the bits of one integer (Hyyrö 2004)."""
    places: dict[str, int] = {}
    for place, token in enumerate(other):
        places[token] = places.get(token, 0) | 1 << place
    everywhere = (1 << len(other)) - 1
    row = everywhere
    for token in one:
        hits = row & places.get(token, 0)
        row = (row + hits | row - hits) & everywhere
    return len(other) - row.bit_count()
