"""Results of a comparison: scores and costs of each recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unicloze.finetuning.seeds import OverSeeds
from unicloze.training.ledger import Figure


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Cost of fine-tuning on one probe, averaged over the seeds.

    Args:
        flops: Floating-point operations of the training steps.
        seconds: Wall-clock time including evaluations, summed over restarts.
    """

    flops: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ContestantResult:
    """One contestant's results.

    Args:
        name: Name of the recipe.
        objective: Description of the objective.
        network: The network's size and kind.
        parameters: Number of trained weights, counting tied ones once.
        steps: Optimizer steps, the mean over the seeds.
        text_tokens: Text tokens trained on.
        flops: Floating-point operations spent on slots and predictions.
        seconds: Wall-clock time of a run, summed over restarts.
        scores: Scores over the seeds, by measure; None if the objective does not define a measure.
        reads: Visibility and pooling used for probes, from the `use` section of its recipe.
        probes: Cost of fine-tuning by probe, not included in the fields above.
        figures: Held-out losses by measure, the mean over the seeds with the error of a single run.
    """

    name: str
    objective: str
    network: str
    parameters: int
    steps: int
    text_tokens: float
    flops: float
    seconds: float
    scores: Mapping[str, OverSeeds | None]
    reads: str = ""
    probes: Mapping[str, Spent] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ProbeColumn:
    """The column of a probe's scores.

    Args:
        name: Name of the task recipe.
        metric: Metric that measures it.
        value: Value of the metric that is the score.
        unit: Unit of the score; empty for a plain number.
        higher_is_better: Whether a higher score is better.
        files: Training and development file, as given.
        records: Number of records in each file.
        settings: Main fine-tuning settings, by dotted name.
        not_defined: Why a recipe has no score, by the name of the recipe.
    """

    name: str
    metric: str
    value: str
    unit: str
    higher_is_better: bool
    files: tuple[str, str]
    records: tuple[int, int]
    settings: Mapping[str, Any]
    not_defined: Mapping[str, str]

    @property
    def key(self) -> str:
        """Key of its scores in a row."""
        return probe_key(self.name)

    @property
    def title(self) -> str:
        """Title of its scores."""
        return f"{self.name}, {self.value} {self.unit}".rstrip()


def probe_key(name: str) -> str:
    """Key of a probe's score among those of a run."""
    return f"probe.{name}"


def words_key(side: str) -> str:
    """Key of the share of content words guessed from `both` sides or from the `left`."""
    return f"words_{side}"
