"""The training loop: keyed draws, sums over a global batch, what happens after which step, evaluation."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import signal
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import toys
from toys import random_windows, vocabulary
from unicloze.example import Batch, Examples, Target, collate
from unicloze.model.dropout import DropoutKey
from unicloze.model.model import UnifiedModel
from unicloze.objectives import make_examples, settings_of
from unicloze.settings import TrainingSettings
from unicloze.training.batches import MicroBatch, Prefetch
from unicloze.training.loop import (
    Compute,
    Hooks,
    NonFiniteError,
    TrainState,
    clip_gradient,
    evaluate,
    fit,
    losses_and_norm,
)
from unicloze.training.optimizers import build_optimizers

CPU = Compute(device=torch.device("cpu"), precision="fp32")
OBJECTIVE = settings_of()


def examples_of(rows: int, seed: int = 0) -> Examples:
    return make_examples(random_windows(rows, 24, seed=seed, short=True), vocabulary(), OBJECTIVE)


def micro_batches(count: int, rows: int = 2, seed: int = 0) -> list[MicroBatch]:
    examples = examples_of(rows * count, seed)
    return [MicroBatch(examples[first : first + rows], None) for first in range(0, rows * count, rows)]


def state_of(settings: TrainingSettings, **model: Any) -> TrainState:
    built = toys.model(**model)
    return TrainState(model=built, optimizers=build_optimizers(built, settings))


def steps_of(count: int = 1, first: int = 0) -> Iterator[list[MicroBatch]]:
    for step in itertools.count(first):
        yield micro_batches(count, seed=step)


@pytest.mark.parametrize(("batch", "ahead"), [(48, 10), (1000, 1)])
def test_a_whole_number_of_steps_is_made_ahead(batch: int, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few hundred windows, and one step at least."""
    settings, found = TrainingSettings(steps=1, warmup_steps=0, batch_size=batch), []

    def noted(steps: Iterator[list[MicroBatch]], ahead: int) -> Prefetch[list[MicroBatch]]:
        found.append((ahead, type(ahead)))
        return Prefetch(steps, ahead)

    monkeypatch.setattr("unicloze.training.loop.Prefetch", noted)
    fit(state_of(settings), steps_of(), settings, CPU, nothing())
    assert found == [(ahead, int)]


def test_only_the_numbers_of_a_cpu_are_read_at_once() -> None:
    assert not CPU.queues and Compute(device=torch.device("cuda"), precision="fp32").queues


def nothing(**changes: Any) -> Hooks:
    silent: dict[str, Any] = {
        "log": lambda *_: None, "evaluate": lambda _: False, "save": lambda _: None, "describe": str,
    }  # fmt: skip
    return Hooks(**silent | changes)


