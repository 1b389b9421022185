"""Steps whose gradient spikes, or is not finite, are left out and recorded."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import nlu_toys
import toys
from conftest import slow_except
from corpora import toy_corpus
from test_finite_weights import CPU, steps_of
from unicloze.errors import UniclozeError
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe
from unicloze.settings import TrainingSettings
from unicloze.training import loop
from unicloze.training.checkpoint import list_checkpoints, load_checkpoint
from unicloze.training.divergence import FEWEST, RECENT, Spikes
from unicloze.training.loop import Hooks, NonFiniteError, TrainState, fit
from unicloze.training.optimizers import build_optimizers


def test_a_spike_is_told_by_the_median_of_the_last_norms() -> None:
    spikes = Spikes()
    for norm in [1.0] * (FEWEST - 1):
        spikes.add(norm)
    assert spikes.reason(1e9, 10) is None, "too few norms to judge by"
    spikes.add(3.0)
    assert spikes.reason(10.0, 10) is None
    assert spikes.reason(10.1, 10) == "the norm of the gradient is 10.1, and the median of the last 16 steps 1"
    for norm in [5.0] * RECENT:
        spikes.add(norm)
    assert spikes.norms == [5.0] * RECENT and spikes.reason(50.0, 10) is None


def test_what_is_remembered_passes_through_json() -> None:
    spikes = Spikes([0.1 + 0.2, 1e-9], in_a_row=2)
    good = dataclasses.asdict(spikes)
    assert Spikes.read(json.loads(json.dumps(good)), "x") == spikes
    assert Spikes.read(None, "x") == Spikes()
    damaged = [
        [], 1, {}, {**good, "more": 1}, {**good, "norms": [math.nan]}, {**good, "norms": ["1"]}, {**good, "norms": 1.0},
        {**good, "in_a_row": True}, {**good, "in_a_row": -1},
    ]  # fmt: skip
    for one in damaged:
        with pytest.raises(UniclozeError, match="step-1 is damaged: its spikes are"):
            Spikes.read(one, "step-1")


def count(model: torch.nn.Module, _: Any) -> None:
    model.get_buffer("forwards").add_(1)


def train(on_spike: str, spiking: dict[int, float], *, steps: int = FEWEST + 4) -> tuple[Any, list[Any]]:
    """A run whose gradients are multiplied at some steps (by index); its state, and the spikes it reported."""
    settings = TrainingSettings(steps=steps, warmup_steps=0, learning_rate=1e-3, save_every=0, on_spike=on_spike)  # type: ignore[arg-type]
    model = toys.model()
    model.register_buffer("forwards", torch.zeros(()))  # changes in a pass, as statistics of batch normalisation do
    model.register_forward_pre_hook(count)
    state = TrainState(model=model, optimizers=build_optimizers(model, settings))
    told: list[Any] = []
    for weight in model.parameters():
        weight.register_hook(lambda gradient: gradient * spiking.get(state.step, 1.0))
    hooks = Hooks(
        log=lambda *_: None, evaluate=lambda *_: False, save=lambda state: told.append(("save", state.step)),
        describe=lambda batch: batch.place, skipped=lambda state, reason: told.append((state.step, reason)),
    )  # fmt: skip
    fit(state, steps_of(), settings, CPU, hooks)
    return state, told


@pytest.mark.whole
@pytest.mark.parametrize("size", slow_except([math.inf], [1e6, math.nan, math.inf]))
def test_a_skipped_step_leaves_no_trace(size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and moments are those of a loop that makes no update at that step, whatever the gradient was."""
    state, told = train("skip", {FEWEST + 1: size})
    assert [step for step, _ in told] == [FEWEST + 1, "save"], told
    assert "the norm of the gradient is" in told[0][1] and state.step == FEWEST + 4
    assert len(state.spikes.norms) == FEWEST + 3 and state.spikes.in_a_row == 0

    made = loop.update
    assert state.model.forwards == FEWEST + 3
    del state.model.forwards
    monkeypatch.setattr(loop, "update", lambda state, *rest: None if state.step == FEWEST + 1 else made(state, *rest))
    plain, _ = train("accept", {})
    del plain.model.forwards
    for name, weight in plain.model.state_dict().items():
        assert torch.equal(weight, state.model.state_dict()[name]), name
    for one, other in zip(plain.optimizers, state.optimizers, strict=True):
        assert str(one.state_dict()) == str(other.state_dict())


