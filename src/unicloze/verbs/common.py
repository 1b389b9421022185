"""Defaults and argument checks that several verbs share."""

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
"""Parent of runs without a given directory; each is named after its recipe."""
OF_FILES = "task.fields", "task.format"
"""Settings that describe how a file is read; it may differ from the training file."""


def check_fixed(overrides: Overrides | None, free: Sequence[str]) -> None:
    """Reject overrides of settings that a trained model fixes: all but those in `free`, which may also name sections.

    Raises:
        UsageError: Another setting is overridden, or does not exist.
    """
    from unicloze.recipes.rules_unread import given_settings

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
    return Path(out)


def check_file(out: PathLike | None) -> None:
    """Reject an output file that cannot be written, before any work is done.

    Raises:
        UsageError: Its folder is missing or not writable, or it is itself a folder, a device or a pipe.
    """
    if out is None:
        return
    if str(out) == "":
        raise UsageError("--out is empty: name a file.")
    file = real_place(Path(out))
    if file.is_dir():
        raise UsageError(f"{file} is a folder: give --out a file in it.")
    if file.exists() and not file.is_file():
        raise UsageError(f"{file} is a device or a pipe: give --out a file, or leave it out to print the result.")
    if not file.parent.is_dir():
        raise UsageError(f"there is no folder {file.parent} for {file.name}: create it, or give another --out.")
    if not os.access(file.parent, os.W_OK):
        raise UsageError(f"the folder {file.parent} is not writable: give another --out.")
