"""Files with a record a line: JSON objects, or columns under a header."""

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
"""Characters of a field of a .csv or .tsv."""

Reader = Callable[[str, Path], Iterator[tuple[int | str, dict[str, Any]]]]
"""The text of a file and its path, for messages, to the line of each record, or in words where it stands, and its fields."""


_QUOTED = re.compile(r'"[^"]*"')
_HEADER = re.compile(rf'\s*(?:[^"\r\n]+|{_QUOTED.pattern})*')
"""The first line that is not blank; a quoted name may hold the end of a line."""


def jsonl(text: str, path: Path | str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Records of a file with a JSON object a line.

    Raises:
        UniclozeError: A line is none.
    """
    for line, content in enumerate(text.split("\n"), 1):
        if content.strip():
            fields = parse_json(content, f"{path}, line {line}")
            if not isinstance(fields, dict):
                raise UniclozeError(f"{path}, line {line}: a record is a JSON object; this is none")
            yield line, fields


def separated(
    text: str, path: Path, *, delimiter: str, quoted: bool, blank: bool = False
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Records of a file with a line each and a header.

    Args:
        text: The file.
        path: Its name, for messages.
        delimiter: Parts the columns.
        quoted: Whether a column that holds the delimiter or a line end stands between quotation marks.
        blank: Whether a blank line is a record with one empty column; else it is skipped.

    Raises:
        UniclozeError: A line has another number of columns than the header, or two columns have one name.
    """
    csv.field_size_limit(LARGEST_FIELD)
    rows = csv.reader(
        io.StringIO(text, newline=""), delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    )
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


def tsv(text: str, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Records of a file with columns between tabs under a header, without quotes.

    Raises:
        UniclozeError: See `separated`.
    """
    return separated(text, path, delimiter="\t", quoted=False)


def comma_separated(text: str, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Records of a file with columns between commas under a header; what holds a comma or a line end is quoted.

    Where the header has semicolons and no comma outside quotes, as Excel writes it in half of Europe, they part the columns.

    Raises:
        UniclozeError: See `separated`.
    """
    header = _QUOTED.sub("", _HEADER.match(text)[0])  # type: ignore[index]  # it matches even nothing
    delimiter = ";" if ";" in header and "," not in header else ","
    return separated(text, path, delimiter=delimiter, quoted=True)
