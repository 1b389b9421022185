"""Opens a model given its path or the name of an installed one: ours or another library's.

A package declares a model as an entry point of the group `unicloze.models`: the name is the model's, the value that of the
top-level package whose folder holds the checkpoint. The package is located and never imported, so none of its code runs.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, get_args

import torch

from unicloze.errors import UniclozeError, UsageError, folder_meant
from unicloze.files import MANIFEST
from unicloze.interop.read import import_checkpoint, is_foreign
from unicloze.settings import Precision, TrainingSettings
from unicloze.training import precision as precisions
from unicloze.training.loading import LoadedModel, load_model

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


ModelLike = str | os.PathLike[str] | LoadedModel


def open_model(model: ModelLike, device: str | None = None, precision: Precision | None = None) -> LoadedModel:
    """Open a trained model, ready for use."""
    if precision is not None and precision not in get_args(Precision):
        raise UsageError(f"precision is {precision!r}: give one of {', '.join(get_args(Precision))}.")
    if isinstance(model, str | os.PathLike):
        chosen, place = precisions.named_device(device or "cpu"), _place(model)
        model = import_checkpoint(place) if is_foreign(place) else load_model(place, open_model)
        model.model.to(chosen)
    elif device not in (None, "auto"):
        _check_place(model, precisions.named_device(device))
    return _in_precision(model, precision)


def _place(model: str | os.PathLike[str]) -> Path:
    """The folder of a model: the given one, in a package the checkpoint; if there is none, that of the installed model."""
    folder = Path(model)
    if folder.exists():
        return packaged_model(folder) or folder
    installed = installed_models() if folder.name == str(model) else {}
    if folder.name not in installed:
        raise UniclozeError(
            f"there is no model at {folder}: give the --out of a pretrain run, or the name of an installed model"
            + folder_meant(folder, installed).removesuffix(".")
        )
    return installed[folder.name]


def _check_place(model: LoadedModel, device: torch.device) -> None:
    """Refuse a device other than that of a loaded model; moving it would affect other code that uses it."""
    lies = model.compute.device
    if device.type != lies.type or device.index not in (None, lies.index):
        raise UsageError(
            f"the given model is on {lies}, not on {device}: load it there with load_model(..., device={str(device)!r})."
        )


def _in_precision(model: LoadedModel, precision: Precision | None) -> LoadedModel:
    """A view of the model that computes in a precision and shares its weights."""
    if precision is None:
        return model
    asked = TrainingSettings(precision=precision)
    chosen: Any = precisions.choose_precision(asked, model.compute.device)
    recipe = dataclasses.replace(model.recipe, decoding=dataclasses.replace(model.recipe.decoding, precision=chosen))
    return dataclasses.replace(model, precision=chosen, recipe=recipe)
