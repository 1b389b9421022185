"""The objective of an encoder that was imported and not trained here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unicloze.errors import UsageError
from unicloze.example import Examples
from unicloze.objectives.groups import Pairs
from unicloze.objectives.objective import Objective


@dataclass(frozen=True, kw_only=True)
class UntrainedSettings(Pairs):
    """The heads an imported encoder came with, as targets; there may be none."""

    name: str = "none"

    known_targets = "nsp", "sop", "rtd"
    trains = False


def nothing(*_: object) -> Examples:
    """No rows.

    Raises:
        UsageError: Always.
    """
    raise UsageError(
        "objective none, that of an imported encoder, trains nothing: give a recipe with another one, and the encoder as "
        "training.initialize_from"
    )


OBJECTIVES: Mapping[str, Objective[Any]] = {"none": Objective(settings=UntrainedSettings, make=nothing)}
