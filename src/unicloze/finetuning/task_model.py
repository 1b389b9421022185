"""A model with the task it was fine-tuned on."""

from __future__ import annotations

from dataclasses import dataclass

from unicloze.decoding.uses import instead
from unicloze.errors import UsageError
from unicloze.model.model import UnifiedModel
from unicloze.settings import Recipe
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.loop import Compute
from unicloze.training.models import LoadedModel

SLOTS_AT_ONCE = 8192
"""Slots of a forward pass of records, padding counted."""


@dataclass(frozen=True)
class TaskModel:
    """A model of a task, ready to predict.

    Args:
        model: Has the heads of the task.
        tokenizer: Its tokenizer.
        recipe: Has the task.
        compute: Where and how to compute.
    """

    model: UnifiedModel
    tokenizer: Tokenizer
    recipe: Recipe
    compute: Compute


def load_task_model(loaded: LoadedModel) -> TaskModel:
    """A fine-tuned model, ready to predict.

    Raises:
        UsageError: It has no task.
    """
    if not loaded.recipe.task.kind:
        raise UsageError(
            f"{loaded.path} is no fine-tuned model: give the --out of `unicloze finetune`; {instead(loaded)}"
        )
    return TaskModel(loaded.model, loaded.tokenizer, loaded.recipe, loaded.compute)
