"""Labelled records, read from the files people have them in."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unicloze.errors import UniclozeError, UsageError
from unicloze.settings import TaskSettings
from unicloze.tasks.choice_formats import CHOICE_FORMATS
from unicloze.tasks.column_formats import COLUMN_FORMATS
from unicloze.tasks.glue import GLUE_FORMATS
from unicloze.tasks.json_files import json_records
from unicloze.tasks.plain_formats import Reader, comma_separated, jsonl, tsv


@dataclass(frozen=True)
class Record:
    """A labelled record.

    Args:
        id: Its name in predictions: that of its field `id`, else its number in the file from 0.
        fields: What it holds.
        place: File and line, for messages.
    """

    id: str
    fields: Mapping[str, Any]
    place: str

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

    def get(self, settings: TaskSettings, role: str) -> Any:
        """What it holds in a role, None if nothing."""
        return self.fields.get(settings.fields.get(role, role))

    def _without(self, settings: TaskSettings, role: str, wanted: str) -> UniclozeError:
        name = settings.fields.get(role, role)
        has = ", ".join(map(str, self.fields)) or "nothing"
        found = f"is no {wanted}" if name in self.fields else f"is missing (it has {has})"
        cure = "" if name in self.fields else f"; say where it is with --task.fields '{{{role}: NAME}}'"
        return UniclozeError(f"{self.place}: the field '{name}' {found}{cure}")


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


def read_records(path: Path, settings: TaskSettings) -> list[Record]:
    """The records of a file, or of all files in a folder.

    Raises:
        UsageError: The format is unknown or does not show in the name.
        UniclozeError: The file is absent, empty or not of its format; the message names the line.
    """
    found: list[Record] = []
    for file in record_files(path):
        found += _read_file(file, settings, len(found))
    if not found:
        raise UniclozeError(f"{path} holds no records: give a file with at least one")
    return found


def _read_file(path: Path, settings: TaskSettings, first: int) -> list[Record]:
    name = settings.format if settings.format != "auto" else path.name.removesuffix(".gz").rpartition(".")[2]
    if name not in FORMATS:
        raise UsageError(
            f"{path}: '{name}' is no known format of records: set --task.format to one of {', '.join(FORMATS)}"
        )
    name_of_id = settings.fields.get("id", "id")
    try:
        return [
            Record(
                id=str(number if fields.get(name_of_id) is None else fields[name_of_id]),
                fields=fields,
                place=f"{path}, {f'line {where}' if isinstance(where, int) else where}",
            )
            for number, (where, fields) in enumerate(FORMATS[name](_text(path), path), first)
        ]
    except (OSError, EOFError, zlib.error) as error:
        raise UniclozeError(f"{path}: it cannot be read ({error})") from error


def _text(path: Path) -> str:
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UniclozeError(f"{path}, line {line}: this is no UTF-8; convert the file") from error


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
