"""The training loop: accumulation, schedules, optimiser groups, checkpoints, the ledger, the lock."""

from __future__ import annotations

import dataclasses
import math
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import toys
from corpora import write_corpus
from test_loop import CPU, gradient_of, nothing
from toys import random_windows, vocabulary
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import predicts_tokens
from unicloze.mixtures import parts
from unicloze.model.model import UnifiedModel, perplexity
from unicloze.objectives import settings_of
from unicloze.objectives.unilmv2 import unilmv2
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe, recipe_names, toy_overrides
from unicloze.settings import ObjectiveSettings, TrainingSettings
from unicloze.training.batches import MicroBatch
from unicloze.training.checkpoint import load_newest
from unicloze.training.divergence import cure
from unicloze.training.ledger import read_ledger
from unicloze.training.loading import build_model, load_model
from unicloze.training.lock import free_after
from unicloze.training.loop import Compute, TrainState, fit, losses_and_norm
from unicloze.training.optimizers import build_optimizers, schedule_factor, set_learning, set_learning_rate
from unicloze.training.parallel import World


def micro_batches(rows: int, count: int, objective: ObjectiveSettings, seed: int = 0) -> list[MicroBatch]:
    windows = random_windows(rows * count, 24, short=True, seed=seed)
    examples = unilmv2(windows, vocabulary(), objective)
    return [
        MicroBatch(examples[i : i + rows], windows[i : i + rows], objective.coefficients)
        for i in range(0, rows * count, rows)
    ]


def test_micro_batches_weigh_as_one_batch() -> None:
    objective = settings_of(coefficients={"ae": 0.5})
    found = []
    for rows, count in ((12, 1), (4, 3), (1, 12)):
        state = TrainState(model=toys.model(), optimizers=[])
        losses, _ = losses_and_norm(state, micro_batches(rows, count, objective), TrainingSettings(), CPU, str)
        found.append((losses, gradient_of(state.model)))
    for losses, gradients in found[1:]:
        assert losses == pytest.approx(found[0][0], rel=1e-5)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, found[0][1][name], atol=2e-5, rtol=1e-4)


def trained(optimizer: str = "muon") -> TrainState:
    model = toys.model()
    state = TrainState(model=model, optimizers=build_optimizers(model, TrainingSettings(optimizer=optimizer)))  # type: ignore[arg-type]
    losses_and_norm(state, micro_batches(4, 1, settings_of()), TrainingSettings(), CPU, str)
    for built in state.optimizers:
        built.step()
    return state


@pytest.mark.parametrize("micro_batch", [0, 1, 2])
def test_a_signal_is_handled_after_the_micro_batch_and_the_step_is_repeated(micro_batch: int) -> None:
    settings = TrainingSettings(steps=4, warmup_steps=0)
    saved: list[int] = []
    hooks = nothing(save=lambda state: saved.append(state.step))

    def steps(first: int) -> Any:
        for step in range(first, settings.steps):
            yield micro_batches(2, 3, settings_of(), seed=step)

    def fitted(model: UnifiedModel, place: int | None) -> TrainState:
        state = TrainState(model=model, optimizers=build_optimizers(model, settings))
        seen = iter(range(1000))

        def interrupt(*_: Any) -> None:
            if next(seen) == place:
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGTERM)  # as schedulers send

        hook = model.register_forward_pre_hook(interrupt)
        assert fit(state, steps(0), settings, CPU, hooks).signal == (0 if place is None else signal.SIGTERM)
        hook.remove()
        return state

    whole = fitted(toys.model(), None)
    assert saved == [4]
    state = fitted(toys.model(), 3 + micro_batch)
    assert saved[1:] == [state.step] == [2 if micro_batch == 2 else 1]
    fit(state, steps(state.step), settings, CPU, hooks)
    for one, other in zip(state.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "text")


@pytest.mark.whole
@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_takes_two_steps(name: str, corpus: Path, tmp_path: Path) -> None:
    recipe = load_recipe(name, toy_overrides() | {"data.corpus": [str(corpus)], "data.heldout_share": 0.2})
    result = pretrain_run(recipe, tmp_path / "run", progress=False)
    assert result.step == 2
    measured = {part.label: part.settings.targets for part in parts(recipe.objective) if part.evaluate}
    alone = len(measured) == 1
    names = {name if alone else f"{label}.{name}" for label, targets in measured.items() for name in targets}
    assert set(result.perplexity) == {name for name in names if predicts_tokens(name.rpartition(".")[2])}
    assert all(1 < value < 2000 for value in result.perplexity.values())
    events = list(read_ledger(tmp_path / "run" / "ledger.jsonl"))
    kinds = [event["event"] for event in events]
    assert kinds == ["start", "samples", "step", "step", "save", "evaluate", "samples", "end"]
    evaluated = events[5]
    assert set(evaluated["loss"]) == names
    assert evaluated["perplexity"] == result.perplexity
    loaded = load_model(tmp_path / "run")
    assert loaded.step == 2
    assert loaded.recipe.objective == recipe.objective


