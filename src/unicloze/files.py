"""Writes files atomically: a reader finds the old file or the complete new one."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

from unicloze.errors import UniclozeError


def replace_file(path: Path, text: str) -> None:
    """Write a temporary file next to `path`, sync it and rename it into place.

    A symbolic link keeps pointing to its file, which is replaced; devices and pipes are written to directly.

    Raises:
        OSError: The file cannot be written; an existing file is unchanged.
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
    """Give a file the default mode of new files; some libraries create theirs readable only by the owner."""
    mask = os.umask(0)
    os.umask(mask)
    file.chmod(0o666 & ~mask)


def real_place(path: Path) -> Path:
    """The target of a symbolic link, or the path itself."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def begins_with(file: Path, *begins: str) -> bool:
    """Whether a file is blank or starts, after white space, with one of these strings."""
    with file.open("rb") as opened:
        found = opened.read(4096).lstrip()
    return not found or found.startswith(tuple(begin.encode() for begin in begins))


def write_file(path: Path, text: str, what: str = "it", cure: str = "run the same command again") -> None:
    """`replace_file`, with a `UniclozeError` on failure.

    Args:
        path: The file.
        text: Its new contents.
        what: Name of the contents in the error message.
        cure: Advice in the error message.

    Raises:
        UniclozeError: The file cannot be written; an existing file is unchanged.
    """
    try:
        replace_file(path, text)
    except OSError as error:
        raise UniclozeError(f"{path}: cannot write {what}: {error.strerror}; {cure}.") from error
