"""Checks the settings of a task and of fine-tuning."""

from __future__ import annotations

import math
from collections.abc import Iterator

from unicloze.rules import Problem
from unicloze.settings import Recipe
from unicloze.tasks import TASKS
from unicloze.tasks.groups import Headed

BOTH_DIRECTIONS = "classification", "regression", "tagging"
"""Kinds of tasks whose rows can be read in both directions, one apart from the other."""

LARGEST_ADAPTER = 2**16


def task_problems(recipe: Recipe) -> Iterator[Problem]:
    """Invalid settings of the task and of fine-tuning: the key and what its value must be."""
    task, finetuning = recipe.task, recipe.finetuning
    if not task.kind:
        return
    if task.kind not in TASKS:
        yield "task.kind", TASKS.unknown()
        return
    yield from task.problems(recipe)
    if recipe.use.visibility == "both_directions":
        if task.kind not in BOTH_DIRECTIONS:
            yield "use.visibility", f"only {' and '.join(BOTH_DIRECTIONS)} read both directions: set it to another"
        elif isinstance(task, Headed) and task.pooling not in (None, "mean"):
            yield "task.pooling", "the slots of either direction are averaged: set it to mean, or leave it out"
        if finetuning.auxiliary:
            yield "finetuning.auxiliary", "rows read in both directions have none: set it to {}"
    if finetuning.epochs != "auto" and not 0 < finetuning.epochs < math.inf:
        yield "finetuning.epochs", "it must be above 0 and finite"
    if not 0 <= finetuning.warmup_share < 1:
        yield "finetuning.warmup_share", "it must be at least 0 and below 1"
    if not 0 < finetuning.evaluations < math.inf:
        yield "finetuning.evaluations", "it must be above 0 and finite"
    if finetuning.patience is not None and finetuning.patience < 1:
        yield "finetuning.patience", "it must be at least 1, or left out"
    if not all(0 < weight < math.inf for weight in finetuning.auxiliary.values()):
        yield "finetuning.auxiliary", "each factor must be above 0 and finite"
    if not finetuning.views or len(set(finetuning.views)) < len(finetuning.views):
        yield "finetuning.views", "name at least one view, and each once"
    if not 0 <= finetuning.unlabelled_dropout < math.inf:
        yield "finetuning.unlabelled_dropout", "it must be at least 0 and finite"
    if finetuning.average_last < 1:
        yield "finetuning.average_last", "it must be at least 1"
    if not 0 < finetuning.layer_decay <= 1:
        yield "finetuning.layer_decay", "it must be above 0 and at most 1"
    if finetuning.unfreeze_epochs is not None and not 0 < finetuning.unfreeze_epochs < math.inf:
        yield "finetuning.unfreeze_epochs", "it must be above 0 and finite, or left out"
    yield from _problems_of_few(recipe)


def _problems_of_few(recipe: Recipe) -> Iterator[Problem]:
    """Invalid settings of LoRA and of adapters: the key and what its value must be."""
    finetuning = recipe.finetuning
    if finetuning.lora_rank is not None and not 1 <= finetuning.lora_rank <= recipe.model.hidden_size:
        yield "finetuning.lora_rank", f"it must be at least 1 and at most model.hidden_size, {recipe.model.hidden_size}"
    if finetuning.lora_rank is not None and finetuning.adapter_size is not None:
        yield "finetuning.lora_rank", "a run trains either low-rank updates or adapters: leave out one of them"
    if finetuning.lora_alpha is not None and not 0 < finetuning.lora_alpha < math.inf:
        yield "finetuning.lora_alpha", "it must be above 0 and finite, or left out"
    if not 0 <= finetuning.lora_dropout < 1:
        yield "finetuning.lora_dropout", "it must be at least 0 and below 1"
    if not finetuning.lora_projections or len(set(finetuning.lora_projections)) < len(finetuning.lora_projections):
        yield "finetuning.lora_projections", "name at least one projection, and each once"
    if finetuning.adapter_size is not None and not 1 <= finetuning.adapter_size <= LARGEST_ADAPTER:
        yield "finetuning.adapter_size", f"it must be at least 1 and at most {LARGEST_ADAPTER:,}"
