"""The mix of layers that a task reads: by hand, trained on a frozen network, in Transformers and LSTMs alike."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from recurrent_toys import recurrent_model
from toys import random_windows, vocabulary
from unicloze.errors import UsageError
from unicloze.example import Batch, Target, collate
from unicloze.model.build import build
from unicloze.model.model import UnifiedModel
from unicloze.objectives import make_examples, settings_of
from unicloze.recipes import load_recipe
from unicloze.settings import HeadSettings, ModelSettings
from unicloze.training.loading import freeze

HEADS = {"label": HeadSettings(kind="classes", outputs=3, dense=False, dropout=0.0)}
LSTM: dict[str, Any] = {"projection": True, "intermediate_size": 16, "layer_mix": True}


def transformer() -> UnifiedModel:
    shape = ModelSettings(
        hidden_size=8,
        num_layers=2,
        num_heads=2,
        intermediate_size=16,
        dropout=0.0,
        attention_dropout=0.0,
        layer_mix=True,
    )
    model = build(shape, vocab_size=50, max_positions=12, targets=(), heads=HEADS)
    assert isinstance(model, UnifiedModel)
    model.initialize(0)
    return model


def batch() -> Batch:
    windows = random_windows(4, 9, short=True)
    examples = make_examples(
        windows, vocabulary(), settings_of(name="causal", targets=["lm"], visibility="left_to_right")
    )
    label = Target(
        slots=(windows.lengths - 1)[:, None].astype(np.int32),
        labels=np.array([[0], [1], [2], [0]], np.int32),
        weights=np.ones((4, 1), np.float32),
    )
    return collate(dataclasses.replace(examples, targets={"label": label}))


@pytest.mark.parametrize("kind", ["transformer", "recurrent"])
def test_a_head_reads_the_mix_by_hand(kind: str) -> None:
    model = transformer() if kind == "transformer" else recurrent_model(targets=(), heads=HEADS, **LSTM)
    mix, head, made = model.layer_mix, model.task_head("label"), batch()
    assert mix is not None and mix.s.tolist() == [0, 0, 0] and mix.gamma.item() == 1
    with torch.no_grad():
        mix.s.copy_(torch.tensor([0.5, -1.0, 2.0]))
        mix.gamma.fill_(1.5)
        states = model.eval().backbone(made)
        shares = torch.tensor([0.5, -1.0, 2.0]).exp() / torch.tensor([0.5, -1.0, 2.0]).exp().sum()
        mixed = 1.5 * sum(share * state for share, state in zip(shares, states, strict=True))
        for row, slot in enumerate(made.targets["label"].slots[:, 0].tolist()):
            wanted = head.output(mixed[row, slot])  # type: ignore[index]
            torch.testing.assert_close(model.outputs(made)["label"][row, 0], wanted)
            torch.testing.assert_close(
                model(made)["label"].total, torch.nn.functional.cross_entropy(
                    model.outputs(made)["label"][:, 0], made.targets["label"].labels[:, 0], reduction="sum"
                )
            )  # fmt: skip


@pytest.mark.parametrize("kind", ["transformer", "recurrent"])
def test_only_the_mix_and_the_head_of_a_frozen_network_learn(kind: str) -> None:
    model = transformer() if kind == "transformer" else recurrent_model(targets=(), heads=HEADS, **LSTM)
    freeze(model, ["backbone"])
    model.train()(batch())["label"].total.backward()
    learning = {name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()}
    assert learning == {
        "layer_mix.s",
        "layer_mix.gamma",
        "task_heads.label.output.weight",
        "task_heads.label.output.bias",
    }


def test_layers_of_different_width_are_not_mixed() -> None:
    with pytest.raises(UsageError, match=r"model\.layer_mix is True; it mixes layers of one width"):
        load_recipe("awd-lstm", {"model.layer_mix": True})
