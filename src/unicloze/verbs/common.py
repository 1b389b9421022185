"""Defaults and argument checks that several verbs share."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unicloze.errors import UsageError
from unicloze.files import begins_like, real_place

PathLike = str | Path
Overrides = Mapping[str, Any]

DEFAULT_RECIPE = "quickstart"
RUNS = Path("runs")
"""Parent of runs without a given directory; each is named after its recipe."""
OF_FILES = "task.fields", "task.format"
"""Settings that describe how a file is read; it may differ from the training file."""


def check_fixed(overrides: Overrides | None, free: Sequence[str]) -> None:
    """Reject overrides of settings that a trained model fixes: all but those in `free`, which may also name sections.

    Raises:
        UsageError: Another setting is overridden, or does not exist.
    """
    from unicloze.recipes.unread_settings import given_settings

    for key in given_settings(overrides):
        if key not in free and key.partition(".")[0] not in free:
            raise UsageError(f"{key} cannot be changed here: only {', '.join(free)} can.")


def folder_at(out: PathLike | None, otherwise: Path | None = None) -> Path:
    """The folder a verb writes to.

    Args:
        out: Value of `--out`.
        otherwise: Default if `out` is None.

    Raises:
        UsageError: The name is empty, which would mean the current directory.
    """
    if out is None and otherwise is not None:
        return otherwise
    if out is None or str(out) == "":
        raise UsageError("--out is empty: name a folder, or . for this one.")
    if "\0" in str(out):
        raise UsageError("--out contains a NUL character, which names cannot: give another.")
    return Path(out)


def check_file(
    out: PathLike | None, *inputs: PathLike | None, begins: Sequence[bytes] = (b"",), option: str = "--out"
) -> None:
    """Reject an output file that cannot or should not be written, before any work is done.

    Args:
        out: The file.
        inputs: Files that the same command reads.
        begins: Patterns of the beginning of the output; an existing file that matches none is not replaced.
        option: The option that names the file.

    Raises:
        UsageError: Its folder does not exist or is not writable, it is a folder, a device or a pipe, the same command reads
            it, or it holds something else.
    """
    if out is None:
        return
    if str(out) == "" or "\0" in str(out):
        raise UsageError(f"{option} is empty or contains a NUL character: name a file.")
    file = real_place(Path(out))
    if file.is_dir():
        raise UsageError(f"{file} is a folder: give {option} a file in it.")
    if file.is_file() and any(Path(one).exists() and file.samefile(one) for one in inputs if one is not None):
        raise UsageError(f"{file} is read by this command and would be replaced: give another {option}.")
    if file.is_file() and not begins_like(file, *begins):
        raise UsageError(
            f"{file} holds something else, which would be replaced: give another {option}, or move it away."
        )
    if file.exists() and not file.is_file():
        raise UsageError(f"{file} is a device or a pipe: give {option} a file, or leave it out to print the result.")
    if not file.parent.is_dir():
        raise UsageError(f"there is no folder {file.parent} for {file.name}: create it, or give another {option}.")
    if not os.access(file.parent, os.W_OK):
        raise UsageError(f"the folder {file.parent} is not writable: give another {option}.")
