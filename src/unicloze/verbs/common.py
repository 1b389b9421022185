"""What the verbs have in common."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unicloze.errors import UsageError

if TYPE_CHECKING:
    from unicloze.training.models import LoadedModel

PathLike = str | Path
Overrides = Mapping[str, Any]

DEFAULT_RECIPE = "quickstart"
RUNS = Path("runs")
"""Where runs go that are given no directory, by name of their recipe."""


def opening(model: PathLike | LoadedModel) -> LoadedModel | Callable[[], LoadedModel]:
    """A loaded model itself; for a place what opens it, ours or another library's, once arguments are checked."""
    if not isinstance(model, str | os.PathLike):
        return model

    def open_it() -> LoadedModel:
        from unicloze.interop.read import load_any

        return load_any(model)

    return open_it


def check_file(out: PathLike | None) -> None:
    """Refuse a file that cannot be written, before the work whose fruit it is to hold.

    Raises:
        UsageError: Its folder is not there or cannot be written to, or it is a folder itself.
    """
    if out is None:
        return
    file = Path(out)
    if file.is_dir():
        raise UsageError(f"{file} is a folder: give --out a file in it.")
    if not file.parent.is_dir():
        raise UsageError(f"there is no folder {file.parent} for {file.name}: make it, or give another --out.")
    if not os.access(file.parent, os.W_OK):
        raise UsageError(f"the folder {file.parent} cannot be written to: give another --out.")
