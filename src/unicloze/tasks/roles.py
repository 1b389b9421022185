"""Which roles the records of a file hold: what is named wrongly would otherwise be left out without a word."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence

from unicloze.errors import UniclozeError, UsageError
from unicloze.records.record import Record
from unicloze.settings import Recipe, TaskSettings
from unicloze.tasks import TASKS
from unicloze.tasks.task import Task


def resolved(settings: TaskSettings, records: Sequence[Record]) -> TaskSettings:
    """The settings with what follows from the training records: classes, optional roles.

    Raises:
        UniclozeError: A record cannot be learned from; the message names its line.
    """
    task = TASKS[settings.kind]
    return with_optional(task.resolve(settings, records), task, records)


def with_optional(settings: TaskSettings, task: Task, records: Sequence[Record]) -> TaskSettings:
    """The settings with the optional roles that the training records hold, where none are given."""
    if settings.optional is not None:
        return settings
    held = [role for role in task.optional if any(record.get(settings, role) is not None for record in records)]
    return dataclasses.replace(settings, optional=held)


def check_roles(records: Sequence[Record], task: Task, recipe: Recipe) -> None:
    """Refuse names of roles that there are not, and records that do not hold the optional roles of the training file.

    Raises:
        UsageError: `task.fields` or `task.optional` names a role that the task does not read.
        UniclozeError: No record holds an optional role that the training file has or `task.fields` names, or one holds a
            role that the training file has not.
    """
    settings = recipe.task
    check_fields(recipe, task)
    _check_known("task.optional", settings.optional or [], task.optional, settings.kind)
    for role in task.optional:
        holder = next((record for record in records if record.get(settings, role) is not None), None)
        if holder is None and (role in settings.fields or role in (settings.optional or [])):
            records[0].needed(settings, role)
        if holder is not None and settings.optional is not None and role not in settings.optional:
            name = settings.fields.get(role, role)
            raise UniclozeError(
                f"{holder.place}: there is a field '{name}', and the training file has none: rename it or leave it out"
            )


def check_fields(recipe: Recipe, task: Task | None, more: Sequence[str] = ()) -> None:
    """Refuse `task.fields` that say where something is kept that nobody looks for.

    Args:
        recipe: Of a task, or of pre-training, whose sources are texts.
        task: Its task, if it has one.
        more: Roles that are looked for besides.

    Raises:
        UsageError: A role is unknown.
    """
    sources = recipe.generation.source if recipe.task.kind in ("", "generation") else ()
    _check_known(
        "task.fields", recipe.task.fields, {*(task.roles if task else ()), *sources, "id", *more}, recipe.task.kind
    )


def _check_known(key: str, named: Iterable[str], known: Collection[str], kind: str) -> None:
    unknown = next((role for role in named if role not in known), None)
    if unknown is not None:
        of_kind = f" of the kind {kind}" if kind else ""
        roles = ", ".join(sorted(known)) or "none"
        raise UsageError(f"{key} names the role '{unknown}'; those of a task{of_kind} are {roles}")
