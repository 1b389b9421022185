"""The training loop: accumulation, schedules, optimiser groups, checkpoints, the ledger, the lock."""

from __future__ import annotations

import dataclasses
import math
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import toys
from corpora import write_corpus
from toys import random_windows, vocabulary
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import collate, predicts_tokens
from unicloze.mixtures import parts
from unicloze.model.model import UnifiedModel, perplexity
from unicloze.objectives import make_examples, settings_of
from unicloze.objectives.unilmv2 import unilmv2
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe, recipe_names, toy_overrides
from unicloze.settings import ObjectiveSettings, TrainingSettings
from unicloze.training import loop
from unicloze.training.batches import MicroBatch
from unicloze.training.checkpoint import load_newest
from unicloze.training.divergence import cure
from unicloze.training.ledger import read_ledger
from unicloze.training.loading import build_model, load_model
from unicloze.training.lock import free_after
from unicloze.training.loop import Compute, Hooks, Interruption, TrainState, fit, losses_and_norm, non_finite
from unicloze.training.optimizers import build_optimizers, schedule_factor, set_learning, set_learning_rate
from unicloze.training.parallel import World

CPU = Compute(device=torch.device("cpu"), precision="fp32")


def micro_batches(rows: int, count: int, objective: ObjectiveSettings, seed: int = 0) -> list[MicroBatch]:
    windows = random_windows(rows * count, 24, short=True, seed=seed)
    examples = unilmv2(windows, vocabulary(), objective)
    return [
        MicroBatch(examples[i : i + rows], windows[i : i + rows], objective.coefficients)
        for i in range(0, rows * count, rows)
    ]


def gradients(model: UnifiedModel) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def test_micro_batches_weigh_as_one_batch() -> None:
    objective = settings_of(coefficients={"ae": 0.5})
    found = []
    for rows, count in ((12, 1), (4, 3), (1, 12)):
        state = TrainState(model=toys.model(), optimizers=[])
        losses, _ = losses_and_norm(state, micro_batches(rows, count, objective), TrainingSettings(), CPU, str)
        found.append((losses, gradients(state.model)))
    for losses, grads in found[1:]:
        assert losses == pytest.approx(found[0][0], rel=1e-5)
        for one, other in zip(grads, found[0][1], strict=True):
            torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


def test_loss_is_the_mean_over_the_global_batch_times_its_coefficient() -> None:
    batches = micro_batches(3, 4, settings_of())
    state = TrainState(model=toys.model(), optimizers=[])
    losses, _ = losses_and_norm(state, batches, TrainingSettings(), CPU, str)
    total: dict[str, list[float]] = {"ae": [], "par": []}
    with torch.no_grad():
        for micro_batch in batches:
            batch = collate(micro_batch.examples)
            for name, logits in state.model.logits(batch).items():
                target = batch.targets[name]
                nats = torch.nn.functional.cross_entropy(
                    logits.flatten(0, 1), target.labels.flatten(), reduction="none"
                )
                total[name] += nats[target.weights.flatten() > 0].tolist()
    assert losses == pytest.approx({name: np.mean(values) for name, values in total.items()}, rel=1e-5)


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
    hooks = Hooks(
        log=lambda *_: None, evaluate=lambda _: False, save=lambda state: saved.append(state.step), describe=str
    )

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


def test_other_settings_are_not_continued(corpus: Path, tmp_path: Path) -> None:
    toy = toy_overrides() | {"data.corpus": [str(corpus)]}
    pretrain_run(load_recipe("quickstart", toy), tmp_path / "run", progress=False)
    with pytest.raises(UsageError, match=r"training\.learning_rate"):
        pretrain_run(load_recipe("quickstart", toy | {"training.learning_rate": 0.5}), tmp_path / "run", progress=False)
    with pytest.warns(UserWarning, match=r"training\.steps changes from 2 to 3"):
        longer = pretrain_run(load_recipe("quickstart", toy | {"training.steps": 3}), tmp_path / "run", progress=False)
    assert longer.step == 3
    with pytest.warns(UserWarning, match="trained to step 3"):
        pretrain_run(load_recipe("quickstart", toy | {"training.steps": 3}), tmp_path / "run", progress=False)


def test_perplexity_overflows_to_infinity() -> None:
    assert perplexity(1e9, 1.0) == math.inf
    assert perplexity(math.log(5) * 3, 3.0) == pytest.approx(5)
    assert perplexity(math.log(5) * 0.25, 0.25) == pytest.approx(5)


