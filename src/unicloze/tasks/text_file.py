"""The text of a file of records."""

from __future__ import annotations

from pathlib import Path

from unicloze.bounded import read_bytes
from unicloze.errors import UniclozeError


def read_text(path: Path) -> str:
    """The text of a file, which may be compressed.

    Raises:
        UniclozeError: It is no UTF-8; the message names the line.
    """
    raw = read_bytes(path)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UniclozeError(f"{path}, line {line}: this is no UTF-8; convert the file") from error
