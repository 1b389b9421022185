"""What the verbs have in common."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unicloze.errors import UsageError
from unicloze.files import real_place

PathLike = str | Path
Overrides = Mapping[str, Any]

DEFAULT_RECIPE = "quickstart"
RUNS = Path("runs")
"""Where runs go that are given no directory, by name of their recipe."""
OF_FILES = "task.fields", "task.format"
"""Settings that say how a file is read, which may be another than that of training."""


def check_fixed(overrides: Overrides | None, free: Sequence[str]) -> None:
    """Refuse to change a setting that is not free, nor its section: a trained model is as it is.

    Raises:
        UsageError: One is changed, or there is no such setting.
    """
    from unicloze.recipes.rules_unread import given_settings

    for key in given_settings(overrides):
        if key not in free and key.partition(".")[0] not in free:
            raise UsageError(f"{key} cannot be changed here: only {', '.join(free)} can.")


def folder_at(out: PathLike | None, otherwise: Path | None = None) -> Path:
    """The folder that a verb writes.

    Args:
        out: As it was given.
        otherwise: The folder if none was given.

    Raises:
        UsageError: Its name is empty, which would be the current directory.
    """
    if out is None and otherwise is not None:
        return otherwise
    if out is None or str(out) == "":
        raise UsageError("--out is empty: name a folder, or . for this one.")
    return Path(out)


def check_file(out: PathLike | None) -> None:
    """Refuse a file that cannot be written, before the work whose fruit it is to hold.

    Raises:
        UsageError: Its folder is not there or cannot be written to, or it is a folder itself, or a device or a pipe.
    """
    if out is None:
        return
    if str(out) == "":
        raise UsageError("--out is empty: name a file.")
    file = real_place(Path(out))
    if file.is_dir():
        raise UsageError(f"{file} is a folder: give --out a file in it.")
    if file.exists() and not file.is_file():
        raise UsageError(f"{file} is a device or a pipe: give --out a file, or leave it out to see what comes.")
    if not file.parent.is_dir():
        raise UsageError(f"there is no folder {file.parent} for {file.name}: make it, or give another --out.")
    if not os.access(file.parent, os.W_OK):
        raise UsageError(f"the folder {file.parent} cannot be written to: give another --out.")
