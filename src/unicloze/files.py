"""Files that are either the new ones, whole, or the old ones."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

from unicloze.errors import UniclozeError


def replace_file(path: Path, text: str) -> None:
    """Write a text file beside `path`, sync it and rename it into place.

    Through a link the file it points to is replaced; a device or a pipe is written to.

    Raises:
        OSError: It cannot be written; a file that was there is as it was.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_text(text, encoding="utf-8")
        return
    path = real_place(path)
    temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.is_file():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def as_umask_says(file: Path) -> None:
    """Give a file the mode of any new one, where a library keeps it from others."""
    mask = os.umask(0)
    os.umask(mask)
    file.chmod(0o666 & ~mask)


def real_place(path: Path) -> Path:
    """Where a file is: what a link points to, else the path as it is given."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def begins_with(file: Path, *begins: str) -> bool:
    """Whether a file begins in one of these ways, white space aside, or is empty."""
    with file.open("rb") as opened:
        found = opened.read(4096).lstrip()
    return not found or found.startswith(tuple(begin.encode() for begin in begins))


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
