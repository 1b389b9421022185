"""ULMFiT: rates by layer in pre-training, concat pooling, the head with batch normalisation, averaged predictions."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import toys
from corpora import write_corpus
from nlu_toys import finetuned, resumed_alike
from recurrent_toys import recurrent_model
from toys import random_windows, vocabulary
from unicloze import verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import Target, TargetBatch
from unicloze.finetuning.initial import task_recipe
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
from unicloze.training.loading import LoadedModel, load_model
from unicloze.training.loop import Compute, Hooks, TrainState, fit
from unicloze.training.optimizers import build_optimizers, depths, schedule_factor, set_learning, set_learning_rate
from unicloze.verbs import finetune, predict

BACKWARD = {
    "objective.visibility": "right_to_left", "model.directions": "backward", "data.directions": "backward",
    "use.visibility": "right_to_left", "use.pooling": "first",
}  # fmt: skip


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


def target_of(weights: torch.Tensor, slots: tuple[int, ...], present: torch.Tensor | None = None) -> TargetBatch:
    return TargetBatch(
        slots=torch.zeros(slots, dtype=torch.long), labels=torch.zeros_like(weights, dtype=torch.long), weights=weights,
        normaliser=float(weights.sum()), predictions=int(weights.sum()), present=present,
    )  # fmt: skip


@pytest.mark.parametrize("present", [None, [[4, 2], [3, 0]]], ids=["alike", "different"])
def test_concat_pooling_by_hand(present: list[list[int]] | None) -> None:
    settings = ModelSettings(kind="recurrent", hidden_size=3, dropout=0.0)
    head = LinearHead(settings, HeadSettings(kind="classes", name="plain", outputs=2, pooling="concat"))
    states = torch.randn(2, 2, 4, 3, generator=torch.Generator().manual_seed(0))
    counts = torch.tensor(present or [[4, 4], [4, 4]])
    there = torch.arange(4) < counts[..., None]
    target = target_of((counts > 0).float(), (2, 2, 4), None if present is None else there)
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
    target = target_of(weights, (3, 2))
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
    target = target_of(torch.ones(1, 1), (1, 1))
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


@pytest.mark.parametrize(("settings", "problem"), [
    ({"task.head": "batch_norm"}, r"batch_norm needs one prediction per text"),
    ({"task.pooling": "concat"}, r"task\.pooling is 'concat'; only the slots of a whole text"),
])  # fmt: skip
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


# Learning rates by layer and step: ULMFiT's discriminative rates, slanted triangle and gradual unfreezing.


LAYERS = 3  # of `toys.model`


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("start")
    overrides = {"data.corpus": [str(write_corpus(folder))], "tokenizer.vocab_size": 300}
    verbs.pretrain("quickstart", folder / "run", toy=True, quiet=True, overrides=overrides)
    return load_model(folder / "run")


def task_model(**settings: Any) -> Any:
    model = toys.model(targets=(), **settings)
    heads = {"label": HeadSettings(kind="classes", outputs=2)}
    return type(model)(model.settings, vocab_size=50, max_positions=40, targets=(), heads=heads)


def expected_depth(name: str) -> int:
    """Depths from the names alone: heads 0, layer i of n at n - i, embeddings and the shared position bias below them."""
    if not name.startswith("backbone."):
        return 0
    if name.startswith("backbone.layers."):
        return LAYERS - int(name.split(".")[2])
    return 1 if "final_norm" in name else LAYERS + 1


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_depths_count_from_the_head_down_to_the_embeddings(norm: str) -> None:
    found = depths(task_model(norm=norm))
    assert found == {name: expected_depth(name) for name in found}
    assert set(found.values()) == set(range(LAYERS + 2))


def test_what_holds_no_weights_is_not_counted() -> None:
    shared = depths(task_model(share_layers="all"))
    assert {depth for name, depth in shared.items() if ".layers." in name} == {1}
    assert shared["backbone.embeddings.tokens.weight"] == 2
    bare = depths(toys.model(targets=("lm",), head="linear", head_bias=False))
    assert {depth for name, depth in bare.items() if ".layers.2." in name} == {0}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_each_layer_has_the_rate_of_the_one_above_it_divided_by(optimizer: Any) -> None:
    model = task_model()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    settings = TrainingSettings(
        optimizer=optimizer, learning_rate=1e-3, muon_learning_rate=2e-2, weight_decay=0.1, steps=10, warmup_steps=0
    )
    built, plain = build_optimizers(model, settings, layer_decay=1 / 2.6), build_optimizers(model, settings)
    set_learning_rate(built, schedule_factor(5, settings))
    seen: dict[str, tuple[float, float]] = {}
    for kind in built:
        peak = 2e-2 if isinstance(kind, torch.optim.Muon) else 1e-3
        for group in kind.param_groups:
            for parameter in group["params"]:
                name = names[id(parameter)]
                assert group["peak_lr"] == pytest.approx(peak / 2.6 ** expected_depth(name))
                assert group["lr"] == pytest.approx(0.5 * group["peak_lr"])
                seen[name] = (group["weight_decay"], isinstance(kind, torch.optim.Muon))
    without = {
        names[id(parameter)]: (group["weight_decay"], isinstance(kind, torch.optim.Muon))
        for kind in plain
        for group in kind.param_groups
        for parameter in group["params"]
    }
    assert seen == without and set(seen) == set(names.values())


def test_an_update_equals_that_of_a_separate_group() -> None:
    """One step of AdamW moves each weight by its own rate: the ratio to an undivided step is the factor."""
    moved = []
    for decay in (1.0, 0.5):
        model = task_model()
        model.initialize(0)
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        (optimizer,) = build_optimizers(
            model, TrainingSettings(learning_rate=1e-2, weight_decay=0.0), layer_decay=decay
        )
        for number, parameter in enumerate(model.parameters()):
            parameter.grad = torch.full_like(parameter, 1.0 + number)
        optimizer.step()
        moved.append({name: (parameter.detach() - before[name]) for name, parameter in model.named_parameters()})
    for name, change in moved[0].items():
        torch.testing.assert_close(moved[1][name], change * 0.5 ** expected_depth(name), atol=1e-7, rtol=1e-3)


def test_the_slanted_triangle_is_the_papers() -> None:
    """Equation 3 of Howard and Ruder (2018), as printed: T = 1,300 iterations, cut_frac 0.1, ratio 32."""
    total, cut_frac, ratio = 1300, 0.1, 32
    cut = math.floor(total * cut_frac)
    settings = TrainingSettings(steps=total, warmup_steps=round(0.1 * total), schedule="slanted_triangular")
    for step in range(total):
        share = step / cut if step < cut else 1 - (step - cut) / (cut * (1 / cut_frac - 1))
        assert schedule_factor(step, settings) == pytest.approx((1 + share * (ratio - 1)) / ratio, abs=1e-12)
    assert schedule_factor(0, settings) == pytest.approx(1 / 32) and schedule_factor(cut, settings) == 1.0


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (1, 1), (2, 0), (7, 1), (19, 2), (19, 19)])
def test_a_short_slanted_triangle_stays_between_its_ends(steps: int, warmup: int) -> None:
    settings = TrainingSettings(steps=steps, warmup_steps=warmup, schedule="slanted_triangular")
    factors = [schedule_factor(step, settings) for step in range(steps)]
    assert all(1 / 32 <= factor <= 1 for factor in factors)
    assert factors[warmup:] == sorted(factors[warmup:], reverse=True)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_layers_learn_from_the_top_down(optimizer: Any) -> None:
    model = task_model()
    built = build_optimizers(model, TrainingSettings(optimizer=optimizer), unfreeze_every=2.5)
    for step in range(14):
        set_learning(built, step)
        learning = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        first = {depth: round(2.5 * depth) for depth in range(LAYERS + 2)}
        assert learning == {name for name, depth in depths(model).items() if step >= first[depth]}


WORDS = ["a", "bc", "def", "gh", "ij", "klm", "no", "pq"]


def records(path: Path) -> Path:
    lines = [{"text": f"{WORDS[i % 4]} {WORDS[i // 4]}", "label": "yes" if i * 7 % 3 else "no"} for i in range(16)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def recipe_for(start: LoadedModel, **overrides: Any) -> Any:
    settings: dict[str, Any] = {
        "finetuning.epochs": 5, "finetuning.unfreeze_epochs": 1, "finetuning.layer_decay": 0.5,
        "training.batch_size": 8, "training.learning_rate": 3e-3, "training.precision": "fp32",
        "training.schedule": "slanted_triangular", "model.dropout": 0.1, **overrides,
    }  # fmt: skip
    return task_recipe(load_recipe("classification", settings), start, list(settings))


def state_names(path: Path) -> dict[int, int]:
    """Number of steps of the moments of each parameter."""
    (adamw,) = load_checkpoint(path).optimizers
    return {index: int(values["step"]) for index, values in adamw["state"].items()}


@pytest.mark.filterwarnings("ignore:the lowest")
def test_frozen_layers_stay_as_they_were(start: LoadedModel, tmp_path: Path) -> None:
    train = records(tmp_path / "train.jsonl")
    finetuned(recipe_for(start, **{"finetuning.epochs": 2}), start, train, None, tmp_path / "run")
    path = tmp_path / "run" / "checkpoints" / "step-00000004"
    after, before = load_checkpoint(path).model, start.model.state_dict()
    last = start.model.settings.num_layers - 1
    for name, tensor in after.items():
        if name in before and before[name].shape == tensor.shape:
            learns = f".layers.{last}." in name or not name.startswith("backbone.")
            assert torch.equal(tensor, before[name]) != learns or "key.bias" in name, name
    steps = state_names(path)
    assert set(steps.values()) == {4, 2}  # the head from the start, the last layer from the second epoch
    assert len(steps) == sum(f".layers.{last}." in name or not name.startswith("backbone.") for name in after)


@pytest.mark.whole
def test_unfreezing_resumes_exactly(start: LoadedModel, tmp_path: Path) -> None:
    """Within an epoch, the newest checkpoint is that of the epoch before."""
    train = records(tmp_path / "train.jsonl")
    resumed_alike(lambda out: finetuned(recipe_for(start), start, train, train, tmp_path / out), 3, 5, folder=tmp_path)


def test_a_run_has_a_rate_and_a_first_step_for_each_layer(start: LoadedModel, tmp_path: Path) -> None:
    train, total = records(tmp_path / "train.jsonl"), start.model.settings.num_layers + 2
    recipe = recipe_for(start, **{"finetuning.epochs": total})
    finetuned(recipe, start, train, None, tmp_path / "run")
    (adamw,) = load_checkpoint(tmp_path / "run" / "checkpoints" / f"step-{2 * total:08d}").optimizers
    rates = {(group["first_step"], group["peak_lr"]) for group in adamw["param_groups"]}
    assert rates == {(2 * depth, 3e-3 * 0.5**depth) for depth in range(total)}, (
        "2 steps per epoch, halved at each layer"
    )


@pytest.mark.parametrize(("key", "value"), [
    ("finetuning.layer_decay", 0.0), ("finetuning.layer_decay", 2.6), ("finetuning.unfreeze_epochs", 0),
    ("finetuning.unfreeze_epochs", math.inf), ("training.schedule", "triangular"),
])  # fmt: skip
def test_rates_that_cannot_be_are_refused(key: str, value: Any) -> None:
    with pytest.raises(UsageError, match=key.rpartition(".")[2]):
        load_recipe("classification", {key: value})


def test_without_these_settings_nothing_changes() -> None:
    """The parameter groups are as in any other run: two of AdamW, in the order of checkpoints."""
    model = task_model()
    settings = TrainingSettings()
    (optimizer,) = build_optimizers(model, settings)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.0]
    assert {group["first_step"] for group in optimizer.param_groups} == {0}
    assert len(build_optimizers(model, dataclasses.replace(settings, optimizer="muon"))) == 2