def gradient_of(model: UnifiedModel) -> dict[str, torch.Tensor]:
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def test_speed_is_tokens_by_the_seconds_of_their_step(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TrainingSettings(steps=2, warmup_steps=0, save_every=0)
    clock, speeds = itertools.count(100.0, 4.0), []
    monkeypatch.setattr("unicloze.training.loop.time.perf_counter", lambda: next(clock))
    hooks = nothing(log=lambda _, measures: speeds.append(measures["text_tokens_per_second"]))
    fit(state_of(settings), steps_of(2), settings, CPU, hooks)
    tokens = [sum(each.text_tokens for each in micro_batches(2, seed=step)) for step in range(2)]
    assert speeds == [count / 4.0 for count in tokens]


def test_dropout_is_named_by_seed_step_and_micro_batch() -> None:
    settings = TrainingSettings(steps=5, warmup_steps=0, seed=7, save_every=0)
    state = state_of(settings)
    drawn: list[list[float]] = []

    def note(_model: Any, arguments: tuple[Batch, DropoutKey]) -> None:
        drawn.append(arguments[1].uniform(4).tolist())

    state.model.register_forward_pre_hook(note)
    state.step = 2
    fit(state, steps_of(3, first=2), settings, CPU, nothing())
    expected = [DropoutKey(7, step, number).uniform(4).tolist() for step in (2, 3, 4) for number in range(3)]
    assert drawn == expected and len({tuple(draw) for draw in drawn}) == 9


def test_dropout_differs_between_equal_micro_batches_and_is_off_where_the_model_is_evaluated() -> None:
    settings = TrainingSettings()
    state = state_of(settings, dropout=0.3, attention_dropout=0.3)
    (one,) = micro_batches(1)
    losses = [losses_and_norm(state, [one], settings, CPU, str)[0]["ae"] for _ in range(2)]
    both = losses_and_norm(state, [one, one], settings, CPU, str)[0]["ae"]
    assert losses[0] == losses[1] != pytest.approx(both, rel=1e-4)
    plain = evaluate(state.model, one.examples, CPU, 2)["ae"]
    assert not state.model.training and evaluate(state.model, one.examples, CPU, 2)["ae"] == plain
    losses_and_norm(state, [one], settings, CPU, str)
    assert state.model.training


@pytest.mark.parametrize("empty", [["par"], ["ae", "par"]])
def test_a_target_without_predictions_costs_nothing(empty: list[str]) -> None:
    """A step whose rows are too short to be masked, or whose noise levels drew no mask."""
    settings, examples = TrainingSettings(), examples_of(4)
    state = state_of(settings)
    alone = {name: target for name, target in examples.targets.items() if name not in empty}
    none = {
        name: dataclasses.replace(examples.targets[name], weights=0 * examples.targets[name].weights) for name in empty
    }

    def step(targets: dict[str, Target]) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        batch = MicroBatch(dataclasses.replace(examples, targets=targets), None)
        return losses_and_norm(state, [batch], settings, CPU, str)[0], gradient_of(state.model)

    losses, found = step({**examples.targets, **none})
    assert [losses[name] for name in empty] == [0.0] * len(empty)
    if not alone:
        assert all(not gradient.any() for gradient in found.values())
        return
    for name, gradient in step(alone)[1].items():
        torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-5)


