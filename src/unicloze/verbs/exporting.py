"""The verb `export`: writes models for other libraries."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from unicloze.errors import UsageError
from unicloze.verbs.common import PathLike, folder_at
from unicloze.verbs.options import Folder, Option

if TYPE_CHECKING:
    from unicloze.interop.export import ExportResult
    from unicloze.training.loading import LoadedModel


def export(
    model: Annotated[PathLike | LoadedModel, Option("DIR", word=True)],
    to: Annotated[str, Option("FORMAT")],
    out: Folder | None = None,
) -> ExportResult:
    """Export a model for Transformers and sentence-transformers, or as a Python package, and verify the export.

    The folder is loaded back and compared with the model before the export is kept.

    Args:
        model: Run directory, one of its checkpoints, or a Hugging Face model folder; in Python also a loaded model.
        to: Stock classes of Transformers: `bert` (no relative position bias), `mpnet` (with one), `roberta`, `electra`,
            `albert` or `distilbert`; `t5` or `bart` for an encoder-decoder; `gpt2` for a left-to-right model, `xlnet` for a
            permuted one; `unicloze`, the classes of `unicloze.hf`, for every model of one stack without a task's head; or
            `package`, a Python package for every model: after `pip install` of the folder, `--model` takes its name.
        out: Folder to write, which names a package; default: next to the model, named MODEL-FORMAT.

    Examples:
        unicloze export runs/quickstart --to mpnet
        unicloze export runs/quickstart --to unicloze --out exports/quickstart
        unicloze export runs/quickstart --to package --out exports/my-model

    Raises:
        UsageError: The format cannot represent the model, the package cannot have this name, or `out` holds something else.
        UniclozeError: There is no model, Transformers is not installed, or the exported model's outputs differ from the
            original's; the folder is then deleted.
    """
    from unicloze.interop.export import stock_format, write_export
    from unicloze.interop.limits import OWN, PACKAGE, check_format, check_name
    from unicloze.interop.opening import open_model
    from unicloze.interop.package import package_format

    if out is None and not isinstance(model, str | os.PathLike):
        raise UsageError("out is not given: name the folder to write, since a loaded model has no folder")
    check_name(to)
    loaded = open_model(model, "cpu")
    folder = folder_at(out, _beside(Path(str(model)), to) if out is None else None)
    check_format(to, loaded)
    if to == PACKAGE:
        return write_export(loaded, package_format(loaded, folder.resolve().name), folder)
    if to != OWN:
        return write_export(loaded, stock_format(loaded, to), folder)
    from unicloze.hf.save import own_format

    return write_export(loaded, own_format(loaded), folder)


def _beside(model: Path, to: str) -> Path:
    place = model.resolve()
    return model.parent / f"{place.name}-{to}" if model.name else place.with_name(f"{place.name}-{to}")
