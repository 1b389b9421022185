"""Writing models for other libraries."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from unicloze.errors import UsageError
from unicloze.verbs.common import PathLike, folder_at, opening

if TYPE_CHECKING:
    from unicloze.interop.export import ExportResult
    from unicloze.training.models import LoadedModel


def export(model: PathLike | LoadedModel, to: str, out: PathLike | None = None) -> ExportResult:
    """Write a model as a folder that Transformers loads: the verb `export`.

    The folder is loaded back and compared with the model before it counts.

    Args:
        model: A run directory, a checkpoint, a folder of another library's checkpoint, or a loaded model.
        to: `bert`, `mpnet` and the other keys of `unicloze.interop.stock.STOCK`, stock classes of Transformers that need
            nothing of this package; or `unicloze`, the classes of `unicloze.hf`, which hold every model.
        out: The folder; beside the model, with the format behind its name, if not given.

    Raises:
        UsageError: The format cannot hold the model, or there is something else at `out`.
        UniclozeError: There is no model, Transformers is not installed, the folder cannot be written, or what it holds says
            something else than the model: then it is deleted.
    """
    from unicloze.decoding.texts import open_model
    from unicloze.interop.export import stock_format, write_export
    from unicloze.interop.limits import OWN, check_format, check_name

    if out is None and not isinstance(model, str | os.PathLike):
        raise UsageError("out is not given: name the folder to write, as a loaded model has no place of its own")
    check_name(to)
    loaded = open_model(opening(model, "cpu"))
    folder = folder_at(out, _beside(Path(str(model)), to) if out is None else None)
    check_format(to, loaded)
    if to != OWN:
        return write_export(loaded, stock_format(loaded, to), folder)
    from unicloze.hf.export import own_format

    return write_export(loaded, own_format(loaded), folder)


def _beside(model: Path, to: str) -> Path:
    place = model.resolve()
    return model.parent / f"{place.name}-{to}" if model.name else place.with_name(f"{place.name}-{to}")
