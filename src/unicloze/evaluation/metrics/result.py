"""What a metric gives back, what describes it, and what it may ask of the machine."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Any, Literal

from unicloze.errors import UniclozeError, UsageError

Compared = Literal["texts", "labels", "numbers", "tags", "squad", "coqa"]
"""What predictions and references are; `unicloze.evaluation.metrics.registry` says how each is passed."""


@dataclass(frozen=True, kw_only=True)
class MetricResult:
    """Values of one metric.

    Args:
        metric: Its name.
        values: The values by name, in percent unless `units` says otherwise.
        items: How many predictions were compared.
        units: Units of the values that are no percentages; an empty one marks a plain number.
        note: What a reader of the values must know: settings that change them, predictions that are missing.
        errors: Standard errors of the values, in their units, where they were estimated; see `spread`.
        undefined: Names of the values that have no value on these items, such as the precision of a class that is never
            predicted; `values` holds 0 for them.
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
    """A metric that can be asked for by name.

    Args:
        purpose: What it measures, in one line.
        compares: What predictions and references are.
        function: Takes both, and its options as keywords.
        headline: The value that tells which of two models is better.
        higher_is_better: Whether more of it is better.
        extra: The extra of the package whose libraries it needs; none if it needs none.
        options: Its options with the values each can have; an empty list allows any text.
        needs_references: Whether it compares at all, or measures predictions by themselves.
        check_programs: Raises where a program that it needs is not installed; none if it needs none.
    """

    purpose: str
    compares: Compared
    function: Callable[..., MetricResult]
    headline: str
    higher_is_better: bool = True
    extra: str | None = None
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    needs_references: bool = True
    check_programs: Callable[[], object] | None = None

    def __call__(self, predictions: Any, references: Any, **options: Any) -> MetricResult:
        """Compare predictions with references.

        Raises:
            UsageError: The metric takes no such option, or the option no such value.
            UniclozeError: Predictions and references do not match, or a library that the metric needs is absent.
        """
        self.check_options(options)
        return self.function(predictions, references, **options)

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Refuse options it has not.

        Raises:
            UsageError: It takes no such option, or the option no such value.
        """
        for name, value in options.items():
            if name not in self.options:
                known = ", ".join(self.options) or "none"
                raise UsageError(f"This metric has no option {name}: it takes {known}.")
            allowed = self.options[name]
            if allowed and value not in allowed:
                raise UsageError(f"{name} is {value!r}: give one of {', '.join(allowed)}.")

    def better(self, one: MetricResult, other: MetricResult) -> bool:
        """Whether the headline of one result is better than that of another."""
        difference = one.values[self.headline] - other.values[self.headline]
        return difference > 0 if self.higher_is_better else difference < 0


def check_pairs(predictions: Sized, references: Sized) -> None:
    """There is something to compare, and as many of one as of the other.

    Raises:
        UniclozeError: There is not.
    """
    if len(predictions) != len(references):
        raise UniclozeError(
            f"There are {len(predictions):,} predictions and {len(references):,} references: give one for each."
        )
    if not len(predictions):
        raise UniclozeError("There is nothing to compare: give at least one prediction and its reference.")


def check_texts(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Each prediction has one reference or more.

    Raises:
        UsageError: A reference is a text where a list of texts is meant.
        UniclozeError: Some have none, or there is nothing to compare.
    """
    check_pairs(predictions, references)
    for number, several in enumerate(references, start=1):
        if isinstance(several, str):
            raise UsageError("The references of a text are a list: give [reference] where there is one.")
        if not several:
            raise UniclozeError(f"Prediction {number:,} has no reference: give it one, or leave it out.")


def library(module: str, extra: str) -> ModuleType:
    """A module of an optional package.

    Raises:
        UniclozeError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UniclozeError(
            f'This metric needs {module.partition(".")[0]} ({error}): pip install "unicloze[{extra}]".'
        ) from error
