"""Writes files atomically: a reader finds the old file or the complete new one."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from unicloze.errors import UniclozeError

if TYPE_CHECKING:
    from filelock import BaseFileLock

_BEGINNING = 2**16


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a temporary file next to `path`, sync it and rename it into place.

    A symbolic link keeps pointing to its file, which is replaced; devices and pipes are written to directly.
    """
    content = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(content)
        return
    path = real_place(path)
    temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.is_file():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's entries, are on the disk."""
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):
        return  # Windows does not open folders
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)  # Windows syncs no file opened to read
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def release_and_remove(lock: BaseFileLock) -> None:
    """Release a lock and remove its file."""
    file = Path(lock.lock_file)
    with suppress(PermissionError):  # Windows removes no open file
        file.unlink(missing_ok=True)  # while it is held, so that no other process holds what is removed
    lock.release()
    if file.exists():
        with suppress(PermissionError):  # another process has it by now
            file.unlink(missing_ok=True)


def as_umask_says(file: Path) -> None:
    """Give a file the default mode of new files; some libraries create theirs readable only by the owner."""
    mask = os.umask(0)
    os.umask(mask)
    file.chmod(0o666 & ~mask)


def real_place(path: Path) -> Path:
    """The target of a symbolic link, or the path itself."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def begins_like(file: Path, *patterns: bytes) -> bool:
    """Whether a file is blank, or the beginning of it matches one of these patterns after white space."""
    with file.open("rb") as opened:
        found = opened.read(_BEGINNING).lstrip()
    return not found or any(re.match(pattern, found, re.DOTALL) for pattern in patterns)


def write_file(path: Path, content: str | bytes, what: str = "it", cure: str = "run the same command again") -> None:
    """`replace_file`, with a `UniclozeError` on failure."""
    try:
        replace_file(path, content)
    except OSError as error:
        raise UniclozeError(f"{path}: cannot write {what}: {error.strerror}; {cure}.") from error
