"""Settings of a fine-tuning that follow from its model and its records, where the recipe leaves them `auto`."""

from __future__ import annotations

import dataclasses
import math

from unicloze.settings import Recipe, chosen

RATE_TIMES_WEIGHTS = 3.3e3
"""Learning rate times weights of the model: 2e-3 for 1.5 M weights, 1.5e-4 for 22 M, 3e-5 for the 110 M of the papers."""
HIGHEST_RATE = 3e-3
"""The learning rate of the smallest models."""
ROWS = 10_000
"""Rows to learn from in all, where that takes neither too few epochs nor too many."""
EPOCHS = 3, 10
"""Fewest and most epochs: the papers take 3 for large files, and 10 where there are few records (UniLMv2, Table 9)."""
PAPER_WEIGHTS = 110_000_000
"""Weights of the base models for which the papers chose their rates."""
MUCH_SMALLER = 10
"""A model that has so many times fewer weights needs a higher rate."""


def learning_rate(weights: int) -> float:
    """The peak learning rate for a model, to two digits."""
    return float(f"{min(HIGHEST_RATE, RATE_TIMES_WEIGHTS / weights):.1e}")


def epochs(rows: int) -> int:
    """Passes over so many rows."""
    fewest, most = EPOCHS
    return max(fewest, min(most, math.ceil(ROWS / max(1, rows))))


def with_chosen(recipe: Recipe, weights: int, rows: int, former: Recipe | None = None) -> Recipe:
    """The recipe with a number for each `auto`.

    Args:
        recipe: Of a task.
        weights: Of the model that the run starts from.
        rows: That it learns from.
        former: The settings with which the run began that is resumed: it keeps what was chosen then.
    """
    training, finetuning = recipe.training, recipe.finetuning
    if training.learning_rate == "auto":
        rate = learning_rate(weights) if former is None else former.training.learning_rate
        training = dataclasses.replace(training, learning_rate=rate)
    if finetuning.epochs == "auto":
        passes = epochs(rows) if former is None else former.finetuning.epochs
        finetuning = dataclasses.replace(finetuning, epochs=passes)
    return dataclasses.replace(recipe, training=training, finetuning=finetuning)


def what_was_chosen(before: Recipe, after: Recipe, weights: int, rows: int) -> str:
    """Each value that was `auto` and what it follows from, in words; empty if none was."""
    said = []
    if before.training.learning_rate == "auto":
        extrapolated = ", extrapolated from the papers" if weights > PAPER_WEIGHTS / 2 else ""
        said.append(f"learning rate {chosen(after.training.learning_rate):.2g} for {weights:,} weights{extrapolated}")
    if before.finetuning.epochs == "auto":
        said.append(f"{chosen(after.finetuning.epochs):g} epochs for {rows:,} rows")
    return ", ".join(said)


def too_low_a_rate(recipe: Recipe, weights: int) -> str:
    """A warning where the learning rate is one for much larger models; empty where it is not."""
    rate, better = chosen(recipe.training.learning_rate), learning_rate(weights)
    if rate * MUCH_SMALLER > better or weights * MUCH_SMALLER > PAPER_WEIGHTS:
        return ""
    return (
        f"the learning rate {rate:.2g} is one for models of about {PAPER_WEIGHTS:,} weights, and this one has {weights:,}: "
        f"it may learn next to nothing; --training.learning_rate auto takes {better:.2g}"
    )
