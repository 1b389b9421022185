"""Variants of the architecture: their parameters, what is shared, and that their computation matches their definition."""

from __future__ import annotations

import copy
import dataclasses
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import toys
from conftest import slow_except
from corpora import write_corpus
from recurrent_toys import CHARACTERS
from toys import random_windows, vocabulary
from unicloze.errors import UniclozeError
from unicloze.example import Batch, collate
from unicloze.model import attention as planning
from unicloze.model.attention import RelativeBias
from unicloze.model.layers import SHARED_SUBLAYERS, SUBLAYERS, owners
from unicloze.model.model import UnifiedModel
from unicloze.objectives import make_examples, settings_of
from unicloze.objectives.causal import causal
from unicloze.objectives.unilmv2 import unilmv2
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.settings import ModelSettings, TrainingSettings
from unicloze.training.checkpoint import list_checkpoints, load_checkpoint
from unicloze.training.optimizers import build_optimizers

CAUSAL = settings_of(name="causal", targets=["lm"], visibility="left_to_right")
DIFFUSION = settings_of(name="masked_diffusion", targets=["diffusion"])
SHARED = ["all", "attention", "feed_forward"]


def masked_batch() -> Batch:
    return collate(unilmv2(random_windows(5, 24, short=True), vocabulary(), settings_of()))


def loss_of(model: UnifiedModel, batch: Batch) -> Tensor:
    return torch.stack([loss.total / loss.weight for loss in model(batch).values()]).sum()


# Shared layers


def unshared(model: UnifiedModel, share: Any) -> UnifiedModel:
    """A model of the same function with separate weights in each layer."""
    settings = dataclasses.replace(model.settings, share_layers="none")
    twin = UnifiedModel(settings, vocab_size=model.vocab_size, max_positions=model.max_positions)
    state = model.state_dict()
    for name in list(state):
        _, found, rest = name.partition("backbone.layers.0.")
        if found and rest.split(".")[0] in SHARED_SUBLAYERS[share]:
            state |= {f"backbone.layers.{n}.{rest}": state[name] for n in range(1, model.settings.num_layers)}
    twin.load_state_dict(state)
    return twin


@pytest.mark.parametrize("share", SHARED)
def test_shared_layers_compute_what_equal_layers_do(share: Any) -> None:
    """The gradient of shared weights is the sum over the layers."""
    model = toys.model(share_layers=share)
    twin, batch = unshared(model, share), masked_batch()
    loss, expected = loss_of(model, batch), loss_of(twin, batch)
    torch.testing.assert_close(loss, expected, atol=1e-6, rtol=1e-6)
    loss.backward()
    expected.backward()
    theirs = {name: parameter.grad for name, parameter in twin.named_parameters()}
    for name, parameter in model.named_parameters():
        _, found, rest = name.partition("backbone.layers.0.")
        shared = bool(found) and rest.split(".")[0] in SHARED_SUBLAYERS[share]
        names = [f"backbone.layers.{n}.{rest}" for n in range(3)] if shared else [name]
        total = torch.stack([grad for its_own in names if (grad := theirs[its_own]) is not None]).sum(0)
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, total, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("share", SHARED)
def test_shared_weights_are_held_once(share: Any) -> None:
    model = toys.model(share_layers=share)
    state = model.state_dict()
    own = {name.split(".")[3] for name in state if ".layers.1." in name or ".layers.2." in name}
    assert own == set(SUBLAYERS) - SHARED_SUBLAYERS[share]
    assert len({tensor.data_ptr() for tensor in state.values()}) == len(state)
    for kind in ("adamw", "muon"):
        optimizers = build_optimizers(model, TrainingSettings(optimizer=kind))  # type: ignore[arg-type]
        held = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
        assert len({id(p) for p in held}) == len(held)
        assert sum(p.numel() for p in held) == model.num_parameters() == sum(t.numel() for t in state.values())
    other, batch = UnifiedModel(model.settings, vocab_size=50, max_positions=40), masked_batch()
    other.load_state_dict(state)
    assert torch.equal(loss_of(other, batch), loss_of(model, batch))


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """Run sharding in a single process."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


@pytest.mark.parametrize("share", ["none", *SHARED])
def test_layers_that_share_weights_are_sharded_one_by_one(share: Any, mesh: DeviceMesh) -> None:
    whole, model = toys.model(share_layers=share), toys.model(share_layers=share)
    lending = owners(model)
    assert lending == ([] if share == "none" else [model.backbone.layers[0]])
    for layer in model.backbone.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=layer not in lending)
    fully_shard(model, mesh=mesh)
    assert list(model.state_dict()) == list(whole.state_dict())
    batch = masked_batch()
    expected, loss = loss_of(whole, batch), loss_of(model, batch)
    assert torch.equal(loss, expected)
    loss.backward()
    expected.backward()
    for (name, own), parameter in zip(model.named_parameters(), whole.parameters(), strict=True):
        assert isinstance(own.grad, DTensor) and parameter.grad is not None, name
        assert torch.equal(own.grad.full_tensor(), parameter.grad), name


def test_a_copy_shares_weights_only_among_its_own_layers() -> None:
    model = toys.model(share_layers="all")
    twin = copy.deepcopy(model).double()
    layers = list(twin.backbone.layers)
    assert owners(twin) == [layers[0]]
    assert all(layer.attention is layers[0].attention for layer in layers)
    assert layers[2].attention is not model.backbone.layers[2].attention
    assert layers[2].feed_forward.inner.weight.dtype == torch.float64


# How weights start


def test_truncated_weights_have_the_moments_of_their_distribution() -> None:
    """What TensorFlow's `truncated_normal` draws: nothing beyond two deviations, and no rescaling."""
    shape: dict[str, Any] = dict(hidden_size=128, num_layers=2, num_heads=4, intermediate_size=512)
    model = UnifiedModel(ModelSettings(initializer="truncated_normal", **shape), vocab_size=512, max_positions=128)
    model.initialize(0)
    density = math.exp(-2) / math.sqrt(2 * math.pi)
    inside = math.erf(math.sqrt(2))
    deviation = 0.02 * math.sqrt(1 - 4 * density / inside)
    for name, weight in model.named_parameters():
        if weight.ndim == 2 and weight.numel() > 10_000:
            assert float(weight.detach().abs().max()) <= 0.04
            assert float(weight.detach().std()) == pytest.approx(deviation, rel=0.02), name


