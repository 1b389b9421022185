"""What the columns and fields of labelled records mean: text, pair and label, roles, and texts without records."""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from unicloze.characters import IDEOGRAPH
from unicloze.errors import UniclozeError, UsageError
from unicloze.records.record import OPTION, Record, number_of, spelled
from unicloze.settings import Recipe, TaskSettings
from unicloze.tasks import TASKS
from unicloze.tasks.task import OF_TEXTS, Task

MOST_CLASSES = 50
"""Maximum distinct values of a column of classes, unless no other column is left."""
NUMBERS = {"id", "idx", "index", "guid", "uid"}
"""Names of columns that number the records."""
LABELS = {"label", "gold_label", "class", "category", "sentiment", "target", "score", "stars", "rating"}
"""Names that tell the label from other columns of few values."""
PREMISE = "premise", "hypothesis"
"""Names of the texts of a pair, besides those that differ in a final 1 and 2 or a and b."""

Columns = Mapping[str, Sequence[Any]]


def with_columns(settings: TaskSettings, records: Sequence[Record]) -> TaskSettings:
    """The settings with inferred fields for text, pair and label, if no record has fields with these names.

    The label is the only other column with few values, or with numbers for a regression. The text is the only other column
    of several words, or the only other column; two are a pair if their names say so.
    """
    if settings.kind not in OF_TEXTS:
        return settings
    unnamed = [role for role in ("text", "label") if role not in settings.fields]
    missing = [role for role in unnamed if all(record.get(settings, role) is None for record in records)]
    if not missing:
        return settings
    taken = {settings.fields.get(role, role) for role in ("text", "pair", "label", "id") if role not in missing}
    columns = {name: [record.fields.get(name) for record in records] for name in records[0].fields if name not in taken}
    columns = {name: values for name, values in columns.items() if not _is_numbering(name, values)}
    found: dict[str, str] = {}
    if "label" in missing and (label := _label(columns, settings.kind, alone="text" not in missing)) is not None:
        _refuse_headless(label, columns[label], records[0])
        found["label"] = label
    if "text" in missing:
        left = {name: values for name, values in columns.items() if name != found.get("label")}
        found |= _texts(left, records[0], alone="label" not in missing or "label" in found)
    fields: dict[str, str] = {role: found[role] for role in ("text", "pair", "label") if role in found}
    return dataclasses.replace(settings, fields={**settings.fields, **fields}) if fields else settings


def _label(columns: Columns, kind: str, *, alone: bool) -> str | None:
    """The label's column; `alone` if no other role is missing."""
    if kind == "regression":
        candidates = [name for name, values in columns.items() if _is_quantity(values) and len(set(values)) > 1]
    else:
        few = [name for name, values in columns.items() if _is_class(values)]
        wordy = [name for name, values in columns.items() if _is_wordy(values)]
        # texts from templates have few values too
        candidates = few if set(wordy) - set(few) else [name for name in few if name not in wordy]
    named = [name for name in candidates if name.lower() in LABELS]
    if alone and len(columns) == 1 and not candidates and kind == "classification":
        candidates = [name for name, values in columns.items() if all(isinstance(value, str | int) for value in values)]
    return _only(candidates) or _only(named)


def _texts(columns: Columns, first: Record, *, alone: bool) -> dict[str, str]:
    """The columns of the text and its pair; `alone` if the label is known."""
    texts = [name for name, values in columns.items() if _is_wordy(values)]
    if len(texts) == 2 and _are_pair(*texts):
        return {"text": texts[0], "pair": texts[1]}
    if len(texts) > 1:
        shown = " or ".join(f"'{name}'" for name in texts[:2])
        which = f"name it with {spelled(OPTION, 'fields', f'{{text: {texts[0]}}}')}"
        both = f"'{{text: {texts[0]}, pair: {texts[1]}}}'"
        raise UniclozeError(f"{first.place}: the text may be {shown}: {which}, or as {both} if they are a pair")
    if not texts and alone and len(columns) == 1:
        texts = [name for name, values in columns.items() if all(isinstance(value, str) for value in values)]
    return {"text": texts[0]} if texts else {}


def _refuse_headless(label: str, values: Sequence[Any], first: Record) -> None:
    """Reject a table whose first line is a record."""
    if first.headed and (label in values or _is_quantity([label])):
        shown = ", ".join(f"'{name}'" for name in first.fields)
        file = first.place.rpartition(", line ")[0]
        cure = "put a line with the names of the columns above it, such as text and label"
        raise UniclozeError(f"{file}, line 1: this is a record and not a header ({shown}): {cure}")


def _only(names: Sequence[str]) -> str | None:
    return names[0] if len(names) == 1 else None


