"""Defines metrics and their results, and checks of their inputs and optional libraries."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Any, Literal

from unicloze.errors import UniclozeError, UsageError

Compared = Literal["texts", "labels", "numbers", "tags", "squad", "coqa"]
"""Type of predictions and references; see `unicloze.evaluation.metrics.registry` for how each is passed."""


@dataclass(frozen=True, kw_only=True)
class MetricResult:
    """Values of one metric.

    Args:
        metric: Name of the metric.
        values: The values by name, in percent unless `units` says otherwise.
        items: Number of predictions compared.
        units: Units of values that are not percentages; an empty unit marks a plain number.
        note: Caveats about the values: settings that change them, missing predictions.
        errors: Standard errors of the values, in their units, if estimated; see `spread`.
        undefined: Names of values that are undefined on these items, such as the precision of a class that is never
            predicted; `values` has 0 for them.
    """

    metric: str
    values: Mapping[str, float]
    items: int
    units: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    errors: Mapping[str, float] = field(default_factory=dict)
    undefined: Sequence[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The fields as a JSON-serialisable dictionary."""
        return asdict(self)

    def __str__(self) -> str:
        width = max(map(len, self.values))
        lines = [f"{self.metric} of {self.items:,} item{'' if self.items == 1 else 's'}"]
        for name, value in self.values.items():
            unit = self.units.get(name, "%")
            digits = 2 if unit == "%" else 4
            error = f" (standard error {self.errors[name]:.{digits}f})" if name in self.errors else ""
            undefined = " (undefined, given as 0)" if name in self.undefined else ""
            lines.append(f"  {name:<{width}}  {value:>9.{digits}f}{f' {unit}' if unit else ''}{error}{undefined}")
        if self.note:
            lines.append(f"  {self.note}")
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric that can be selected by name."""

    purpose: str  # what it measures, in one line
    compares: Compared  # type of predictions and references
    function: Callable[..., MetricResult]  # takes predictions, references, and options as keywords
    headline: str  # name of the value that ranks models
    higher_is_better: bool = True  # whether a higher headline value is better
    extra: str | None = None  # extra of the package with the libraries it needs; None if it needs none
    # its options and their allowed values; an empty list allows any text
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    needs_references: bool = True  # whether it compares predictions with references or measures them alone
    # raises an error if a program that it needs is not installed; None if it needs none
    check_programs: Callable[[], object] | None = None

    def __call__(self, predictions: Any, references: Any, **options: Any) -> MetricResult:
        """Compare predictions with references."""
        self.check_options(options)
        return self.function(predictions, references, **options)

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Reject unknown options and values."""
        for name, value in options.items():
            if name not in self.options:
                known = ", ".join(self.options) or "none"
                raise UsageError(f"This metric has no option {name}: it takes {known}.")
            allowed = self.options[name]
            if allowed and value not in allowed:
                raise UsageError(f"{name} is {value!r}: give one of {', '.join(allowed)}.")

    def better(self, one: MetricResult, other: MetricResult) -> bool:
        """Whether the headline value of `one` is better than that of `other`."""
        difference = one.values[self.headline] - other.values[self.headline]
        return difference > 0 if self.higher_is_better else difference < 0


def check_same_length(predictions: Sized, references: Sized) -> None:
    """Check that there are predictions, and as many references."""
    if len(predictions) != len(references):
        raise UniclozeError(
            f"There are {len(predictions):,} predictions and {len(references):,} references: give one for each."
        )
    if not len(predictions):
        raise UniclozeError("There is nothing to compare: give at least one prediction and its reference.")


def check_texts(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Check that each prediction has at least one reference."""
    check_same_length(predictions, references)
    for number, several in enumerate(references, start=1):
        if isinstance(several, str):
            raise UsageError("The references of a text must be a list: give [reference] if there is one.")
        if not several:
            raise UniclozeError(f"Prediction {number:,} has no reference: give it one, or leave it out.")


def library(module: str, extra: str) -> ModuleType:
    """A module of an optional package."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UniclozeError(
            f'This metric needs {module.partition(".")[0]} ({error}): in the clone, pip install -e ".[{extra}]".'
        ) from error
