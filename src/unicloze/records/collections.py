"""Reads records that are not one file of consecutive records: parallel files, archives, docstrings."""

from __future__ import annotations

import hashlib
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unicloze.bounded import LARGEST_FILE
from unicloze.errors import UniclozeError
from unicloze.records.plain_files import read_text
from unicloze.settings import PYTHON_DOCS
from unicloze.text.python_docs import summaries

Lines = Iterator[tuple[int, dict[str, Any]]]


def parallel(path: Path) -> Lines:
    """Lines of a file as `source`, and those of a second file, named after a comma, as `target`."""
    sources, *others = (Path(name) for name in ([str(path)] if path.is_file() else str(path).split(",")))
    if len(others) > 1:
        raise UniclozeError(f"{path} names {len(others) + 1} files: give two, SOURCE,TARGET, with one line per record")
    columns = [_lines(file) for file in (sources, *others)]
    if len(columns) == 2 and len(columns[0]) != len(columns[1]):
        raise UniclozeError(
            f"{sources} has {len(columns[0]):,} lines and {others[0]} {len(columns[1]):,}: give files that match line by line"
        )
    for number, texts in enumerate(zip(*columns, strict=True), 1):
        yield number, dict(zip(("source", "target"), texts, strict=False))


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise UniclozeError(f"there is no file {path}: give a file of texts, one per line")
    lines = [line.strip() for line in read_text(path).split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def dstc7(path: Path) -> Lines:
    """The published human evaluation of DSTC7, track 2: `context`, and the human responses as `references`.

    Contexts without a human response are left out.
    """
    if not path.is_file():
        raise UniclozeError(f"there is no file {path}: give the archive of DSTC7's human evaluation, a .tgz")
    tables = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = Path(member.name).name
                if name in _DSTC7_TABLES and (file := archive.extractfile(member)) is not None:
                    if member.size > LARGEST_FILE:
                        raise UniclozeError(f"{path}: {name} is larger than {LARGEST_FILE:,} bytes")
                    tables[name] = file.read().decode("utf-8").removesuffix("\n").replace("\r\n", "\n").split("\n")
    except (tarfile.TarError, UnicodeDecodeError, OSError, EOFError, zlib.error) as error:
        raise UniclozeError(f"{path}: this is not the archive of DSTC7's human evaluation ({error})") from error
    for name in _DSTC7_TABLES:
        if name not in tables:
            raise UniclozeError(f"{path} contains no {name}: give the archive of DSTC7's human evaluation")
    contexts, responses = (tables[name] for name in _DSTC7_TABLES)
    references = {key: list(filter(None, texts)) for key, *texts in (line.split("\t") for line in responses[1:])}
    for number, line in enumerate(contexts[1:], 2):
        key, *columns = line.split("\t")
        if len(columns) != 2 or key not in references:
            raise UniclozeError(
                f"{path}, {_DSTC7_TABLES[0]}, line {number}: three columns and a line of human responses are expected"
            )
        if references[key]:
            yield number, {"id": key, "context": columns[1], "references": references[key]}


_DSTC7_TABLES = "dstc7-task2-context.tsv", "dstc7-task2-gold_responses.tsv"


def python_docs(path: Path) -> Lines:
    """The docstrings of this Python installation: `target` is the summary line, `source` the rest.

    A hash of the module's name puts each docstring in one part, so that no module is in both.
    """
    if str(path) not in PYTHON_DOCS_PARTS:
        raise UniclozeError(f"there are no records {path}: give {' or '.join(PYTHON_DOCS_PARTS)}")
    number = 0
    for summary in summaries():
        development = hashlib.sha256(summary.module.encode()).digest()[0] % 10 == 0
        if development == (path.name == "dev"):
            number += 1
            yield number, {"id": f"{summary.module}:{summary.number}", "source": summary.body, "target": summary.line}


PYTHON_DOCS_PARTS = f"{PYTHON_DOCS}/train", f"{PYTHON_DOCS}/dev"
