"""Averages the predictions of several models, such as a forward and a backward one (ULMFiT, Section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unicloze.errors import UsageError
from unicloze.settings import Recipe
from unicloze.tasks.groups import Labelled
from unicloze.tasks.task import Prediction

AVERAGED = "classification", "regression"
"""Kinds of tasks whose predictions can be averaged."""


def check_averaged(recipes: Sequence[Recipe]) -> None:
    """Reject models whose predictions cannot be averaged."""
    first, *others = (recipe.task for recipe in recipes)
    if first.kind not in AVERAGED:
        raise UsageError(f"predictions of task.kind {first.kind} are not averaged: leave out also")
    for other in others:
        labels = [task.labels if isinstance(task, Labelled) else None for task in (first, other)]
        if other.kind != first.kind or labels[0] != labels[1]:
            raise UsageError("also names a model of another task or with other classes: give models of one task")


def averaged(each: Sequence[Sequence[Prediction]]) -> list[Prediction]:
    """The mean of the probabilities, or of the quantities, that several models predict for the same records."""
    found: list[Prediction] = []
    for of_record in zip(*each, strict=True):
        first = of_record[0]
        if "probabilities" not in first:
            found.append({**first, "prediction": float(np.mean([one["prediction"] for one in of_record]))})
            continue
        mean = {
            label: float(np.mean([one["probabilities"][label] for one in of_record]))
            for label in first["probabilities"]
        }
        said = {label: round(share, 6) for label, share in mean.items()}
        found.append({**first, "prediction": max(mean, key=lambda label: mean[label]), "probabilities": said})
    return found
