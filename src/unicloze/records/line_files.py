"""Reads files with one record per line: JSON objects, or columns under a header."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from unicloze.errors import UniclozeError
from unicloze.records.plain_files import parse_json

LARGEST_FIELD = 1 << 27
"""Maximum number of characters in a field of a .csv or .tsv file."""

Reader = Callable[[str, Path], Iterator[tuple[int | str, dict[str, Any]]]]
"""From a file's text and path (for messages) to each record's line, or a description of its place, and fields."""


_QUOTED = re.compile(r'"[^"]*"')
_HEADER = re.compile(rf'\s*(?:[^"\r\n]+|{_QUOTED.pattern})*')
"""The first nonblank line; a quoted name may contain a line break."""


def jsonl(text: str, path: Path | str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Records of a file with one JSON object per line."""
    for line, content in enumerate(text.split("\n"), 1):
        if content.strip():
            fields = parse_json(content, f"{path}, line {line}")
            if not isinstance(fields, dict):
                raise UniclozeError(f"{path}, line {line}: a record must be a JSON object; this is not one")
            yield line, fields


def separated(
    text: str, path: Path, *, delimiter: str, quoted: bool, blank: bool = False
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Records of a file with a header and one record per line."""
    csv.field_size_limit(LARGEST_FIELD)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if quoted else _Unquoted(text, delimiter)
    names: list[str] | None = None
    first = 1
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise UniclozeError(f"{path}, line {first}: {error}") from error
        if row is None:
            return
        if blank and not row:
            row = [""]
        if row and names is None:
            names = row
            twice = next((name for name in names if name and names.count(name) > 1), None)
            if twice is not None:
                raise UniclozeError(f"{path}, line {first}: two columns have the name '{twice}': rename one")
        elif row and names is not None:
            if len(row) != len(names):
                raise UniclozeError(
                    f"{path}, line {first}: {len(row)} columns where {len(names)} are expected ({', '.join(names)})"
                )
            yield first, dict(zip(names, row, strict=True))
        first = rows.line_num + 1


class _Unquoted:
    """The columns of each line without quoting, where a carriage return within a line is text."""

    def __init__(self, text: str, delimiter: str) -> None:
        self.lines, self.delimiter, self.line_num = (
            iter(text.removesuffix("\n").split("\n") if text else ()),
            delimiter,
            0,
        )

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        line = next(self.lines).removesuffix("\r")
        self.line_num += 1
        return line.split(self.delimiter) if line else []


def tsv(text: str, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Records of a file with a header and tab-separated columns, without quoting."""
    return separated(text, path, delimiter="\t", quoted=False)


def comma_separated(text: str, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Records of a file with a header and comma-separated columns; columns with a comma or a line break are quoted.

    If the header has no comma outside quotes but semicolons, as Excel writes in much of Europe, or else tabs, those separate.
    """
    header = _QUOTED.sub("", _HEADER.match(text)[0])  # type: ignore[index]  # it always matches
    delimiter = next((mark for mark in ",;\t" if mark in header), ",")
    return separated(text, path, delimiter=delimiter, quoted=True)
