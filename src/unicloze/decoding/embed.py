"""Texts to vectors: the encoder's last hidden states, pooled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from unicloze.decoding.texts import by_length, cut, one_segment, open_model
from unicloze.errors import UsageError
from unicloze.example import Examples, Kind, collate
from unicloze.visibility import bidirectional

if TYPE_CHECKING:
    from unicloze.text.windows import Windows
    from unicloze.training.run import LoadedModel

Pooling = Literal["mean", "first"]


@torch.inference_mode()
def embed(
    model: str | Path | LoadedModel, texts: Sequence[str], *, pooling: Pooling = "mean", batch_size: int = 32
) -> npt.NDArray[np.float32]:
    """The vector of each text, read in both directions with nothing masked.

    A text's vector depends neither on the other texts nor on `batch_size`, up to rounding. Texts longer than the model
    reads at once are cut into consecutive windows.

    Args:
        model: A run directory, a checkpoint or a loaded model.
        texts: The texts; names of special tokens in them are plain text.
        pooling: `mean` over the last hidden states of all tokens of all windows, [SOS] and [EOS] included; `first` takes
            that of the first window's [SOS].
        batch_size: Most rows of one forward pass.

    Returns:
        Not normalised. *Shape:* (texts, hidden size)

    Raises:
        UsageError: A text is blank, `pooling` is unknown or `batch_size` is below 1.
    """
    if pooling not in get_args(Pooling):
        raise UsageError(f"pooling is {pooling!r}: give one of {', '.join(get_args(Pooling))}")
    loaded = open_model(model)
    backbone = loaded.model.backbone
    device = next(backbone.parameters()).device
    tokens, pieces = cut(loaded, texts)
    if pooling == "first":
        pieces = [piece for piece in pieces if piece.first == 0]
    sums = np.zeros((len(tokens), backbone.settings.hidden_size), dtype=np.float64)
    counts = np.zeros(len(tokens), dtype=np.int64)
    for block in by_length([len(piece) for piece in pieces], batch_size):
        windows = one_segment([pieces[i].tokens for i in block], loaded.tokenizer.vocabulary)
        hidden = backbone(collate(_unmasked(windows), device=device))[-1].double().cpu().numpy()
        for row, i in enumerate(block):
            pooled = hidden[row, : 1 if pooling == "first" else windows.lengths[row]]
            sums[pieces[i].text] += pooled.sum(axis=0)
            counts[pieces[i].text] += len(pooled)
    return (sums / counts[:, None]).astype(np.float32)


def _unmasked(windows: Windows) -> Examples:
    """Rows in which every token reads every other and none is predicted."""
    rows, width = windows.token_ids.shape
    real = np.arange(width) < windows.lengths[:, None]
    intervals = np.zeros((rows, width, 4), dtype=np.int32)
    for row, length in enumerate(windows.lengths):
        intervals[row, :length] = bidirectional(int(length))
        intervals[row, length:, :2] = np.arange(length, width)[:, None] + [0, 1]
    return Examples(
        input_ids=windows.token_ids,
        position_ids=np.where(real, np.arange(width), 0).astype(np.int32),
        segment_ids=windows.segment_ids,
        kinds=np.where(real, Kind.CONTEXT, Kind.PADDING).astype(np.uint8),
        steps=np.full((rows, width), -1, dtype=np.int32),
        intervals=intervals,
        lengths=windows.lengths,
        mutual=windows.lengths,
        text_tokens=windows.lengths,
        targets={},
    )