@pytest.mark.whole
def test_a_resumed_run_keeps_counting_and_logs_its_last_step(corpus: Path, tmp_path: Path) -> None:
    settings = toy_overrides() | {
        "data.corpus": [str(corpus)], "training.schedule": "constant", "training.log_every": 3,
    }  # fmt: skip
    for out, lengths in {"whole": [5], "parts": [2, 5]}.items():
        for steps in lengths:
            pretrain_run(
                load_recipe("quickstart", settings | {"training.steps": steps}), tmp_path / out, progress=False
            )
    logged = {
        out: {
            event["step"]: event["text_tokens"]
            for event in read_ledger(tmp_path / out / "ledger.jsonl")
            if event["event"] == "step"
        }
        for out in ("whole", "parts")
    }
    assert list(logged["whole"]) == [3, 5] and list(logged["parts"]) == [2, 3, 5]
    assert all(logged["parts"][step] == count for step, count in logged["whole"].items())
    states = [load_newest(tmp_path / out / "checkpoints").state for out in ("whole", "parts")]
    assert states[0] == states[1] and states[0]["text_tokens"] == logged["whole"][5]


def test_frozen_parts_stay_as_they_are_and_the_others_learn(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path)
    overrides = toy_overrides() | {
        "data.corpus": [str(corpus)],
        "tokenizer.vocab_size": 300,
        "training.weight_decay": 0.1,
    }
    frozen = ["backbone.embeddings", "backbone.layers.0"]
    recipe = load_recipe("quickstart", overrides | {"training.frozen": frozen})
    pretrain_run(recipe, tmp_path / "run", progress=False)
    loaded = load_model(tmp_path / "run")
    drawn = build_model(recipe, loaded.tokenizer.vocabulary.size).state_dict()
    for name, tensor in loaded.model.state_dict().items():
        if tensor.abs().sum():
            assert torch.equal(tensor, drawn[name]) == any(f"{name}.".startswith(f"{part}.") for part in frozen), name
    with pytest.raises(
        UsageError, match=r"training.frozen names 'encoder'; the parts of this model are backbone, token_head"
    ):
        pretrain_run(
            load_recipe("quickstart", overrides | {"training.frozen": ["encoder"]}), tmp_path / "a", progress=False
        )
    everything = overrides | {"training.frozen": ["backbone", "token_head"]}
    with pytest.raises(UsageError, match="leave out those to train"):
        pretrain_run(load_recipe("quickstart", everything), tmp_path / "b", progress=False)


ADVICE = "do something else"


def micro_batch(rows: int = 2, place: str = "") -> MicroBatch:
    return MicroBatch(make_examples(random_windows(rows, 16), vocabulary(), settings_of()), None, place=place)


def described(each: MicroBatch) -> str:
    return each.place


def test_the_signal_to_stop_for() -> None:
    assert Interruption().heeded == 0 and Interruption(signal=2).heeded == 2
    assert Interruption(signal=2, agreed=0).heeded == 0 and Interruption(signal=0, agreed=15).heeded == 15


def test_precision_of_a_computation() -> None:
    for precision, is_lower in (("bf16", True), ("fp32", False)):
        with Compute(device=torch.device("cpu"), precision=precision).autocast():
            assert torch.is_autocast_enabled("cpu") is is_lower
            assert torch.get_autocast_dtype("cpu") == torch.bfloat16


def test_errors_name_the_first_two_micro_batches_with_rows() -> None:
    given = [micro_batch(place="a"), MicroBatch(micro_batch().examples[:0], None, place="none"), micro_batch(place="b")]
    error = non_finite("the loss is nan", [*given, micro_batch(place="c")], described)
    assert str(error) == "the loss is nan; its rows are from a; b"
    assert str(non_finite("the loss is nan", given[:1], described)) == "the loss is nan; its rows are from a"


def test_what_helps_after_a_divergence() -> None:
    rate = "run the same command with a lower --training.learning_rate"
    restart = "or start in another --out with a longer warm-up"
    assert cure(skip=True) == f"{rate}, --training.clip_norm 1.0 or --training.on_spike skip, {restart}"
    assert cure(skip=False) == f"{rate} or --training.clip_norm 1.0, {restart}"
    rates = {f"training.{each.name}" for each in dataclasses.fields(TrainingSettings) if "learning_rate" in each.name}
    assert len(rates) == 3 and rates <= free_after("NonFiniteError") and not rates & free_after(None)