def test_weights_into_the_residual_stream_start_smaller() -> None:
    """GPT-2, Section 2.3: by the square root of the number of residual layers, two for each Transformer layer."""
    settings = ModelSettings(hidden_size=128, num_layers=8, num_heads=4, intermediate_size=512, scaled_init=True)
    model = UnifiedModel(settings, vocab_size=50, max_positions=40)
    model.initialize(0)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and ".layers." in name:
            expected = 0.02 / 4 if name.endswith("output.weight") else 0.02
            assert float(parameter.detach().std()) == pytest.approx(expected, rel=5 / math.sqrt(2 * parameter.numel()))


@pytest.mark.parametrize(("heads", "both_ways"), [(6, True), (2, True), (4, False)])
def test_the_relative_bias_may_start_at_the_neighbours(heads: int, both_ways: bool) -> None:
    shape: dict[str, Any] = dict(hidden_size=48, num_layers=1, num_heads=heads, intermediate_size=48)
    shape |= {} if both_ways else {"decoder_layers": 1}
    positions, biases = torch.arange(9)[None], []
    for start in ("zero", "neighbours"):
        model = UnifiedModel(ModelSettings(relative_start=start, **shape), vocab_size=64, max_positions=16)
        model.initialize(3)
        (relative,) = [one for one in model.modules() if isinstance(one, RelativeBias) and one.both_ways == both_ways]
        biases.append(relative(positions, positions)[0].detach())
    raised, neighbours = biases[1] - biases[0], (-1, 1, -2, 2) if both_ways else (-1, -2)
    expected = [torch.diag(torch.full((9 - abs(to),), 4.0), to) for to in neighbours[:heads]]
    expected += [torch.zeros(9, 9)] * (heads - len(expected))
    torch.testing.assert_close(raised, torch.stack(expected), atol=1e-6, rtol=0)


def test_local_layers_need_rows_that_define_nearby_slots() -> None:
    with pytest.raises(UniclozeError, match="names 'local' but these rows define no local visibility"):
        toys.model(layer_visibility=["full", "local"])(masked_batch())


# Which slots are computed


