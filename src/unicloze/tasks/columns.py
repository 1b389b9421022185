"""Infers which columns of a table are the text, its pair and the label, if that is unambiguous."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from unicloze.errors import UniclozeError
from unicloze.records.record import OPTION, Record, spelled
from unicloze.settings import TaskSettings

GUESSED = ("classification", "regression")
"""Kinds of tasks whose records are a text, or a pair of texts, and a label."""
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
    if settings.kind not in GUESSED:
        return settings
    missing = [
        role
        for role in ("text", "label")
        if role not in settings.fields and all(record.get(settings, role) is None for record in records)
    ]
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
    if not texts and alone:
        texts = [
            name for name, values in columns.items() if len(columns) == 1 and all(isinstance(v, str) for v in values)
        ]
    return {"text": texts[0]} if texts else {}


def _refuse_headless(label: str, values: Sequence[Any], first: Record) -> None:
    """Reject a table whose first line is a record."""
    if first.headed and (label in values or _is_quantity([label])):
        shown = ", ".join(f"'{name}'" for name in first.fields)
        file = first.place.rpartition(", line ")[0]
        raise UniclozeError(
            f"{file}, line 1: this is a record and not a header ({shown}): put a line with the names of the columns above "
            "it, such as text and label"
        )


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
    known = {str(value) for value in values if isinstance(value, str | int)}
    return all(isinstance(value, str | int) for value in values) and 2 <= len(known) <= min(
        MOST_CLASSES, len(values) / 2
    )


def _is_quantity(values: Sequence[Any]) -> bool:
    try:
        return all(math.isfinite(float(value)) for value in values)
    except (TypeError, ValueError):
        return False
