"""What a fine-tuning starts from: a recipe of a task for one model, and that model's weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from unicloze.decoding.abilities import objective_of
from unicloze.errors import UsageError, option_of
from unicloze.finetuning.auxiliary import auxiliary_objective
from unicloze.finetuning.generate import ready_to_generate
from unicloze.recipes import with_overrides
from unicloze.settings import Recipe, TaskSettings
from unicloze.tasks import TASKS
from unicloze.tasks.groups import Headed, Labelled
from unicloze.tasks.rows import pooling_of
from unicloze.training.models import LoadedModel

FREE = "dropout", "attention_dropout", "initializer_range"
"""Settings of `model` that are a task's own: nothing that is trained depends on them."""


def task_recipe(
    recipe: Recipe,
    start: LoadedModel,
    overridden: Sequence[str] = (),
    objective: Mapping[str, Any] | None = None,
) -> Recipe:
    """A recipe of a task for one model: data, tokenizer, objective and model are the model's.

    Args:
        recipe: Of the task.
        start: The model.
        overridden: Dotted keys that the recipe keeps, such as `model.dropout`.
        objective: Settings of the model's objective by dotted key, which only the model tells.

    Raises:
        UsageError: The recipe has no task, an overridden setting is the model's own, the model has no such auxiliary
            objective or its objective no such setting, or what stands for a text has not read it.
    """
    if not recipe.task.kind:
        raise UsageError(f"recipe {recipe.name} is for pre-training: give a task (`unicloze recipes` lists them)")
    _refuse_other_models(recipe, start, overridden)
    own = dataclasses.replace(start.recipe, objective=objective_of(start.recipe))
    of_model = with_overrides(own, objective).objective if objective else own.objective
    sections: dict[str, Any] = {"objective": of_model}
    for section in ("data", "tokenizer", "model", "use"):
        kept = [key.partition(".")[2] for key in overridden if key.startswith(f"{section}.")]
        values = {name: getattr(getattr(recipe, section), name) for name in kept}
        sections[section] = dataclasses.replace(getattr(own, section), **values)
    sections["model"] = dataclasses.replace(
        sections["model"], max_positions=start.model.max_positions, generator_size=0.0, memory=0, pooler=False
    )
    longest = min(recipe.task.max_length, start.model.max_positions)
    recipe = dataclasses.replace(recipe, **sections, task=dataclasses.replace(recipe.task, max_length=longest))
    recipe = _pooled(recipe)
    if TASKS[recipe.task.kind].predict is None:
        recipe = ready_to_generate(recipe, start.tokenizer)
    if recipe.finetuning.auxiliary:
        auxiliary_objective(recipe)
        if not hasattr(start.model, "token_head"):
            raise UsageError(f"{start.path} has no head that predicts tokens: leave finetuning.auxiliary out")
    return recipe


def _refuse_other_models(recipe: Recipe, start: LoadedModel, overridden: Sequence[str]) -> None:
    """Refuse settings of which the model has its own: another shape would leave weights newly initialised.

    Raises:
        UsageError: One has another value.
    """
    for key in overridden:
        section, _, name = key.partition(".")
        if section not in ("data", "tokenizer", "model") or name in FREE:
            continue
        asked, own = (getattr(getattr(each, section), name) for each in (recipe, start.recipe))
        if asked != own:
            raise UsageError(
                f"{key} is {asked}, and the model {start.path} was made with {own}: leave it out; of the model a fine-tuning "
                f"sets {', '.join(f'model.{one}' for one in FREE)}"
            )


def _pooled(recipe: Recipe) -> Recipe:
    """The recipe with a slot for words and answers that has read them, where it names none.

    Raises:
        UsageError: A model that reads from left to right is to predict from its first slot, which is alike in all rows.
    """
    task, causal = recipe.task, recipe.use.visibility == "left_to_right"
    if not isinstance(task, Headed):
        return recipe
    if task.pooling is None and task.kind in ("tagging", "extraction", "conversation") and causal:
        task = dataclasses.replace(task, pooling="last")
    if task.pooling is None and task.kind == "tagging":
        task = dataclasses.replace(task, pooling="first")
    recipe = dataclasses.replace(recipe, task=task)
    if causal and task.kind != "tagging" and pooling_of(recipe) == "first":
        key = "use.pooling" if task.pooling is None else "task.pooling"
        raise UsageError(
            f"{key} is first, and the model reads from left to right, so that its first slot has read nothing of a text: set "
            f"{option_of('task.pooling')} last"
        )
    return recipe


def _labels(task: TaskSettings) -> list[str] | None:
    return task.labels if isinstance(task, Labelled) else None


def start_weights(model: torch.nn.Module, start: LoadedModel, task: TaskSettings) -> list[str]:
    """Copy a trained model's weights into a model of a task, its pooler into the task's dense layers.

    The output layers of a model that was fine-tuned before are copied where they tell the same classes apart.

    Returns:
        Names of the weights that stay as drawn.
    """
    own, theirs = model.state_dict(), start.model.state_dict()
    fitting = {name: theirs[name] for name in own if name in theirs and theirs[name].shape == own[name].shape}
    for name in own:
        if name.startswith("task_heads.") and ".output." in name and _labels(start.recipe.task) != _labels(task):
            fitting.pop(name, None)
        if name.startswith("task_heads.") and ".dense." in name:
            kind = name.rpartition(".")[2]
            pooler = theirs.get(f"pooler.{kind}", theirs.get(f"pair_head.dense.{kind}"))
            if pooler is not None and name not in fitting:
                fitting[name] = pooler
    model.load_state_dict(fitting, strict=False)
    return sorted(own.keys() - fitting.keys())