def test_what_a_loss_is_divided_by_is_summed_over_the_batch_and_may_be_below_one() -> None:
    examples = examples_of(4)
    target = examples.targets["ae"]
    light = dataclasses.replace(examples, targets={"ae": dataclasses.replace(target, weights=target.weights / 1000)})
    found = [
        losses_and_norm(state_of(TrainingSettings()), [MicroBatch(each, None)], TrainingSettings(), CPU, str)[0]["ae"]
        for each in (light, examples)
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_gradients_do_not_add_up_from_step_to_step() -> None:
    state, found = state_of(TrainingSettings()), []
    for _ in range(2):
        losses_and_norm(state, micro_batches(2), TrainingSettings(), CPU, str)
        found.append(gradient_of(state.model))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.parametrize("count", [1, 3])
def test_gradients_of_a_step_are_freed_before_the_next_one(count: int) -> None:
    """Once, a reference cycle kept a whole set of gradients per step until Python's garbage collector ran."""
    settings = TrainingSettings()
    state = state_of(settings)
    gc.disable()
    try:
        losses_and_norm(state, micro_batches(count), settings, CPU, str)
        held = [weakref.ref(w.grad.untyped_storage()) for w in state.model.parameters() if w.grad is not None]
        state.model.zero_grad(set_to_none=True)
        assert held and not any(each() is not None for each in held)
    finally:
        gc.enable()


@pytest.mark.parametrize(("largest", "scaled"), [(0.0, False), (0.5, True), (1e6, False)])
def test_a_gradient_is_clipped_to_its_norm_only_where_it_is_longer(largest: float, scaled: bool) -> None:
    settings = TrainingSettings(steps=1, warmup_steps=0, clip_norm=largest)
    state = state_of(settings)
    losses_and_norm(state, micro_batches(1), TrainingSettings(), CPU, str)
    before = gradient_of(state.model)
    norm = float(clip_gradient(state.model, largest))
    assert norm == pytest.approx(float(torch.cat([each.flatten() for each in before.values()]).norm()), rel=1e-5)
    factor = largest / norm if scaled else 1.0
    assert (norm > largest > 0) == scaled
    for name, gradient in gradient_of(state.model).items():
        torch.testing.assert_close(gradient, before[name] * factor, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize(
    ("steps", "save_every", "evaluate_every", "saved", "evaluated"),
    [(7, 3, 2, [3, 6, 7], [2, 4, 6, 7]), (4, 2, 4, [2, 4], [4]), (3, 0, 0, [3], [3]), (2, 5, 5, [2], [2])],
)
def test_what_happens_after_which_step(
    steps: int, save_every: int, evaluate_every: int, saved: list[int], evaluated: list[int]
) -> None:
    settings = TrainingSettings(steps=steps, warmup_steps=0, save_every=save_every, evaluate_every=evaluate_every)
    state = state_of(settings)
    done: list[tuple[str, int]] = []
    measures: list[Any] = []

    def note(what: str) -> Any:
        return lambda state, *more: (done.append((what, state.step)), measures.extend(more))[1]

    fit(state, steps_of(2), settings, CPU, nothing(log=note("log"), evaluate=note("evaluate"), save=note("save")))
    assert done == [
        (what, step)
        for step in range(1, steps + 1)
        for what in ("log", "save", "evaluate")
        if what == "log" or step in (saved if what == "save" else evaluated)
    ]
    read = [sum(int(batch.examples.text_tokens.sum()) for batch in next(steps_of(2, step))) for step in range(steps)]
    assert state.text_tokens == sum(read)
    assert len(measures) == steps
    assert all(set(each) == {"loss", "gradient_norm", "text_tokens_per_second"} for each in measures)


def test_a_run_ends_when_an_evaluation_stops_it() -> None:
    settings = TrainingSettings(steps=9, warmup_steps=0, save_every=0, evaluate_every=2)
    state = state_of(settings)
    saved: list[int] = []
    hooks = nothing(evaluate=lambda state: state.step == 4, save=lambda state: saved.append(state.step))
    assert fit(state, steps_of(), settings, CPU, hooks).signal == 0
    assert state.step == 4 and saved == []


def test_handlers_of_signals_are_those_of_before_once_a_run_has_ended() -> None:
    settings = TrainingSettings(steps=1, warmup_steps=0)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    seen: list[Any] = []
    hooks = nothing(log=lambda *_: seen.append({number: signal.getsignal(number) for number in before}))
    fit(state_of(settings), steps_of(), settings, CPU, hooks)
    assert seen[0] != before and {number: signal.getsignal(number) for number in before} == before

    def interrupted(*_: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    assert fit(state_of(settings), steps_of(), settings, CPU, nothing(log=interrupted)).signal == signal.SIGINT
    assert {number: signal.getsignal(number) for number in before} == before


@pytest.mark.usefixtures("hangup")
def test_a_closed_terminal_saves_and_stops_unless_nohup_ignores_it() -> None:
    settings, saved = TrainingSettings(steps=3, warmup_steps=0), list[int]()
    hooks = nothing(log=lambda *_: signal.raise_signal(signal.SIGHUP), save=lambda state: saved.append(state.step))
    assert fit(state_of(settings), steps_of(), settings, CPU, hooks).signal == signal.SIGHUP and saved == [1]
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert fit(state_of(settings), steps_of(), settings, CPU, hooks).signal == 0 and saved == [1, 3]
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, former)


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_an_evaluation_sums_over_its_blocks(rows: int) -> None:
    model, examples = toys.model(), examples_of(7)
    found = evaluate(model, examples, CPU, rows)
    with torch.no_grad():
        losses = model.eval()(collate(examples))
    for name, loss in losses.items():
        total, weight = found[name].nats, found[name].weight
        assert weight == float((examples.targets[name].weights > 0).sum())
        assert total == pytest.approx(float(loss.total), rel=1e-5)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_step_that_fails_names_its_rows() -> None:
    settings = TrainingSettings(steps=3, warmup_steps=0)
    state = state_of(settings)
    state.model.token_head.dense.weight.register_hook(lambda gradient: gradient * float("nan"))
    batches = [dataclasses.replace(batch, place=f"row {number}") for number, batch in enumerate(micro_batches(3))]
    with pytest.raises(
        NonFiniteError, match=r"gradient is nan; its rows are from row 0; row 1\. The finite weights of step 0"
    ):
        fit(state, iter([batches]), settings, CPU, nothing(describe=lambda batch: batch.place))