def test_perplexity_overflows_to_infinity() -> None:
    assert perplexity(1e9, 1.0) == math.inf
    assert perplexity(math.log(5) * 3, 3.0) == pytest.approx(5)
    assert perplexity(math.log(5) * 0.25, 0.25) == pytest.approx(5)


@pytest.mark.whole
def test_a_resumed_run_keeps_counting_and_logs_its_last_step(corpus: Path, tmp_path: Path) -> None:
    settings = toy_overrides() | {
        "data.corpus": [str(corpus)], "training.schedule": "constant", "training.log_every": 3,
    }  # fmt: skip
    logged = {}
    for out, lengths in {"whole": [5], "parts": [2, 5]}.items():
        for steps in lengths:
            recipe = load_recipe("quickstart", settings | {"training.steps": steps})
            pretrain_run(recipe, tmp_path / out, progress=False)
        events = read_ledger(tmp_path / out / "ledger.jsonl")
        logged[out] = {event["step"]: event["text_tokens"] for event in events if event["event"] == "step"}
    assert list(logged["whole"]) == [3, 5] and list(logged["parts"]) == [2, 3, 5]
    assert all(logged["parts"][step] == count for step, count in logged["whole"].items())
    states = [load_newest(tmp_path / out / "checkpoints").state for out in ("whole", "parts")]
    assert states[0] == states[1] and states[0]["text_tokens"] == logged["whole"][5]


def test_frozen_parts_stay_as_they_are_and_the_others_learn(corpus: Path, tmp_path: Path) -> None:
    overrides = toy_overrides() | {"data.corpus": [str(corpus)], "training.weight_decay": 0.1}
    frozen = ["backbone.embeddings", "backbone.layers.0"]
    recipe = load_recipe("quickstart", overrides | {"training.frozen": frozen})
    pretrain_run(recipe, tmp_path / "run", progress=False)
    loaded = load_model(tmp_path / "run")
    drawn = build_model(recipe, loaded.tokenizer.vocabulary.size).state_dict()
    for name, tensor in loaded.model.state_dict().items():
        if tensor.abs().sum():
            assert torch.equal(tensor, drawn[name]) == any(f"{name}.".startswith(f"{part}.") for part in frozen), name
    for given, problem in (
        (["encoder"], "training.frozen names 'encoder'; the parts of this model are backbone, token_head"),
        (["backbone", "token_head"], "leave out those to train"),
    ):
        with pytest.raises(UsageError, match=problem):
            refused = load_recipe("quickstart", overrides | {"training.frozen": given})
            pretrain_run(refused, tmp_path / "refused", progress=False)


def test_what_helps_after_a_divergence() -> None:
    assert "--training.on_spike skip" in cure(skip=True) and "on_spike" not in cure(skip=False)
    rates = {f"training.{each.name}" for each in dataclasses.fields(TrainingSettings) if "learning_rate" in each.name}
    assert (
        len(rates) == 3 and rates <= free_after({"NonFiniteError", "KeyboardInterrupt"}) and not rates & free_after(())
    )


