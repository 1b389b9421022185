"""Chooses the settings of a pre-training run from the text, the budget and the speed of this machine."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unicloze.model.build import shapes_only
from unicloze.pretraining.budget import Budget, Cost, cost_of_a_step, with_steps
from unicloze.progress import short
from unicloze.recipes import load_recipe
from unicloze.settings import Recipe
from unicloze.text.prepare import Prepared, open_or_prepare
from unicloze.text.survey import Survey, survey
from unicloze.training.loading import shape_model
from unicloze.training.precision import choose_device, choose_precision, with_precision

NAME = "auto"
"""Name of the recipe whose settings are chosen."""
VOCABULARY_OF_CHARACTERS = 2.6
"""Vocabulary size divided by the square root of the corpus's characters: 8,192 for 10 million, as in the quickstart."""
VOCABULARY = 2_048, 16_384
"""Smallest and largest vocabulary chosen."""
TOKENS_OF_A_WEIGHT = 5
"""Fewest training tokens per weight, embeddings not counted: as in the quickstart."""
MOST_PASSES = 16
"""Most passes over the text; Muennighoff et al. (2023) find almost no gain from more."""
PASSES_WITHOUT_DROPOUT = 4
"""Most passes over the text that need no dropout; up to here they find repeated text to be nearly as good as new."""
LITTLE_CHARACTERS = 10_000_000
"""Corpora below this are better used to continue a trained model."""


@dataclass(frozen=True)
class Size:
    """A model size with the rows it is trained on."""

    layers: int
    width: int
    heads: int
    window: int
    batch: int

    def settings(self) -> dict[str, Any]:
        """The size as settings."""
        return {
            "model.num_layers": self.layers,
            "model.hidden_size": self.width,
            "model.num_heads": self.heads,
            "model.intermediate_size": 4 * self.width,
            "data.window": self.window,
            "training.batch_size": self.batch,
        }


SIZES = (
    Size(2, 128, 4, 64, 32),
    Size(3, 192, 4, 128, 32),
    Size(4, 256, 4, 128, 32),
    Size(6, 384, 6, 128, 64),
    Size(8, 512, 8, 256, 64),
    Size(12, 768, 12, 512, 128),
)
"""The sizes to choose from, smallest first."""


@dataclass(frozen=True)
class Choice:
    """The chosen settings.

    Args:
        settings: By dotted name.
        reasons: What was chosen and why, a line each.
    """

    settings: dict[str, Any]
    reasons: Sequence[str]


def choose(given: Mapping[str, Any], budget: Budget, folder: Path, *, progress: bool = True) -> Choice:
    """Choose tokenizer, size, schedule and steps; prepares the text in FOLDER/data, where the run looks for it.

    Args:
        given: The user's settings by dotted name, which are kept.
        budget: What the run may spend.
        folder: Directory of the run.
        progress: Show the progress of preparing.

    Raises:
        UsageError: A setting is invalid, or the budget does not allow a step.
        UniclozeError: The corpus cannot be read.
    """
    reasons: list[str] = []
    chosen = _tokenizer(load_recipe(NAME, given), given, reasons)
    recipe = load_recipe(NAME, {**chosen, **given})
    prepared = open_or_prepare(recipe.data, recipe.tokenizer, folder / "data", progress=progress)
    chosen |= _size(chosen, given, prepared, budget, folder, reasons)
    return Choice(chosen, reasons)


def _tokenizer(recipe: Recipe, given: Mapping[str, Any], reasons: list[str]) -> dict[str, Any]:
    """Settings of the tokenizer to train; none if one is given."""
    if recipe.tokenizer.path is not None or recipe.data.prepared is not None:
        return {}
    seen = survey(recipe.data)
    chosen = {
        "tokenizer.kind": "wordpiece" if seen.spaced else "bpe",
        "tokenizer.lowercase": False,
        "tokenizer.vocab_size": vocabulary_size(seen),
    }
    final = {**chosen, **given}
    size = "an unknown number of characters" if seen.size is None else f"about {short(seen.size)} characters"
    written = "with" if seen.spaced else "without"
    reasons.append(f"text: {size}, written {written} spaces between words")
    reasons.append(
        f"tokenizer: {final['tokenizer.kind']} with {int(final['tokenizer.vocab_size']):,} tokens, capitals "
        f"{'lowered' if str(final['tokenizer.lowercase']).lower() == 'true' else 'kept'}"
    )
    if seen.size is not None and seen.size < LITTLE_CHARACTERS:
        reasons.append(
            "advice: this is little text; a trained model of its language, continued with --recipe quickstart --init DIR "
            "(a run or any Hugging Face encoder), learns more from it"
        )
    return chosen


