"""What a training step asks of a GPU, counted on a CPU: launches, and numbers that the process waits for."""

from __future__ import annotations

import signal
import traceback
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from test_finite_weights import CPU, Run, steps_of
from test_loop import nothing
from unicloze.mixtures import phases
from unicloze.model import attention, heads
from unicloze.model.dropout import DropoutKey
from unicloze.pretraining import plan
from unicloze.recipes import load_recipe
from unicloze.training.batches import training_steps
from unicloze.training.gradients import leaves_of
from unicloze.training.loading import ready_model
from unicloze.training.loop import Compute, TrainState, fit
from unicloze.training.optimizers import Adafactor, _size, build_optimizers
from unicloze.training.parallel import World

WAITS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal", "aten::masked_select"}
"""Operations whose result the process needs to go on."""
VIEWS = {
    "_reshape_alias", "_unsafe_view", "alias", "as_strided", "detach", "empty", "empty_like", "expand", "lift_fresh",
    "new_empty", "permute", "select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind",
    "unsqueeze", "view",
}  # fmt: skip
"""Operations that launch nothing."""


class Count(TorchDispatchMode):
    """Counts operations, and where the process would wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.launches, self.waits = Counter[str](), Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name in WAITS or (
            name == "aten::index" and any(each is not None and each.dtype == torch.bool for each in args[1])
        ):
            frames = [frame for frame in traceback.extract_stack() if "unicloze/" in frame.filename]
            if 'float(state["step"])' not in (frames[-1].line or ""):  # which optimisers keep on the CPU
                self.waits[f"{name} {frames[-1].filename.rpartition('unicloze/')[2]}:{frames[-1].lineno}"] += 1
        if name.removeprefix("aten::") not in VIEWS:
            self.launches[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The branches that a GPU takes; sizes of what is read from the device, one for each time."""
    reads: list[int] = []
    tolist = Tensor.tolist

    def read(self: Tensor) -> Any:
        reads.append(self.numel())
        return tolist(self)

    monkeypatch.setattr(Compute, "queues", True)
    monkeypatch.setattr(DropoutKey, "__call__", lambda _, x, rate: functional.dropout(x, rate) if rate else x)
    monkeypatch.setattr(attention, "_needed_slots", lambda _: torch.empty(0))
    unread = staticmethod(lambda weight, rate, fused: rate * _size(weight, fused).clamp(min=1e-3))
    monkeypatch.setattr(Adafactor, "_rate", unread)
    monkeypatch.setattr(heads, "WIDENED", heads.WIDENED_ON_GPU)
    monkeypatch.setattr(Tensor, "tolist", read)
    yield reads


SMALL: dict[str, Any] = {
    "model.hidden_size": 32, "model.num_heads": 4, "model.num_layers": 2, "model.intermediate_size": 64,
    "data.window": 32, "tokenizer.vocab_size": 200, "training.batch_size": 8, "training.micro_batch_size": 2,
    "training.steps": 100, "training.warmup_steps": 1, "training.precision": "fp32", "training.clip_norm": 1.0,
    "training.attention": "sdpa", "model.attention_dropout": 0.0, "training.evaluate_every": 0,
    "training.save_every": 0, "training.leaves": 1,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "unilmv2-base": {"model.relative_bias": True},
    "electra-small": {},
    "xlnet-base": {
        "model.memory": 24, "training.attention": "auto", "data.overlap": 0.0, "objective.pairs": "contiguous",
    },
    "bert-base": {"training.optimizer": "muon", "training.phases": []},
    "spanbert-base": {},
    "t5-base": {"model.decoder_layers": 2, "training.attention": "auto"},
}  # fmt: skip


