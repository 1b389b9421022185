"""What the verbs have in common."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from unicloze.errors import UsageError
from unicloze.files import begins_with, real_place
from unicloze.settings import Precision, TrainingSettings

if TYPE_CHECKING:
    import torch

    from unicloze.training.models import LoadedModel

PathLike = str | Path
Overrides = Mapping[str, Any]

DEFAULT_RECIPE = "quickstart"
RUNS = Path("runs")
"""Where runs go that are given no directory, by name of their recipe."""
OF_FILES = "task.fields", "task.format"
"""Settings that say how a file is read, which may be another than that of training."""


def opening(
    model: PathLike | LoadedModel, device: str | None = None, precision: Precision | None = None
) -> LoadedModel | Callable[[], LoadedModel]:
    """A loaded model itself; for a place what opens it, ours or another library's, once arguments are checked.

    Args:
        model: The model, or its place.
        device: Where it computes: `cpu`, `cuda`, `cuda:N`, or `auto`, which takes a CUDA device where there is one and
            leaves a loaded model where it is. The CPU if not given, and where a loaded model is.
        precision: In which it computes, what it generates included; as the model and its recipe say if not given.

    Raises:
        UsageError: There is no such device or precision, or a loaded model is on another device.
    """
    from unicloze.training.precision import named_device

    if precision is not None and precision not in get_args(Precision):
        raise UsageError(f"precision is {precision!r}: give one of {', '.join(get_args(Precision))}.")
    if not isinstance(model, str | os.PathLike):
        if device not in (None, "auto"):
            _check_place(model, named_device(device))
        return _in_precision(model, precision)
    chosen = named_device(device or "cpu")

    def open_it() -> LoadedModel:
        from unicloze.interop.read import load_any

        loaded = load_any(model)
        loaded.model.to(chosen)
        return _in_precision(loaded, precision)

    return open_it


def _check_place(model: LoadedModel, device: torch.device) -> None:
    """Refuse a device on which a loaded model is not: moving what others may hold would surprise them."""
    lies = model.compute.device
    if device.type != lies.type or device.index not in (None, lies.index):
        raise UsageError(
            f"the model given is on {lies}, not on {device}: load it there with load_model(..., device={str(device)!r})."
        )


def _in_precision(model: LoadedModel, precision: Precision | None) -> LoadedModel:
    """The model as one that computes in a precision; its weights are the same."""
    from unicloze.training.precision import choose_precision

    if precision is None:
        return model
    chosen: Any = choose_precision(TrainingSettings(precision=precision), model.compute.device)
    recipe = dataclasses.replace(model.recipe, decoding=dataclasses.replace(model.recipe.decoding, precision=chosen))
    return dataclasses.replace(model, precision=chosen, recipe=recipe)


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
    if "\0" in str(out):
        raise UsageError("--out holds a NUL character, which no name can: give another.")
    return Path(out)


def check_file(out: PathLike | None, *inputs: PathLike | None, begins: Sequence[str] = ("",)) -> None:
    """Refuse a file that cannot or should not be written, before the work whose fruit it is to hold.

    Args:
        out: The file.
        inputs: What the same command reads.
        begins: How what is written may begin; a file there that begins otherwise is not replaced.

    Raises:
        UsageError: Its folder is not there or cannot be written to, or it is a folder itself, or a device or a pipe; it is
            read by the same command, or holds something else.
    """
    if out is None:
        return
    if str(out) == "" or "\0" in str(out):
        raise UsageError("--out is empty or holds a NUL character: name a file.")
    file = real_place(Path(out))
    if file.is_dir():
        raise UsageError(f"{file} is a folder: give --out a file in it.")
    if file.is_file() and any(Path(one).exists() and file.samefile(one) for one in inputs if one is not None):
        raise UsageError(f"{file} is read by this command and would be replaced: give another --out.")
    if file.is_file() and not begins_with(file, *begins):
        raise UsageError(f"{file} holds something else, which would be replaced: give another --out, or move it away.")
    if file.exists() and not file.is_file():
        raise UsageError(f"{file} is a device or a pipe: give --out a file, or leave it out to see what comes.")
    if not file.parent.is_dir():
        raise UsageError(f"there is no folder {file.parent} for {file.name}: make it, or give another --out.")
    if not os.access(file.parent, os.W_OK):
        raise UsageError(f"the folder {file.parent} cannot be written to: give another --out.")
