"""Chooses the fine-tuning settings that a recipe leaves `auto`, from the model and the records."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection

from unicloze.recipes import load_recipe, task_names
from unicloze.settings import Recipe, chosen

RATE_TIMES_WEIGHTS = 3.3e3
"""Learning rate times number of weights: 2e-3 for 1.5 M weights, 1.5e-4 for 22 M, 3e-5 for the 110 M of the papers."""
HIGHEST_RATE = 3e-3
"""Learning rate of the smallest models."""
ROWS = 10_000
"""Target number of rows seen over all epochs, within the bounds of `EPOCHS`."""
EPOCHS = 3, 10
"""Fewest and most epochs: the papers take 3 for large files, and 10 where there are few records (UniLMv2, Table 9)."""
PAPER_WEIGHTS = 110_000_000
"""Weights of the base models for which the papers chose their rates."""
FEW_TIMES = 10
"""How many times higher the rate of low-rank updates and adapters is: at 110 M weights, LoRA takes 5e-4 (Hu et al., Table 9)
and adapters 3e-4 (Houlsby et al., Section 3.1)."""
HIGHEST_OF_FEW = 1e-2
"""Learning rate of low-rank updates and adapters in the smallest models. With 5 M weights, 6e-3 was best of 3e-3, 6e-3 and
1.5e-2 (benchmarks/results/few_weights.jsonl)."""
PAPER_ROWS = 40_000
"""Training rows from which on the values of a paper's recipe for questions hold: SQuAD has 88,000 questions."""
OF_QUESTIONS = "extraction", "conversation"
"""Kinds of tasks whose recipes are all of papers."""
MUCH_SMALLER = 10
"""How many times fewer weights a model must have to need a higher rate."""


def learning_rate(weights: int, few: bool = False) -> float:
    """The peak learning rate for a model, rounded to two significant digits."""
    times, highest = (FEW_TIMES, HIGHEST_OF_FEW) if few else (1, HIGHEST_RATE)
    return float(f"{min(highest, RATE_TIMES_WEIGHTS / weights * times):.1e}")


def epochs(rows: int) -> int:
    """Number of epochs for a number of rows."""
    fewest, most = EPOCHS
    return max(fewest, min(most, math.ceil(ROWS / max(1, rows))))


def adaptable(recipe: Recipe, overridden: Collection[str]) -> Recipe:
    """A recipe of the package, of questions with `auto` for a paper's rate and epochs, unless overridden.

    See `with_chosen`. A file's values are its own, even where they are those of the recipe it is named after.
    """
    paper = _of_paper(recipe)
    if paper is None:
        return recipe
    for section, key in (("training", "learning_rate"), ("finetuning", "epochs")):
        own = getattr(recipe, section)
        if f"{section}.{key}" not in overridden and getattr(own, key) == getattr(getattr(paper, section), key):
            recipe = dataclasses.replace(recipe, **{section: dataclasses.replace(own, **{key: "auto"})})
    return recipe


def _of_paper(recipe: Recipe) -> Recipe | None:
    """The recipe of the package that a recipe of questions has its name from; None for others."""
    return load_recipe(recipe.name) if recipe.task.kind in OF_QUESTIONS and recipe.name in task_names() else None


def with_chosen(recipe: Recipe, weights: int, rows: int, former: Recipe | None = None) -> Recipe:
    """The recipe with a number for each `auto`."""
    training, finetuning = recipe.training, recipe.finetuning
    if former is None and weights > PAPER_WEIGHTS / 2 and rows >= PAPER_ROWS and not finetuning.few:
        former = _of_paper(recipe)
    if training.learning_rate == "auto":
        rate = learning_rate(weights, finetuning.few) if former is None else former.training.learning_rate
        training = dataclasses.replace(training, learning_rate=rate)
    if finetuning.epochs == "auto":
        passes = epochs(rows) if former is None else former.finetuning.epochs
        finetuning = dataclasses.replace(finetuning, epochs=passes)
    return dataclasses.replace(recipe, training=training, finetuning=finetuning)


def what_was_chosen(before: Recipe, after: Recipe, weights: int, rows: int) -> str:
    """Each value chosen for `auto` and what it follows from, in words; empty if there is none."""
    said = []
    if before.training.learning_rate == "auto":
        own = after.training.learning_rate == learning_rate(weights, after.finetuning.few)
        extrapolated = ", extrapolated from the papers" if weights > PAPER_WEIGHTS / 2 and own else ""
        few = ", of which few learn" if after.finetuning.few else ""
        said.append(
            f"learning rate {chosen(after.training.learning_rate):.2g} for {weights:,} weights{few}{extrapolated}"
        )
    if before.finetuning.epochs == "auto":
        said.append(f"{chosen(after.finetuning.epochs):g} epochs for {rows:,} rows")
    return ", ".join(said)


def too_low_a_rate(recipe: Recipe, weights: int) -> str:
    """A warning if the learning rate suits only much larger models; otherwise empty."""
    rate, better = chosen(recipe.training.learning_rate), learning_rate(weights)
    if rate * MUCH_SMALLER > better or weights * MUCH_SMALLER > PAPER_WEIGHTS:
        return ""
    return (
        f"the learning rate {rate:.2g} suits models of about {PAPER_WEIGHTS:,} weights, but this one has {weights:,}: "
        f"it may learn almost nothing; --training.learning_rate auto uses {better:.2g}"
    )