def train(name: str, steps: int, *, world: World | None = None, **changes: Any) -> tuple[Count, TrainState, list[Any]]:
    """What was counted, the state at the end, and what was logged."""
    recipe = phases(load_recipe(name, {**SMALL, **OWN[name], "training.steps": steps, **changes}))[-1].recipe
    compute = Compute(device=torch.device("cpu"), precision="fp32", fixed_shape=True, world=world or World())
    logged: list[Any] = []
    with plan._random_text(recipe, 200) as sampler_of, Count() as count:
        model = ready_model(recipe, 200, compute.device)
        state = TrainState(model=model, optimizers=build_optimizers(model, recipe.training))
        count.waits.clear()
        count.launches.clear()
        hooks = nothing(log=lambda _, facts: logged.append((facts["loss"], facts["gradient_norm"])))
        fit(state, training_steps(recipe, sampler_of, 0), recipe.training, compute, hooks)
    return count, state, logged


@pytest.mark.parametrize("name", OWN)
def test_a_step_waits_for_the_device_once(name: str, as_on_a_gpu: list[int]) -> None:
    waits = train(name, 3)[0].waits
    ((place, count),) = waits.items()
    assert place.startswith("aten::_local_scalar_dense training/divergence") and count == 1, "only the last weights"
    losses = as_on_a_gpu[0] - 1
    assert losses >= 4, "one of each micro-batch and target"
    assert as_on_a_gpu == [losses + 1] * 3, "and the norm of the gradient"


class Two(World):
    """The first of two processes, whose partner has no rows; it notes in which order it communicates."""

    size = 2

    def __init__(self) -> None:
        self.done: list[str] = []

    def leaves(self, parts: Any, most: int) -> dict[int, list[int]]:
        return dict(enumerate(leaves_of(parts, most)))

    def gather(self, value: Any) -> list[Any]:
        if isinstance(value, dict):
            self.done.append("agree")
            return [value, {}]
        return [value, []]

    def add(self, sums: Any, leaves: int, weights: Any) -> Any:
        self.done.append("add")
        return super().add(sums, leaves, weights)


def test_several_processes_wait_for_their_devices_once(as_on_a_gpu: list[int]) -> None:
    """They agree that nobody left without a number from the device, and on the losses after the only reading."""
    world = Two()
    waits = train("unilmv2-base", 3, world=world)[0].waits
    assert [each.partition(":")[0] for each in waits] == ["aten"] and sum(waits.values()) == 1, "after the last step"
    losses = as_on_a_gpu[0] - 1
    assert losses >= 4 and as_on_a_gpu == [losses + 1] * 3
    assert world.done == ["agree", "add", "agree"] * 3


def test_a_layer_launches_no_more_than_it_did(as_on_a_gpu: list[int]) -> None:
    few, more = (train("unilmv2-base", 1, **{"model.num_layers": layers})[0].launches.total() for layers in (2, 4))
    assert (more - few) / 2 / 4 < 110  # of a layer, forward and backward, and a quarter of its update


@pytest.mark.parametrize("name", ["unilmv2-base", "xlnet-base"])
def test_reading_late_changes_no_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for late in (False, True):
        monkeypatch.setattr(Compute, "queues", late)
        _, state, logged = train(name, 3)
        found.append((logged, state.model.state_dict()))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(found[0][1][name], weight) for name, weight in found[1][1].items())


def test_a_signal_stops_a_run_that_reads_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Compute, "queues", True)
    run = Run(5)
    whole, halved = steps_of(), []
    forward = run.state.model.forward

    def interrupted(*arguments: Any) -> Any:
        halved.append(1)
        if len(halved) == 4:  # the first micro-batch of the second step
            signal.raise_signal(signal.SIGTERM)
        return forward(*arguments)

    run.state.model.forward = interrupted  # type: ignore[method-assign]
    steps = ([*next(whole), *next(whole), *next(whole)] for _ in range(5))
    saved: list[int] = []
    fit(run.state, steps, run.settings, CPU, nothing(save=lambda state: saved.append(state.step)))
    assert saved == [1] and run.state.step == 1 and len(halved) == 4
