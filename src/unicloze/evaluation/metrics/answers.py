"""Metrics of answers: SQuAD and CoQA as their official scripts compute them, and LAMBADA's last words."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from unicloze.errors import UniclozeError
from unicloze.evaluation.metrics.result import MetricResult, check_texts

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A predicted answer."""

    text: str  # the answer; empty if the question is predicted to be unanswerable
    na_probability: float | None = None  # score that there is no answer, on any increasing scale; None if unknown


def squad(predictions: Mapping[str, str | Answer], references: Mapping[str, Sequence[str]]) -> MetricResult:
    """Exact match and F1, the best over the references of each question.

    If some questions have no answer (version 2.0), questions with and without one are also scored separately. If all
    predictions have a no-answer score, so are the best values over all thresholds above which an answer is dropped; of
    equally good thresholds, the lowest is reported. Questions without a prediction count as wrong, as in the script of
    version 1.1.
    """
    if not references:
        raise UniclozeError("The references have no questions: give at least one.")
    answers = {one: _answer(predictions[one]) for one in references if one in predictions}
    if not answers:
        raise UniclozeError("No prediction has the id of a question: give predictions of these references.")
    exact, f1 = {}, {}
    for one, texts in references.items():
        wanted = [text for text in texts if normalise(text)] or [""]
        text = answers[one].text if one in answers else None
        exact[one] = 0.0 if text is None else max(exact_match(text, reference) for reference in wanted)
        f1[one] = 0.0 if text is None else max(token_f1(text, reference) for reference in wanted)
    answerable = [one for one, texts in references.items() if any(text.strip() for text in texts)]
    values = {"exact": _percent(exact, references), "f1": _percent(f1, references)}
    units: dict[str, str] = {}
    if len(answerable) < len(references):
        if answerable:
            values |= {"has_answer_exact": _percent(exact, answerable), "has_answer_f1": _percent(f1, answerable)}
        values |= {"no_answer_exact": _percent(exact, references.keys() - set(answerable))}
        certainties = {one: answer.na_probability for one, answer in answers.items()}
        known = {one: certainty for one, certainty in certainties.items() if certainty is not None}
        if len(known) == len(references):
            for name, scores in (("exact", exact), ("f1", f1)):
                best, threshold = best_threshold(known, scores, set(answerable))
                values |= {f"best_{name}": best, f"best_{name}_threshold": threshold}
                units[f"best_{name}_threshold"] = ""
    return MetricResult(
        metric="squad", values=values, items=len(references), units=units, note=_note(predictions, references, answers)
    )


def best_threshold(
    na_probabilities: Mapping[str, float], scores: Mapping[str, float], answerable: set[str]
) -> tuple[float, float]:
    """The best no-answer threshold: answers with a higher no-answer score are dropped."""
    order = sorted(na_probabilities, key=lambda one: na_probabilities[one])
    total = float(sum(one not in answerable for one in order))
    best, threshold = total, na_probabilities[order[0]] - 1.0
    for place, one in enumerate(order):
        total += scores[one] - (one not in answerable)
        last = place + 1 == len(order) or na_probabilities[order[place + 1]] > na_probabilities[one]
        if last and total > best:
            best, threshold = total, na_probabilities[one]
    return 100 * best / len(order), threshold


def _answer(prediction: str | Answer) -> Answer:
    return Answer(text=prediction) if isinstance(prediction, str) else prediction


def _percent(scores: Mapping[str, float], of: Mapping[str, object] | Sequence[str] | set[str]) -> float:
    return 100 * sum(scores[one] for one in of) / len(of)


def _note(predictions: Mapping[str, object], references: Mapping[str, object], answers: Mapping[str, object]) -> str:
    parts = []
    if missing := len(references) - len(answers):
        parts.append(f"Questions without a prediction, which count as wrong: {missing:,}.")
    if spare := len(predictions) - len(answers):
        parts.append(f"Predictions for questions not in the references, ignored: {spare:,}.")
    return " ".join(parts)


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
    values = {"f1": 100 * sum(map(sum, f1.values())) / len(references), "exact": 100 * exact / len(references)}
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


_AROUND = re.compile(r"^\W+|\W+$")


def lambada(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> MetricResult:
    """Percentage of passages whose last word is right (Paperno et al. 2016)."""
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
