"""The verbs that use a trained model: fill, score, embed, serve, and import and export between libraries."""

from __future__ import annotations

import asyncio
import importlib.util
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from unicloze.errors import UniclozeError, UsageError, check_at_least
from unicloze.settings import Mode, Order, Pooling, Precision
from unicloze.verbs.options import (
    Device,
    File,
    Folder,
    Model,
    Number,
    OneOf,
    Option,
    PathLike,
    check_file,
    check_one_given,
    clean,
    folder_at,
)

if TYPE_CHECKING:
    from unicloze import storage
    from unicloze.decoding.embed import Vectors
    from unicloze.decoding.infill import FillResult, FillResults
    from unicloze.decoding.likelihood import Scores
    from unicloze.interop.export import ExportResult
    from unicloze.serving.run import Served
    from unicloze.training.loading import LoadedModel

TEXTS = OneOf("texts", required=True)
Field = Annotated[str, Option("NAME")]


def fill(
    model: Model,
    text: Annotated[str, Option("TEXT", clean), TEXTS] | None = None,
    top_k: Annotated[int, Option("K")] = 5,
    order: Order | None = None,
    device: Device = "auto",
    file: Annotated[PathLike, Option("FILE"), TEXTS] | None = None,
    text_field: Field = "text",
    quiet: bool = False,
) -> FillResult | FillResults:
    """Fill the [MASK]s of a text: candidates for all masks at once, or one mask after the other.

    See `unicloze.decoding.infill.fill`.

    Args:
        model: Run directory, one of its checkpoints, or a Hugging Face model folder; in Python also a loaded model.
        text: Text with "[MASK]" for each missing token.
        top_k: Number of candidates to list for each mask.
        order: Fill the masks one after the other by PAR in this order; default: all at once by AE if the model learned that,
            else `confidence`.
        device: Where to compute: cpu, cuda, cuda:N, xpu, mps, or auto (CUDA if it is there); in Python a loaded model
            stays where it is.
        file: File of texts, one per row: the lines of a .txt, or the records of a .jsonl or .parquet, also .gz, .zst.
        text_field: Field of a .jsonl or column of a .parquet that holds the text.
        quiet: Show no progress through a file.

    Returns:
        The filled text; for a file a list, one per row.

    Examples:
        unicloze fill --model runs/quickstart --text "Return a [MASK] of the given list."
        unicloze fill --model runs/quickstart --text "If the [MASK] does not [MASK], an error is raised."
            --order confidence --json

    Raises:
        UsageError: Neither or both of `text` and `file` are given, there is nothing to fill, the model was not trained for
            the order, or there is no such device.
        UniclozeError: There is no complete checkpoint, or a row of the file is blank.
    """
    from unicloze.decoding import infill
    from unicloze.interop.read import open_model

    _check_source(text, file, text_field, "fill")
    if file is not None:
        texts, loaded = _texts(file, text_field), open_model(model, device)
        return infill.fill_texts(loaded, texts, top_k=top_k, order=order, place=str(file), progress=not quiet)
    if not isinstance(text, str):
        raise UsageError(f"text is of type {type(text).__name__}: give a single string.")
    return infill.fill(open_model(model, device), text, top_k=top_k, order=order)


def score(
    model: Model,
    text: Annotated[str | Sequence[str], Option("TEXT", clean, repeated=True), TEXTS] | None = None,
    file: Annotated[PathLike, Option("FILE"), TEXTS] | None = None,
    device: Device = "auto",
    text_field: Field = "text",
    mode: Mode | None = None,
    quiet: bool = False,
) -> Scores:
    """Compute the log-likelihood of a text by the chain rule, and its pseudo-log-likelihood.

    See `unicloze.decoding.likelihood.score`.

    Args:
        model: As of `fill`.
        text: Text to score; may be repeated.
        file: As of `fill`.
        device: As of `fill`.
        text_field: As of `fill`.
        mode: Compute only the pseudo-log-likelihood, which takes a pass for each token, or only the chain rule, which
            takes one for each window; default: all that the model defines.
        quiet: As of `fill`.

    Examples:
        unicloze score --model runs/quickstart --text "Return a copy of the list."
        unicloze score --model runs/quickstart --file sentences.txt --mode chain --json

    Raises:
        UsageError: Neither or both of `text` and `file` are given, a text is blank or not a string, there is no such
            device, or the model does not define what `mode` asks for.
        UniclozeError: There is no complete checkpoint, or the file holds no text or a blank row.
    """
    from unicloze.decoding import likelihood
    from unicloze.interop.read import open_model

    _check_source(text, file, text_field, "score")
    texts = _texts(file, text_field) if text is None else [text] if isinstance(text, str) else list(text)
    strange = next((each for each in texts if not isinstance(each, str)), None)
    if strange is not None or not texts:
        given = "no text" if strange is None else f"a value of type {type(strange).__name__}"
        raise UsageError(f"the texts to score contain {given}: give strings.")
    shown = text is None and not quiet
    return likelihood.Scores(likelihood.score(open_model(model, device), texts, mode=mode, progress=shown))


