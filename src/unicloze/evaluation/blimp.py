"""BLiMP (Warstadt et al. 2020): how often a model finds the acceptable sentence of a minimal pair likelier.

A sentence's score is its pseudo-log-likelihood (Salazar et al. 2020, Section 3) or its log-likelihood by the chain rule,
in both cases a sum over its tokens, not a mean. The model is not trained on the pairs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from unicloze.decoding.abilities import objective_of
from unicloze.decoding.inputs import pieces_of
from unicloze.decoding.likelihood import Measure, check_defines, defines, log_probabilities
from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.known_words import frequent_word_list, keep_known, listed_words, words_of
from unicloze.evaluation.minimal_pairs import PairSet, read_pairs
from unicloze.progress import Progress
from unicloze.settings import Mode, ObjectiveSettings
from unicloze.training.loading import LoadedModel

Scores = npt.NDArray[np.float64]

CORPUS = "corpus"
"""Name of the filter that keeps the words of the model's training corpus."""
TIE = 1e-4
"""Sums of log-probabilities closer than this count as equal, because of rounding in float32."""
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True, kw_only=True)
class SetResult:
    """Results of one set.

    Args:
        name: Name of the set.
        field: Field of linguistics.
        term: The phenomenon.
        pairs: Number of pairs compared.
        unknown: Pairs left out because one of their tokens cannot be scored ([UNK]).
        filtered: Pairs left out by the filter.
        accuracy: Share of the compared pairs whose acceptable sentence is likelier, by measure; empty without such pairs.
        ties: Pairs whose sentences are equally likely, by measure. They count as wrong.
    """

    name: str
    field: str
    term: str
    pairs: int
    unknown: int
    filtered: int
    accuracy: Mapping[Measure, float]
    ties: Mapping[Measure, int]


