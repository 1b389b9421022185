"""Files that are either the new ones, whole, or the old ones."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from unicloze.errors import UniclozeError


def replace_file(path: Path, text: str) -> None:
    """Write a text file beside `path`, sync it and rename it into place.

    Raises:
        OSError: It cannot be written; a file that was there is as it was.
    """
    temporary: Path | None = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}-", delete=False
        ) as file:
            temporary = Path(file.name)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_file(path: Path, text: str, what: str = "it", cure: str = "run the same command again") -> None:
    """The same; where it cannot be written, a sentence says so.

    Args:
        path: The file.
        text: What it shall hold.
        what: What that is, in words.
        cure: What to do if it cannot be written.

    Raises:
        UniclozeError: It cannot be written; a file that was there is as it was.
    """
    try:
        replace_file(path, text)
    except OSError as error:
        raise UniclozeError(f"{path}: cannot write {what}: {error.strerror}; {cure}.") from error
