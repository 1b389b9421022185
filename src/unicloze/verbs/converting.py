"""Imports models of other libraries, and exports models to them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from unicloze.errors import UsageError
from unicloze.verbs.options import Folder, Number, Option, PathLike, folder_at

if TYPE_CHECKING:
    from unicloze.interop.export import ExportResult
    from unicloze.training.loading import LoadedModel


def load_model(path: PathLike, device: str = "cpu") -> LoadedModel:
    """Load a trained model from a run, a checkpoint or a Hugging Face model folder.

    Args:
        path: The directory.
        device: Where to put it and compute with it: `cpu`, `cuda`, `cuda:N`, or `auto` for a CUDA device if there is
            one.

    Raises:
        UsageError: There is no such device.
        UniclozeError: There is no model.
    """
    from unicloze.interop.read import open_model

    return open_model(path, device)


def import_checkpoint(
    checkpoint: Annotated[PathLike, Option("CHECKPOINT", word=True)],
    out: Folder,
    allow: Annotated[Sequence[str], Option("PATTERN", repeated=True)] = (),
    positions: Number | None = None,
    tokenizer: Annotated[PathLike, Option("PATH")] | None = None,
    pickle: bool = False,
) -> LoadedModel:
    """Import a checkpoint of BERT, RoBERTa, MPNet, ELECTRA, ALBERT, DistilBERT, MiniLM, UniLM, T5, BART, GPT-2 or XLNet.

    It is saved as a unicloze model, with the head of its task if it is fine-tuned; see `unicloze.interop.read`.

    Args:
        checkpoint: Folder with config.json, weights and tokenizer.
        out: Folder to write; any `--model` and `--init` takes it.
        allow: Tensors that may be missing, unused or of another shape, such as 'classifier.*'; may be repeated.
        positions: Repeat the rows of the position table up to N.
        tokenizer: New vocabulary; tokens in both vocabularies keep their embeddings.
        pickle: Read tensors from a .bin file, a format that can contain code (none is run).

    Examples:
        unicloze import bert-base-uncased/ --out models/bert
        unicloze import bert-base-uncased/ --positions 1024 --tokenizer mine/tokenizer.json --out models/mine

    Returns:
        The imported model.

    Raises:
        UsageError: An argument is invalid, or `out` is not empty.
        UniclozeError: The checkpoint is invalid or unsupported.
    """
    from unicloze.interop.read import import_checkpoint as read
    from unicloze.interop.read import write_model

    folder = folder_at(out)
    return write_model(read(checkpoint, allow=allow, positions=positions, tokenizer=tokenizer, pickle=pickle), folder)


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
    from unicloze.interop.export import package_format, stock_format, write_export
    from unicloze.interop.limits import OWN, PACKAGE, check_format, check_name
    from unicloze.interop.read import open_model

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
