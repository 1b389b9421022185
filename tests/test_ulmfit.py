"""ULMFiT: rates by layer in pre-training, concat pooling, the head with batch normalisation, averaged predictions."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nlu_toys
import toys
from corpora import write_corpus
from nlu_toys import WORDS, finetuned, resumed_alike, start, write
from recurrent_toys import recurrent_model
from test_loop import CPU, nothing
from test_task_heads import classified
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import TargetBatch
from unicloze.finetuning.initial import task_recipe
from unicloze.finetuning.scores import averaged, check_averaged
from unicloze.model.task_heads import INNER, NormedHead
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.settings import HeadSettings, ModelSettings, Recipe, TrainingSettings
from unicloze.tasks.rows import pooled_slots
from unicloze.training.batches import MicroBatch
from unicloze.training.checkpoint import list_checkpoints, load_checkpoint
from unicloze.training.loading import LoadedModel
from unicloze.training.loop import TrainState, fit
from unicloze.training.optimizers import build_optimizers, depths, schedule_factor, set_learning_rate
from unicloze.verbs import finetune, predict

BACKWARD = {
    "objective.visibility": "right_to_left", "model.directions": "backward", "data.directions": "backward",
    "use.visibility": "right_to_left", "use.pooling": "first",
}  # fmt: skip


def target_of(weights: torch.Tensor, slots: tuple[int, ...]) -> TargetBatch:
    return TargetBatch(
        slots=torch.zeros(slots, dtype=torch.long), labels=torch.zeros_like(weights, dtype=torch.long), weights=weights,
        normaliser=float(weights.sum()), predictions=int(weights.sum()),
    )  # fmt: skip


def test_the_last_slot_is_the_last_one_that_was_read() -> None:
    assert list(pooled_slots(4, "concat")) == [0, 1, 2, 3]
    assert list(pooled_slots(4, "concat", leftward=True)) == [3, 2, 1, 0]


def test_the_head_is_normalisation_units_and_normalisation() -> None:
    """Against the layers of torch; neither padded predictions nor a single one change the statistics."""
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
    one, single = target_of(torch.ones(1, 1), (1, 1)), torch.ones(1, 1, 4)
    before = inner.norm.running_mean.clone()
    assert torch.equal(head.train().outputs(single, one, None), head.eval().outputs(single, one, None))
    assert torch.equal(inner.norm.running_mean, before), "one prediction has no deviation"


def test_an_abandoned_step_leaves_no_statistics() -> None:
    """A step whose gradient is not finite is not taken: the running statistics are those before it."""
    model = recurrent_model(targets=(), heads={"label": HeadSettings(kind="classes", name="batch_norm", outputs=3)})
    batch = MicroBatch(classified(), None)
    settings = TrainingSettings(steps=2, warmup_steps=0, learning_rate=0.01)
    state = TrainState(model=model, optimizers=build_optimizers(model, settings))
    saved: list[dict[str, torch.Tensor]] = []

    def log(*_: Any) -> None:
        saved.append({name: each.clone() for name, each in model.named_buffers()})
        model.backbone.embeddings.tokens.weight.register_hook(lambda gradient: gradient * float("inf"))

    with pytest.raises(UniclozeError, match="before the update of step 2: the norm of the gradient"):
        fit(state, itertools.repeat([batch]), settings, CPU, nothing(log=log))
    assert saved[0]["task_heads.label.inner.norm.running_mean"].any()
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, saved[0][name]), name


def test_probabilities_and_quantities_are_averaged() -> None:
    one = [{"id": "1", "prediction": "a", "probabilities": {"a": 0.6, "b": 0.4}}, {"id": "2", "prediction": 1.0}]
    two = [{"id": "1", "prediction": "b", "probabilities": {"a": 0.1, "b": 0.9}}, {"id": "2", "prediction": 4.0}]
    assert averaged([one, two]) == [
        {"id": "1", "prediction": "b", "probabilities": {"a": 0.35, "b": 0.65}},
        {"id": "2", "prediction": 2.5},
    ]
    cut = {"id": "2", "prediction": 2.5, "truncated": True}
    assert averaged([one[1:], [cut]]) == [{**cut, "prediction": 1.75}], "the second model read a part of the text"


def test_models_of_other_tasks_are_not_averaged(tmp_path: Path) -> None:
    first = load_recipe("ulmfit-classification", {"task.labels": ["a", "b"]})
    check_averaged([first, first])
    with pytest.raises(UsageError, match="another task or with other classes"):
        check_averaged([first, load_recipe("ulmfit-classification", {"task.labels": ["a", "c"]})])
    with pytest.raises(UsageError, match=r"predictions of task\.kind tagging are not averaged"):
        check_averaged([load_recipe("pos")])
    file, writer = write(tmp_path / "sources.jsonl", [{"source": "the cat"}]), start("quickstart")
    writer = dataclasses.replace(writer, recipe=nlu_toys.recipe_for(writer, "generation"), path=tmp_path)
    with pytest.raises(UsageError, match=r"predictions of task\.kind generation are not averaged"):
        predict(writer, file=file, out=tmp_path / "out.jsonl", also=writer)
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.whole
def test_three_stages_and_two_directions(tmp_path: Path) -> None:
    """General text, text of the domain, a classifier; the averaged probabilities are those of both models."""
    write_corpus(tmp_path / "corpus")
    toy = toy_overrides() | {"data.corpus": [str(tmp_path / "corpus")], "training.warmup_steps": 1}
    records = [{"text": f"the cat is {word}", "label": label} for word, label in (("good", "a"), ("bad", "b"))] * 6
    train = write(tmp_path / "train.jsonl", records)
    for name, turned in (("forward", {}), ("backward", BACKWARD)):
        pretrain_run(load_recipe("ulmfit", toy | turned), tmp_path / name, progress=False)
        begun = {"training.initialize_from": str(tmp_path / name)}
        pretrain_run(load_recipe("ulmfit-domain", toy | turned | begun), tmp_path / f"{name}-2", progress=False)
        finetune(
            "ulmfit-classification", tmp_path / f"{name}-2", train, train, tmp_path / f"{name}-3", quiet=True,
            overrides={"finetuning.epochs": 4, "training.batch_size": 4},
        )  # fmt: skip
    saved = load_checkpoint(list_checkpoints(tmp_path / "forward-3" / "checkpoints")[-1])
    assert saved.model["task_heads.label.inner.norm.running_mean"].any()
    first, second = (tmp_path / f"{name}-3" for name in ("forward", "backward"))
    asked = (first, None), (second, None), (first, second)
    one, two, both = (
        predict(model, text="the cat is good", also=also)[0]["probabilities"]["a"] for model, also in asked
    )
    assert both == pytest.approx((one + two) / 2, abs=2e-6) and one != two


# Learning rates by layer and step: ULMFiT's discriminative rates, slanted triangle and gradual unfreezing.


LAYERS = 3  # of `toys.model`


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


def test_depths_count_from_the_head_down_to_the_embeddings() -> None:
    heads = {"label": HeadSettings(kind="classes", outputs=2)}
    for model in (task_model(), task_model(norm="pre"), recurrent_model((), heads, num_layers=LAYERS)):
        found = depths(model)
        assert found == {name: expected_depth(name) for name in found}
        assert set(found.values()) == set(range(LAYERS + 2))
    shared = depths(task_model(share_layers="all"))
    assert {depth for name, depth in shared.items() if ".layers." in name} == {1}
    assert shared["backbone.embeddings.tokens.weight"] == 2
    for bias in (False, True):  # a head that reuses the embeddings
        bare = depths(toys.model(targets=("lm",), head="linear", head_bias=bias))
        assert {depth for name, depth in bare.items() if ".layers.2." in name or "head" in name} == {0}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_each_layer_has_the_rate_of_the_one_above_it_divided_by(optimizer: Any) -> None:
    model = task_model()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    settings = TrainingSettings(
        optimizer=optimizer, learning_rate=1e-3, muon_learning_rate=2e-2, weight_decay=0.1, steps=10, warmup_steps=0
    )
    built = build_optimizers(model, settings, layer_decay=1 / 2.6, unfreeze_every=2.5)
    set_learning_rate(built, schedule_factor(5, settings))

    def groups_of(optimizers: list[torch.optim.Optimizer]) -> dict[str, tuple[bool, dict[str, Any]]]:
        return {
            names[id(parameter)]: (isinstance(each, torch.optim.Muon), group)
            for each in optimizers
            for group in each.param_groups
            for parameter in group["params"]
        }

    without = groups_of(build_optimizers(model, settings))
    assert without.keys() == set(names.values())
    for name, (is_muon, group) in groups_of(built).items():
        depth = expected_depth(name)
        assert group["peak_lr"] == pytest.approx((2e-2 if is_muon else 1e-3) / 2.6**depth)
        assert group["lr"] == pytest.approx(0.5 * group["peak_lr"])
        assert group["first_step"] == round(2.5 * depth)
        assert (is_muon, group["weight_decay"]) == (without[name][0], without[name][1]["weight_decay"])


def test_the_slanted_triangle_is_the_papers() -> None:
    """Equation 3 of Howard and Ruder (2018), as printed: T = 1,300 iterations, cut_frac 0.1, ratio 32."""
    total, cut_frac, ratio = 1300, 0.1, 32
    cut = math.floor(total * cut_frac)
    settings = TrainingSettings(steps=total, warmup_steps=round(0.1 * total), schedule="slanted_triangular")
    for step in range(total):
        share = step / cut if step < cut else 1 - (step - cut) / (cut * (1 / cut_frac - 1))
        assert schedule_factor(step, settings) == pytest.approx((1 + share * (ratio - 1)) / ratio, abs=1e-12)
    assert schedule_factor(0, settings) == pytest.approx(1 / 32) and schedule_factor(cut, settings) == 1.0


@pytest.fixture
def train(tmp_path: Path) -> Path:
    records = [{"text": f"{WORDS[i % 4]} {WORDS[i // 4]}", "label": "yes" if i * 7 % 3 else "no"} for i in range(16)]
    return write(tmp_path / "train.jsonl", records)


def recipe_for(model: LoadedModel, epochs: int) -> Recipe:
    settings: dict[str, Any] = {
        "finetuning.epochs": epochs, "finetuning.unfreeze_epochs": 1, "finetuning.layer_decay": 0.5,
        "training.batch_size": 8, "training.learning_rate": 3e-3, "training.precision": "fp32",
        "training.schedule": "slanted_triangular", "model.dropout": 0.1,
    }  # fmt: skip
    return task_recipe(load_recipe("classification", settings), model, list(settings))


@pytest.mark.filterwarnings("ignore:the lowest")
def test_frozen_layers_stay_as_they_were(train: Path, tmp_path: Path) -> None:
    model = start()
    finetuned(recipe_for(model, 2), model, train, None, tmp_path / "run")
    saved = load_checkpoint(tmp_path / "run" / "checkpoints" / "step-00000004")
    before, last = model.model.state_dict(), model.model.settings.num_layers - 1
    learning = [name for name in saved.model if f".layers.{last}." in name or not name.startswith("backbone.")]
    for name, tensor in saved.model.items():
        if name in before and before[name].shape == tensor.shape:
            assert torch.equal(tensor, before[name]) != (name in learning) or "key.bias" in name, name
    (adamw,) = saved.optimizers
    steps = [int(values["step"]) for values in adamw["state"].values()]
    assert set(steps) == {4, 2}  # the head from the start, the last layer from the second epoch
    assert len(steps) == len(learning)


@pytest.mark.whole
def test_unfreezing_resumes_exactly(train: Path, tmp_path: Path) -> None:
    """Within an epoch, the newest checkpoint is that of the epoch before."""
    model = start()
    resumed_alike(
        lambda out: finetuned(recipe_for(model, 5), model, train, train, tmp_path / out), 3, 5, folder=tmp_path
    )


@pytest.mark.parametrize(("recipe", "key", "value", "problem"), [
    ("pos", "task.head", "batch_norm", "batch_norm needs one prediction per text"),
    ("pos", "task.pooling", "concat", r"task\.pooling is 'concat'; only the slots of a whole text"),
    ("classification", "finetuning.layer_decay", 0.0, "layer_decay"),
    ("classification", "finetuning.layer_decay", 2.6, "layer_decay"),
    ("classification", "finetuning.unfreeze_epochs", 0, "unfreeze_epochs"),
    ("classification", "finetuning.unfreeze_epochs", math.inf, "unfreeze_epochs"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused(recipe: str, key: str, value: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        load_recipe(recipe, {key: value})
