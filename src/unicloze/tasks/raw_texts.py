"""Makes a record of raw texts, to try a model on a single sentence."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from unicloze.characters import IDEOGRAPH
from unicloze.errors import UsageError
from unicloze.records.record import Record
from unicloze.settings import Recipe
from unicloze.tasks import TASKS

_RUN = re.compile(r"(.)\1*", re.DOTALL)


def words_of(text: str) -> list[str]:
    """Split a text into words as in treebanks: punctuation around a word is separate, and so is each ideograph."""
    found: list[str] = []
    for chunk in text.split():
        first, last = 0, len(chunk)
        while first < last and _is_sign(chunk[first]):
            first += 1
        while last > first and _is_sign(chunk[last - 1]):
            last -= 1
        found += [run[0] for run in _RUN.finditer(chunk[:first])]
        found += [part for part in re.split(f"({IDEOGRAPH.pattern})", chunk[first:last]) if part]
        found += [run[0] for run in _RUN.finditer(chunk[last:])]
    return found


def _is_sign(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"


def record_of_texts(texts: Sequence[str], recipe: Recipe) -> Record:
    """Make a record of raw texts, one for each part that the model reads, such as a passage and a question."""
    roles, settings = roles_of(recipe), recipe.task
    least = [role for role in roles if settings.kind == "generation" or role not in _optional(recipe)]
    if not len(least) <= len(texts) <= len(roles):
        wanted = f"{len(least)} text{'s' * (len(least) > 1)}" + f" or {len(roles)}" * (len(roles) > len(least))
        raise UsageError(f"this model reads {' and '.join(roles)}: give {wanted}, not {len(texts)}.")
    parts: dict[str, object] = {}
    for role, text in zip(roles, texts, strict=False):
        name = settings.fields.get(role, role)
        parts[name] = words_of(text) if settings.kind == "tagging" else text
    return Record("0", parts, "the text given")


def roles_of(recipe: Recipe) -> Sequence[str]:
    """Roles of the texts that a model reads, in order."""
    settings = recipe.task
    if settings.kind in ("", "generation"):
        return recipe.generation.source
    task, held = TASKS[settings.kind], settings.optional
    missing = [role for role in held or () if role not in task.texts]
    if not task.texts and TASKS.is_added(settings.kind):
        raise UsageError(
            f"the task {settings.kind} does not declare which of its fields are texts (`texts`), which --text would fill: "
            "declare them in the plugin, or give a --file of records."
        )
    if not task.texts or missing:
        needs = missing or [role for role in task.roles if role not in task.answers]
        raise UsageError(
            f"this model reads {' and '.join(needs)}, which plain text does not contain: give a --file of records."
        )
    return [role for role in task.texts if role not in task.optional or held is None or role in held]


def _optional(recipe: Recipe) -> Sequence[str]:
    """Roles whose text may be omitted, as it is unknown whether the training file had them."""
    settings = recipe.task
    return TASKS[settings.kind].optional if settings.kind and settings.optional is None else ()
