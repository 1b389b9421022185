"""Embeds texts: one vector per text, as an array and in files."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, get_args

import numpy as np
import numpy.typing as npt
import torch

from unicloze.arrays import Int64s
from unicloze.decoding.inputs import (
    by_length,
    check_numbers,
    cut,
    each_block,
    objective_of,
    one_segment,
    passes_at_once,
    read_as,
)
from unicloze.errors import UsageError
from unicloze.example import Examples, Kind
from unicloze.files import write_file
from unicloze.packing import bucket_cost, bucket_sizes, collate_buckets
from unicloze.progress import Progress, counted
from unicloze.settings import Pooling, Recipe
from unicloze.tasks.rows import UNREAD, text_pooling
from unicloze.text.windows import Windows, without_start
from unicloze.training.loading import LoadedModel
from unicloze.visibility import bidirectional_rows, left_to_right_rows, nearby, right_to_left_rows

BEGINNINGS: Mapping[str, bytes] = {".npy": rb"\x93NUMPY", ".jsonl": rb'\{"text": .*"vector": '}
"""How files of vectors begin, by the ending of their name."""


class Vectors(np.ndarray[Any, np.dtype[np.float32]]):
    """An array of vectors with their texts; `str` gives JSON lines, or a summary of the file they were written to.

    Attributes:
        texts: One per vector; None for arrays computed from this one, which print as plain arrays.
        out: The file the vectors were written to, if any.
    """

    texts: Sequence[str] | None = None
    out: str | os.PathLike[str] | None = None

    @classmethod
    def of(cls, vectors: npt.NDArray[np.float32], texts: Sequence[str], out: str | os.PathLike[str] | None) -> Self:
        """Attach texts and an output file to vectors. *Shape:* (texts, hidden size)"""
        found = vectors.view(cls)
        found.texts, found.out = list(texts), out
        return found

    def __reduce__(self) -> Any:
        if self.texts is None:
            return super().__reduce__()
        return type(self).of, (np.asarray(self), self.texts, self.out)

    def to_dict(self) -> list[dict[str, Any]]:
        """Each text with its vector, for JSON; without texts the vectors alone."""
        spelled = np.asarray(self).astype(str)  # float32's shortest spelling
        rows = [[float(number) for number in vector] for vector in spelled]
        if self.texts is None:
            return [{"vector": row} for row in rows]
        return [{"text": text, "vector": row} for text, row in zip(self.texts, rows, strict=True)]

    def __str__(self) -> str:
        if self.texts is None:
            return str(np.asarray(self))
        if self.out is not None:
            return f"{self.out}: {counted(len(self.texts), 'vector')} of {self.shape[1]}"
        return self.json_lines().removesuffix("\n")

    def json_lines(self) -> str:
        """One JSON object per line, with `text` and `vector`."""
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in self.to_dict())


def check_ending(out: str | os.PathLike[str] | None) -> None:
    """Reject an output file with an unknown ending, before anything is computed."""
    if out is not None and Path(out).suffix not in BEGINNINGS:
        raise UsageError(
            f"{out}: vectors are written as a NumPy array or as JSON lines: end the name in .npy or .jsonl."
        )


def write_vectors(vectors: Vectors, out: Path) -> None:
    """Write vectors in the format of the file's ending."""
    array = io.BytesIO()
    np.save(array, np.asarray(vectors), allow_pickle=False)
    content = vectors.json_lines() if out.suffix == ".jsonl" else array.getvalue()
    write_file(out, content, "the vectors", "give another --out")


_RULES = {"bidirectional": bidirectional_rows, "left_to_right": left_to_right_rows, "right_to_left": right_to_left_rows}


