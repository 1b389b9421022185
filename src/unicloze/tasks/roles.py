"""Checks the roles in the records of a file, since misnamed fields would otherwise be ignored silently."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence

from unicloze.errors import UniclozeError, UsageError
from unicloze.records.record import Record
from unicloze.settings import Recipe, TaskSettings
from unicloze.tasks import TASKS
from unicloze.tasks.task import Task


def resolved(settings: TaskSettings, records: Sequence[Record]) -> TaskSettings:
    """The settings completed from the training records: classes, optional roles."""
    task = TASKS[settings.kind]
    return with_optional(task.resolve(settings, records), task, records)


def with_optional(settings: TaskSettings, task: Task, records: Sequence[Record]) -> TaskSettings:
    """The settings with the optional roles found in the training records, unless given."""
    if settings.optional is not None:
        return settings
    held = [role for role in task.optional if any(record.get(settings, role) is not None for record in records)]
    return dataclasses.replace(settings, optional=held)


def check_roles(records: Sequence[Record], task: Task, recipe: Recipe) -> None:
    """Reject unknown roles, and records whose optional roles differ from those of the training file."""
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
                f"{holder.place}: there is a field '{name}', but the training file has none: rename it or leave it out"
            )


def check_fields(recipe: Recipe, task: Task | None, more: Sequence[str] = ()) -> None:
    """Reject `task.fields` with roles that are not used."""
    sources = recipe.generation.source if recipe.task.kind in ("", "generation") else ()
    _check_known(
        "task.fields", recipe.task.fields, {*(task.roles if task else ()), *sources, "id", *more}, recipe.task.kind
    )


def _check_known(key: str, named: Iterable[str], known: Collection[str], kind: str) -> None:
    unknown = next((role for role in named if role not in known), None)
    if unknown is not None:
        of_kind = f" of the kind {kind}" if kind else ""
        roles = ", ".join(sorted(known)) or "none"
        raise UsageError(f"{key} names the role '{unknown}'; the roles of a task{of_kind} are {roles}")
