"""AWD-LSTM beside fastai's: losses, AR and TAR, and gradients of two batches with a carried state."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

import single_rows
from golden_fastai import (
    ALPHA,
    BETA,
    EMBEDDING,
    FILE,
    HIDDEN,
    LAYERS,
    ROWS,
    STEPS,
    VOCABULARY,
    summary,
    tokens_of,
    weight_of,
)
from unicloze.example import Batch, Leading, Memory, TargetBatch
from unicloze.model.build import build
from unicloze.model.dropout import DropoutKey
from unicloze.settings import ModelSettings

SETTINGS = ModelSettings(
    kind="recurrent", hidden_size=EMBEDDING, intermediate_size=HIDDEN, num_layers=LAYERS, memory=1, head="linear",
    dropout=0.0, activation_penalty=ALPHA, temporal_penalty=BETA,
)  # fmt: skip


def batch_at(number: int, memory: Memory) -> Batch:
    tokens = tokens_of(number)
    rule = np.stack([single_rows.left_to_right(STEPS)] * ROWS)
    slots = torch.arange(STEPS).expand(ROWS, -1)
    target = TargetBatch(
        slots=slots,
        labels=tokens[:, 1:],
        weights=torch.ones(ROWS, STEPS),
        normaliser=ROWS * STEPS,
        predictions=ROWS * STEPS,
    )
    return Batch(
        input_ids=tokens[:, :-1],
        position_ids=slots,
        segment_ids=torch.zeros_like(slots),
        intervals=torch.from_numpy(rule),
        leading=Leading(slots=0, keys=0, alike=True, in_order=True, shorter=None),
        targets={"lm": target},
        text_tokens=ROWS * STEPS,
        memory=memory,
        text_slots=slots,
    )


def test_losses_and_gradients_are_those_of_fastai() -> None:
    model = build(SETTINGS, vocab_size=VOCABULARY, max_positions=STEPS, targets=["lm"])
    weights: dict[str, Any] = dict(model.named_parameters())
    names = {"backbone.embeddings.tokens.weight": "tokens", "token_head.bias": "bias"}
    for layer in range(LAYERS):
        for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
            names[f"backbone.layers.{layer}.cells.left_to_right.lstm.{name}"] = f"{layer}.{name}"
    assert set(names) == set(weights)
    with torch.no_grad():
        for name, named in names.items():
            weights[name].copy_(weight_of(named, tuple(weights[name].shape)))
    memory = Memory(states=torch.zeros(SETTINGS.memory_shape(ROWS)), lengths=torch.zeros(ROWS, dtype=torch.long))
    for number, golden in enumerate(json.loads(FILE.read_text())["batches"]):
        model.zero_grad()
        batch = batch_at(number, memory)
        loss = model.train()(batch, DropoutKey(0))["lm"]
        mean = loss.total / loss.weight
        mean.backward()
        assert mean.item() == pytest.approx(golden["loss"], rel=1e-5)
        for name, named in names.items():
            assert summary(weights[name].grad) == pytest.approx(golden["gradients"][named], rel=1e-3, abs=1e-5), name
        assert batch.memory is not None
        memory = batch.memory
