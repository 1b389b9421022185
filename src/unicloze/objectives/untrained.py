"""The objective `none`, of an imported encoder that is not trained here."""

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
    """Settings of an imported encoder; its targets are the heads it came with, possibly none."""

    name: str = "none"

    known_targets = "nsp", "sop", "rtd"
    trains = False


def nothing(*_: object) -> Examples:
    """Raise an error, since this objective makes no rows."""
    raise UsageError(
        "objective none, that of an imported encoder, cannot be trained: use a recipe with another objective, and give the "
        "encoder as training.initialize_from"
    )


OBJECTIVES: Mapping[str, Objective[Any]] = {"none": Objective(settings=UntrainedSettings, make=nothing)}
