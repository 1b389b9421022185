"""Texts in records: the parts of a source, the targets to train on, the references to compare with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unicloze.records.record import Record
from unicloze.settings import TaskSettings

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
    only_references = record.get(settings, TARGET) is None and record.get(settings, REFERENCES) is not None
    return _some_texts(record, settings, REFERENCES if only_references else TARGET)


def reference(record: Record, settings: TaskSettings) -> list[str]:
    """The texts to compare a prediction with: a record's references, or else its targets."""
    return _some_texts(record, settings, TARGET if record.get(settings, REFERENCES) is None else REFERENCES)


def _some_texts(record: Record, settings: TaskSettings, role: str) -> list[str]:
    return texts_of(record, settings, role) or [record.text(settings, role)]
