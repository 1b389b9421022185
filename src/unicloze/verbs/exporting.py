"""Writing models for other libraries."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from unicloze.errors import UsageError
from unicloze.verbs.common import PathLike, folder_at
from unicloze.verbs.options import Folder, Option

if TYPE_CHECKING:
    from unicloze.interop.export import ExportResult
    from unicloze.training.models import LoadedModel


def export(
    model: Annotated[PathLike | LoadedModel, Option("DIR", word=True)],
    to: Annotated[str, Option("FORMAT")],
    out: Folder | None = None,
) -> ExportResult:
    """Write a model for Transformers and sentence-transformers; what was written is compared with it.

    The folder is loaded back and compared with the model before it counts.

    Args:
        model: A run directory, one of its checkpoints, or a folder of another library's; in Python also a loaded model.
        to: Stock classes of Transformers: `bert` (no relative position bias), `mpnet` (with one), `roberta`, `electra` or
            `albert`; or `unicloze`, the classes of `unicloze.hf`, for every model.
        out: Folder to write; if not given, beside the model, with the format behind its name.

    Examples:
        unicloze export runs/quickstart --to mpnet
        unicloze export runs/quickstart --to unicloze --out exports/quickstart

    Raises:
        UsageError: The format cannot hold the model, or there is something else at `out`.
        UniclozeError: There is no model, Transformers is not installed, the folder cannot be written, or what it holds says
            something else than the model: then it is deleted.
    """
    from unicloze.interop.export import stock_format, write_export
    from unicloze.interop.limits import OWN, check_format, check_name
    from unicloze.interop.opening import open_model

    if out is None and not isinstance(model, str | os.PathLike):
        raise UsageError("out is not given: name the folder to write, as a loaded model has no place of its own")
    check_name(to)
    loaded = open_model(model, "cpu")
    folder = folder_at(out, _beside(Path(str(model)), to) if out is None else None)
    check_format(to, loaded)
    if to != OWN:
        return write_export(loaded, stock_format(loaded, to), folder)
    from unicloze.hf.export import own_format

    return write_export(loaded, own_format(loaded), folder)


def _beside(model: Path, to: str) -> Path:
    place = model.resolve()
    return model.parent / f"{place.name}-{to}" if model.name else place.with_name(f"{place.name}-{to}")
