"""SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018): exact match and F1, as the official scripts compute them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unicloze.errors import UniclozeError
from unicloze.evaluation.metrics.answers import exact_match, normalise, token_f1
from unicloze.evaluation.metrics.result import MetricResult


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
