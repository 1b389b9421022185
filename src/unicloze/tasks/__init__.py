"""Tasks: turn labelled records into examples, with one module per kind of task.

A task is an object with a few methods, listed in `TASKS` here; fine-tuning runs the same loop for all of them. Importing this
package imports none of these modules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from unicloze.registry import Registry
from unicloze.settings import HeadSettings, Recipe, ViewName

if TYPE_CHECKING:
    from unicloze.tasks.task import Task

TASKS: Registry[Task] = Registry(
    "task",
    "TASKS",
    {
        "classification": "unicloze.tasks.classification",
        "regression": "unicloze.tasks.classification",
        "generation": "unicloze.tasks.generation",
        "choice": "unicloze.tasks.classification",
        "tagging": "unicloze.tasks.tagging",
        "extraction": "unicloze.tasks.extraction",
        "conversation": "unicloze.tasks.extraction",
    },
)
"""Every kind of task, by `TaskSettings.kind`."""


def task_settings(kind: str, **values: Any) -> Any:
    """Settings of a kind of task, as an instance of its own class."""
    return TASKS[kind].settings(kind=kind, **values)


def of_view(target: str, view: ViewName) -> str:
    """The target of an auxiliary head of cross-view training."""
    return f"{target}:{view}"


def task_heads(recipe: Recipe) -> Mapping[str, HeadSettings]:
    """Task heads of a recipe's model, those of its views included; none in pre-training."""
    heads = TASKS[recipe.task.kind].heads(recipe.task) if recipe.task.kind else {}
    if recipe.finetuning.unlabelled:
        pairs = [(name, view) for name in heads for view in recipe.finetuning.views]
        return {**heads, **{of_view(*pair): dataclasses.replace(heads[pair[0]], view=pair[1]) for pair in pairs}}
    if recipe.use.visibility != "both_directions":
        return heads
    return {name: dataclasses.replace(head, directions=2) for name, head in heads.items()}
