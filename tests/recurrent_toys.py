"""Small recurrent models for tests."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from toys import vocabulary
from unicloze.model.build import build
from unicloze.model.recurrent.backbone import RecurrentBackbone
from unicloze.model.recurrent.layers import BACKWARD, FORWARD, Direction
from unicloze.model.recurrent.model import RecurrentModel
from unicloze.settings import HeadSettings, ModelSettings

CHARACTERS: dict[str, Any] = {
    "embeddings": "characters", "character_size": 3, "character_filters": [2, 3, 4], "tied_output": False,
    "activation": "relu",
}  # fmt: skip
"""Embeddings made of characters, of a toy's size."""


def recurrent_model(
    targets: tuple[str, ...] = ("lm",),
    heads: dict[str, HeadSettings] | None = None,
    vocab: int = vocabulary().size,
    **settings: Any,
) -> RecurrentModel:
    """A small float32 model of two layers, without dropout."""
    shape: dict[str, Any] = dict(
        kind="recurrent",
        hidden_size=8,
        num_layers=2,
        intermediate_size=12,
        head="linear",
        dropout=0.0,
        initializer_range=0.5,
    )
    built = build(ModelSettings(**(shape | settings)), vocab_size=vocab, max_positions=40, targets=targets, heads=heads)
    assert isinstance(built, RecurrentModel)
    built.initialize(0)
    return built


def backbone_of(model: RecurrentModel) -> RecurrentBackbone:
    """Its backbone."""
    assert isinstance(model.backbone, RecurrentBackbone)
    return model.backbone


def read_by_hand(
    model: RecurrentModel, tokens: Tensor, direction: Direction = FORWARD, clip: float = math.inf
) -> Tensor:
    """Outputs of the stack of one direction for rows of one length by `nn.LSTM`, or step by step with clips."""
    turns = direction == BACKWARD
    x = backbone_of(model).embeddings.tokens(tokens)
    x = x.flip(1) if turns else x
    for number, layer in enumerate(backbone_of(model).layers):
        lstm = layer.of(direction).lstm
        output = lstm(x)[0] if clip == math.inf else clipped(lstm, x, clip)
        x = output + x if number and model.settings.residual else output
    return x.flip(1) if turns else x


def clipped(lstm: nn.LSTM, x: Tensor, clip: float) -> Tensor:
    """LSTM with projection: cells are clipped before the output gate reads them, outputs after they are projected."""
    (into, recurrent, bias, other, projection), outputs = lstm.parameters(), []
    h, c = x.new_zeros(len(x), lstm.proj_size), x.new_zeros(len(x), lstm.hidden_size)
    for step in x.unbind(1):
        gates = step @ into.T + bias + h @ recurrent.T + other
        i, f, g, o = gates.split(lstm.hidden_size, dim=1)
        c = (torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)).clamp(-clip, clip)
        h = ((torch.sigmoid(o) * torch.tanh(c)) @ projection.T).clamp(-clip, clip)
        outputs.append(h)
    return torch.stack(outputs, dim=1)
