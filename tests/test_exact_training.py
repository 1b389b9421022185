"""Exact values, texts and defaults of the training loop, its batches and its optimisers."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import toys
from toys import random_windows, vocabulary
from unicloze.errors import UniclozeError
from unicloze.mixtures import Phase
from unicloze.objectives import make_examples, settings_of
from unicloze.settings import Recipe, TrainingSettings
from unicloze.training import batches, divergence, loop, optimizers
from unicloze.training.batches import MicroBatch, mask_rates, rows_of_parts
from unicloze.training.divergence import cure
from unicloze.training.loop import (
    Compute,
    Hooks,
    Interruption,
    NonFiniteError,
    TrainState,
    clip_gradient,
    fit,
    non_finite,
    total_weights,
)
from unicloze.training.optimizers import build_optimizers, schedule_factor, set_learning, set_learning_rate
from unicloze.training.world import World

ADVICE = "do something else"


def micro_batch(rows: int = 2, place: str = "") -> MicroBatch:
    return MicroBatch(make_examples(random_windows(rows, 16), vocabulary(), settings_of()), None, place=place)


def described(each: MicroBatch) -> str:
    return each.place


def test_defaults() -> None:
    batch = micro_batch()
    assert (batch.part, batch.repeats, batch.place, dict(batch.coefficients), batch.windows) == (0, False, "", {}, None)
    assert batch.text_tokens == int(batch.examples.text_tokens.sum()) > 0
    assert dataclasses.replace(batch, repeats=True).text_tokens == 0
    state = TrainState(model=toys.model(), optimizers=[])
    assert (state.step, state.text_tokens, state.memories, state.buffers) == (0, 0, {}, {})
    assert (state.parts, state.step_tokens) == (None, 0)
    assert Interruption() == Interruption(signal=0, agreed=None)
    compute = Compute(device=torch.device("cpu"), precision="fp32")
    assert (compute.fixed_shape, compute.world.size, compute.world.rank) == (False, 1, 0)
    assert inspect.signature(build_optimizers).parameters["layer_decay"].default == 1.0
    assert inspect.signature(build_optimizers).parameters["unfreeze_every"].default == 0.0
    assert inspect.signature(MicroBatch.batch).parameters["fixed_shape"].default is False
    assert (batches.CHECKED_WINDOWS, optimizers.SLANTED_RATIO) == (512, 32)


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


def test_what_a_run_says_when_numbers_are_not_finite() -> None:
    saved: list[int] = []
    state = TrainState(model=toys.model(num_layers=1), optimizers=[], step=3)
    problem = NonFiniteError("the loss is nan; its rows are from a")
    before = str(loop._before_update(problem, state, lambda each: saved.append(each.step), ADVICE))
    begins = f"stopped before the update of step 4: {problem}."
    assert re.fullmatch(re.escape(f"{begins} The finite weights of step 3 were saved: ") + ADVICE, before)
    assert saved == [3]
    updates = divergence.Updates(torch.nn.ParameterDict({"w": torch.tensor([math.nan])}), [], late=False, undo=False)
    with updates.checked():
        pass
    assert [updates.spoiled(), updates.spoiled()] == ["w", None], "said once"
    name, weight = next(iter(state.model.named_parameters()))
    with torch.no_grad():
        weight[0] = torch.nan
    worse = str(loop._before_update(problem, state, lambda each: saved.append(each.step), ADVICE))
    begins = (
        f"stopped before the update of step 4: {problem}. The weights before that step are not finite either ({name})"
    )
    assert re.fullmatch(re.escape(f"{begins} and were not saved: ") + ADVICE, worse)
    assert saved == [3]


def test_weights_of_a_batch_are_added_and_never_zero() -> None:
    assert total_weights([{"a": 1.5, "b": 0.0}, {"a": 2.0}, {"c": 0.25}]) == {"a": 3.5, "b": 1.0, "c": 0.25}


def test_a_clip_norm_of_zero_clips_nothing() -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    for largest, expected in ((0.0, 5.0), (10.0, 5.0), (5.0, 5.0), (1.0, 1.0)):
        model.weight.grad = torch.tensor([[3.0, 4.0]])
        norm = clip_gradient(model, largest)  # type: ignore[arg-type]
        assert norm == 5.0 and isinstance(norm, float)
        assert float(model.weight.grad.norm()) == pytest.approx(expected, rel=1e-5)


def test_a_signal_is_noted_and_a_second_interrupt_is_not() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    with loop.stop_when_asked() as interruption:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert interruption.signal == signal.SIGTERM
        signal.raise_signal(signal.SIGINT)
        assert interruption.signal == signal.SIGINT
        assert signal.getsignal(signal.SIGINT) == before[signal.SIGINT]
        assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
    assert {number: signal.getsignal(number) for number in before} == before


def test_hooks_skip_an_update_by_default() -> None:
    spiked = next((field.default for field in dataclasses.fields(Hooks) if field.name == "spiked"), None)
    assert spiked is None or spiked(None, "") is None  # type: ignore[operator, arg-type]


SCHEDULES: list[tuple[dict[str, Any], list[float]]] = [
    ({"schedule": "constant"}, [0.5, 1, 1, 1, 1, 1]),
    ({"schedule": "linear"}, [0.5, 1, 1, 0.75, 0.5, 0.25]),
    ({"schedule": "linear", "final_rate": 0.2}, [0.5, 1, 1, 0.8, 0.6, 0.4]),
    ({"schedule": "cosine"}, [0.5, 1, 1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]),
    ({"schedule": "cosine", "decay_steps": 2}, [0.5, 1, 1, 0.5, 0, 0]),
    ({"schedule": "wsd", "decay_steps": 2}, [0.5, 1, 1, 1, 1, 0.5]),
    ({"schedule": "wsd", "decay_steps": 0}, [0.5, 1, 1, 1, 1, 1]),
    ({"schedule": "wsd", "decay_steps": 4, "final_rate": 0.5}, [0.5, 1, 1, 0.875, 0.75, 0.625]),
    ({"schedule": "wsd"}, [0.5, 1, 1, 1, 1, 1]),
    (
        {"schedule": "slanted_triangular"},
        [1 / 32, (1 + 31 / 2) / 32, 1, (1 + 31 * 0.75) / 32, (1 + 31 / 2) / 32, (1 + 31 / 4) / 32],
    ),
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
    assert factors(schedule="slanted_triangular", steps=1, warmup_steps=0) == [1]
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


def phase(recipe: Recipe, first: int, last: int) -> Phase:
    names = {field.name for field in dataclasses.fields(Phase)}
    given = {"recipe": recipe, "first_step": first, "last_step": last, "first_window": 0}
    assert set(given) == names
    return Phase(**given)


def test_the_mask_rate_of_every_step() -> None:
    recipe = Recipe(objective=settings_of(mask_rate=0.2, final_mask_rate=0.6), training=TrainingSettings(steps=9))
    for first, last, expected in ((2, 7, [0.2, 0.3, 0.4, 0.5, 0.6]), (2, 4, [0.2, 0.6]), (2, 3, [0.2])):
        rates = mask_rates(recipe.objective, phase(recipe, first, last), np.arange(first, last))
        assert rates is not None and rates.tolist() == pytest.approx(expected)


def test_rows_of_a_single_part() -> None:
    recipe = Recipe(training=TrainingSettings(steps=9, batch_size=5))
    assert rows_of_parts(phase(recipe, 0, 9), np.arange(2, 5)) == [[range(10, 15), range(15, 20), range(20, 25)]]


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


def test_a_micro_batch_has_no_place_unless_given() -> None:
    assert MicroBatch(micro_batch().examples, None).place == ""
