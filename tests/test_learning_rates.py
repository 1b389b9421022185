"""Learning rates by layer and step: ULMFiT's discriminative rates, slanted triangle and gradual unfreezing."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import toys
from corpora import write_corpus
from unicloze import verbs
from unicloze.errors import UsageError
from unicloze.finetuning.data import finetuning_steps
from unicloze.finetuning.initial import task_recipe
from unicloze.finetuning.run import finetune_run
from unicloze.recipes import load_recipe
from unicloze.settings import HeadSettings, TrainingSettings
from unicloze.training.checkpoint import load_checkpoint
from unicloze.training.loading import LoadedModel, load_model
from unicloze.training.optimizers import build_optimizers, depths, schedule_factor, set_learning, set_learning_rate

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
    finetune_run(recipe_for(start, **{"finetuning.epochs": 2}), start, train, None, tmp_path / "run", progress=False)
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
    train = records(tmp_path / "train.jsonl")
    finetune_run(recipe_for(start), start, train, train, tmp_path / "whole", progress=False)

    class Stop(Exception):
        pass

    import unicloze.finetuning.run as room

    for stop_at in (3, 5):  # within an epoch: the newest checkpoint is that of the epoch before

        def stopping(*arguments: Any, last: int = stop_at) -> Any:
            for step in finetuning_steps(*arguments):
                if arguments[4] + 1 > last:
                    raise Stop
                arguments = (*arguments[:4], arguments[4] + 1)
                yield step

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(room, "finetuning_steps", stopping)
            with pytest.raises(Stop):
                finetune_run(recipe_for(start), start, train, train, tmp_path / "broken", progress=False)
    finetune_run(recipe_for(start), start, train, train, tmp_path / "broken", progress=False)
    one, other = (load_checkpoint(tmp_path / run / "checkpoints" / "step-00000010") for run in ("whole", "broken"))
    assert all(torch.equal(one.model[name], other.model[name]) for name in one.model)
    for mine, theirs in zip(one.optimizers, other.optimizers, strict=True):
        assert mine["param_groups"] == theirs["param_groups"]
        for index, values in mine["state"].items():
            assert all(torch.equal(values[key], theirs["state"][index][key]) for key in values)


def test_layers_that_never_learn_are_reported(start: LoadedModel, tmp_path: Path) -> None:
    train = records(tmp_path / "train.jsonl")
    total = start.model.settings.num_layers + 2
    recipe = recipe_for(start, **{"finetuning.epochs": 1.5})
    with pytest.warns(UserWarning, match=f"the lowest {total - 2} of {total} layers stay frozen"):
        finetune_run(recipe, start, train, None, tmp_path / "run", progress=False)
    recipe = recipe_for(start, **{"finetuning.epochs": 1})
    with pytest.warns(UserWarning, match=f"the lowest {total - 1} of {total} layers stay frozen"):
        finetune_run(recipe, start, train, None, tmp_path / "short", progress=False)


def test_a_run_has_a_rate_and_a_first_step_for_each_layer(start: LoadedModel, tmp_path: Path) -> None:
    train, total = records(tmp_path / "train.jsonl"), start.model.settings.num_layers + 2
    recipe = recipe_for(start, **{"finetuning.epochs": total})
    finetune_run(recipe, start, train, None, tmp_path / "run", progress=False)
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
