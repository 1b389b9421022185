"""The one opener of models: ours and other libraries', by the place that names them."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, get_args

import torch

from unicloze.errors import UsageError
from unicloze.interop.read import import_checkpoint, is_foreign
from unicloze.settings import Precision, TrainingSettings
from unicloze.training import precision as precisions
from unicloze.training.loading import LoadedModel, load_model

ModelLike = str | os.PathLike[str] | LoadedModel


def open_model(model: ModelLike, device: str | None = None, precision: Precision | None = None) -> LoadedModel:
    """A trained model, ready for use.

    Args:
        model: A run, a checkpoint of one, or the folder of another library's checkpoint; or a loaded model, which stays as
            it is.
        device: Where it computes: `cpu`, `cuda`, `cuda:N`, or `auto`, which takes a CUDA device where there is one and
            leaves a loaded model where it is. The CPU if not given, and where a loaded model is.
        precision: In which it computes, what it generates included; as the model and its recipe say if not given.

    Raises:
        UsageError: There is no such device or precision, or a loaded model is on another device.
        UniclozeError: There is no model, or it cannot be read.
    """
    if precision is not None and precision not in get_args(Precision):
        raise UsageError(f"precision is {precision!r}: give one of {', '.join(get_args(Precision))}.")
    if isinstance(model, str | os.PathLike):
        chosen, place = precisions.named_device(device or "cpu"), Path(model)
        model = import_checkpoint(place) if is_foreign(place) else load_model(place)
        model.model.to(chosen)
    elif device not in (None, "auto"):
        _check_place(model, precisions.named_device(device))
    return _in_precision(model, precision)


def _check_place(model: LoadedModel, device: torch.device) -> None:
    """Refuse a device on which a loaded model is not: moving what others may hold would surprise them."""
    lies = model.compute.device
    if device.type != lies.type or device.index not in (None, lies.index):
        raise UsageError(
            f"the model given is on {lies}, not on {device}: load it there with load_model(..., device={str(device)!r})."
        )


def _in_precision(model: LoadedModel, precision: Precision | None) -> LoadedModel:
    """The model as one that computes in a precision; its weights are the same."""
    if precision is None:
        return model
    asked = TrainingSettings(precision=precision)
    chosen: Any = precisions.choose_precision(asked, model.compute.device)
    recipe = dataclasses.replace(model.recipe, decoding=dataclasses.replace(model.recipe.decoding, precision=chosen))
    return dataclasses.replace(model, precision=chosen, recipe=recipe)
