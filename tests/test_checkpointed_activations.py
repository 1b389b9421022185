"""`training.checkpoint_activations`: the same bits with less memory, in pre-training and fine-tuning."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import nlu_toys
from conftest import slow_except
from live_bytes import Live
from unicloze import verbs
from unicloze.errors import UsageError
from unicloze.mixtures import phases
from unicloze.pretraining import plan
from unicloze.recipes import load_recipe
from unicloze.settings import Recipe
from unicloze.training import memory as forecast
from unicloze.training.batches import training_steps
from unicloze.training.loading import ready_model
from unicloze.training.loop import Compute, TrainState, losses_and_norm
from unicloze.training.optimizers import build_optimizers

SMALL: dict[str, Any] = {
    "model.hidden_size": 32, "model.num_heads": 4, "model.num_layers": 3, "model.intermediate_size": 64,
    "data.window": 32, "tokenizer.vocab_size": 200, "training.batch_size": 4, "training.micro_batch_size": 2,
    "training.steps": 100, "training.warmup_steps": 1, "training.precision": "fp32", "model.dropout": 0.2,
    "model.attention_dropout": 0.2, "training.checkpoint_activations": True, "training.device": "cpu",
}  # fmt: skip


def steps_of(recipe: Recipe, *, checkpoints: bool, live: bool = False) -> tuple[dict[str, torch.Tensor], int]:
    """Weights after two steps, and the largest number of bytes held meanwhile besides the weights."""
    compute = Compute(device=torch.device("cpu"), precision=recipe.training.precision)
    with plan._random_text(recipe, recipe.tokenizer.vocab_size) as sampler_of:
        model = ready_model(recipe, recipe.tokenizer.vocab_size, compute.device)
        for module in model.modules():
            if hasattr(module, "checkpoint_activations"):
                module.checkpoint_activations = checkpoints
        state = TrainState(model=model, optimizers=build_optimizers(model, recipe.training))
        steps = training_steps(recipe, sampler_of, 0)
        with Live(itertools.chain(model.parameters(), model.buffers())) as held:
            for state.step in range(2):
                losses_and_norm(state, next(steps), recipe.training, compute, lambda _: "")
                for optimizer in state.optimizers:
                    optimizer.step()
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}, held.peak


OWN: dict[str, dict[str, Any]] = {
    "unilmv2-base": {"model.relative_bias": True},
    "electra-small": {},
    "xlnet-base": {"model.memory": 24, "data.overlap": 0.0, "objective.pairs": "contiguous"},
    "t5-base": {"model.decoder_layers": 3},
    "albert-base": {"model.embedding_size": 16},
    "quickstart": {"training.precision": "bf16", "model.share_layers": "all"},
}


@pytest.mark.whole
@pytest.mark.parametrize("name", slow_except(["unilmv2-base", "t5-base", "electra-small"], OWN))
def test_recomputed_layers_give_the_same_bits(name: str) -> None:
    recipe = phases(load_recipe(name, {**SMALL, **OWN[name]}))[-1].recipe
    kept, recomputed = (steps_of(recipe, checkpoints=checkpoints)[0] for checkpoints in (False, True))
    assert kept.keys() == recomputed.keys()
    differ = [name for name in kept if not torch.equal(kept[name], recomputed[name])]
    assert not differ


LONG = {"data.window": 128, "training.batch_size": 8, "training.micro_batch_size": 8, "tokenizer.vocab_size": 60}


@pytest.mark.whole
def test_a_layer_more_holds_little_more_than_its_input() -> None:
    def held(layers: int, *, checkpoints: bool) -> int:
        recipe = load_recipe("gpt", {**SMALL, **LONG, "model.num_layers": layers})
        return steps_of(recipe, checkpoints=checkpoints)[1]

    kept, recomputed = (
        held(6, checkpoints=checkpoints) - held(4, checkpoints=checkpoints) for checkpoints in (False, True)
    )
    of_an_input, of_weights = 4 * 8 * 128 * 32, 4 * 12 * 32 * 32  # a layer's weights have a gradient and two moments
    assert 2 * of_an_input <= recomputed <= 2 * (of_an_input + 4 * of_weights)
    assert kept > 10 * recomputed


@pytest.mark.whole
@pytest.mark.parametrize("name", slow_except(["unilmv2-base"], ["unilmv2-base", "gpt"]))
def test_a_plan_knows_what_is_not_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for constant in ("_KEPT", "_FIXED"):
        monkeypatch.setattr(plan, constant, 0)
    recipe = load_recipe(name, {**SMALL, **LONG, "model.num_layers": 8})
    planned = plan.plan_run(recipe, 60)
    weights, peak = steps_of(recipe, checkpoints=True)
    assert planned.total == pytest.approx(peak + 4 * sum(map(torch.numel, weights.values())), rel=0.25)
    kept = plan.plan_run(load_recipe(name, {**SMALL, **LONG, "model.num_layers": 8, **KEPT}), 60)
    assert planned.memory["activations"] < 0.5 * kept.memory["activations"]
    monkeypatch.setattr(plan, "memory_of", lambda _: 2**10)
    for overrides, named in ((KEPT, True), ({}, False)):
        recipe = load_recipe(name, {**SMALL, **LONG, **overrides})
        assert ("--training.checkpoint_activations true" in plan.plan_run(recipe, 60).cure) is named


KEPT = {"training.checkpoint_activations": False}


def test_what_fits_only_with_recomputed_layers_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = {**SMALL, **LONG, "model.num_layers": 12}
    monkeypatch.setattr(forecast, "memory_of", lambda _: 5 * 2**20)
    device = torch.device("cpu")
    forecast.refuse_what_cannot_fit(load_recipe("gpt", overrides), device, 60)
    with pytest.raises(UsageError, match="8 rows of 128 tokens at a time would need"):
        forecast.refuse_what_cannot_fit(load_recipe("gpt", {**overrides, **KEPT}), device, 60)


@pytest.mark.whole
def test_fine_tuning_gives_the_same_bits_and_recomputes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [{"text": f"a b c{number}", "label": "yes" if number % 2 else "no"} for number in range(8)]
    file, start = nlu_toys.write(tmp_path / "train.jsonl", records), nlu_toys.start(**{"model.dropout": 0.1})
    found = []
    for checkpoints in (False, True):
        overrides = {**nlu_toys.QUICK, "training.checkpoint_activations": checkpoints}
        run = tmp_path / str(checkpoints)
        verbs.finetune("classification", start, file, file, run, quiet=True, overrides=overrides)
        found.append(load_file(next(iter(sorted(run.glob("checkpoints/*/model.safetensors"))))))
    assert found[0].keys() == found[1].keys() and all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_a_recurrent_model_has_no_layers_to_recompute(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"training\.checkpoint_activations: .* without model\.kind transformer"):
        overrides = {"training.checkpoint_activations": True, "data.corpus": [str(tmp_path)]}
        verbs.pretrain("awd-lstm", out=tmp_path / "run", overrides=overrides)
