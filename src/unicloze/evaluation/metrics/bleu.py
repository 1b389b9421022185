"""BLEU (Papineni et al. 2002), computed by sacrebleu (Post 2018)."""

from __future__ import annotations

from collections.abc import Sequence

from unicloze.evaluation.metrics.result import MetricResult, check_texts, library

TOKENIZE = "13a", "intl", "char", "none", "zh"
"""Sacrebleu's tokenizers that need no further package. `none` takes the texts as space-separated tokens."""


def bleu(predictions: Sequence[str], references: Sequence[Sequence[str]], *, tokenize: str = "13a") -> MetricResult:
    """Corpus BLEU of 1- to 4-grams, with exponential smoothing and the closest reference length, as reported by WMT."""
    check_texts(predictions, references)
    metric = library("sacrebleu.metrics", "metrics").BLEU(tokenize=tokenize, force=True)
    most = max(map(len, references))
    streams = [[several[place] if place < len(several) else None for several in references] for place in range(most)]
    score = metric.corpus_score(list(predictions), streams)
    values = {"bleu": score.score}
    values |= {f"precision_{n}": precision for n, precision in enumerate(score.precisions, start=1)}
    values["brevity_penalty"] = score.bp
    return MetricResult(
        metric="bleu",
        values=values,
        items=len(predictions),
        units={"brevity_penalty": ""},
        note=str(metric.get_signature()),
    )