def test_what_a_run_says_when_numbers_are_not_finite() -> None:
    saved: list[int] = []
    state = TrainState(model=toys.model(num_layers=1), optimizers=[], step=3)
    hooks = Hooks(log=print, evaluate=bool, save=lambda each: saved.append(each.step), describe=str)
    begins = "stopped before the update of step 4: the loss is nan."
    error = loop.stopped_before_update("the loss is nan", state, hooks, ADVICE)
    assert str(error) == f"{begins} The finite weights of step 3 were saved: {ADVICE}" and saved == [3]
    error = loop.stopped_before_update("the loss is nan", state, hooks, ADVICE, "w")
    assert str(error) == f"{begins} The weights before that step are not finite either (w) and were not saved: {ADVICE}"
    assert saved == [3]


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
]


@pytest.mark.parametrize("settings, factors", SCHEDULES)
def test_the_rate_of_every_step(settings: dict[str, Any], factors: list[float]) -> None:
    training = TrainingSettings(**{"steps": 6, "warmup_steps": 2, "final_rate": 0.0, "decay_steps": None, **settings})
    assert [schedule_factor(step, training) for step in range(6)] == pytest.approx(factors, abs=1e-12)


def test_schedules_without_and_with_only_a_warm_up() -> None:
    def factors(**settings: Any) -> list[float]:
        training = TrainingSettings(**{"final_rate": 0.0, "decay_steps": None, **settings})
        return [schedule_factor(step, training) for step in range(training.steps)]

    assert factors(schedule="linear", steps=2, warmup_steps=0) == [1, 0.5]
    assert factors(schedule="linear", steps=2, warmup_steps=2) == [0.5, 1]
    assert factors(steps=2, warmup_steps=24_000)[1] == pytest.approx(2 / 24_000)
    t5 = TrainingSettings(steps=2**19, warmup_steps=10_000, schedule="flat_inverse_sqrt")  # 1 / sqrt(max(n, k))
    assert [schedule_factor(n - 1, t5) for n in (1, 10_000, 40_000)] == pytest.approx([1, 1, 0.5])
    assert factors(schedule="wsd", steps=30, warmup_steps=0)[-4:] == pytest.approx([1, 1, 2 / 3, 1 / 3])
    after = TrainingSettings(schedule="linear", steps=2, warmup_steps=2, final_rate=0.0)
    assert (
        schedule_factor(2, after) == 0.0
        and schedule_factor(1, dataclasses.replace(after, steps=1, warmup_steps=1)) == 0.0
    )


def test_groups_learn_from_their_first_step_at_their_own_peak() -> None:
    model = toys.model(num_layers=2)
    settings = TrainingSettings(
        optimizer="adamw", learning_rate=0.5, weight_decay=0.25, betas=(0.5, 0.75), epsilon=1e-3
    )
    (optimizer,) = build_optimizers(model, settings, layer_decay=0.5, unfreeze_every=2.5)
    assert isinstance(optimizer, torch.optim.AdamW)
    found = {(g["lr"], g["peak_lr"], g["first_step"], g["betas"], g["eps"], g["fused"]) for g in optimizer.param_groups}
    assert found == {(0.5 * 0.5**d, 0.5 * 0.5**d, round(2.5 * d), (0.5, 0.75), 1e-3, True) for d in range(4)}
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.25}
    (higher,) = build_optimizers(model, dataclasses.replace(settings, head_learning_rate=2.0))
    rates = {id(p): group["peak_lr"] for group in higher.param_groups for p in group["params"]}
    assert all(
        rates[id(parameter)] == (0.5 if name.startswith("backbone.") else 2.0)
        for name, parameter in model.named_parameters()
    )
    tied = toys.model(num_layers=2, head="linear", head_bias=False)  # as GPT-2: no weight is outside the backbone
    (own,) = build_optimizers(tied, dataclasses.replace(settings, head_learning_rate=2.0))
    assert {group["peak_lr"] for group in own.param_groups} == {0.5}
    set_learning([optimizer], 2)
    learns = {group["first_step"]: {p.requires_grad for p in group["params"]} for group in optimizer.param_groups}
    assert learns == {0: {True}, 2: {True}, 5: {False}, 8: {False}}
    set_learning_rate([optimizer], 0.5)
    assert sorted({group["lr"] for group in optimizer.param_groups}) == [0.03125, 0.0625, 0.125, 0.25]
    del optimizer.param_groups[0]["first_step"]
    set_learning([optimizer], 0)
    assert all(parameter.requires_grad for parameter in optimizer.param_groups[0]["params"])


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

        def save(each: TrainState, steps: list[int] = saved) -> None:
            steps.append(each.step)

        hooks = Hooks(log=lambda *_: None, evaluate=lambda _: False, save=save, describe=described)
        with pytest.raises(UniclozeError, match="unreadable"):
            fit(state, unreadable(), TrainingSettings(steps=9), compute, hooks)
        assert saved == expected
