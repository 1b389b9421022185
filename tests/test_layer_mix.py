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
from unicloze.example import Batch, Examples, Target, collate
from unicloze.model.build import build
from unicloze.model.model import UnifiedModel
from unicloze.objectives import make_examples, settings_of
from unicloze.recipes import load_recipe
from unicloze.settings import HeadSettings, ModelSettings
from unicloze.tasks.rows import Row, RowTarget, lay_out
from unicloze.training.batches import MicroBatch
from unicloze.training.loading import freeze

HEADS = {"label": HeadSettings(kind="classes", name="plain", outputs=3, dropout=0.0)}
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


def test_a_head_reads_both_directions_side_by_side() -> None:
    """Two words of two and one tokens, each from the mean of its forward states and that of its backward states."""
    recipe = load_recipe(
        "pos", {"use.visibility": "both_directions", "model.kind": "recurrent", "model.directions": "both"}
    )
    row = Row(
        record=0,
        input_ids=np.array([3, 11, 12, 13, 4], np.int32),
        segment_ids=np.zeros(5, np.int32),
        targets={"label": RowTarget(slots=[[1, 2], [3]], labels=[0, 2])},
    )
    short = dataclasses.replace(row, input_ids=row.input_ids[[0, 1, 4]], segment_ids=row.segment_ids[:3])
    short = dataclasses.replace(short, targets={"label": RowTarget(slots=[[1]], labels=[1])})
    examples = lay_out([row, short], vocabulary(), recipe)
    assert examples.lengths.tolist() == [10, 6] and examples.position_ids[0].tolist() == [0, 1, 2, 3, 4] * 2
    assert examples.targets["label"].slots[0].tolist() == [[1, 2, 6, 7], [3, 8, -1, -1]]
    both = {"label": dataclasses.replace(HEADS["label"], directions=2)}
    model = recurrent_model(targets=(), heads=both, directions="both", projection=True, intermediate_size=16).eval()
    made, head = collate(examples), model.task_head("label")
    with torch.no_grad():
        states, found = model.backbone(made)[-1], model.outputs(made)["label"]
        for prediction, forward, backward in ((0, [1, 2], [6, 7]), (1, [3], [8])):
            sides = torch.cat([states[0, forward].mean(dim=0), states[0, backward].mean(dim=0)])
            torch.testing.assert_close(found[0, prediction], head.output(sides))
        alone = model.outputs(collate(lay_out([short], vocabulary(), recipe)))["label"]
        torch.testing.assert_close(found[1, :1], alone[0])


def tagged_rows(lengths: list[int]) -> Examples:
    """Sentences of one-token words, read in both directions."""
    recipe = load_recipe(
        "pos", {"use.visibility": "both_directions", "model.kind": "recurrent", "model.directions": "both"}
    )
    rng, rows = np.random.default_rng(3), []
    for number, length in enumerate(lengths):
        words = rng.integers(7, 50, length + 2).astype(np.int32)
        target = RowTarget(slots=[[1 + word] for word in range(length)], labels=[word % 3 for word in range(length)])
        segments = np.zeros(length + 2, np.int32)
        rows.append(Row(record=number, input_ids=words, segment_ids=segments, targets={"label": target}))
    return lay_out(rows, vocabulary(), recipe)


@pytest.mark.parametrize("output_mix", [False, True])
def test_a_bilstm_reads_the_words_of_each_sentence(output_mix: bool) -> None:
    """By `nn.LSTM` on each sentence alone; the second mix stands beside its output."""
    head = dataclasses.replace(HEADS["label"], directions=2, encoder_size=5, output_mix=output_mix)
    model = recurrent_model(targets=(), heads={"label": head}, directions="both", **LSTM).eval()
    encoder, task_head = model.task_head("label").encoder, model.task_head("label")
    mixes = [mix for mix in (model.layer_mix, model.output_mix) if mix is not None]
    assert encoder is not None and len(mixes) == 1 + output_mix
    assert 0.4 < encoder.lstm.weight_ih_l0.abs().max() <= 5**-0.5
    examples = tagged_rows([4, 1, 3])
    with torch.no_grad():
        for number, mix in enumerate(mixes):
            mix.s.copy_(torch.tensor([0.5, -1.0, 2.0]) * (1 - 2 * number))
        batch = collate(examples)
        states, found = model.backbone(batch), model.outputs(batch)["label"]
        for row, length in enumerate([4, 1, 3]):
            forward = slice(1, 1 + length)
            back = slice(length + 3, 2 * length + 3)
            both = [torch.cat([mix(states)[row, forward], mix(states)[row, back]], dim=1) for mix in mixes]
            read = encoder.lstm(both[0][None])[0][0]
            wanted = task_head.output(torch.cat([read, *both[1:]], dim=1))  # type: ignore[operator]
            torch.testing.assert_close(found[row, :length], wanted)


def test_a_bilstm_reads_packed_sentences_apart() -> None:
    head = dataclasses.replace(HEADS["label"], directions=2, encoder_size=5, output_mix=True)
    model = recurrent_model(targets=(), heads={"label": head}, directions="both", **LSTM).train()
    examples, gradients, totals = tagged_rows([6, 5, 2, 1]), [], []
    for buckets in ([], [2, 2], [1, 3]):
        loss = model(MicroBatch(examples, None, buckets=buckets).batch(torch.device("cpu")))["label"]
        model.zero_grad()
        loss.total.backward()
        totals.append(loss.total.item())
        gradients.append({name: weight.grad.clone() for name, weight in model.named_parameters()})  # type: ignore[union-attr]
    assert totals[0] == pytest.approx(totals[1], rel=1e-5) == pytest.approx(totals[2], rel=1e-5)
    for name, gradient in gradients[0].items():
        assert gradient.abs().max() > 0, name
        for other in gradients[1:]:
            torch.testing.assert_close(other[name], gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("missing", ["task.encoder_size", "model.layer_mix"])
def test_a_second_mix_needs_a_bilstm_that_reads_the_first(missing: str) -> None:
    settings = {"task.output_mix": True, "task.encoder_size": 8, "model.layer_mix": True}
    with pytest.raises(UsageError, match=r"task\.output_mix is True; it needs a biLSTM that reads the first mix"):
        load_recipe("pos", {**settings, missing: 0 if missing.startswith("task") else False})


@pytest.mark.parametrize(
    ("task", "settings", "problem"),
    [
        ("swag", {}, r"use\.visibility is 'both_directions'; only classification and regression and tagging"),
        ("pos", {"task.pooling": "first"}, r"task\.pooling is 'first'; the slots of either direction are averaged"),
        ("classification", {"finetuning.auxiliary": {"lm": 1.0}}, r"rows read in both directions have none"),
    ],
)
def test_what_cannot_be_read_in_both_directions_is_refused(task: str, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        load_recipe(task, {"use.visibility": "both_directions"} | settings)


def test_layers_of_different_width_are_not_mixed() -> None:
    with pytest.raises(UsageError, match=r"model\.layer_mix is True; it mixes layers of one width"):
        load_recipe("awd-lstm", {"model.layer_mix": True})