ROOT = [math.sqrt(2 / step) for step in (3, 4, 5, 6)]
SCHEDULES: list[tuple[dict[str, Any], list[float]]] = [
    ({"schedule": "inverse_sqrt"}, [0.5, 1, *ROOT]),
    ({"schedule": "flat_inverse_sqrt"}, [1, 1, *ROOT]),
    ({"schedule": "constant"}, [0.5, 1, 1, 1, 1, 1]),
    ({"schedule": "linear"}, [0.5, 1, 1, 0.75, 0.5, 0.25]),
    ({"schedule": "linear", "final_rate": 0.2}, [0.5, 1, 1, 0.8, 0.6, 0.4]),
    ({"schedule": "cosine"}, [0.5, 1, 1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]),
    ({"schedule": "cosine", "decay_steps": 2}, [0.5, 1, 1, 0.5, 0, 0]),
    ({"schedule": "cosine", "decay_steps": 2, "final_rate": 0.1}, [0.5, 1, 1, 0.55, 0.1, 0.1]),  # GPT-3
    ({"schedule": "wsd", "decay_steps": 2}, [0.5, 1, 1, 1, 1, 0.5]),
    ({"schedule": "wsd", "decay_steps": 0}, [0.5, 1, 1, 1, 1, 1]),
    ({"schedule": "wsd", "decay_steps": 4, "final_rate": 0.5}, [0.5, 1, 1, 0.875, 0.75, 0.625]),
    ({"schedule": "wsd"}, [0.5, 1, 1, 1, 1, 1]),
    ({"schedule": "wsd", "steps": 30, "warmup_steps": 0}, [1] * 28 + [2 / 3, 1 / 3]),
    ({"schedule": "linear", "steps": 2, "warmup_steps": 0}, [1, 0.5]),
    ({"schedule": "linear", "steps": 2}, [0.5, 1, 0]),
    ({"schedule": "linear", "steps": 1, "warmup_steps": 1}, [1, 0]),
    ({"schedule": "slanted_triangular", "steps": 2, "warmup_steps": 0}, [1, 33 / 64]),
    ({"schedule": "slanted_triangular", "steps": 1, "warmup_steps": 1}, [1 / 32, 1 / 32]),
    ({"warmup_steps": 24_000}, [n / 24_000 for n in range(1, 7)]),
]


@pytest.mark.parametrize("settings, factors", SCHEDULES)
def test_the_rate_of_every_step(settings: dict[str, Any], factors: list[float]) -> None:
    training = TrainingSettings(**{"steps": 6, "warmup_steps": 2, "final_rate": 0.0, "decay_steps": None, **settings})
    assert [schedule_factor(step, training) for step in range(len(factors))] == pytest.approx(factors, abs=1e-12)


def test_groups_learn_from_their_first_step_at_their_own_peak() -> None:
    model, settings = toys.model(num_layers=2), TrainingSettings(optimizer="adamw", learning_rate=0.5)
    (optimizer,) = build_optimizers(model, settings, layer_decay=0.5, unfreeze_every=2.5)
    set_learning([optimizer], 2)
    learns = {group["first_step"]: {p.requires_grad for p in group["params"]} for group in optimizer.param_groups}
    assert learns == {0: {True}, 2: {True}, 5: {False}, 8: {False}}
    set_learning_rate([optimizer], 0.5)
    assert {group["lr"] for group in optimizer.param_groups} == {0.03125, 0.0625, 0.125, 0.25}
    del optimizer.param_groups[0]["first_step"]
    set_learning([optimizer], 0)
    assert all(parameter.requires_grad for parameter in optimizer.param_groups[0]["params"])


def test_a_head_may_learn_at_a_rate_of_its_own() -> None:
    settings = TrainingSettings(optimizer="adamw", learning_rate=0.5, head_learning_rate=2.0)
    model = toys.model(num_layers=2)
    (optimizer,) = build_optimizers(model, settings)
    rates = {id(p): group["peak_lr"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        assert rates[id(parameter)] == (0.5 if name.startswith("backbone.") else 2.0)
    tied = toys.model(num_layers=2, head="linear", head_bias=False)  # as GPT-2: no weight is outside the backbone
    (own,) = build_optimizers(tied, settings)
    assert {group["peak_lr"] for group in own.param_groups} == {0.5}


def test_frozen_weights_belong_to_no_optimiser() -> None:
    model = toys.model(num_layers=1)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    assert build_optimizers(model, TrainingSettings()) == []
    weight = next(model.parameters())
    weight.requires_grad_(True)
    ((group,),) = [each.param_groups for each in build_optimizers(model, TrainingSettings(optimizer="adamw"))]
    assert len(group["params"]) == 1 and group["params"][0] is weight


class TwoProcesses(World):
    size = 2


def test_a_single_process_saves_before_it_fails_on_unreadable_text() -> None:
    def unreadable() -> Iterator[list[MicroBatch]]:
        raise UniclozeError("unreadable")
        yield []

    for world, expected in ((World(), [3]), (TwoProcesses(), [])):
        saved: list[int] = []
        state = TrainState(model=toys.model(num_layers=1), optimizers=[], step=3)
        compute = Compute(device=torch.device("cpu"), precision="fp32", world=world)

        hooks = nothing(save=lambda each, saved=saved: saved.append(each.step))
        with pytest.raises(UniclozeError, match="unreadable"):
            fit(state, unreadable(), TrainingSettings(steps=9), compute, hooks)
        assert saved == expected
