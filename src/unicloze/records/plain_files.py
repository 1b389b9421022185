"""Whole files as text or JSON, also gzipped, with one sentence for what is wrong with them."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from unicloze.errors import UniclozeError

_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""How JSON may spell half of a surrogate pair."""


def kind_of(path: Path) -> str:
    """The ending that tells how to read a file: `.txt` of `a.txt` and of `a.txt.gz`."""
    return Path(path.name.removesuffix(".gz")).suffix


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, which may be compressed.

    Raises:
        UniclozeError: It is not there, may not be read, is damaged, or no UTF-8; the message names the line.
    """
    if not path.is_file():
        raise UniclozeError(f"There is no file {path}: name one.")
    try:
        raw = path.read_bytes()
        content = gzip.decompress(raw) if path.name.endswith(".gz") else raw
    except PermissionError as error:
        raise UniclozeError(f"{path} may not be read: give yourself the permission to.") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UniclozeError(f"{path} is cut off or damaged ({error}): fetch or write it again.") from error
    except OSError as error:
        raise UniclozeError(f"{path} cannot be read ({error}): name another file.") from error
    return decoded(content, path)


def decoded(content: bytes, place: Path | str) -> str:
    """The text that the bytes of a file hold in UTF-8.

    Raises:
        UniclozeError: They are no UTF-8; the message names the line.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UniclozeError(f"{place}, line {line}: this is no UTF-8; convert the file") from error


def parse_json(text: str, place: str, *, unique: bool = False) -> Any:
    """What a text says in JSON.

    Args:
        text: The text.
        place: Where it is from, for messages.
        unique: Refuse an object that has a key twice, of which the last one would count.

    Raises:
        UniclozeError: It is no JSON, has a key twice, or holds half of a surrogate pair, which is no text.
    """

    def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise UniclozeError(f"{place}: the key {twice} stands there twice; remove one of them")
        return found

    try:
        value = json.loads(text, object_pairs_hook=without_repeats if unique else None)
        if _HALF.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        where = f"{place}, line {error.lineno}" if error.lineno > 1 else place
        raise UniclozeError(f"{where}: this is no JSON ({error.msg}, column {error.colno}); mend it") from error
    except UnicodeEncodeError as error:
        before = error.object[max(0, error.start - 30) : error.start]
        raise UniclozeError(f"{place}: half of a surrogate pair stands behind '{before}'; mend the file") from error
    except ValueError as error:  # a number of thousands of digits
        raise UniclozeError(f"{place}: this JSON cannot be read ({error}); mend it") from error
    except RecursionError as error:
        raise UniclozeError(f"{place}: this is no JSON (nested too deep); mend it") from error
    return value
