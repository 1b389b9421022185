"""A fine-tuned model with its task."""

from __future__ import annotations

from dataclasses import dataclass

from unicloze.decoding.abilities import instead
from unicloze.errors import UsageError
from unicloze.model.model import UnifiedModel
from unicloze.settings import Recipe
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.loading import LoadedModel
from unicloze.training.loop import Compute

SLOTS_AT_ONCE = 8192
"""Slots in one forward pass over records, including padding."""


@dataclass(frozen=True)
class TaskModel:
    """A fine-tuned model, ready to predict."""

    model: UnifiedModel  # the model with the task heads
    tokenizer: Tokenizer  # tokenizer of the model
    recipe: Recipe  # recipe with the task
    compute: Compute  # device and precision to compute with


def load_task_model(loaded: LoadedModel) -> TaskModel:
    """A fine-tuned model, ready to predict."""
    if not loaded.recipe.task.kind:
        raise UsageError(
            f"{loaded.path} is not a fine-tuned model: give the --out of `unicloze finetune`; {instead(loaded)}"
        )
    return TaskModel(loaded.model, loaded.tokenizer, loaded.recipe, loaded.compute)