def test_accepting_makes_every_finite_update() -> None:
    state, told = train("accept", {FEWEST + 1: 1e6})
    assert told == [("save", FEWEST + 4)] and state.spikes == Spikes()


def test_too_many_spikes_in_a_row_stop_the_run() -> None:
    spiking = dict.fromkeys(range(FEWEST, 100), 1e6)
    del spiking[FEWEST + 4]
    with pytest.raises(NonFiniteError, match=rf"update of step {FEWEST + 16}: more than 10 steps spiked"):
        train("skip", spiking, steps=60)


def test_weights_that_are_not_finite_stop_a_run_that_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an update has spoilt cannot be skipped, and is not saved."""
    made = loop.update

    def spoiling(state: TrainState, *rest: Any) -> None:
        made(state, *rest)
        if state.step == 2:
            next(iter(state.model.parameters())).data.fill_(math.nan)

    monkeypatch.setattr(loop, "update", spoiling)
    with pytest.raises(NonFiniteError, match=r"the update of step 4: the loss of .* is nan.* not finite either"):
        train("skip", {})


def tuned(folder: Path, **settings: Any) -> int:
    """The last step of a fine-tuning."""
    start = nlu_toys.start()
    texts = [{"text": f"the old cat {number}", "label": "ab"[number % 2]} for number in range(8)]
    records = nlu_toys.write(folder / "records.jsonl", texts)
    recipe = nlu_toys.recipe_for(start, "classification", training__batch_size=4, **settings)
    return nlu_toys.finetuned(recipe, start, records, records, folder / "run").step


@pytest.mark.filterwarnings("ignore:the learning rate")
def test_fine_tuning_skips_spikes_too(tmp_path: Path) -> None:
    spiking = {"training__on_spike": "skip", "training__spike_factor": 1.0, "training__learning_rate": 1e-6}
    assert tuned(tmp_path, finetuning__epochs=12, **spiking) == 24
    spikes = [event for event in nlu_toys.events_of(tmp_path / "run") if event["event"] == "spike"]
    assert spikes and {event["action"] for event in spikes} == {"skip"}
    newest = load_checkpoint(list_checkpoints(tmp_path / "run" / "checkpoints")[-1])
    assert len(newest.state["spikes"]["norms"]) == 24 - len(spikes)


@pytest.mark.filterwarnings("ignore:the learning rate")
def test_fine_tuning_continues_with_a_lower_rate_after_a_divergence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = itertools.count(1)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "clip_gradient", lambda *_: torch.tensor(math.nan if next(steps) == 2 else 1.0))
        with pytest.raises(NonFiniteError, match=r"step 1 were saved: .* with a lower --training.lea"):
            tuned(tmp_path, finetuning__epochs=2, training__learning_rate=1e-3)
    assert tuned(tmp_path, finetuning__epochs=2, training__learning_rate=1e-4) == 4


def test_a_phase_is_not_compared_with_the_gradients_of_the_one_before(tmp_path: Path) -> None:
    toy = toy_corpus(tmp_path, {
        "training.steps": 4, "training.on_spike": "skip", "training.phases": [{"share": 1}, {"share": 3}],
    })  # fmt: skip
    pretrain_run(load_recipe("unilmv2-base", toy), tmp_path / "run", progress=False)
    saved = load_checkpoint(list_checkpoints(tmp_path / "run" / "checkpoints")[-1])
    assert len(saved.state["spikes"]["norms"]) == 3
