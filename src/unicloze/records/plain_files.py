"""Reads whole files as text or JSON, also gzipped, with a one-sentence error for each problem."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from unicloze.bounded import read_bytes
from unicloze.errors import UniclozeError

_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""A JSON escape for half of a surrogate pair."""


def kind_of(path: Path) -> str:
    """The suffix that determines how to read a file: `.txt` for `a.txt` and `a.txt.gz`."""
    return Path(path.name.removesuffix(".gz")).suffix


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, which may be gzipped."""
    if not path.is_file():
        raise UniclozeError(f"There is no file {path}: name one.")
    try:
        content = read_bytes(path)
    except PermissionError as error:
        raise UniclozeError(f"{path}: no permission to read it: change its permissions.") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UniclozeError(f"{path} is cut off or damaged ({error}): fetch or write it again.") from error
    except OSError as error:
        raise UniclozeError(f"{path} cannot be read ({error}): name another file.") from error
    return decoded(content, path)


def decoded(content: bytes, place: Path | str) -> str:
    """Decode the UTF-8 bytes of a file."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UniclozeError(f"{place}, line {line}: this is not UTF-8; convert the file") from error


def parse_json(text: str, place: str, *, unique: bool = False) -> Any:
    """Parse a text as JSON."""

    def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise UniclozeError(f"{place}: the key {twice} occurs twice; remove one of them")
        return found

    try:
        value = json.loads(text, object_pairs_hook=without_repeats if unique else None)
        if _HALF.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        where = f"{place}, line {error.lineno}" if error.lineno > 1 else place
        raise UniclozeError(f"{where}: this is not JSON ({error.msg}, column {error.colno}); fix it") from error
    except UnicodeEncodeError as error:
        before = error.object[max(0, error.start - 30) : error.start]
        raise UniclozeError(f"{place}: half of a surrogate pair after '{before}'; fix the file") from error
    except ValueError as error:  # a number with thousands of digits
        raise UniclozeError(f"{place}: this JSON cannot be read ({error}); fix it") from error
    except RecursionError as error:
        raise UniclozeError(f"{place}: this is not JSON (nested too deep); fix it") from error
    return value
