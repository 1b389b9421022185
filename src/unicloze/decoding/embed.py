"""Texts to vectors: the encoder's last hidden states, pooled."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from unicloze.decoding.texts import by_length, cut, one_segment, open_model
from unicloze.errors import UsageError
from unicloze.example import collate
from unicloze.objectives.unilmv2 import lay_out

if TYPE_CHECKING:
    from unicloze.decoding.texts import ModelLike

Pooling = Literal["mean", "first"]


def embed(
    model: ModelLike, texts: Sequence[str], *, pooling: Pooling = "mean", batch_size: int = 32
) -> npt.NDArray[np.float32]:
    """The vector of each text, read in both directions with nothing masked.

    A text's vector depends neither on the other texts nor on `batch_size`, up to rounding. Texts longer than the model
    reads at once are cut into consecutive windows.

    Args:
        model: A run directory, a checkpoint or a loaded model.
        texts: The texts; names of special tokens in them are plain text.
        pooling: `mean` over the last hidden states of all tokens of all windows, [SOS] and [EOS] included; `first`
            takes that of the first window's [SOS].
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
    objective = dataclasses.replace(loaded.recipe.objective, targets=["ae"])
    device = next(backbone.parameters()).device
    tokens, pieces = cut(loaded, texts)
    if pooling == "first":
        pieces = [piece for piece in pieces if piece.first == 0]
    sums = np.zeros((len(tokens), backbone.settings.hidden_size), dtype=np.float64)
    counts = np.zeros(len(tokens), dtype=np.int64)
    for block in by_length([len(piece) for piece in pieces], batch_size):
        windows = one_segment([pieces[i].tokens for i in block], loaded.tokenizer.vocabulary)
        nothing = np.full(windows.token_ids.shape, -1, dtype=np.int32)
        examples = lay_out(windows, nothing, loaded.tokenizer.vocabulary, objective, rate=0.0)
        with torch.inference_mode():
            hidden = backbone(collate(examples, device=device))[-1].double().cpu().numpy()
        for row, i in enumerate(block):
            pooled = hidden[row, : 1 if pooling == "first" else windows.lengths[row]]
            sums[pieces[i].text] += pooled.sum(axis=0)
            counts[pieces[i].text] += len(pooled)
    return (sums / counts[:, None]).astype(np.float32)