def _check_source(text: object, file: object, text_field: str, verb: str) -> None:
    check_one_given(text, file, f"to {verb}")
    if file is None and text_field != "text":
        names = "it names the text in the records of a file"
        raise UsageError(f"option --text-field: {names}: leave it out, or give --file.")


def _texts(file: PathLike | None, text_field: str) -> list[str]:
    """The texts of a file, one for each of its rows, so that a row that holds none is refused."""
    from unicloze.progress import counted
    from unicloze.text.documents import Tally, find_files, read_file

    texts: list[str] = []
    for one in find_files(file or ""):
        row, tally, lines = 0, Tally(), one.name.endswith((".txt", ".txt.gz", ".txt.zst"))
        for document in read_file(one, text_field, tally, field_option="--text-field"):
            found = document.text.removesuffix("\n").split("\n") if lines else [document.text]
            for number, text in enumerate(found, start=document.line):
                row += 1
                if number > row or not text.strip():
                    _refuse_blank(one, row)
                texts.append(text.strip())
        if tally.empty:
            _refuse_blank(one, row + 1)
        if tally.replaced:
            many = counted(tally.replaced, "invalid UTF-8 sequence or half surrogate pair")
            raise UniclozeError(f"{one} has {many}, the first at {tally.first_bad}: correct the text.")
    if not texts:
        raise UniclozeError(f"{file} contains no text: give a file of texts.")
    return texts


def _refuse_blank(file: storage.File, row: int) -> NoReturn:
    raise UniclozeError(f"{file}:{row} is blank, but each row gives a result: put text in it, or remove it.")


def embed(
    model: Model,
    texts: Annotated[Sequence[str], Option("TEXT", clean, name="text", repeated=True), TEXTS] | None = None,
    pooling: Pooling | None = None,
    batch_size: Number = 32,
    device: Device = "auto",
    precision: Precision | None = None,
    file: Annotated[PathLike, Option("FILE"), TEXTS] | None = None,
    out: File | None = None,
    text_field: Field = "text",
    quiet: bool = False,
) -> Vectors:
    """Embed texts: pool the encoder's last hidden states to one vector per text.

    See `unicloze.decoding.embed.embed`.

    Args:
        model: As of `fill`.
        texts: Text; may be repeated.
        pooling: Mean of the last hidden states, or the state of the first or last token (default: the recipe's).
        batch_size: Maximum number of rows per forward pass.
        device: As of `fill`.
        precision: Precision of the forward passes; auto is bf16 where it is faster (default: fp32).
        file: As of `fill`.
        out: File to write: .npy, an array with one row per text, or .jsonl, one JSON object per line (default: print JSON
            lines).
        text_field: As of `fill`.
        quiet: As of `fill`.

    Returns:
        *Shape:* (texts, hidden size)

    Examples:
        unicloze embed --model runs/quickstart --text "Return a copy of the list."
        unicloze embed --model runs/quickstart --file sentences.txt --out vectors.npy

    Raises:
        UsageError: Neither or both of `texts` and `file` are given, a text is blank, `out` does not end in .npy or .jsonl, or
            there is no such device.
        UniclozeError: There is no complete checkpoint, a row of the file is blank, or a file cannot be read or written.
    """
    from unicloze.decoding import embed as embedding
    from unicloze.decoding.embed import BEGINNINGS, Vectors, check_ending, write_vectors
    from unicloze.interop.read import open_model

    _check_source(texts, file, text_field, "embed")
    check_ending(out)
    check_file(out, file, begins=[] if out is None else [BEGINNINGS[Path(out).suffix]])
    given = _texts(file, text_field) if texts is None else texts if isinstance(texts, str) else list(texts)
    loaded, shown = open_model(model, device, precision), texts is None and not quiet
    found = embedding.embed(loaded, given, pooling=pooling, batch_size=batch_size, progress=shown)
    vectors = Vectors.of(found, given, out)
    if out is not None:
        write_vectors(vectors, Path(out))
    return vectors


