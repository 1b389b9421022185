"""Which roles the records of a file hold: what is named wrongly would otherwise be left out without a word."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from unicloze.errors import UniclozeError, UsageError
from unicloze.settings import Recipe, TaskSettings
from unicloze.tasks.records import Record
from unicloze.tasks.task import Task


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
    sources = recipe.generation.source if settings.kind == "generation" else ()
    named = {"task.fields": {*task.roles, *sources, "id"}, "task.optional": {*task.optional}}
    for key, roles in (("task.fields", settings.fields), ("task.optional", settings.optional or [])):
        unknown = next((role for role in roles if role not in named[key]), None)
        if unknown is not None:
            known = ", ".join(sorted(named[key])) or "none"
            raise UsageError(
                f"{key} names the role '{unknown}'; those of a task of the kind {settings.kind} are {known}"
            )
    for role in task.optional:
        holder = next((record for record in records if record.get(settings, role) is not None), None)
        if holder is None and (role in settings.fields or role in (settings.optional or [])):
            records[0].needed(settings, role)
        if holder is not None and settings.optional is not None and role not in settings.optional:
            name = settings.fields.get(role, role)
            raise UniclozeError(
                f"{holder.place}: there is a field '{name}', and the training file has none: rename it or leave it out"
            )
