"""What the verbs have in common."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