NEEDS = "fastapi", "uvicorn"


def serve(
    model: Model,
    host: Annotated[str, Option("ADDRESS")] = "127.0.0.1",
    port: Number = 8000,
    token_file: File | None = None,
    queue: Number = 128,
    timeout: Annotated[float, Option("SECONDS")] = 60.0,
    device: Device = "auto",
    precision: Precision | None = None,
) -> Served:
    """Serve a model over HTTP: a page to try it on, JSON endpoints, and those of OpenAI and Hugging Face clients.

    Stops at SIGTERM or Ctrl-C after finishing the requests that have begun. Without a token, only this machine is served.

    Args:
        model: As of `fill`.
        host: Address to serve at; others than this machine's own need a token.
        port: Port; 0 chooses a free one.
        token_file: File with the token that requests must carry (default: the environment variable UNICLOZE_TOKEN).
        queue: Maximum number of waiting requests; further ones are refused.
        timeout: Maximum seconds per request.
        device: As of `fill`.
        precision: Precision of the forward passes; auto is bf16 where it is faster (default: fp32; that of the
            recipe for generated texts; bf16 for vectors if a measurement at the start shows it to be faster, with cosines of
            at least 0.999).

    Returns:
        Numbers of requests answered and refused.

    Examples:
        unicloze serve --model runs/quickstart
        unicloze serve --model runs/classification --host 0.0.0.0 --token-file token.txt

    Raises:
        UsageError: A value is out of range, there is no such device, or other machines could use the server and there is no
            token.
        UniclozeError: There is no complete checkpoint, the extra `serve` is not installed, or the address cannot be used.
    """
    check_at_least(1, queue=queue)
    if not 0 < timeout < math.inf:
        raise UsageError(f"timeout is {timeout:g}: give more than 0 seconds.")
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise UniclozeError(f"serving needs {' and '.join(missing)}: in the clone, pip install -e '.[serve]'.")
    if asyncio._get_running_loop() is not None:
        raise UsageError(
            "an event loop, such as a notebook's, is running in this thread: call serve in another (threading)."
        )
    from unicloze.interop.read import open_model
    from unicloze.serving.guard import Limits
    from unicloze.serving.run import serve_model, token_of
    from unicloze.serving.served_model import VectorPrecision, choose_for_vectors

    token = token_of(None if token_file is None else Path(token_file), host)
    loaded = open_model(model, device, precision)
    vectors = VectorPrecision(model=loaded) if precision else choose_for_vectors(loaded)
    limits = Limits(waiting=queue, seconds=timeout)
    return serve_model(loaded, vectors, host=host, port=port, token=token, limits=limits)


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

    folder = folder_at(out, replaced=True)
    return write_model(read(checkpoint, allow=allow, positions=positions, tokenizer=tokenizer, pickle=pickle), folder)


def export(
    model: Annotated[PathLike | LoadedModel, Option("DIR", word=True)],
    to: Annotated[str, Option("FORMAT")],
    out: Folder | None = None,
) -> ExportResult:
    """Export a model for Transformers and sentence-transformers, or as a Python package, and verify the export.

    The folder is loaded back and compared with the model before the export is kept: token ids, hidden states and logits of
    tokens.

    Args:
        model: As of `fill`.
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
    from unicloze.interop.read import open_model
    from unicloze.interop.stock import OWN, PACKAGE, check_format, check_name

    if out is None and not isinstance(model, str | os.PathLike):
        raise UsageError("out is not given: name the folder to write, since a loaded model has no folder.")
    check_name(to)
    loaded = open_model(model, "cpu")
    folder = folder_at(out, _beside(Path(str(model)), to) if out is None else None, replaced=True)
    check_format(to, loaded)
    if to == OWN:
        from unicloze.hf.save import own_format

        return write_export(loaded, own_format(loaded), folder)
    made = package_format(loaded, folder.resolve().name) if to == PACKAGE else stock_format(loaded, to)
    return write_export(loaded, made, folder)


def _beside(model: Path, to: str) -> Path:
    place = model.resolve()
    return model.parent / f"{place.name}-{to}" if model.name else place.with_name(f"{place.name}-{to}")
