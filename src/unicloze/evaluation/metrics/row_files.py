"""Reads items from files with one item per line: .txt, .tsv, .jsonl."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from unicloze.errors import UniclozeError
from unicloze.records.line_files import Reader, jsonl, separated
from unicloze.records.plain_files import kind_of, read_text
from unicloze.records.record import Record, as_records
from unicloze.settings import TaskSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """The content of one line."""

    value: Any  # text in .txt and .tsv, any JSON in .jsonl
    place: str  # file and line
    id: Any = None  # the item's `id`, if it has one
    fields: Mapping[str, Any] = field(default_factory=dict)  # all fields of the line


def read_items(path: Path, fields: Sequence[str]) -> list[Item]:
    """The items of a file, in order."""
    text, kind = read_text(path), kind_of(path)
    if kind not in _READERS:
        raise UniclozeError(
            f"{path} is not of a known kind: give a file that ends in {', '.join(_READERS)}, optionally with .gz."
        )
    if text in ("", "\n"):
        raise UniclozeError(f"{path} is empty: give a file with one item per line.")
    records = as_records(_READERS[kind](text, path), path, headed=kind == ".tsv")
    return [_item(record, (_LINE,) if kind == ".txt" else fields) for record in records]


def _item(record: Record, fields: Sequence[str]) -> Item:
    held = record.fields
    name = next((name for name in fields if name in held), fields[-1])
    value = held[name] if name in held else record.needed(TaskSettings(), name)
    number = held.get("index") if record.headed else None
    return Item(value=value, place=record.place, id=held.get("id", number), fields=held)


_LINE = "line"


def _lines(text: str, path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        yield number, {_LINE: line.removesuffix("\r")}


_READERS: Mapping[str, Reader] = {
    ".txt": _lines,
    ".tsv": partial(separated, delimiter="\t", quoted=False, blank=True),
    ".jsonl": jsonl,
}