def embed(
    model: LoadedModel,
    texts: Sequence[str],
    *,
    pooling: Pooling | None = None,
    batch_size: int = 32,
    truncate: bool = False,
    progress: bool = False,
) -> npt.NDArray[np.float32]:
    """Embed each text, read unmasked in the direction set by the model's recipe (`use.visibility`).

    A text's vector depends neither on the other texts nor on `batch_size`, up to rounding. Texts longer than the model
    reads at once are cut into consecutive windows.

    Args:
        model: The model.
        texts: The texts; names of special tokens in them are plain text. `use.prompt` of the recipe is put before each.
        pooling: `mean` averages the last hidden states of all tokens of all windows, including [SOS] and [EOS]; `first`
            takes that of the first window's [SOS], `last` that of the last window's [EOS]. Default: `use.pooling` of the
            recipe.
        batch_size: Maximum number of rows per forward pass.
        truncate: Read only the first window of each text.
        progress: Show progress.

    Returns:
        Of length 1 if the recipe says so (`use.normalize`). *Shape:* (texts, hidden size)

    Raises:
        UsageError: A text is blank, `pooling` is unknown or `batch_size` is below 1.
        UniclozeError: The model outputs nan.
    """
    if pooling is not None and pooling not in get_args(Pooling):
        raise UsageError(f"pooling is {pooling!r}: give one of {', '.join(get_args(Pooling))}")
    unread, other = UNREAD.get(reads := model.recipe.use.visibility, ("", ""))
    if pooling == unread:
        why = f"the model reads from {reads.replace('_', ' ')}, so its {unread} slot has not read the text"
        raise UsageError(f"pooling is {unread}, but {why}: give {other}")
    how = pooling or text_pooling(model.recipe)
    backbone = model.model.backbone
    prompt = model.recipe.use.prompt
    tokens, pieces = cut(model, texts, prompt, truncate=truncate)
    if how == "first":
        pieces = [piece for piece in pieces if piece.first == 0]
    elif how == "last":
        pieces = [piece for piece in pieces if piece.first + len(piece) == len(tokens[piece.text])]
    sums = np.zeros((len(tokens), backbone.settings.hidden_size), dtype=np.float64)
    counts = np.zeros(len(tokens), dtype=np.int64)

    @torch.inference_mode()
    def sums_of(block: Int64s) -> list[tuple[npt.NDArray[np.float64], int]]:
        windows = one_segment([pieces[i].tokens for i in block], model.tokenizer.vocabulary)
        examples = rows_to_encode(windows, model.recipe)
        device = model.compute.device
        sizes = bucket_sizes(examples.lengths, bucket_cost(device.type))
        with model.compute.autocast():
            batch = collate_buckets(examples, sizes, device=device)
            encoded = backbone(batch)[-1].flatten(0, 1)
        check_numbers(encoded)
        hidden = encoded.cpu().float().numpy()
        shapes = [bucket.input_ids.shape for bucket in batch.rows_by_length]
        widths = [width for rows, width in shapes for _ in range(rows)]
        pooled = []
        for last, width, length in zip(np.cumsum(widths), widths, examples.lengths, strict=True):
            states = hidden[last - width : last - width + length]
            states = {"first": states[:1], "last": states[-1:], "mean": states}[how]
            pooled.append((states.sum(axis=0, dtype=np.float64), len(states)))
        return pooled

    blocks = list(by_length([len(piece) for piece in pieces], batch_size, passes=passes_at_once(model)))
    with Progress("embed", len(pieces), "windows", show=progress) as bar:
        for block, found in zip(blocks, each_block(model, sums_of, blocks), strict=True):
            for i, (total, count) in zip(block, found, strict=True):
                sums[pieces[i].text] += total
                counts[pieces[i].text] += count
            bar.update(len(block))
    vectors = sums / counts[:, None]
    if model.recipe.use.normalize:
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True).clip(min=1e-12)
    return vectors.astype(np.float32)


def rows_to_encode(windows: Windows, recipe: Recipe) -> Examples:
    """Examples of unmasked windows, read in the direction set by the recipe; nothing is predicted.

    A model whose sources have no [SOS] (T5) reads them without it.
    """
    reading = read_as(recipe)
    if not getattr(objective_of(recipe), "source_start", True):
        windows = without_start(windows)
    rows, width = windows.token_ids.shape
    slot = np.broadcast_to(np.arange(width, dtype=np.int32), (rows, width))
    is_text = slot < windows.lengths[:, None]
    if reading.visibility not in _RULES:
        raise UsageError(
            f"use.visibility is {reading.visibility}, which only tasks read: embed with a model that reads left_to_right or "
            "right_to_left"
        )
    both_ways = reading.visibility == "bidirectional"
    intervals = _RULES[reading.visibility](windows.lengths, capacity=width)
    local = None if reading.local_width is None else nearby(intervals, reading.local_width)
    return Examples(
        input_ids=windows.token_ids,
        position_ids=np.where(is_text, slot, 0).astype(np.int32),
        segment_ids=np.array(reading.segments, dtype=np.int32)[windows.segment_ids],
        kinds=np.where(is_text, Kind.CONTEXT, Kind.PADDING).astype(np.uint8),
        steps=np.full((rows, width), -1, dtype=np.int32),
        intervals=intervals,
        local=local,
        lengths=windows.lengths,
        mutual=windows.lengths if both_ways else np.zeros_like(windows.lengths),
        text_tokens=windows.lengths,
        targets={},
    )
