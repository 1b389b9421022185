"""Reads tagged sentences in columns: one word with its tags per line, a blank line after each sentence (CoNLL, CoNLL-U)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from unicloze.errors import UniclozeError, option_of
from unicloze.records.line_files import Reader

DOCUMENT = "-DOCSTART-"
"""First column of the line that begins a document; it is not a word."""

CONLLU_COLUMNS = "id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc"


def read_conll(text: str, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Sentences of a file whose columns are separated by tabs, or else by spaces.

    A record has `tokens`, the first column; `tags`, the last column, if there are two or more; and each column under its
    number from 0 (`--task.fields '{tags: "1"}'` chooses the second).
    """
    for line, rows in _sentences(text, path, _cells, lambda cells: cells[0] == DOCUMENT):
        columns = [list(column) for column in zip(*rows, strict=True)]
        fields: dict[str, Any] = {str(number): column for number, column in enumerate(columns)}
        yield line, fields | {"tokens": columns[0]} | ({"tags": columns[-1]} if len(columns) > 1 else {})


def read_conllu(text: str, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Sentences of a CoNLL-U file: `tokens` (forms), `tags` (universal parts of speech), and each column under its name.

    Comments, multiword tokens and empty nodes are skipped.
    """
    body = "\n".join("#" if line.startswith("#") else line for line in text.split("\n"))
    for line, rows in _sentences(body, path, lambda row: row.split("\t"), _is_aside):
        columns = [list(column) for column in zip(*rows, strict=True)]
        if len(columns) != len(CONLLU_COLUMNS):
            raise UniclozeError(f"{path}, line {line}: {len(columns)} columns where CoNLL-U has {len(CONLLU_COLUMNS)}")
        fields: dict[str, Any] = dict(zip(CONLLU_COLUMNS, columns, strict=True))
        yield line, fields | {"tokens": fields["form"], "tags": fields["upos"]}


def _is_aside(cells: list[str]) -> bool:
    return cells == ["#"] or re.fullmatch(r"\d+[-.]\d+", cells[0]) is not None


def _cells(line: str) -> list[str]:
    """Columns of a line, separated only by tabs or spaces: other white space may occur in a word."""
    return line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]


def _sentences(
    text: str, path: Path, cells_of: Callable[[str], list[str]], is_no_word: Callable[[list[str]], bool]
) -> Iterator[tuple[int, list[list[str]]]]:
    """The rows of each sentence, with the line number of the first."""
    if re.match(r'\s*\{"[^"]*":', text):
        said = f"read it with {option_of('task.format')} jsonl"
        raise UniclozeError(f"{path}, line 1: this is JSON, not columns: {said}")
    rows: list[list[str]] = []
    start, width = 0, 0
    for number, line in enumerate([*text.split("\n"), ""], 1):
        line = line.strip("\r ")
        cells = cells_of(line) if line.strip() else []
        if not cells and rows:
            yield start, rows
            rows = []
        if not cells or is_no_word(cells):
            continue
        width = width or len(cells)
        if len(cells) != width:
            raise UniclozeError(f"{path}, line {number}: {len(cells)} columns where {width} are expected")
        start = start if rows else number
        rows.append(cells)


COLUMN_FORMATS: Mapping[str, Reader] = {"conll": read_conll, "conllu": read_conllu}
"""Readers by `TaskSettings.format`."""
