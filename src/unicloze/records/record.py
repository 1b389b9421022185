"""Defines a labelled record, independent of its file format."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from unicloze.errors import UniclozeError, option_of
from unicloze.settings import TaskSettings


class GoldAnswer(NamedTuple):
    """An answer and its first character in the passage, if the file gives it."""

    text: str
    start: int | None


def answers_of(record: Record, settings: TaskSettings) -> list[GoldAnswer] | None:
    """The answers of a record: an empty list if it is unanswerable, None if the field is missing.

    Accepts a list of texts, a list of objects with `text` and perhaps `answer_start`, or one object with a list of each.
    """
    given = record.get(settings, "answers")
    if given is None:
        return None
    if isinstance(given, dict) and isinstance(given.get("text"), list):
        starts = given.get("answer_start") or [None] * len(given["text"])
        if not isinstance(starts, list) or len(starts) != len(given["text"]):
            raise UniclozeError(f"{record.place}: answer_start and text differ in number: fix the record")
        given = [{"text": text, "answer_start": start} for text, start in zip(given["text"], starts, strict=True)]
    found = []
    for answer in given if isinstance(given, list) else [None]:
        text, start = (answer.get("text"), answer.get("answer_start")) if isinstance(answer, dict) else (answer, None)
        if not isinstance(text, str) or not (start is None or type(start) is int):
            wanted = 'a list of texts or of {"text": ..., "answer_start": ...}'
            raise UniclozeError(f"{record.place}: the answers are not {wanted}: fix the record")
        if text.strip():
            found.append(GoldAnswer(text, start))
    return found


def needed_answers(record: Record, settings: TaskSettings) -> list[GoldAnswer]:
    """The answers of a record that must have a list of them, possibly empty."""
    answers = answers_of(record, settings)
    if answers is None:
        lacks = f"the field '{settings.fields.get('answers', 'answers')}' is missing"
        has = f"it has {', '.join(map(str, record.fields))}"
        raise UniclozeError(f"{record.place}: {lacks} ({has}); an unanswerable question has an empty list")
    return answers


Item = TypeVar("Item")
OPTION = "{option} '{1}'"
"""How to set the fields and format of records on the command line: setting and value."""

SHOWN = 40
"""Maximum number of characters of a value shown in a message."""


@dataclass(frozen=True)
class Record:
    """A labelled record."""

    id: str  # its name in predictions: the value of its field `id`, else its number in the file from 0
    fields: Mapping[str, Any]  # its fields by name
    place: str  # file and line, for messages
    cure: str | None = OPTION  # how to set the names of its fields, for messages; None if they cannot be set
    unread: Collection[str] = ()  # roles to treat as missing, whatever the fields contain
    headed: bool = False  # whether the first line of its file names its fields

    def text(self, settings: TaskSettings, role: str) -> str:
        """The text in a role."""
        value = self.get(settings, role)
        if not isinstance(value, str):
            raise self._without(settings, role, "text")
        return value

    def texts(self, settings: TaskSettings, role: str) -> list[str]:
        """The list of texts in a role."""
        value = self.get(settings, role)
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self._without(settings, role, "list of texts")
        return value

    def needed(self, settings: TaskSettings, role: str) -> Any:
        """The value in a role, which must have one."""
        value = self.get(settings, role)
        if value is None:
            raise self._without(settings, role, "value")
        return value

    def get(self, settings: TaskSettings, role: str) -> Any:
        """The value in a role, None if missing; `answers.0.text` is the `text` of the first of its `answers`."""
        return None if role in self.unread else held(self.fields, settings.fields.get(role, role))

    def _without(self, settings: TaskSettings, role: str, wanted: str) -> UniclozeError:
        name = settings.fields.get(role, role)
        whole = name if name in self.fields else name.partition(".")[0]
        if self.get(settings, role) is not None:
            return UniclozeError(f"{self.place}: the field '{name}' is not a {wanted}")
        if whole in self.fields:
            held = json.dumps(self.fields[whole], ensure_ascii=False)
            shown = held if len(held) <= SHOWN else held[:SHOWN] + "..."
            found = f"'{name}' is {shown}" if name == whole else f"there is no '{name}', as '{whole}' is {shown}"
            return UniclozeError(f"{self.place}: {found}: fix the record or leave it out")
        has = ", ".join(map(str, self.fields)) or "nothing"
        has += "; the first line is read as the header" * self.headed
        said = self.cure and f"name it with {spelled(self.cure, 'fields', f'{{{role}: NAME}}')}"
        cure = (said or "rename the field that has it") + ", or put a header above the first record" * self.headed
        return UniclozeError(f"{self.place}: the field '{name}' is missing (it has {has}); {cure}")


def held(fields: Mapping[str, Any], name: str) -> Any:
    """The value of a field, or at the path through mappings and lists that a dotted name gives; None if there is none."""
    value: Any = fields
    for step in [name] if name in fields else name.split("."):
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def spelled(cure: str, setting: str, value: str) -> str:
    """How to set a task setting, in the format `cure`."""
    return cure.format(setting, value, option=option_of(f"task.{setting}"))


def as_records(
    lines: Iterable[tuple[int | str, dict[str, Any]]],
    path: Path,
    *,
    first: int = 0,
    id_field: str = "id",
    cure: str | None = None,
    headed: bool = False,
) -> list[Record]:
    """The records of a file."""
    records = []
    for number, (where, fields) in enumerate(lines, first):
        own, place = held(fields, id_field), f"{path}, {f'line {where}' if isinstance(where, int) else where}"
        records.append(Record(str(number if own is None else own), fields, place, cure, headed=headed))
    return records


def number_of(value: Any) -> float | None:
    """A number, or the text of one, as a float; None if it is neither, or not finite."""
    with suppress(ValueError, OverflowError):
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
        return number if math.isfinite(number) else None
    return None


def evenly(items: Sequence[Item], most: int) -> list[Item]:
    """At most so many of the items, evenly spaced."""
    count = min(most, len(items))
    return [items[number * len(items) // count] for number in range(count)]


def refuse_repeated(records: Sequence[Record]) -> None:
    """Reject repeated ids, whose predictions could not be told apart."""
    known: dict[str, str] = {}
    for record in records:
        if record.id in known:
            where = "twice in its file" if record.place == known[record.id] else f"also that of {known[record.id]}"
            raise UniclozeError(f"{record.place}: the id '{record.id}' is {where}; give each record its own")
        known[record.id] = record.place
