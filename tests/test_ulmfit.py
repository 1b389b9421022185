"""ULMFiT: rates by layer in pre-training, concat pooling, the head with batch normalisation, averaged predictions."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from corpora import write_corpus
from recurrent_toys import recurrent_model
from toys import random_windows, vocabulary
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import Target, TargetBatch
from unicloze.finetuning.scores import averaged, check_averaged
from unicloze.model.task_heads import INNER, LinearHead, NormedHead
from unicloze.objectives import settings_of
from unicloze.objectives.causal import causal
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.settings import HeadSettings, ModelSettings, TrainingSettings
from unicloze.tasks.rows import pooled_slots
from unicloze.training.batches import MicroBatch
from unicloze.training.checkpoint import list_checkpoints, load_checkpoint
from unicloze.training.loop import Compute, Hooks, TrainState, fit
from unicloze.training.optimizers import build_optimizers
from unicloze.verbs import finetune, predict

BACKWARD = {
    "objective.visibility": "right_to_left",
    "model.directions": "backward",
    "data.directions": "backward",
    "use.visibility": "right_to_left",
    "use.pooling": "first",
}


def test_rates_fall_from_the_last_layer_to_the_embeddings() -> None:
    model = recurrent_model(num_layers=3)
    recipe = load_recipe("ulmfit-domain")
    optimizers = build_optimizers(model, recipe.training, layer_decay=recipe.training.layer_decay)
    names = {id(weight): name for name, weight in model.named_parameters()}
    found = {
        names[id(weight)]: group["lr"] / 0.004
        for each in optimizers
        for group in each.param_groups
        for weight in group["params"]
    }
    for name, rate in found.items():
        depth = 0 if name.startswith("token_head") else 4 if "embeddings" in name else 3 - int(name.split(".")[2])
        assert rate == pytest.approx(2.6**-depth), name


@pytest.mark.parametrize("present", [None, [[4, 2], [3, 0]]], ids=["alike", "different"])
def test_concat_pooling_by_hand(present: list[list[int]] | None) -> None:
    settings = ModelSettings(kind="recurrent", hidden_size=3, dropout=0.0)
    head = LinearHead(settings, HeadSettings(kind="classes", name="plain", outputs=2, pooling="concat"))
    states = torch.randn(2, 2, 4, 3, generator=torch.Generator().manual_seed(0))
    counts = torch.tensor(present or [[4, 4], [4, 4]])
    there = torch.arange(4) < counts[..., None]
    target = TargetBatch(
        slots=torch.zeros(2, 2, 4, dtype=torch.long),
        labels=torch.zeros(2, 2, dtype=torch.long),
        weights=(counts > 0).float(),
        normaliser=4.0,
        predictions=int((counts > 0).sum()),
        present=None if present is None else there,
    )
    found = head.outputs(states.flatten(1, 2), target, None)
    assert found.isfinite().all()
    for row, prediction in (counts > 0).nonzero().tolist():
        own = states[row, prediction, : counts[row, prediction]]
        pooled = torch.cat([own[-1], own.max(dim=0).values, own.mean(dim=0)])
        torch.testing.assert_close(found[row, prediction], head.output(pooled))


def test_the_last_slot_is_the_last_one_that_was_read() -> None:
    assert list(pooled_slots(4, "concat")) == [0, 1, 2, 3]
    assert list(pooled_slots(4, "concat", leftward=True)) == [3, 2, 1, 0]


def test_the_head_is_normalisation_units_and_normalisation() -> None:
    """Against the layers of torch; padded predictions are not part of the statistics."""
    settings = ModelSettings(kind="recurrent", hidden_size=4, dropout=0.0)
    head = NormedHead(settings, HeadSettings(kind="classes", name="batch_norm", outputs=3, dropout=0.0)).train()
    weights = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    states = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0)) * 3 + 1
    target = TargetBatch(
        slots=torch.zeros(3, 2, dtype=torch.long),
        labels=torch.zeros(3, 2, dtype=torch.long),
        weights=weights,
        normaliser=5.0,
        predictions=5,
    )
    inner, output = head.inner, head.output
    assert inner.linear.out_features == INNER == 50
    real = states[weights > 0]
    wanted = nn.Sequential(
        nn.BatchNorm1d(4, momentum=None), inner.linear, nn.ReLU(), nn.BatchNorm1d(50, momentum=None), output.linear
    ).train()
    torch.testing.assert_close(head.outputs(states, target, None)[weights > 0], wanted(real))
    torch.testing.assert_close(inner.norm.running_var, wanted[0].running_var)
    torch.testing.assert_close(output.norm.running_mean, wanted[3].running_mean)
    head.eval()
    wanted.eval()
    torch.testing.assert_close(head.outputs(states, target, None)[weights > 0], wanted(real))


def test_a_single_prediction_is_normalised_by_the_running_statistics() -> None:
    head = NormedHead(
        ModelSettings(kind="recurrent", hidden_size=4, dropout=0.0),
        HeadSettings(kind="classes", name="batch_norm", outputs=3),
    )
    target = TargetBatch(
        slots=torch.zeros(1, 1, dtype=torch.long),
        labels=torch.zeros(1, 1, dtype=torch.long),
        weights=torch.ones(1, 1),
        normaliser=1.0,
        predictions=1,
    )
    states = torch.ones(1, 1, 4)
    assert torch.equal(head.train().outputs(states, target, None), head.eval().outputs(states, target, None))
    assert head.inner.norm.running_mean is not None
    assert not head.inner.norm.running_mean.any()


def test_an_abandoned_step_leaves_no_statistics() -> None:
    """A step whose gradient is not finite is not taken: the running statistics are those before it."""
    model = recurrent_model(targets=(), heads={"label": HeadSettings(kind="classes", name="batch_norm", outputs=2)})
    examples = causal(
        random_windows(4, 9), vocabulary(), settings_of(name="causal", targets=["lm"], visibility="left_to_right")
    )
    label = Target(
        slots=np.full((4, 1), 8, np.int32),
        labels=np.array([[0], [1], [0], [1]], np.int32),
        weights=np.ones((4, 1), np.float32),
    )
    batch = MicroBatch(dataclasses.replace(examples, targets={"label": label}), None)
    settings = TrainingSettings(steps=2, warmup_steps=0, learning_rate=0.01)
    state = TrainState(model=model, optimizers=build_optimizers(model, settings))
    saved: list[dict[str, torch.Tensor]] = []

    def log(*_: Any) -> None:
        saved.append({name: each.clone() for name, each in model.named_buffers()})
        model.backbone.embeddings.tokens.weight.register_hook(lambda gradient: gradient * float("inf"))

    hooks = Hooks(log=log, evaluate=lambda _: False, save=lambda _: None, describe=str)
    with pytest.raises(UniclozeError, match="before the update of step 2: the norm of the gradient"):
        fit(state, itertools.repeat([batch]), settings, Compute(device=torch.device("cpu"), precision="fp32"), hooks)
    assert saved[0]["task_heads.label.inner.norm.running_mean"].any()
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, saved[0][name]), name


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"task.head": "batch_norm"}, r"batch_norm needs one prediction per text"),
        ({"task.pooling": "concat"}, r"task\.pooling is 'concat'; only the slots of a whole text"),
    ],
)
def test_only_texts_have_such_heads(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        load_recipe("pos", settings)


def test_probabilities_and_quantities_are_averaged() -> None:
    one = [{"id": "1", "prediction": "a", "probabilities": {"a": 0.6, "b": 0.4}}, {"id": "2", "prediction": 1.0}]
    two = [{"id": "1", "prediction": "b", "probabilities": {"a": 0.1, "b": 0.9}}, {"id": "2", "prediction": 4.0}]
    assert averaged([one, two]) == [
        {"id": "1", "prediction": "b", "probabilities": {"a": 0.35, "b": 0.65}},
        {"id": "2", "prediction": 2.5},
    ]
    cut = {"id": "2", "prediction": 2.5, "truncated": True}
    assert averaged([one[1:], [cut]]) == [{**cut, "prediction": 1.75}], "the second model read a part of the text"


def test_models_of_other_tasks_are_not_averaged() -> None:
    first = load_recipe("ulmfit-classification", {"task.labels": ["a", "b"]})
    check_averaged([first, first])
    with pytest.raises(UsageError, match="another task or with other classes"):
        check_averaged([first, load_recipe("ulmfit-classification", {"task.labels": ["a", "c"]})])
    with pytest.raises(UsageError, match=r"predictions of task\.kind tagging are not averaged"):
        check_averaged([load_recipe("pos")])


@pytest.mark.whole
def test_three_stages_and_two_directions(tmp_path: Path) -> None:
    """General text, text of the domain, a classifier; the averaged probabilities are those of both models."""
    write_corpus(tmp_path / "corpus")
    toy = toy_overrides() | {"data.corpus": [str(tmp_path / "corpus")], "training.warmup_steps": 1}
    records = [{"text": f"the cat is {word}", "label": label} for word, label in (("good", "a"), ("bad", "b"))] * 6
    (tmp_path / "train.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    for name, turned in (("forward", {}), ("backward", BACKWARD)):
        pretrain_run(load_recipe("ulmfit", toy | turned), tmp_path / name, progress=False)
        start = {"training.initialize_from": str(tmp_path / name)}
        pretrain_run(load_recipe("ulmfit-domain", toy | turned | start), tmp_path / f"{name}-2", progress=False)
        finetune(
            model=tmp_path / f"{name}-2", task="ulmfit-classification", train=tmp_path / "train.jsonl",
            dev=tmp_path / "train.jsonl", out=tmp_path / f"{name}-3", quiet=True,
            overrides={"finetuning.epochs": 4, "training.batch_size": 4},
        )  # fmt: skip
    saved = load_checkpoint(list_checkpoints(tmp_path / "forward-3" / "checkpoints")[-1])
    assert saved.model["task_heads.label.inner.norm.running_mean"].any()
    first, second = (tmp_path / f"{name}-3" for name in ("forward", "backward"))
    one, two, both = (
        predict(first, text="the cat is good", also=also)[0]["probabilities"]["a"] if model is None
        else predict(model, text="the cat is good")[0]["probabilities"]["a"]
        for model, also in ((first, None), (second, None), (None, second))
    )  # fmt: skip
    assert both == pytest.approx((one + two) / 2, abs=2e-6) and one != two
