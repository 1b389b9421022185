"""Labelled records, read from the files people have them in."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unicloze.errors import UniclozeError, UsageError, option_of
from unicloze.settings import PYTHON_DOCS, TaskSettings
from unicloze.tasks import collections
from unicloze.tasks.choice_formats import CHOICE_FORMATS
from unicloze.tasks.column_formats import COLUMN_FORMATS
from unicloze.tasks.glue import GLUE_FORMATS
from unicloze.tasks.json_files import json_records
from unicloze.tasks.plain_formats import Reader, comma_separated, jsonl, tsv
from unicloze.tasks.text_file import read_text

OPTION = "{option} '{1}'"
"""How a user says to a verb in which fields and format a file has its records: the setting, its value."""

SHOWN = 40
"""Characters of a value that a message shows."""


@dataclass(frozen=True)
class Record:
    """A labelled record.

    Args:
        id: Its name in predictions: that of its field `id`, else its number in the file from 0.
        fields: What it holds.
        place: File and line, for messages.
        cure: How to say where its fields are, for messages; none where nobody can say it.
        unread: Roles in which it shows nothing, whatever it holds.
        headed: Whether the first line of its file names its fields.
    """

    id: str
    fields: Mapping[str, Any]
    place: str
    cure: str | None = OPTION
    unread: Collection[str] = ()
    headed: bool = False

    def text(self, settings: TaskSettings, role: str) -> str:
        """The text in a role.

        Raises:
            UniclozeError: The record has none; the message names its line.
        """
        value = self.get(settings, role)
        if not isinstance(value, str):
            raise self._without(settings, role, "text")
        return value

    def texts(self, settings: TaskSettings, role: str) -> list[str]:
        """The list of texts in a role.

        Raises:
            UniclozeError: The record has none; the message names its line.
        """
        value = self.get(settings, role)
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self._without(settings, role, "list of texts")
        return value

    def needed(self, settings: TaskSettings, role: str) -> Any:
        """What it holds in a role.

        Raises:
            UniclozeError: Nothing; the message names its line.
        """
        value = self.get(settings, role)
        if value is None:
            raise self._without(settings, role, "value")
        return value

    def get(self, settings: TaskSettings, role: str) -> Any:
        """What it holds in a role, None if nothing; `answers.0.text` is the `text` of the first of its `answers`."""
        if role in self.unread:
            return None
        return _held(self.fields, settings.fields.get(role, role))

    def _without(self, settings: TaskSettings, role: str, wanted: str) -> UniclozeError:
        name = settings.fields.get(role, role)
        whole = name if name in self.fields else name.partition(".")[0]
        if self.get(settings, role) is not None:
            return UniclozeError(f"{self.place}: the field '{name}' is no {wanted}")
        if whole in self.fields:
            held = json.dumps(self.fields[whole], ensure_ascii=False)
            shown = held if len(held) <= SHOWN else held[:SHOWN] + "..."
            found = f"'{name}' is {shown}" if name == whole else f"there is no '{name}', as '{whole}' is {shown}"
            return UniclozeError(f"{self.place}: {found}: mend the record or leave it out")
        has = ", ".join(map(str, self.fields)) or "nothing"
        has += ", as the first line is read as the header" * self.headed
        said = self.cure and f"say where it is with {_said(self.cure, 'fields', f'{{{role}: NAME}}')}"
        return UniclozeError(
            f"{self.place}: the field '{name}' is missing (it has {has}); {said or 'rename the one that holds it'}"
            + ", or put a header above the first record" * self.headed
        )


def _said(cure: str, setting: str, value: str) -> str:
    return cure.format(setting, value, option=option_of(f"task.{setting}"))


def _held(fields: Mapping[str, Any], name: str) -> Any:
    """What the field of a name holds, or lies at the path that a name with dots spells."""
    return fields[name] if name in fields else _inside(fields, name.split("."))


def _inside(value: Any, path: Sequence[str]) -> Any:
    """What lies in mappings and lists inside each other, None if there is nothing."""
    for step in path:
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def record_files(path: Path) -> list[Path]:
    """The files of records at a path: itself, or all in a folder and its folders, in the order of their names.

    Raises:
        UniclozeError: There is none.
    """
    files = [path] if path.is_file() else sorted(file for file in path.rglob("[!.]*") if file.is_file())
    if not files:
        what = "the folder holds no file" if path.is_dir() else "there is no such file"
        raise UniclozeError(f"{path}: {what}; give a file of labelled records, or a folder of such files")
    return files


def read_records(path: Path, settings: TaskSettings, *, cure: str | None = OPTION) -> list[Record]:
    """The records of a file, or of all files in a folder.

    Args:
        path: The file or folder.
        settings: Fields and format of the records.
        cure: How to say others, for messages; none where nobody can say them.

    Raises:
        UsageError: The format is unknown or does not show in the name.
        UniclozeError: The file is absent, empty or not of its format; the message names the line.
    """
    found: list[Record] = []
    for file in [path] if _format_of(path, settings) in COLLECTIONS else record_files(path):
        found += _read_file(file, settings, len(found), cure)
    if not found:
        raise UniclozeError(f"{path} holds no records: give a file with at least one")
    return found


def _read_file(path: Path, settings: TaskSettings, first: int, cure: str | None) -> list[Record]:
    name, name_of_id = _format_of(path, settings), settings.fields.get("id", "id")
    if name not in FORMATS and name not in COLLECTIONS:
        known = ", ".join([*FORMATS, *COLLECTIONS])
        said = "give a file of" if cure is None else f"say it with {_said(cure, 'format', 'NAME')}, NAME being"
        raise UsageError(f"{path}: '{name}' is no known format of records: {said} one of {known}")
    try:
        lines = COLLECTIONS[name](path) if name in COLLECTIONS else FORMATS[name](read_text(path), path)
        return [
            Record(
                id=str(number if (own := _held(fields, name_of_id)) is None else own),
                fields=fields,
                place=f"{path}, {f'line {where}' if isinstance(where, int) else where}",
                cure=cure,
                headed=name in HEADED,
            )
            for number, (where, fields) in enumerate(lines, first)
        ]
    except (OSError, EOFError, zlib.error) as error:
        raise UniclozeError(f"{path}: it cannot be read ({error})") from error


def _format_of(path: Path, settings: TaskSettings) -> str:
    """The format that the settings say or the name shows."""
    if settings.format != "auto":
        return settings.format
    if not path.exists():
        if path.parent.name == PYTHON_DOCS:
            return PYTHON_DOCS
        if "," in str(path):
            return "parallel"
    return path.name.removesuffix(".gz").rpartition(".")[2]


FORMATS: Mapping[str, Reader] = {
    "jsonl": jsonl,
    "tsv": tsv,
    "csv": comma_separated,
    "json": json_records,
    **GLUE_FORMATS,
    **CHOICE_FORMATS,
    **COLUMN_FORMATS,
}
"""How files hold records, by `TaskSettings.format`."""

HEADED = "tsv", "csv"
"""Those whose first line names the fields."""

COLLECTIONS: Mapping[str, Callable[[Path], Iterator[tuple[int, dict[str, Any]]]]] = {
    "parallel": collections.parallel,
    "txt": collections.parallel,
    "dstc7": collections.dstc7,
    PYTHON_DOCS: collections.python_docs,
}
"""The same for records that are not in one file after the other: the line and the fields of each."""
