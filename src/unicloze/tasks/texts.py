"""The texts of records: what a source is made of, the targets to learn, the references to compare with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unicloze.records.record import Record
from unicloze.settings import TaskSettings

TARGET = "target"
"""Role of what is learned, and name of its predictions."""
REFERENCES = "references"
"""Role of what predictions are compared with, where that is not the target."""


def texts_of(record: Record, settings: TaskSettings, role: str) -> list[str]:
    """The texts in a role: a text, that of a mapping with a `text` (SQuAD's answers), or those of a list of these.

    Raises:
        UniclozeError: There is something else; the message names the line.
    """
    found = _texts_in(record.get(settings, role))
    return [record.text(settings, role)] if found is None else found


def _texts_in(value: Any) -> list[str] | None:
    """The texts in a value, None if it holds something else."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping) and isinstance(value.get("text"), str):
        return [value["text"]]
    if not isinstance(value, list):
        return None
    several = [_texts_in(each) for each in value]
    return None if None in several else [text for texts in several for text in texts or []]


def has_target(record: Record, settings: TaskSettings) -> bool:
    """Whether a record says what its target is."""
    return any(record.get(settings, role) is not None for role in (TARGET, REFERENCES))


def targets_of(record: Record, settings: TaskSettings) -> list[str]:
    """What may be learned from a record: its targets, or else its references.

    Raises:
        UniclozeError: It has neither; the message names its line.
    """
    only_references = record.get(settings, TARGET) is None and record.get(settings, REFERENCES) is not None
    return _some_texts(record, settings, REFERENCES if only_references else TARGET)


def reference(record: Record, settings: TaskSettings) -> list[str]:
    """What the prediction of a record is compared with: its references, or else its targets.

    Raises:
        UniclozeError: It has neither; the message names its line.
    """
    return _some_texts(record, settings, TARGET if record.get(settings, REFERENCES) is None else REFERENCES)


def _some_texts(record: Record, settings: TaskSettings, role: str) -> list[str]:
    return texts_of(record, settings, role) or [record.text(settings, role)]
