"""Reads labelled records in common file formats, for tasks, metrics and benchmarks.

    files, published    formats of files: lines, columns, documents, collections; GLUE and multiple choice
        |
    record              a record and its fields

A format is a function from the text of a file to the line (for messages) and fields of each record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from unicloze.errors import UniclozeError, UsageError
from unicloze.records import files
from unicloze.records.published import CHOICE_FORMATS, GLUE_FORMATS
from unicloze.records.record import OPTION, Record, as_records, spelled
from unicloze.settings import PYTHON_DOCS, TaskSettings
from unicloze.text.documents import local_files_at


def record_files(path: Path) -> list[Path]:
    """The files of records at a path: the file itself, or all files in a folder and its subfolders, sorted by name.

    Links are followed. Hidden files and folders are ignored.
    """
    found = [path] if path.is_file() else local_files_at(path) if path.is_dir() else []
    if not found:
        what = "the folder contains no files" if path.is_dir() else "there is no such file"
        raise UniclozeError(f"{path}: {what}; give a file of labelled records, or a folder of such files")
    return found


def read_records(path: Path, settings: TaskSettings, *, cure: str | None = OPTION) -> list[Record]:
    """The records of a file, or of all files in a folder."""
    found: list[Record] = []
    for file in [path] if _format_of(path, settings) in COLLECTIONS else record_files(path):
        found += _read_file(file, settings, len(found), cure)
    if not found:
        raise UniclozeError(f"{path} contains no records: give a file with at least one")
    return found


def _read_file(path: Path, settings: TaskSettings, first: int, cure: str | None) -> list[Record]:
    name, id_field = _format_of(path, settings), settings.fields.get("id", "id")
    if name not in FORMATS and name not in COLLECTIONS:
        known = ", ".join([*FORMATS, *COLLECTIONS])
        if name in SPREADSHEETS:
            raise UsageError(f"{path}: a spreadsheet cannot be read: save the table as .csv")
        said = "give a file of" if cure is None else f"set it with {spelled(cure, 'format', 'NAME')}, where NAME is"
        raise UsageError(f"{path}: '{name}' is not a known record format: {said} one of {known}")
    lines = COLLECTIONS[name](path) if name in COLLECTIONS else FORMATS[name](files.read_text(path), path)
    return as_records(lines, path, first=first, id_field=id_field, cure=cure, headed=name in HEADED)


def _format_of(path: Path, settings: TaskSettings) -> str:
    """The format from the settings, else from the file name."""
    if settings.format != "auto":
        return settings.format
    if not path.exists():
        if path.parent.name == PYTHON_DOCS:
            return PYTHON_DOCS
        if "," in str(path):
            return "parallel"
    return path.name.removesuffix(".gz").rpartition(".")[2]


FORMATS: Mapping[str, files.Reader] = {
    "jsonl": files.jsonl,
    "tsv": files.tsv,
    "csv": files.comma_separated,
    "json": files.json_records,
    "conll": files.read_conll,
    "conllu": files.read_conllu,
    **GLUE_FORMATS,
    **CHOICE_FORMATS,
}
"""Readers by `TaskSettings.format`."""

SPREADSHEETS = "xlsx", "xls", "ods"
"""Endings of files that other programs save as tables."""

HEADED = "tsv", "csv"
"""Formats whose first line names the fields."""

COLLECTIONS: Mapping[str, Callable[[Path], files.Lines]] = {
    "parallel": files.parallel,
    "txt": files.parallel,
    "dstc7": files.dstc7,
    PYTHON_DOCS: files.python_docs,
}
"""Readers of formats that are not one file of consecutive records: they take a path instead of text."""
