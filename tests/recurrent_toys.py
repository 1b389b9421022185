"""Small recurrent models for tests."""

from __future__ import annotations

from typing import Any

from toys import vocabulary
from unicloze.model.build import build
from unicloze.model.recurrent.backbone import RecurrentBackbone
from unicloze.model.recurrent.model import RecurrentModel
from unicloze.settings import HeadSettings, ModelSettings


def recurrent_model(
    targets: tuple[str, ...] = ("lm",), heads: dict[str, HeadSettings] | None = None, **settings: Any
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
    built = build(
        ModelSettings(**(shape | settings)),
        vocab_size=vocabulary().size,
        max_positions=40,
        targets=targets,
        heads=heads,
    )
    assert isinstance(built, RecurrentModel)
    built.initialize(0)
    return built


def backbone_of(model: RecurrentModel) -> RecurrentBackbone:
    """Its backbone."""
    assert isinstance(model.backbone, RecurrentBackbone)
    return model.backbone
