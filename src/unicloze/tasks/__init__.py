"""Tasks: labelled records to examples, one file per kind of task.

A task is a handful of functions, named in `TASKS` here; fine-tuning is the same loop over what they make. Importing this
package imports none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from unicloze.registry import Registry
from unicloze.settings import HeadSettings, Recipe

if TYPE_CHECKING:
    from unicloze.tasks.task import Task

TASKS: Registry[Task] = Registry(
    "task",
    "TASKS",
    dict.fromkeys(
        ("classification", "regression", "generation", "choice", "tagging", "extraction", "conversation"),
        "unicloze.tasks.kinds",
    ),
)
"""Every kind of task, by `TaskSettings.kind`."""


def task_settings(kind: str, **values: Any) -> Any:
    """Settings of a kind of task of its own class.

    Args:
        kind: The kind.
        values: Those that differ from the defaults.

    Raises:
        UsageError: There is no such kind.
        TypeError: It has no such setting.
    """
    return TASKS[kind].settings(kind=kind, **values)


def task_heads(recipe: Recipe) -> Mapping[str, HeadSettings]:
    """The heads a recipe's model has for its task; none in pre-training."""
    return TASKS[recipe.task.kind].heads(recipe.task) if recipe.task.kind else {}