def _are_pair(one: str, other: str) -> bool:
    one, other = one.lower(), other.lower()
    ends = re.fullmatch(r"(.*)(1|a|one|first)\0(.*)(2|b|two|second)", f"{one}\0{other}")
    return (one, other) == PREMISE or (ends is not None and ends[1] == ends[3])


def _is_numbering(name: str, values: Sequence[Any]) -> bool:
    """Whether a column numbers the records."""
    counts = (all(str(value) == str(number) for number, value in enumerate(values, first)) for first in (0, 1))
    return name.lower() in NUMBERS or (len(values) > 2 and name.lower() not in LABELS and any(counts))


def _is_wordy(values: Sequence[Any]) -> bool:
    """Whether these are texts, mostly of several words (or characters, in scripts without spaces)."""
    texts = [value for value in values if isinstance(value, str)]
    long = [text for text in texts if len(text.split()) > 1 or (not text.isascii() and len(text) > 4)]
    return len(texts) == len(values) and 2 * len(long) > len(texts)


def _is_class(values: Sequence[Any]) -> bool:
    most = min(MOST_CLASSES, len(values) / 2)
    return all(isinstance(value, str | int) for value in values) and 2 <= len({*map(str, values)}) <= most


def _is_quantity(values: Sequence[Any]) -> bool:
    return all(number_of(value) is not None for value in values)


def resolved(settings: TaskSettings, records: Sequence[Record]) -> TaskSettings:
    """The settings completed from the training records: classes, optional roles."""
    task = TASKS[settings.kind]
    settings = task.resolve(settings, records)
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
            lacks = f"there is a field '{settings.fields.get(role, role)}', but the training file has none"
            raise UniclozeError(f"{holder.place}: {lacks}: rename it or leave it out")


def check_fields(recipe: Recipe, task: Task | None, more: Sequence[str] = ()) -> None:
    """Reject `task.fields` with roles that are not used."""
    sources = recipe.generation.source if recipe.task.kind in ("", "generation") else ()
    known = {*(task.roles if task else ()), *sources, "id", *more}
    _check_known("task.fields", recipe.task.fields, known, recipe.task.kind)


def _check_known(key: str, named: Iterable[str], known: Collection[str], kind: str) -> None:
    unknown = next((role for role in named if role not in known), None)
    if unknown is not None:
        of_kind = f" of the kind {kind}" if kind else ""
        roles = ", ".join(sorted(known)) or "none"
        raise UsageError(f"{key} names the role '{unknown}'; the roles of a task{of_kind} are {roles}")


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
    # it is unknown whether the training file had them
    unknown = TASKS[settings.kind].optional if settings.kind and settings.optional is None else ()
    least = [role for role in roles if settings.kind == "generation" or role not in unknown]
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
        lacks = f"the task {settings.kind} does not declare which of its fields are texts (`texts`), which --text would fill"
        raise UsageError(f"{lacks}: declare them in the plugin, or give a --file of records.")
    if not task.texts or missing:
        needs = " and ".join(missing or [role for role in task.roles if role not in task.answers])
        raise UsageError(f"this model reads {needs}, which plain text does not contain: give a --file of records.")
    return [role for role in task.texts if role not in task.optional or held is None or role in held]


TARGET = "target"
"""Role of the text to train on, and name of its predictions."""
REFERENCES = "references"
"""Role of the texts that predictions are compared with, if not the target."""


def texts_of(record: Record, settings: TaskSettings, role: str) -> list[str]:
    """The texts in a role: a text, the `text` of a mapping (SQuAD's answers), or the texts in a list of these."""
    found = _texts_in(record.get(settings, role))
    return [record.text(settings, role)] if found is None else found


def _texts_in(value: Any) -> list[str] | None:
    """The texts in a value, or None if it contains anything else."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping) and isinstance(value.get("text"), str):
        return [value["text"]]
    if not isinstance(value, list):
        return None
    several = [_texts_in(each) for each in value]
    return None if None in several else [text for texts in several for text in texts or []]


def has_target(record: Record, settings: TaskSettings) -> bool:
    """Whether a record has a target or references."""
    return any(record.get(settings, role) is not None for role in (TARGET, REFERENCES))


def targets_of(record: Record, settings: TaskSettings) -> list[str]:
    """The texts to train on: a record's targets, or else its references."""
    return _some_texts(record, settings, TARGET, REFERENCES)


def reference(record: Record, settings: TaskSettings) -> list[str]:
    """The texts to compare a prediction with: a record's references, or else its targets."""
    return _some_texts(record, settings, REFERENCES, TARGET)


def _some_texts(record: Record, settings: TaskSettings, *roles: str) -> list[str]:
    role = next((role for role in roles if record.get(settings, role) is not None), TARGET)
    return texts_of(record, settings, role) or [record.text(settings, role)]