@dataclass(frozen=True, kw_only=True)
class BlimpResult:
    """Results of all sets. Means weight each set equally, whatever its number of pairs.

    Args:
        model: The checkpoint.
        measures: Measures used to compare sentences: `pseudo`-log-likelihood, `chain` rule.
        accuracy: Mean accuracy of all sets, by measure.
        fields: Mean accuracy of the sets of each field, by measure.
        terms: Mean accuracy of the sets of each phenomenon, by measure.
        sets: Results of each set.
        pairs: Number of pairs compared.
        unknown: Pairs left out because one of their tokens cannot be scored ([UNK]).
        filtered: Pairs left out by the filter.
        ties: Pairs whose sentences are equally likely, by measure. They count as wrong.
    """

    model: str
    measures: list[Measure]
    accuracy: Mapping[Measure, float]
    fields: Mapping[str, Mapping[Measure, float]]
    terms: Mapping[str, Mapping[Measure, float]]
    sets: list[SetResult]
    pairs: int
    unknown: int
    filtered: int
    ties: Mapping[Measure, int]

    def to_dict(self) -> dict[str, Any]:
        """The fields as a JSON-serialisable dictionary."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        width = max(len(name) for name in [*self.fields, *self.terms]) + 4
        lines = [f"{'BLiMP accuracy':<{width}}  sets" + "".join(f"  {name:>7}" for name in self.measures)]
        groups = (("field", self.fields), ("term", self.terms))
        for kind, means in groups:
            for name, accuracy in means.items():
                lines.append(self._line(name, accuracy, sum(getattr(s, kind) == name for s in self._compared), width))
            lines.append("")
        lines += [
            self._line("overall", self.accuracy, len(self._compared), width),
            f"\n{self.pairs:,} pairs of {len(self._compared)} sets compared",
        ]
        ties = ", ".join(f"{count:,} by {name}" for name, count in self.ties.items())
        lines[-1] += f"; ties, counted as wrong: {ties}"
        if self.unknown:
            lines.append(f"{self.unknown:,} pairs left out: they have tokens not in the vocabulary")
        if self.filtered:
            lines.append(f"{self.filtered:,} pairs left out by the filter")
        return "\n".join(lines)

    @property
    def _compared(self) -> list[SetResult]:
        return [one for one in self.sets if one.pairs]

    def _line(self, name: str, accuracy: Mapping[Measure, float], sets: int, width: int) -> str:
        return f"{name:<{width}}  {sets:>4}" + "".join(f"  {accuracy[measure]:>7.1%}" for measure in self.measures)


def blimp(
    model: LoadedModel,
    path: str | Path,
    *,
    mode: Mode | None = None,
    limit: int | None = None,
    filter_by: str | Path | None = None,
    batch_size: int = _ROWS_AT_ONCE,
    progress: bool = True,
) -> BlimpResult:
    """Compare the sentences of all pairs."""
    if mode is not None and mode not in get_args(Mode):
        raise UsageError(f"mode is {mode!r}: give one of {', '.join(get_args(Mode))}")
    if limit is not None and limit < 1:
        raise UsageError(f"limit is {limit}: give 1 or more")
    sets = read_pairs(path)
    measures = _measures(objective_of(model.recipe), mode)
    sets = _chosen(sets, model, filter_by, limit, progress)
    sentences = dict.fromkeys(text for one in sets for pair in one.pairs for text in pair)
    if not sentences:
        raise UniclozeError(f"The filter {filter_by} leaves no pair of {path}: give it more words.")
    scores = _score(model, list(sentences), measures, batch_size, progress)
    results = [_compare(one, scores) for one in sets]
    compared = [one for one in results if one.pairs]
    if not compared:
        raise UniclozeError(
            f"Every pair of {path} has tokens not in the model's vocabulary: use another language or model."
        )
    return BlimpResult(
        model=str(model.path),
        measures=measures,
        accuracy=_mean(compared, measures),
        fields=_means(compared, "field", measures),
        terms=_means(compared, "term", measures),
        sets=results,
        pairs=sum(one.pairs for one in results),
        unknown=sum(one.unknown for one in results),
        filtered=sum(one.filtered for one in results),
        ties={measure: sum(one.ties[measure] for one in results) for measure in measures},
    )


def accuracies(
    model: LoadedModel, path: str | Path, *, limit: int | None = None, progress: bool = True
) -> dict[str, float | None]:
    """Mean accuracy over all sets in percent: `blimp_pseudo` and `blimp_chain`, None if the objective does not define it."""
    known: list[Measure] = [m for m in get_args(Measure) if defines(objective_of(model.recipe), m)]
    result: dict[str, float | None] = {f"blimp_{measure}": None for measure in get_args(Measure)}
    if known:
        mode: Mode = "both" if len(known) == 2 else known[0]
        judged = blimp(model, path, mode=mode, limit=limit, progress=progress)
        result |= {f"blimp_{measure}": 100 * value for measure, value in judged.accuracy.items()}
    return result


def _measures(objective: ObjectiveSettings, mode: Mode | None) -> list[Measure]:
    if mode is None:
        mode = "pseudo" if defines(objective, "pseudo") else "chain"
    measures: list[Measure] = ["pseudo", "chain"] if mode == "both" else [mode]
    for measure in measures:
        check_defines(objective, measure)
    return measures


def _chosen(
    sets: list[PairSet], loaded: LoadedModel, filter_by: str | Path | None, limit: int | None, progress: bool
) -> list[PairSet]:
    """The pairs that remain after the filter and the limit."""
    if filter_by is not None:
        if filter_by == CORPUS:
            wanted = {word for one in sets for pair in one.pairs for text in pair for word in words_of(text)}
            words = frequent_word_list(loaded.recipe.data, wanted, progress=progress)
        else:
            words = listed_words(filter_by)
        sets = keep_known(sets, words)
    return [dataclasses.replace(one, pairs=one.pairs[:limit]) for one in sets]


def _score(
    loaded: LoadedModel, sentences: Sequence[str], measures: Iterable[Measure], batch_size: int, progress: bool
) -> dict[Measure, dict[str, float]]:
    """Score of each sentence by measure, nan if a token cannot be scored; equal token sequences are scored once."""
    is_special = np.zeros(loaded.tokenizer.vocabulary.size, dtype=bool)
    is_special[loaded.tokenizer.vocabulary.special] = True
    tokens = loaded.tokenizer.encode_batch(sentences)
    numbers: dict[bytes, int] = {}
    distinct: list[npt.NDArray[np.int32]] = []
    number_of = np.full(len(sentences), -1)
    for i, ids in enumerate(tokens):
        if len(ids) and not is_special[ids].any():
            number_of[i] = numbers.setdefault(ids.tobytes(), len(numbers))
            if number_of[i] == len(distinct):
                distinct.append(ids)
    pieces = pieces_of(loaded, distinct)
    total = sum(map(len, distinct))
    result = {}
    for measure in measures:
        name = {"pseudo": "pseudo-log-likelihood", "chain": "chain rule"}[measure]
        with Progress(name, total, "tokens", show=progress) as bar:
            logs = log_probabilities(loaded, pieces, measure, batch_size=batch_size, progress=bar.update)
        sums = np.zeros(len(distinct) + 1)
        sums[-1] = np.nan
        for piece, part in zip(pieces, logs, strict=True):
            sums[piece.text] += part.sum()
        result[measure] = dict(zip(sentences, sums[number_of].tolist(), strict=True))
    return result


def _compare(one: PairSet, scores: Mapping[Measure, Mapping[str, float]]) -> SetResult:
    accuracy: dict[Measure, float] = {}
    ties: dict[Measure, int] = {}
    pairs = 0
    for measure, score in scores.items():
        margins = np.array([score[good] - score[bad] for good, bad in one.pairs])
        margins = margins[~np.isnan(margins)]
        pairs = len(margins)
        ties[measure] = int((np.abs(margins) <= TIE).sum())
        if pairs:
            accuracy[measure] = float((margins > TIE).mean())
    return SetResult(
        name=one.name,
        field=one.field,
        term=one.term,
        pairs=pairs,
        unknown=len(one.pairs) - pairs,
        filtered=one.filtered,
        accuracy=accuracy,
        ties=ties,
    )


def _means(
    sets: Sequence[SetResult], kind: Literal["field", "term"], measures: Iterable[Measure]
) -> dict[str, dict[Measure, float]]:
    """Mean accuracy of the sets of each kind."""
    names = sorted({getattr(one, kind) for one in sets})
    return {name: _mean([one for one in sets if getattr(one, kind) == name], measures) for name in names}


def _mean(sets: Sequence[SetResult], measures: Iterable[Measure]) -> dict[Measure, float]:
    return {measure: float(np.mean([one.accuracy[measure] for one in sets])) for measure in measures}
