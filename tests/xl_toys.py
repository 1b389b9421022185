"""Small models with Transformer-XL's encoding, and their rows as Transformers' inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

import toys
from unicloze.example import Examples, Kind
from unicloze.model.model import UnifiedModel
from unicloze.text.windows import Windows


def xl_model(vocab: int = 50, **settings: Any) -> UnifiedModel:
    """Like `toys.model`, but with positions as distances, and XLNet's bare embeddings and head."""
    bare: dict[str, Any] = dict(relative_bias=False, embedding_norm=False, head="linear")
    return toys.model(vocab, encoding="transformer_xl", **bare | settings)


def two_streams(windows: Windows, examples: Examples) -> dict[str, Tensor]:
    """The same rows as Transformers' inputs: the window in order, which slots may not read which, and where to predict."""
    rows, window = windows.token_ids.shape
    target = examples.targets["par"]
    step = np.full((rows, window), -1)
    is_query = examples.kinds == Kind.PSEUDO
    row, slot = np.nonzero(is_query)
    step[row, examples.position_ids[row, slot]] = examples.steps[row, slot]
    unread = (step[:, None, :] >= 0) & (step[:, :, None] <= step[:, None, :])
    unread |= np.arange(window) >= windows.lengths[:, None, None]  # padding
    places = np.take_along_axis(examples.position_ids, target.slots, axis=1)
    mapping = (places[:, :, None] == np.arange(window)) & (target.weights[:, :, None] > 0)
    return {
        "input_ids": torch.from_numpy(windows.token_ids).long(),
        "token_type_ids": torch.from_numpy(windows.segment_ids).long(),
        "perm_mask": torch.from_numpy(unread).float(),
        "target_mapping": torch.from_numpy(mapping).float(),
    }
