"""ROUGE (Lin 2004), computed by rouge-score: F1, precision and recall of n-grams and longest common subsequences."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from unicloze.evaluation.metrics.profiles import profiled
from unicloze.evaluation.metrics.result import MetricResult, check_texts, library

KINDS = "rouge1", "rouge2", "rougeL", "rougeLsum"
_TOKEN = re.compile(r"[a-z0-9]+")


def rouge(
    predictions: Sequence[str], references: Sequence[Sequence[str]], *, profile: str = "sentences"
) -> MetricResult:
    """ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum with Porter's stemmer, averaged over texts.

    ROUGE-Lsum takes the union of the common subsequences of each reference sentence; papers on summaries of several
    sentences (and ROUGE-1.5.5) call it ROUGE-L. Of several references, the one with the best F1 counts, separately for each
    kind.
    """
    check_texts(predictions, references)
    scorer = library("rouge_score.rouge_scorer", "metrics").RougeScorer(list(KINDS), tokenizer=_Tokenizer())
    predictions, references = profiled(predictions, references, profile)
    sums = {name: 0.0 for kind in KINDS for name in (kind, f"{kind}_precision", f"{kind}_recall")}
    unread = 0
    for prediction, several in zip(predictions, references, strict=True):
        unread += not any(_TOKEN.search(reference.lower()) for reference in several)
        for kind, score in scorer.score_multi(several, prediction).items():
            sums[kind] += score.fmeasure
            sums[f"{kind}_precision"] += score.precision
            sums[f"{kind}_recall"] += score.recall
    note = f"Profile {profile}, Porter's stemmer."
    if unread:
        note += f" References without a letter a to z or a digit, all that ROUGE reads, which score 0: {unread:,}."
    values = {name: 100 * total / len(predictions) for name, total in sums.items()}
    return MetricResult(metric="rouge", values=values, items=len(predictions), note=note)


class _Tokenizer:
    """rouge-score's tokenizer with cached stems."""

    def __init__(self) -> None:
        porter = library("nltk.stem.porter", "metrics")
        self._stem: Callable[[str], str] = lru_cache(maxsize=2**17)(porter.PorterStemmer().stem)

    def tokenize(self, text: str) -> list[str]:
        """The stemmed words of a text."""
        return [self._stem(token) if len(token) > 3 else token for token in _TOKEN.findall(text.lower())]
