"""Items out of files that hold one a line: .txt, .tsv, .jsonl."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unicloze.errors import UniclozeError
from unicloze.evaluation.metrics.plain_files import kind_of, parse_json, read_text


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """What stands in one line.

    Args:
        value: Text in .txt and .tsv, any JSON in .jsonl.
        place: File and line.
        id: The item's `id`, if it has one.
        fields: All fields of an object.
    """

    value: Any
    place: str
    id: Any = None
    fields: Mapping[str, Any] = field(default_factory=dict)


def read_items(path: Path, fields: Sequence[str]) -> list[Item]:
    """The items of a file, in order.

    Args:
        path: Ends in .txt, .tsv or .jsonl, also in .gz after that.
        fields: Columns of .tsv or fields of .jsonl that may hold the value; the first that is there does.

    Raises:
        UniclozeError: The file cannot be read, is of another kind, or a line has none of the fields.
    """
    text, kind = read_text(path), kind_of(path)
    if kind not in _READERS:
        raise UniclozeError(
            f"{path} is of no known kind: give a file that ends in {', '.join(_READERS)}, also with .gz."
        )
    lines = text.removesuffix("\n").split("\n")
    if lines == [""]:
        raise UniclozeError(f"{path} is empty: give a file with an item a line.")
    return list(_READERS[kind](path, [line.removesuffix("\r") for line in lines], fields))


def _text(path: Path, lines: Sequence[str], fields: Sequence[str]) -> Iterator[Item]:
    for number, line in enumerate(lines, start=1):
        yield Item(value=line, place=f"{path}:{number}")


def _table(path: Path, lines: Sequence[str], fields: Sequence[str]) -> Iterator[Item]:
    header = lines[0].split("\t")
    column = next((header.index(name) for name in fields if name in header), None)
    if column is None:
        raise UniclozeError(
            f"{path}:1 names no column {' or '.join(fields)} but {', '.join(header[:8])}: name the column so."
        )
    ids = next((header.index(name) for name in ("id", "index") if name in header), None)
    for number, line in enumerate(lines[1:], start=2):
        cells = line.split("\t")
        if len(cells) != len(header):
            raise UniclozeError(
                f"{path}:{number} has {len(cells)} columns and the header {len(header)}: mend the line."
            )
        yield Item(value=cells[column], place=f"{path}:{number}", id=None if ids is None else cells[ids])


def _objects(path: Path, lines: Sequence[str], fields: Sequence[str]) -> Iterator[Item]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        record = parse_json(line, place)
        if not isinstance(record, dict):
            raise UniclozeError(f'{place} is no JSON object such as {{"{fields[0]}": ...}}: mend the line.')
        name = next((name for name in fields if name in record), None)
        if name is None:
            known = ", ".join(record) or "none"
            raise UniclozeError(
                f"{place} has no field {' or '.join(fields)}, its fields are {known}: name the field so."
            )
        yield Item(value=record[name], place=place, id=record.get("id"), fields=record)


_READERS: Mapping[str, Callable[[Path, Sequence[str], Sequence[str]], Iterator[Item]]] = {
    ".txt": _text,
    ".tsv": _table,
    ".jsonl": _objects,
}
