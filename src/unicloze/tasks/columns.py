"""Infers which column of a table is the text and which the label, if that is unambiguous."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from unicloze.records.record import Record
from unicloze.settings import TaskSettings

GUESSED = ("classification", "regression")
"""Kinds of tasks whose records are a text and a label."""
MOST_CLASSES = 50
"""Maximum distinct values of a column of classes."""
NUMBERS = {"id", "idx", "index", "guid", "uid"}
"""Names of columns that number the records."""


def with_columns(settings: TaskSettings, records: Sequence[Record]) -> TaskSettings:
    """The settings with inferred fields for text and label, if no record has fields with these names.

    The text is the only column with distinct texts of several words; the label is the only other column with few values, or
    with numbers for a regression.
    """
    if settings.kind not in GUESSED:
        return settings
    names = list(records[0].fields)
    columns = {name: [record.fields.get(name) for record in records] for name in names if name.lower() not in NUMBERS}
    missing = [
        role
        for role in ("text", "label")
        if role not in settings.fields and all(record.get(settings, role) is None for record in records)
    ]
    taken = {settings.fields.get(role, role) for role in ("text", "pair", "label", "id") if role not in missing}
    free = {name: values for name, values in columns.items() if name not in taken}
    texts = [name for name, values in free.items() if _is_text(values)]
    is_label = _is_quantity if settings.kind == "regression" else _is_class
    labels = [name for name, values in free.items() if name not in texts and is_label(values)]
    found = {
        role: candidates[0]
        for role, candidates in (("text", texts), ("label", labels))
        if role in missing and len(candidates) == 1
    }
    return dataclasses.replace(settings, fields={**settings.fields, **found}) if found else settings


def _is_text(values: Sequence[Any]) -> bool:
    """Whether these are texts, mostly distinct and of several words (or characters, in scripts without spaces)."""
    texts = [value for value in values if isinstance(value, str)]
    long = [text for text in texts if len(text.split()) > 1 or (not text.isascii() and len(text) > 4)]
    return len(texts) == len(values) and 2 * len(set(texts)) > len(texts) and 2 * len(long) > len(texts)


def _is_class(values: Sequence[Any]) -> bool:
    known = {str(value) for value in values if isinstance(value, str | int)}
    return all(isinstance(value, str | int) for value in values) and 2 <= len(known) <= min(
        MOST_CLASSES, len(values) / 2
    )


def _is_quantity(values: Sequence[Any]) -> bool:
    try:
        return len({float(value) for value in values}) > 1
    except (TypeError, ValueError):
        return False
