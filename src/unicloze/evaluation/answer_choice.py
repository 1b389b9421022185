"""Chooses the likeliest of several answers in a text; shared by cloze choice and prompting."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from unicloze.decoding.blanks import Blank, By, fill_blanks, way_of
from unicloze.errors import UsageError
from unicloze.evaluation.metrics.registry import metric
from unicloze.evaluation.metrics.result import MetricResult
from unicloze.evaluation.metrics.standard_errors import standard_errors
from unicloze.progress import Progress
from unicloze.training.loading import LoadedModel

Normaliser = Literal["sum", "token", "byte"]

NORMALISERS: Mapping[Normaliser, Callable[[float, int, str], float]] = {
    "sum": lambda log, tokens, text: log,
    "token": lambda log, tokens, text: log / tokens,
    "byte": lambda log, tokens, text: log / len(text.encode("utf-8")),
}
"""Normalise an answer's log-likelihood, given it, the number of tokens and the text without the space before it."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A text with a blank and its candidate answers."""

    id: str  # its name in predictions
    before: str  # text before the blank
    after: str  # text after the blank
    names: Sequence[str]  # names of the answers in predictions
    answers: Sequence[str]  # the answers, with the white space before them
    gold: str | None  # name of the right answer; None if unknown
    place: str  # its origin, for messages


@dataclass(frozen=True, kw_only=True)
class PromptResult:
    """A model's zero- or few-shot predictions for a file and their scores.

    Args:
        task: Name of the task.
        model: The checkpoint.
        by: `chain` rule or `par`, see `unicloze.decoding.blanks`; `generation` if texts were generated.
        normalise: Divisor of the log-likelihoods.
        shots: Number of examples per prompt.
        records: Number of records.
        unknown: Records with an answer that has tokens not in the vocabulary, which is never chosen.
        scores: Results by metric; empty if a record has no right answer.
        predictions: One per record: `id`, `prediction`, `reference`, and the `scores` of the answers.
    """

    task: str
    model: str
    by: By | Literal["generation"]
    records: int
    normalise: Normaliser = "sum"
    shots: int = 0
    unknown: int = 0
    scores: Mapping[str, MetricResult] = field(default_factory=dict)
    predictions: Sequence[Mapping[str, Any]] = ()

    def to_dict(self) -> dict[str, Any]:
        """The fields as a JSON-serialisable dictionary."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        how = {"chain": "by the chain rule", "par": "by PAR", "generation": "generated"}[self.by]
        each = {"sum": "", "token": ", log-likelihood per token", "byte": ", log-likelihood per byte"}[self.normalise]
        shots = f"{self.shots} example{'s' * (self.shots != 1)}"
        lines = [f"{self.task}, {self.records:,} records, {shots} in the prompt, {how}{each}"]
        lines += [f"  {line}" for result in self.scores.values() for line in str(result).split("\n")]
        if not self.scores:
            lines.append("  not measured: some records have no right answer")
        if self.unknown:
            lines.append(
                f"  {self.unknown:,} records have answers with tokens not in the vocabulary; they are never chosen"
            )
        return "\n".join(lines)


NONE = ""
"""The prediction if every answer has tokens not in the vocabulary."""


def choose(
    model: LoadedModel,
    choices: Sequence[Choice],
    *,
    task: str,
    metrics: Sequence[str] = ("accuracy",),
    normalise: Normaliser = "sum",
    shots: int = 0,
    batch_size: int = 64,
    progress: bool = True,
) -> PromptResult:
    """Choose the likeliest answer of each choice; ties go to the first, and `NONE` is chosen if no answer can be scored."""
    if normalise not in get_args(Normaliser):
        raise UsageError(f"normalise is {normalise!r}: give one of {', '.join(get_args(Normaliser))}")
    by = way_of(model.recipe)
    blanks = [
        Blank(before=choice.before, answer=answer, after=choice.after, place=choice.place)
        for choice in choices
        for answer in choice.answers
    ]
    with Progress(task, len(blanks), "answers", show=progress) as bar:
        found = iter(fill_blanks(model, blanks, batch_size=batch_size, progress=bar.update))
    predictions, unknown = [], 0
    for choice in choices:
        scores = []
        for answer, filled in zip(choice.answers, found, strict=False):
            scored = answer.strip() + (choice.after if by == "chain" else "")
            scores.append(NORMALISERS[normalise](float(filled.logs.sum()), len(filled.logs), scored))
        unknown += any(np.isnan(scores))
        best = NONE if all(np.isnan(scores)) else choice.names[int(np.nanargmax(scores))]
        said: dict[str, Any] = {"id": choice.id, "prediction": best, "reference": choice.gold}
        said["scores"] = {
            name: None if np.isnan(score) else round(score, 6) for name, score in zip(choice.names, scores, strict=True)
        }
        predictions.append(said)
    return PromptResult(
        task=task, model=str(model.path), by=by, normalise=normalise, shots=shots, records=len(choices),
        unknown=unknown, scores=measure(predictions, metrics), predictions=predictions,
    )  # fmt: skip


def measure(predictions: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> dict[str, MetricResult]:
    """Results with standard errors by metric; empty if any reference is unknown."""
    said, gold = [one["prediction"] for one in predictions], [one["reference"] for one in predictions]
    if any(one is None for one in gold):
        return {}
    return {
        name: dataclasses.replace(metric(name)(said, gold), errors=standard_errors(name, said, gold))
        for name in metrics
    }
