"""Fills masks, scores texts and embeds texts with a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from unicloze.errors import UniclozeError, UsageError
from unicloze.settings import Order, Pooling, Precision
from unicloze.verbs.common import PathLike, check_file
from unicloze.verbs.options import Device, File, Model, Number, OneOf, Option, clean

if TYPE_CHECKING:
    from unicloze.decoding.infill import FillResult
    from unicloze.decoding.likelihood import Scores
    from unicloze.decoding.vectors import Vectors

TEXTS = OneOf("texts", required=True)


def fill(
    model: Model,
    text: Annotated[str, Option("TEXT", clean)],
    top_k: Annotated[int, Option("K")] = 5,
    order: Order | None = None,
    device: Device = "auto",
) -> FillResult:
    """Fill the [MASK]s of a text: candidates for all masks at once, or one mask after the other.

    See `unicloze.decoding.infill.fill`.

    Args:
        model: Run directory, one of its checkpoints, or a Hugging Face model folder; in Python also a loaded model.
        text: Text with "[MASK]" for each missing token.
        top_k: Number of candidates to list for each mask.
        order: Fill the masks one after the other by PAR in this order; default: all at once by AE.
        device: Where to compute: cpu, cuda, cuda:N, xpu, mps, or auto (CUDA if it is there); in Python a loaded model
            stays where it is.

    Examples:
        unicloze fill --model runs/quickstart --text "Return a [MASK] of the given list."
        unicloze fill --model runs/quickstart --text "If the [MASK] does not [MASK], an error is raised."
            --order confidence --json

    Raises:
        UsageError: There is nothing to fill, the model was not trained for the order, or there is no such device.
        UniclozeError: There is no complete checkpoint.
    """
    from unicloze.decoding import infill
    from unicloze.interop.opening import open_model

    if not isinstance(text, str):
        raise UsageError(f"text is of type {type(text).__name__}: give a single string.")
    return infill.fill(open_model(model, device), text, top_k=top_k, order=order)


def score(
    model: Model,
    text: Annotated[str | Sequence[str], Option("TEXT", clean), TEXTS] | None = None,
    file: Annotated[PathLike, Option("FILE"), TEXTS] | None = None,
    device: Device = "auto",
) -> Scores:
    """Compute the log-likelihood of a text by the chain rule, and its pseudo-log-likelihood.

    See `unicloze.decoding.likelihood.score`.

    Args:
        model: As of `fill`.
        text: Text to score; in Python also several texts.
        file: File of texts: .txt (one per line), .jsonl or .parquet, also .gz, .zst.
        device: As of `fill`.

    Examples:
        unicloze score --model runs/quickstart --text "Return a copy of the list."
        unicloze score --model runs/quickstart --file sentences.txt --json

    Raises:
        UsageError: Neither or both of `text` and `file` are given, a text is blank or not a string, or there is no such
            device.
        UniclozeError: There is no complete checkpoint, or the file holds no text.
    """
    from unicloze.decoding import likelihood
    from unicloze.interop.opening import open_model

    if (text is None) == (file is None):
        raise UsageError("Give either a text or a file to score.")
    texts = _texts(file) if text is None else [text] if isinstance(text, str) else list(text)
    strange = next((each for each in texts if not isinstance(each, str)), None)
    if strange is not None or not texts:
        given = "no text" if strange is None else f"a value of type {type(strange).__name__}"
        raise UsageError(f"the texts to score contain {given}: give strings.")
    return likelihood.Scores(likelihood.score(open_model(model, device), texts))


def _texts(file: PathLike | None) -> list[str]:
    from unicloze.text.documents import read_documents

    path = Path(file or "")
    documents = [document.text for document in read_documents(path)]
    by_line = path.name.endswith((".txt", ".txt.gz", ".txt.zst"))
    texts = [text.strip() for each in documents for text in (each.split("\n") if by_line else [each]) if text.strip()]
    if not texts:
        raise UniclozeError(f"{file} contains no text: give a file of texts.")
    return texts


def embed(
    model: Model,
    texts: Annotated[Sequence[str], Option("TEXT", clean, name="text", repeated=True), TEXTS] | None = None,
    pooling: Pooling | None = None,
    batch_size: Number = 32,
    device: Device = "auto",
    precision: Precision | None = None,
    file: Annotated[PathLike, Option("FILE"), TEXTS] | None = None,
    out: File | None = None,
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
        file: As of `score`.
        out: File to write: .npy, an array with one row per text, or .jsonl, one JSON object per line (default: print JSON
            lines).

    Returns:
        *Shape:* (texts, hidden size)

    Examples:
        unicloze embed --model runs/quickstart --text "Return a copy of the list."
        unicloze embed --model runs/quickstart --file sentences.txt --out vectors.npy

    Raises:
        UsageError: Neither or both of `texts` and `file` are given, a text is blank, `out` does not end in .npy or .jsonl, or
            there is no such device.
        UniclozeError: There is no complete checkpoint, or a file cannot be read or written.
    """
    from unicloze.decoding import embed as room
    from unicloze.decoding.vectors import BEGINNINGS, Vectors, check_ending, write_vectors
    from unicloze.interop.opening import open_model

    if (texts is None) == (file is None):
        raise UsageError("Give either a text or a file to embed.")
    check_ending(out)
    check_file(out, file, begins=[] if out is None else [BEGINNINGS[Path(out).suffix]])
    given = texts if texts is not None else _texts(file)
    vectors = Vectors.of(
        room.embed(open_model(model, device, precision), given, pooling=pooling, batch_size=batch_size), given, out
    )
    if out is not None:
        write_vectors(vectors, Path(out))
    return vectors
