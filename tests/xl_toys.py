"""Small models with Transformer-XL's encoding."""

from __future__ import annotations

from typing import Any

import torch

from unicloze.model.model import UnifiedModel
from unicloze.settings import ModelSettings


def xl_model(vocab: int = 50, **settings: Any) -> UnifiedModel:
    """Like `toys.model`, but with positions as distances, and XLNet's bare embeddings and head."""
    shape: dict[str, Any] = dict(
        hidden_size=32,
        num_layers=3,
        num_heads=4,
        intermediate_size=64,
        positions="transformer_xl",
        relative_bias=False,
        embedding_norm=False,
        head="linear",
        dropout=0.0,
        attention_dropout=0.0,
        initializer_range=0.15,
    )
    built = UnifiedModel(ModelSettings(**(shape | settings)), vocab_size=vocab, max_positions=40)
    built.initialize(0)
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.1, generator=torch.Generator().manual_seed(1))
    return built
