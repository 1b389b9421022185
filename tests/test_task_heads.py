"""Task heads by hand: how a prediction's slots are combined, what dropout drops, and padded predictions."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nlu_toys import recipe_for, start
from recurrent_toys import recurrent_model
from toys import random_windows, vocabulary
from unicloze.errors import UsageError
from unicloze.evaluation.metrics.labels import calibration
from unicloze.example import Examples, Target, TargetBatch, collate
from unicloze.finetuning.scores import measure
from unicloze.model.dropout import DropoutKey
from unicloze.model.model import UnifiedModel
from unicloze.model.recurrent.model import RecurrentModel
from unicloze.model.task_heads import TASK_HEADS, TaskHead
from unicloze.objectives import make_examples, settings_of
from unicloze.recipes import load_recipe, save_recipe
from unicloze.records.record import Record
from unicloze.settings import HeadSettings, ModelSettings, Recipe
from unicloze.tasks import TASKS
from unicloze.tasks.columns import resolved
from unicloze.tasks.rows import Row, RowTarget, lay_out
from unicloze.training.batches import MicroBatch
from unicloze.training.loading import LoadedModel, freeze, ready_model

SHAPE = ModelSettings(hidden_size=6, num_layers=1, num_heads=2, intermediate_size=8, dropout=0.4)
ROWS, PREDICTIONS, SLOTS = 2, 3, 4


def head_of(**settings: Any) -> TaskHead:
    asked = HeadSettings(**{"name": "plain", **settings})
    head = TASK_HEADS[asked.name](SHAPE, asked)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(0, 1, generator=generator)
    return head


def states() -> Tensor:
    """*Shape:* (rows, predictions x slots, hidden size)"""
    return torch.randn(ROWS, PREDICTIONS * SLOTS, 6, generator=torch.Generator().manual_seed(1))


def target_of(present: Tensor | None = None, **columns: Any) -> TargetBatch:
    shape = (ROWS, PREDICTIONS)
    given: dict[str, Any] = {"labels": torch.zeros(shape, dtype=torch.long), "weights": torch.ones(shape), **columns}
    slots = torch.zeros(*shape, SLOTS, dtype=torch.long)
    return TargetBatch(
        slots=slots,
        normaliser=float(given["weights"].sum()),
        predictions=int((given["weights"] != 0).sum()),
        present=present,
        **given,
    )


PRESENT = torch.tensor([[[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0]], [[1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]]]).bool()


@pytest.mark.parametrize("pooling", ["mean", "sum", "concat"])
@pytest.mark.parametrize("present", [None, PRESENT], ids=["all", "some"])
def test_the_slots_of_a_prediction_become_one_vector(pooling: Any, present: Tensor | None) -> None:
    head, hidden = head_of(kind="classes", outputs=5, pooling=pooling), states()
    found = head.outputs(hidden, target_of(present), None)
    assert found.shape == (ROWS, PREDICTIONS, 5)
    for row in range(ROWS):
        for prediction in range(PREDICTIONS):
            first = prediction * SLOTS
            there = [
                hidden[row, first + slot] for slot in range(SLOTS) if present is None or present[row, prediction, slot]
            ]
            own = torch.stack(there) if there else torch.zeros(1, 6)
            if pooling == "concat":
                vector = torch.cat([own[-1], own.max(dim=0).values, own.mean(dim=0)])
            else:
                vector = own.mean(dim=0) if pooling == "mean" else own.sum(dim=0)
            if there or pooling != "concat":
                torch.testing.assert_close(found[row, prediction], head.output(vector))
    assert found.isfinite().all()


@pytest.mark.parametrize(("own", "rate"), [(None, 0.4), (0.1, 0.1), (0.0, 0.0)])
@pytest.mark.parametrize("name", ["dense", "plain"])
def test_what_the_output_layer_reads_is_dropped_at_the_head_s_own_rate(
    own: float | None, rate: float, name: str
) -> None:
    head, hidden = head_of(kind="choice", dropout=own, name=name), states()
    read = hidden.view(ROWS, PREDICTIONS, SLOTS, 6)
    if head.dense is not None:
        read = torch.tanh(head.dense(read))
    plain = head.outputs(hidden, target_of(), None)
    dropped = head.outputs(hidden, target_of(), DropoutKey(1, 2))
    torch.testing.assert_close(plain, head.output(read).squeeze(-1))
    torch.testing.assert_close(dropped, head.output(DropoutKey(1, 2)(read, rate)).squeeze(-1))
    assert torch.equal(plain, dropped) == (rate == 0)


@pytest.mark.parametrize("kind", ["classes", "quantities", "choice"])
def test_a_padded_prediction_costs_nothing_and_its_gradient_is_a_number(kind: Any) -> None:
    """It has no slots to choose from or pool."""
    head, hidden = head_of(kind=kind, outputs=1 if kind == "quantities" else 5), states().requires_grad_()
    weights = PRESENT.any(dim=2).float()
    labels = torch.full((ROWS, PREDICTIONS), 0.5) if kind == "quantities" else torch.zeros(ROWS, PREDICTIONS).long()
    target = target_of(PRESENT, weights=weights, labels=labels)
    losses = head.losses(hidden, target, None)
    (losses * weights).sum().backward()
    assert hidden.grad is not None and losses.isfinite().all() and hidden.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in head.parameters() if parameter.grad is not None)
    padded, first = slice(SLOTS, 2 * SLOTS), slice(SLOTS)
    assert not hidden.grad[1, padded].any() and hidden.grad[1, first].any()


def test_a_choice_is_among_the_slots_that_are_there() -> None:
    head, hidden = head_of(kind="choice"), states()
    scores = head.output(hidden).view(ROWS, PREDICTIONS, SLOTS)
    labels = torch.tensor([[3, 0, 1], [2, 0, 0]])
    weights = PRESENT.any(dim=2).float()
    losses = head.losses(hidden, target_of(PRESENT, weights=weights, labels=labels), None)
    for row, prediction in weights.nonzero().tolist():
        there = scores[row, prediction][PRESENT[row, prediction]]
        expected = torch.logsumexp(there, dim=0) - scores[row, prediction, labels[row, prediction]]
        torch.testing.assert_close(losses[row, prediction], expected)


# Weights of classes in the loss, and the calibration of their probabilities.


TEXTS = [
    Record(str(number), {"text": text, "label": label}, f"here, line {number}")
    for number, (text, label) in enumerate([("a cat", "yes"), ("a dog", "no"), ("a bird", "no"), ("the old cat", "no")])
]
SENTENCE = Record("0", {"tokens": ["the", "cat", "sees"], "tags": ["DET", "NOUN", "NOUN"]}, "here, line 1")


@pytest.fixture(scope="module")
def bert() -> LoadedModel:
    return start()


def weighted_recipe(model: LoadedModel, records: list[Record], kind: str = "classification", **settings: Any) -> Recipe:
    recipe = recipe_for(model, kind, task__class_weights="balanced", **settings)
    task = resolved(recipe.task, records)
    return recipe_for(
        model, kind, **{f"task__{key}": getattr(task, key) for key in ("labels", "class_weights")}, **settings
    )


def test_balanced_weights_are_those_of_scikit_learn(bert: LoadedModel) -> None:
    utils = pytest.importorskip("sklearn.utils.class_weight")
    answers = np.array(["no", "no", "no", "yes"])
    no, yes = utils.compute_class_weight("balanced", classes=np.unique(answers), y=answers)
    task = weighted_recipe(bert, TEXTS).task
    assert task.class_weights == pytest.approx({"no": no, "yes": yes}) and task.labels == ["no", "yes"]  # type: ignore[attr-defined]
    named = resolved(recipe_for(bert, "classification", task__class_weights={"yes": 3.0}).task, TEXTS)
    assert named.class_weights == {"yes": 3.0}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kind", "records", "answers"), [("classification", TEXTS, [1, 0, 0, 0]), ("tagging", [SENTENCE], [0, 1, 1])]
)
def test_the_loss_is_torchs_weighted_cross_entropy(
    bert: LoadedModel, kind: str, records: list[Record], answers: list[int]
) -> None:
    recipe = weighted_recipe(bert, records, kind, task__metrics=["tag-accuracy" if kind == "tagging" else "accuracy"])
    model = ready_model(recipe, bert.model.vocab_size, torch.device("cpu")).eval()
    rows = TASKS[kind].encode(records, bert.tokenizer, recipe)
    batch = collate(TASKS[kind].lay_out(rows, bert.tokenizer.vocabulary, recipe, None))
    weights = torch.tensor([recipe.task.class_weights[label] for label in recipe.task.labels])  # type: ignore[attr-defined]
    outputs = next(iter(model.networks[0].outputs(batch).values())).reshape(len(answers), -1)
    expected = torch.nn.functional.cross_entropy(outputs, torch.tensor(answers), weight=weights)
    (loss,) = model(batch).values()
    torch.testing.assert_close(loss.total / loss.weight, expected, rtol=1e-5, atol=1e-6)


def test_weights_in_a_recipe_are_read_again_and_wrong_ones_refused(bert: LoadedModel, tmp_path: Path) -> None:
    recipe = weighted_recipe(bert, TEXTS)
    save_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml").task == recipe.task
    for weights, message in (
        ({"maybe": 2.0}, r"'maybe' is not a label of the task \(no, yes\)"),
        ({"yes": 0.0}, "every weight must be above 0 and finite"),
        ({"yes": float("inf")}, "every weight must be above 0 and finite"),
    ):
        with pytest.raises(UsageError, match=message):
            recipe_for(bert, "classification", task__labels=["no", "yes"], task__class_weights=weights)
    numbers = {"task.labels": ["0", "1"], "task.class_weights": "{0: 1, 1: 3}"}
    assert load_recipe("classification", numbers).task.class_weights == {"0": 1.0, "1": 3.0}  # type: ignore[attr-defined]
    for written, read in (("{yes: 5}", "true"), ("{null: 5}", "null"), ("{0: 1, '0': 2}", "0")):
        with pytest.raises(UsageError, match=f"YAML reads a label as {read}: write it in quotes"):
            load_recipe("classification", {"task.class_weights": written})


def test_calibration_by_hand() -> None:
    # bins of 1/15: 0.9 twice (one right), 0.6 once (wrong), 1.0 once (right)
    said = [{"a": 0.9, "b": 0.1}, {"a": 0.9, "b": 0.1}, {"a": 0.4, "b": 0.6}, {"a": 1.0, "b": 0.0}]
    found = calibration(said, ["a", "b", "a", "a"])
    assert found.values["ece"] == pytest.approx(100 * (2 * abs(0.9 - 0.5) + abs(0.6 - 0.0) + abs(1.0 - 1.0)) / 4)
    assert calibration([[0.75, 0.25], [0.5, 0.5]], [0, 1]).values["ece"] == pytest.approx((25 + 50) / 2)
    assert found.values["log_loss"] == pytest.approx(-(math.log(0.9) + math.log(0.1) + math.log(0.4)) / 4)
    assert found.values["confidence"] == pytest.approx(100 * (0.9 + 0.9 + 0.6 + 1.0) / 4)


def test_classes_are_scored_with_their_calibration_and_a_baseline_without(bert: LoadedModel) -> None:
    recipe = weighted_recipe(bert, TEXTS)
    sure = [{"id": one.id, "prediction": "no", "probabilities": {"no": 1.0, "yes": 0.0}} for one in TEXTS]
    scores = measure(sure, TEXTS, recipe)
    assert scores["calibration"].values == {
        "ece": pytest.approx(25), "confidence": pytest.approx(100), "log_loss": pytest.approx(-math.log(1e-6) / 4),
    }  # fmt: skip
    assert list(measure([{"id": one.id, "prediction": "no"} for one in TEXTS], TEXTS, recipe)) == recipe.task.metrics


# The mix of layers that a task reads: by hand, trained on a frozen network, in Transformers and LSTMs alike.


HEADS = {"label": HeadSettings(kind="classes", name="plain", outputs=3, dropout=0.0)}
LSTM: dict[str, Any] = {"projection": True, "intermediate_size": 16, "layer_mix": True}
BOTH_DIRECTIONS = {"use.visibility": "both_directions", "model.kind": "recurrent", "model.directions": "both"}


def transformer() -> UnifiedModel:
    shape = ModelSettings(
        hidden_size=8, num_layers=2, num_heads=2, intermediate_size=16, dropout=0.0, attention_dropout=0.0, layer_mix=True
    )  # fmt: skip
    model = UnifiedModel(shape, vocab_size=50, max_positions=12, targets=(), heads=HEADS)
    model.initialize(0)
    return model


def lstm() -> RecurrentModel:
    return recurrent_model(targets=(), heads=HEADS, **LSTM)


def classified() -> Examples:
    """Four texts, read from left to right, with a label at the last slot of each."""
    windows = random_windows(4, 9, short=True)
    objective = settings_of(name="causal", targets=["lm"], visibility="left_to_right")
    label = Target(
        slots=(windows.lengths - 1)[:, None].astype(np.int32),
        labels=np.array([[0], [1], [2], [0]], np.int32),
        weights=np.ones((4, 1), np.float32),
    )
    return dataclasses.replace(make_examples(windows, vocabulary(), objective), targets={"label": label})


@pytest.mark.parametrize("make", [transformer, lstm])
def test_a_head_reads_the_mix_by_hand(make: Any) -> None:
    model = make()
    mix, head, made = model.layer_mix, model.task_head("label"), collate(classified())
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


@pytest.mark.parametrize("make", [transformer, lstm])
def test_only_the_mix_and_the_head_of_a_frozen_network_learn(make: Any) -> None:
    model = make()
    freeze(model, ["backbone"])
    model.train()(collate(classified()))["label"].total.backward()
    learning = {name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()}
    head = "task_heads.label.output"
    assert learning == {"layer_mix.s", "layer_mix.gamma", f"{head}.weight", f"{head}.bias"}


def test_a_head_reads_both_directions_side_by_side() -> None:
    """Two words of two and one tokens, each from the mean of its forward states and that of its backward states."""
    recipe = load_recipe("pos", BOTH_DIRECTIONS)
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
    recipe = load_recipe("pos", BOTH_DIRECTIONS)
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


BOTH = {"use.visibility": "both_directions"}
MIXES = {"task.output_mix": True, "task.encoder_size": 8, "model.layer_mix": True}


@pytest.mark.parametrize(("recipe", "settings", "problem"), [
    ("pos", MIXES | {"task.encoder_size": 0}, r"task\.output_mix is True; it needs a biLSTM that reads the first mix"),
    ("pos", MIXES | {"model.layer_mix": False}, r"task\.output_mix is True; it needs a biLSTM that reads the first mix"),
    ("swag", BOTH, r"use\.visibility is 'both_directions'; only classification and regression and tagging"),
    ("pos", BOTH | {"task.pooling": "first"}, r"task\.pooling is 'first'; the slots of either direction are averaged"),
    ("classification", BOTH | {"finetuning.auxiliary": {"lm": 1.0}}, r"rows read in both directions have none"),
    ("awd-lstm", {"model.layer_mix": True}, r"model\.layer_mix is True; it mixes layers of one width"),
])  # fmt: skip
def test_what_no_head_reads_is_refused(recipe: str, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        load_recipe(recipe, settings)
