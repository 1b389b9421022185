"""Which of several answers a model finds likeliest in a text: cloze choice and prompting have this in common."""

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
from unicloze.evaluation.metrics.spread import standard_errors
from unicloze.progress import Progress
from unicloze.training.models import LoadedModel

Normaliser = Literal["sum", "token", "byte"]

NORMALISERS: Mapping[Normaliser, Callable[[float, int, str], float]] = {
    "sum": lambda log, tokens, text: log,
    "token": lambda log, tokens, text: log / tokens,
    "byte": lambda log, tokens, text: log / len(text.encode("utf-8")),
}
"""What an answer's log-likelihood is divided by, called with it, its tokens and its text without the space before it."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A text with a blank and what may stand there.

    Args:
        id: Its name in predictions.
        before: What stands before the blank.
        after: What stands behind it.
        names: What each answer is called in predictions.
        answers: The answers, with the white space before them.
        gold: Name of the right one; None where it is unknown.
        place: Where it is from, for messages.
    """

    id: str
    before: str
    after: str
    names: Sequence[str]
    answers: Sequence[str]
    gold: str | None
    place: str


@dataclass(frozen=True, kw_only=True)
class PromptResult:
    """What a model makes of a file without being trained on it.

    Args:
        task: What was asked.
        model: The checkpoint.
        by: `chain` rule or `par`, see `unicloze.decoding.blanks`; `generation` where texts were written.
        normalise: What log-likelihoods were divided by.
        shots: Examples in each prompt.
        records: Records.
        unknown: Records with an answer that the vocabulary cannot spell, which is never chosen.
        scores: By metric; none where a record has no right answer.
        predictions: One for each record: `id`, `prediction`, `reference`, and the `scores` of the answers.
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
        each = {"sum": "", "token": ", log-likelihood a token", "byte": ", log-likelihood a byte"}[self.normalise]
        shots = f"{self.shots} example{'s' * (self.shots != 1)}"
        lines = [f"{self.task}, {self.records:,} records, {shots} in the prompt, {how}{each}"]
        lines += [f"  {line}" for result in self.scores.values() for line in str(result).split("\n")]
        if not self.scores:
            lines.append("  not measured: there are records without a right answer")
        if self.unknown:
            lines.append(
                f"  {self.unknown:,} records have answers that the vocabulary cannot spell; they are never chosen"
            )
        return "\n".join(lines)


NONE = ""
"""The prediction where the vocabulary can spell none of the answers."""


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
    """Take the likeliest answer of each choice, the first of equal ones; none where the vocabulary can spell none.

    Args:
        model: Fills blanks.
        choices: What to choose between.
        task: What is asked, for the result.
        metrics: Names of metrics of labels.
        normalise: What to divide log-likelihoods by.
        shots: Examples in each prompt, for the result.
        batch_size: Most rows of one forward pass.
        progress: Show progress on stderr.

    Raises:
        UsageError: The model's objective cannot fill blanks, or there is no such metric or normaliser.
        UniclozeError: An answer has no tokens or too many; the message names its place.
    """
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
    """Values with their standard errors by metric; nothing where a reference is unknown."""
    said, gold = [one["prediction"] for one in predictions], [one["reference"] for one in predictions]
    if any(one is None for one in gold):
        return {}
    return {
        name: dataclasses.replace(metric(name)(said, gold), errors=standard_errors(name, said, gold))
        for name in metrics
    }
