"""Labelled records, read from the files people have them in."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unicloze.errors import UniclozeError, UsageError
from unicloze.settings import TaskSettings
from unicloze.tasks.json_files import json_records

LARGEST_FIELD = 1 << 27
"""Characters of a field of a .csv or .tsv."""


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
            name = settings.fields.get(role, role)
            has = ", ".join(map(str, self.fields)) or "nothing"
            found = "is no text" if name in self.fields else f"is missing (it has {has})"
            cure = "" if name in self.fields else f"; say where it is with --task.fields '{{{role}: NAME}}'"
            raise UniclozeError(f"{self.place}: the field '{name}' {found}{cure}")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UniclozeError(
                f"{self.place}: character {error.start} of its text is half of a surrogate pair; mend the file"
            ) from error
        return value

    def get(self, settings: TaskSettings, role: str) -> Any:
        """What it holds in a role, None if nothing."""
        return self.fields.get(settings.fields.get(role, role))


def read_records(path: Path, settings: TaskSettings) -> list[Record]:
    """The records of a file.

    Raises:
        UsageError: The format is unknown or does not show in the name.
        UniclozeError: The file is absent, empty or not of its format; the message names the line.
    """
    if not path.is_file():
        raise UniclozeError(f"there is no file {path}: give a file of labelled records")
    name = settings.format if settings.format != "auto" else path.name.removesuffix(".gz").rpartition(".")[2]
    if name not in FORMATS:
        raise UsageError(
            f"{path}: '{name}' is no known format of records: set --task.format to one of {', '.join(FORMATS)}"
        )
    try:
        found = [
            Record(
                id=str(fields.get(settings.fields.get("id", "id"), number)),
                fields=fields,
                place=f"{path}, {f'line {where}' if isinstance(where, int) else where}",
            )
            for number, (where, fields) in enumerate(FORMATS[name](_text(path), path))
        ]
    except (OSError, EOFError) as error:
        raise UniclozeError(f"{path}: it cannot be read ({error})") from error
    if not found:
        raise UniclozeError(f"{path} holds no records: give a file with at least one")
    return found


def _text(path: Path) -> str:
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UniclozeError(f"{path}, line {line}: this is no UTF-8; convert the file") from error


def _jsonl(text: str, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, content in enumerate(text.split("\n"), 1):
        if content.strip():
            try:
                fields = json.loads(content)
            except ValueError as error:
                raise UniclozeError(f"{path}, line {line}: this is no JSON ({error})") from error
            if not isinstance(fields, dict):
                raise UniclozeError(f"{path}, line {line}: a record is a JSON object; this is none")
            yield line, fields


def separated(
    text: str, path: Path, *, delimiter: str, quoted: bool, header: list[str] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Records of a file with a line each and a header, or with the given names of its columns.

    Raises:
        UniclozeError: A line has another number of columns than the header.
    """
    csv.field_size_limit(LARGEST_FIELD)
    rows = csv.reader(
        io.StringIO(text, newline=""), delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    )
    names, first = header, 1
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise UniclozeError(f"{path}, line {first}: {error}") from error
        if row is None:
            return
        if row and names is None:
            names = row
        elif row and names is not None:
            if len(row) != len(names):
                raise UniclozeError(
                    f"{path}, line {first}: {len(row)} columns where {len(names)} are expected ({', '.join(names)})"
                )
            yield first, dict(zip(names, row, strict=True))
        first = rows.line_num + 1


def _tsv(text: str, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    return separated(text, path, delimiter="\t", quoted=False)


def _csv(text: str, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    return separated(text, path, delimiter=",", quoted=True)


Reader = Callable[[str, Path], Iterator[tuple[int | str, dict[str, Any]]]]

FORMATS: Mapping[str, Reader] = {"jsonl": _jsonl, "tsv": _tsv, "csv": _csv, "json": json_records}
"""The text of a file to the line of each record, or in words where it stands, and its fields."""
