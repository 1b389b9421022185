"""CoQA (Reddy et al. 2019): F1 of answers in a conversation, as the official script computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from unicloze.errors import UniclozeError
from unicloze.evaluation.metrics.answers import exact_match, token_f1
from unicloze.evaluation.metrics.result import MetricResult


class Turn(NamedTuple):
    """One question: the id of its story and its number in the conversation, from 1."""

    story: str
    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Gold:
    """The right answers of a turn."""

    answers: Sequence[str]  # one answer per annotator
    domain: str = ""  # source of the story, such as `wikipedia`; empty if unknown


def coqa(predictions: Mapping[Turn, str], references: Mapping[Turn, Gold]) -> MetricResult:
    """Macro-averaged F1 and exact match over all turns.

    With several annotators, each in turn is left out and the best score against the others is taken; the turn's score is
    the mean of these. This makes models comparable with humans, who are not compared with their own answers. Turns without
    a prediction count as wrong; the official script leaves them out of the mean.
    """
    if not references:
        raise UniclozeError("The references have no questions: give at least one.")
    missing = len(references.keys() - predictions.keys())
    if missing == len(references):
        raise UniclozeError("No prediction has the id and turn of a question: give predictions of these references.")
    f1: dict[str, list[float]] = {}
    exact = 0.0
    for turn, gold in references.items():
        prediction = predictions.get(turn)
        f1.setdefault(gold.domain, []).append(0.0 if prediction is None else turn_f1(prediction, gold.answers))
        exact += 0.0 if prediction is None else _turn_score(exact_match, prediction, gold.answers)
    values = {
        "f1": 100 * sum(map(sum, f1.values())) / len(references),
        "exact": 100 * exact / len(references),
    }
    values |= {f"f1_{domain}": 100 * sum(scores) / len(scores) for domain, scores in sorted(f1.items()) if domain}
    note = f"Questions without a prediction, which count as wrong: {missing:,}." if missing else ""
    return MetricResult(metric="coqa", values=values, items=len(references), note=note)


def turn_f1(prediction: str, answers: Sequence[str]) -> float:
    """F1 of one answer, from 0 to 1: the mean over annotators of the best score against all others."""
    return _turn_score(token_f1, prediction, answers)


def _turn_score(score: Callable[[str, str], float], prediction: str, answers: Sequence[str]) -> float:
    scores = [score(prediction, answer) for answer in answers]
    if len(scores) == 1:
        return scores[0]
    return sum(max(scores[:left_out] + scores[left_out + 1 :]) for left_out in range(len(scores))) / len(scores)
