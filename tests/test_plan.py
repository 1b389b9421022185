"""`pretrain --plan`: what a run would take, without starting it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from live_bytes import Live
from unicloze import verbs
from unicloze.mixtures import phases
from unicloze.pretraining import plan
from unicloze.pretraining.plan import Plan, gradients_held, plan_run
from unicloze.recipes import load_recipe
from unicloze.settings import Recipe
from unicloze.training.loading import build_model, ready_model
from unicloze.training.loop import Compute, TrainState, losses_and_norm
from unicloze.training.optimizers import build_optimizers

SMALL: dict[str, Any] = {
    "model.hidden_size": 64, "model.num_heads": 4, "model.num_layers": 6, "model.intermediate_size": 256,
    "data.window": 32, "tokenizer.vocab_size": 500, "training.batch_size": 12, "training.micro_batch_size": 6,
    "training.steps": 100, "training.warmup_steps": 1, "training.precision": "fp32", "training.device": "cpu",
}  # fmt: skip


def live_bytes(recipe: Recipe) -> int:
    """Largest number of bytes of tensors that two steps of the whole model hold, without the allocator's share."""
    compute = Compute(device=torch.device("cpu"), precision="fp32")
    with plan._random_text(recipe, recipe.tokenizer.vocab_size) as sampler_of:
        model = ready_model(recipe, recipe.tokenizer.vocab_size, compute.device)
        state = TrainState(model=model, optimizers=build_optimizers(model, recipe.training))
        steps = plan.training_steps(recipe, sampler_of, 0)
        with Live(itertools.chain(model.parameters(), model.buffers())) as live:
            for _ in range(2):
                losses_and_norm(state, next(steps), recipe.training, compute, lambda _: "")
                for optimizer in state.optimizers:
                    optimizer.step()
    return live.peak + 4 * sum(weight.numel() for weight in model.parameters())


@pytest.mark.whole
@pytest.mark.parametrize(
    "name", ["unilmv2-base", "quickstart", "gpt", "roberta-base", "albert-base", "t5-base", "awd-lstm"]
)
def test_the_memory_by_formula_is_near_that_of_two_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_KEPT", 0.0)
    monkeypatch.setattr(plan, "_FIXED", 0)
    changes = {"t5-base": {"model.decoder_layers": 6}, "awd-lstm": {"model.num_layers": 2}}.get(name, {})
    given = {key: value for key, value in SMALL.items() if name != "awd-lstm" or key != "model.num_heads"}
    recipe = load_recipe(name, {**given, **changes})
    found = plan_run(recipe, recipe.tokenizer.vocab_size)
    assert found.total == pytest.approx(live_bytes(phases(recipe)[-1].recipe), rel=0.25)
    assert found.parameters == build_model(recipe, 500).num_parameters()
    assert found.tokens == 100 * 12 * recipe.data.window
    assert found.seconds is not None and found.seconds > 0 and not found.cure


def test_rows_of_xlnet_that_overlap_are_planned() -> None:
    recipe = load_recipe("xlnet-base", {**SMALL, "model.num_layers": 1, "model.memory": 8, "training.steps": 4})
    with plan._random_text(recipe, recipe.tokenizer.vocab_size) as sampler_of:
        assert len(next(iter(plan.training_steps(recipe, sampler_of, 0))))


@pytest.mark.whole
def test_a_plan_starts_nothing_and_names_what_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "memory_of", lambda _: 2**40)
    overrides = {**SMALL, "training.batch_size": 16, "training.micro_batch_size": 16}
    monkeypatch.setattr(plan, "_FIXED", 0)
    whole = verbs.pretrain("unilmv2-base", out=tmp_path / "run", overrides=overrides, plan=True)
    assert isinstance(whole, Plan) and whole.exit_code == 0 and not list(tmp_path.iterdir())
    assert set(whole.memory) == {"weights", "gradients", "moments", "activations", "buffers"}
    assert whole.to_dict()["memory"]["total"] == whole.total == sum(whole.memory.values())
    assert "parameters" in str(whole) and "memory" in str(whole) and "does not fit" not in str(whole)
    unknown = dataclasses.replace(whole, available=math.inf)
    assert json.dumps(unknown.to_dict(), allow_nan=False) and unknown.to_dict()["available"] is None
    monkeypatch.setattr(plan, "memory_of", lambda _: int(0.8 * whole.total))
    tight = verbs.pretrain("unilmv2-base", out=tmp_path / "run", overrides=overrides, plan=True)
    assert isinstance(tight, Plan) and tight.exit_code == 1
    assert "does not fit: give --training.micro_batch_size" in str(tight)
    monkeypatch.setattr(plan, "memory_of", lambda _: 2**20)
    none = verbs.pretrain("unilmv2-base", out=tmp_path / "run", overrides=overrides, plan=True)
    assert isinstance(none, Plan) and "even rows one at a time need" in none.cure


@pytest.mark.whole
def test_a_plan_accounts_for_the_shares_of_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_KEPT", 0.0)
    settings = {**SMALL, "training.optimizer": "adamw", "training.leaves": 1}
    recipe = load_recipe("unilmv2-base", {**settings, "training.parallel": "shard"})
    found = {processes: plan_run(recipe, 500, processes) for processes in (1, 2, 4)}
    assert [found[n].sharded for n in (1, 2, 4)] == [False, True, True]
    for processes in (2, 4):
        for what in ("weights", "moments"):
            share = found[processes].memory[what] * processes
            assert share == pytest.approx(found[1].memory[what], rel=0.01)
    assert found[4].total < found[2].total < found[1].total
    assert "2 processes, each with a share of them" in str(found[2]) and "process" not in str(found[1])
    whole = plan_run(load_recipe("unilmv2-base", {**settings, "training.parallel": "replicate"}), 500, 2)
    assert not whole.sharded and "2 processes, each with all of them" in str(whole)
    assert whole.memory["weights"] == found[1].memory["weights"]


def test_gradients_held_in_the_order_of_the_tree_by_one_of_several_processes() -> None:
    assert [gradients_held(leaves) for leaves in (1, 2, 4, 8, 32, 64)] == [1, 2, 3, 4, 6, 7]
    assert [gradients_held(64, processes) for processes in (1, 2, 4, 64)] == [7, 6, 5, 1]