def same_results(results: list[list[Tensor | None]]) -> None:
    for one, other in zip(*results, strict=True):
        if one is not None:
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("layer_visibility", [["full", "local"], ["local", "full"]])
def test_selecting_slots_early_or_late_changes_nothing_beside_local_layers(
    layer_visibility: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = dataclasses.replace(CAUSAL, local_width=3)
    batch = collate(causal(random_windows(5, 24, short=True), vocabulary(), objective))
    results: list[list[Tensor | None]] = []
    for most in (0.0, 2.0):
        monkeypatch.setattr(planning, "MOST_SELECTED", most)
        model = toys.model(layer_visibility=layer_visibility)
        model(batch)["lm"].total.backward()
        results.append([model.backbone(batch, select=True)[-1], *(p.grad for p in model.parameters())])
    same_results(results)


def test_where_few_of_many_predictions_are_real_only_these_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of masked diffusion: one predicts at nearly all slots, others at hardly any."""
    batch = collate(make_examples(random_windows(6, 24), vocabulary(), DIFFUSION))
    (target,) = batch.targets.values()
    assert target.slots.numel() > 0.8 * batch.input_ids.numel() > (target.weights > 0).sum()
    results: list[list[Tensor | None]] = []
    for most, late in ((0.8, True), (0.0, False)):
        monkeypatch.setattr(planning, "MOST_SELECTED", most)
        plan = planning.plan_attention(batch, None, [None], "sdpa", torch.float32, True)
        assert plan.late is late
        assert plan.selected is None or plan.selected.numel() == (target.weights > 0).sum()
        model = toys.model(targets=("diffusion",))
        (loss,) = model(batch).values()
        loss.total.backward()
        results.append([loss.total, *(p.grad for p in model.parameters())])
    same_results(results)


@pytest.mark.parametrize("fixed_shape", [False, True])
def test_rows_that_predict_nothing_cost_nothing(fixed_shape: bool) -> None:
    """A micro-batch without any mask, in rows of a fixed shape with room for many."""
    examples = make_examples(random_windows(2, 24), vocabulary(), DIFFUSION)
    none = {name: dataclasses.replace(t, weights=0 * t.weights) for name, t in examples.targets.items()}
    model = toys.model(targets=("diffusion",))
    (loss,) = model(collate(dataclasses.replace(examples, targets=none), fixed_shape=fixed_shape)).values()
    loss.total.backward()
    assert float(loss.total.detach()) == 0
    assert all(not parameter.grad.any() for parameter in model.parameters() if parameter.grad is not None)


def test_the_last_layer_computes_all_slots_where_nearly_all_predict() -> None:
    windows = random_windows(5, 24)
    nearly_all, few = (
        planning.plan_attention(collate(examples), None, [None], "sdpa", torch.float32, True)
        for examples in (
            causal(windows, vocabulary(), CAUSAL),
            unilmv2(windows, vocabulary(), settings_of(targets=["ae"])),
        )
    )
    assert nearly_all.selected is None and nearly_all.last is nearly_all.buckets and few.selected is not None


# Resuming


RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "forward": ("awd-lstm", {}),
    "backward": (
        "awd-lstm",
        {"objective.visibility": "right_to_left", "model.directions": "backward", "data.directions": "backward"},
    ),
    "characters": ("awd-lstm", {f"model.{name}": value for name, value in CHARACTERS.items()}),
    "elmo": ("elmo", {"model.character_filters": [8, 8, 16]}),
    "electra": ("electra-small", {"model.embedding_size": 16}),
    "shared layers": (
        "quickstart",
        {"model.share_layers": "all", "model.embedding_size": 16, "training.optimizer": "muon"},
    ),
}


@pytest.mark.whole
@pytest.mark.parametrize("name", slow_except(["forward", "elmo", "electra", "shared layers"], RUNS))
def test_a_resumed_run_ends_with_the_same_weights_and_state(name: str, tmp_path: Path) -> None:
    recipe, settings = RUNS[name]
    overrides = toy_overrides() | {
        "data.corpus": [str(write_corpus(tmp_path / "corpus"))], "training.steps": 4, "training.save_every": 2,
        "training.micro_batch_size": 4, "training.learning_rate": 0.01,
        "training.schedule": "constant", "training.precision": "fp32", **settings,
    }  # fmt: skip
    pretrain_run(load_recipe(recipe, overrides), tmp_path / "whole", progress=False)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    shutil.rmtree(list_checkpoints(tmp_path / "cut" / "checkpoints")[-1])
    pretrain_run(load_recipe(recipe, overrides), tmp_path / "cut", progress=False)
    whole, cut = (load_checkpoint(list_checkpoints(tmp_path / name / "checkpoints")[-1]) for name in ("whole", "cut"))
    assert whole.state["step"] == 4 and not [name for name in whole.model if "symbols" in name]
    if recipe == "awd-lstm":
        assert set(whole.memories) == {"0.states", "0.lengths", "1.states", "1.lengths"}
        assert whole.memories["0.states"].shape == (4, 4, 1, 64) and whole.memories["0.states"].abs().max() > 0
    optimizers = tuple(load_file(each.path / "optimizer.safetensors") for each in (whole, cut))
    for one, other in ((whole.model, cut.model), (whole.memories, cut.memories), optimizers):
        assert set(one) == set(other) and all(torch.equal(tensor, other[name]) for name, tensor in one.items())