def vocabulary_size(seen: Survey) -> int:
    """Vocabulary size for a corpus, a multiple of 512."""
    least, most = VOCABULARY
    wanted = most if seen.size is None else VOCABULARY_OF_CHARACTERS * math.sqrt(seen.size)
    return max(least, min(most, round(wanted / 512) * 512))


def _size(
    chosen: Mapping[str, Any],
    given: Mapping[str, Any],
    prepared: Prepared,
    budget: Budget,
    folder: Path,
    reasons: list[str],
) -> dict[str, Any]:
    """Size, window, batch, dropout and steps: the largest size that sees enough text per weight within the budget."""

    def recipe_of(size: Size, **others: Any) -> Recipe:
        return load_recipe(NAME, {**chosen, **size.settings(), **others, **given})

    def cost(size: Size, *, timed: bool) -> Cost:
        recipe = recipe_of(size)
        training = recipe.training
        recipe = with_precision(recipe, choose_precision(training, choose_device(training)))
        return cost_of_a_step(recipe, prepared, folder, timed=timed, sampled=2)

    text = sum(source.num_tokens for source in prepared.train)
    smallest = cost(SIZES[0], timed=budget.kind == "time")
    best, best_cost = SIZES[0], smallest
    for size in SIZES[1:]:
        counted = cost(size, timed=False)
        if smallest.seconds is not None:
            counted = dataclasses.replace(counted, seconds=smallest.seconds * counted.flops / smallest.flops)
        read = min(counted.tokens * budget.amount / counted.of(budget.kind), MOST_PASSES * text)
        if read < TOKENS_OF_A_WEIGHT * inner_weights(recipe_of(size), prepared):
            break
        best, best_cost = size, counted
    if best is not SIZES[0] and budget.kind == "time":
        best_cost = cost(best, timed=True)
    steps = with_steps(recipe_of(best), budget, best_cost).training.steps
    most = max(len(recipe_of(best).training.phases), math.ceil(MOST_PASSES * text / best_cost.tokens))
    limited = steps > most
    steps = min(steps, most)
    passes = steps * best_cost.tokens / max(1, text)
    dropout = 0.1 if passes > PASSES_WITHOUT_DROPOUT else 0.0
    settings = {
        **best.settings(),
        "model.dropout": dropout,
        "training.steps": steps,
        "training.warmup_steps": max(1, min(150, steps // 20)),
        "training.evaluate_every": math.ceil(steps / 8),
        "training.save_every": min(500, math.ceil(steps / 8)),
    }
    recipe = load_recipe(NAME, {**chosen, **settings, **given})
    reasons += _reasons(recipe, prepared, budget, best_cost, limited)
    return settings


def inner_weights(recipe: Recipe, prepared: Prepared) -> int:
    """Weights of a model without its token embeddings."""
    with shapes_only():
        weights = sum(weight.numel() for weight in shape_model(recipe, prepared.tokenizer.vocabulary.size).parameters())
    return weights - prepared.tokenizer.vocabulary.size * recipe.model.hidden_size


def _reasons(recipe: Recipe, prepared: Prepared, budget: Budget, cost: Cost, limited: bool) -> list[str]:
    """What was chosen for the run, in words."""
    model, steps = recipe.model, recipe.training.steps
    inner = inner_weights(recipe, prepared)
    tokens = steps * cost.tokens
    passes = tokens / max(1, sum(source.num_tokens for source in prepared.train))
    duration = "" if cost.seconds is None else f", about {_minutes(steps * cost.seconds)}"
    dropout = f"; dropout {model.dropout:g}, since the text repeats" if model.dropout else ""
    room = _minutes(budget.amount) if budget.kind == "time" else str(budget)
    why = f": {MOST_PASSES} passes over the text are enough" if limited else f" within {room}"
    return [
        f"model: {model.num_layers} layers of width {model.hidden_size}, {inner:,} weights without embeddings: the largest "
        f"that reads {TOKENS_OF_A_WEIGHT} tokens per weight{dropout}",
        f"steps: {steps:,} of {recipe.training.batch_size} windows of {recipe.data.window} tokens{why}; {short(tokens)} "
        f"tokens, {passes:,.1f} passes{duration}",
        "objective: left to right for a third of the steps, then pseudo-masked",
        f"expect: {_expectation(tokens)}",
    ]


def _minutes(seconds: float) -> str:
    return (
        f"{seconds:,.0f} s"
        if seconds < 120
        else f"{seconds / 60:,.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:,.1f} h"
    )


def _expectation(tokens: float) -> str:
    """What a model learns from so much text, as the runs in docs/log.md show."""
    if tokens < 1e6:
        return "frequent words and endings at best; give more text or time"
    if tokens < 1e7:
        return "common phrases, and a better guess than counting neighbouring words; few rare words"
    return "grammatical phrases and common facts of the text; a start for fine-tuning on its domain"
