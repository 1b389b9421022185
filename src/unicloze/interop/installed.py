"""Finds models in packages: installed ones by name, others by their folder.

A package declares a model as an entry point of the group `unicloze.models`: the name is the model's, the value that of the
top-level package whose folder holds the checkpoint. The package is located and never imported, so none of its code runs.
"""

from __future__ import annotations

import importlib.util
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

from unicloze.run_files import MANIFEST

GROUP = "unicloze.models"


def installed_models() -> dict[str, Path]:
    """Folder of each installed model, by name."""
    found = {point.name: _folder(point.value) for point in entry_points(group=GROUP)}
    return {name: folder for name, folder in sorted(found.items()) if folder is not None}


def packaged_model(folder: Path) -> Path | None:
    """The checkpoint in the folder of a package that declares one model; None for any other folder."""
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
        (package,) = project["project"]["entry-points"][GROUP].values()
        place = folder / package if package.isidentifier() else folder
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # no package, or none that declares one model
        return None
    return place if (place / MANIFEST).is_file() else None


def _folder(package: str) -> Path | None:
    """Folder of a top-level package that holds a checkpoint; None if there is none."""
    if not package.isidentifier():  # importlib would import the parent of a submodule to find it
        return None
    spec = importlib.util.find_spec(package)
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    return next((place for place in places if (place / MANIFEST).is_file()), None)
