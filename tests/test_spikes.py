"""Steps whose gradient spikes are skipped or undone, recorded, and decided alike by a run that is killed and resumed."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import nlu_toys
import toys
from conftest import slow_except
from corpora import write_corpus
from test_finite_weights import CPU, steps_of
from unicloze.errors import UniclozeError, UsageError
from unicloze.finetuning.run import finetune_run
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.settings import TrainingSettings
from unicloze.training import batches, loop
from unicloze.training.checkpoint import list_checkpoints, load_checkpoint
from unicloze.training.divergence import FEWEST, MOST, RECENT, Spikes
from unicloze.training.ledger import read_ledger
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
    spikes = Spikes([0.1 + 0.2, 1e-9], in_a_row=2, windows_ahead=12)
    assert Spikes.read(json.loads(json.dumps(spikes.to_dict())), "x") == spikes
    assert Spikes.read(None, "x") == Spikes()
    good = spikes.to_dict()
    damaged = [
        [], 1, {}, {**good, "more": 1}, {**good, "norms": [math.nan]}, {**good, "norms": ["1"]}, {**good, "norms": 1.0},
        {**good, "in_a_row": True}, {**good, "windows_ahead": -1},
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
    model.register_buffer(
        "forwards", torch.zeros(())
    )  # changes in a forward pass, as statistics of batch normalisation do
    model.register_forward_pre_hook(count)
    state = TrainState(model=model, optimizers=build_optimizers(model, settings))
    told: list[Any] = []
    for weight in model.parameters():
        weight.register_hook(lambda gradient: gradient * spiking.get(state.step, 1.0))
    hooks = Hooks(
        log=lambda *_: None, evaluate=lambda *_: False, save=lambda state: told.append(("save", state.step)),
        describe=lambda batch: batch.place, spiked=lambda state, reason: told.append((state.step, reason)),
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
    with pytest.raises(
        NonFiniteError, match=rf"before the update of step {FEWEST + 16}: more than 10 steps spiked in a row"
    ):
        train("skip", spiking, steps=60)
    assert MOST == 10


@pytest.mark.parametrize("late", [False, True])
def test_updates_that_are_never_finite_stop_the_run(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read late or not, each counts as a spike in a row, and no text of theirs counts as trained on."""
    monkeypatch.setattr(loop.Compute, "queues", late)
    made, trained = loop.update, []

    def spoiling(state: TrainState, *rest: Any) -> None:
        trained.append(state.text_tokens)
        made(state, *rest)
        if state.step >= 2:
            next(iter(state.model.parameters())).data.fill_(math.nan)

    monkeypatch.setattr(loop, "update", spoiling)
    with pytest.raises(
        NonFiniteError, match="more than 10 steps spiked in a row, at last because the update of step 13 "
    ):
        train("skip", {}, steps=30)
    assert trained[2] > 0 and {*trained[2 : MOST + 3]} == {trained[2]}


RUN: dict[str, Any] = {
    **toy_overrides(),
    "training.steps": 40,
    "training.batch_size": 4,
    "training.save_every": 6,
    "training.evaluate_every": 20,
    "training.log_every": 1,
    "training.precision": "fp32",
    "training.spike_factor": 1.15,
    "training.on_spike": "go_back",
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def run(corpus: Path, out: Path, **changes: Any) -> list[dict[str, Any]]:
    overrides = RUN | {"data.corpus": [str(corpus)]} | changes
    pretrain_run(load_recipe("unilmv2-base", overrides), out, progress=False)
    return list(read_ledger(out / "ledger.jsonl"))


@pytest.mark.whole
def test_a_run_that_goes_back_reads_other_text(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, int]] = []
    windows_of = batches.read_windows
    for module in (batches, loop):
        monkeypatch.setattr(module, "WINDOWS_AT_ONCE", 1)

    def note(sampler: Any, objective: Any, start: int, count: int, *, lanes: int) -> Any:
        read.append((start, count))
        return windows_of(sampler, objective, start, count, lanes=lanes)

    monkeypatch.setattr(batches, "read_windows", note)
    events = run(corpus, tmp_path / "run")
    spikes = [event for event in events if event["event"] == "spike"]
    assert spikes and all(event["action"] == "go_back" for event in spikes)
    read = list(dict.fromkeys(read))  # those that were read ahead at a spike are read again
    assert [start for start, _ in read] == list(range(0, 4 * len(read), 4)), "every window is read, in order"
    for event in spikes:
        assert event["to"] == (event["step"] - 1) // 6 * 6 and "the median of the last" in event["reason"]
    assert len(read) == 40 + sum(event["step"] - event["to"] for event in spikes)
    assert spikes[-1]["windows_ahead"] == 4 * (len(read) - 40)
    steps = [event["step"] for event in events if event["event"] in ("step", "spike")]
    expected, at = [], 0
    for event in [*spikes, {"step": 40, "to": 40}]:
        expected += range(at + 1, event["step"] + 1)
        at = event["to"]
    assert steps == expected
    newest = load_checkpoint(list_checkpoints(tmp_path / "run" / "checkpoints")[-1])
    assert newest.state["step"] == 40 and newest.state["spikes"]["windows_ahead"] == spikes[-1]["windows_ahead"]


@pytest.mark.whole
def test_a_stopped_run_goes_back_to_the_same_checkpoint(corpus: Path, tmp_path: Path) -> None:
    """A signal saves between the regular checkpoints, which must not change where the run goes back to."""
    whole = [event["to"] for event in run(corpus, tmp_path / "whole") if event["event"] == "spike"]
    first = next(event for event in read_ledger(tmp_path / "whole" / "ledger.jsonl") if event["event"] == "spike")
    with pytest.MonkeyPatch.context() as patch:
        log = loop.Hooks.__init__

        def stopping(self: Any, **hooks: Any) -> None:
            def note(state: TrainState, measures: Any, log: Any = hooks["log"]) -> None:
                log(state, measures)
                if state.step == first["step"] - 1:
                    signal.raise_signal(signal.SIGTERM)

            log(self, **{**hooks, "log": note})

        patch.setattr(loop.Hooks, "__init__", stopping)
        run(corpus, tmp_path / "stopped", **{"training.keep_checkpoints": 1})
    names = [path.name for path in list_checkpoints(tmp_path / "stopped" / "checkpoints")]
    assert names == [f"step-{first['to']:08d}", f"step-{first['step'] - 1:08d}"], "the one to go back to is kept too"
    events = run(corpus, tmp_path / "stopped", **{"training.keep_checkpoints": 1})
    assert [event["to"] for event in events if event["event"] == "spike"] == whole
    one, other = (
        load_checkpoint(list_checkpoints(tmp_path / name / "checkpoints")[-1]) for name in ("whole", "stopped")
    )
    assert one.state["spikes"] == other.state["spikes"]
    for name, weight in one.model.items():
        assert torch.equal(weight, other.model[name]), name


@pytest.mark.whole
@pytest.mark.parametrize("late", [False, True])
def test_a_run_goes_back_behind_an_update_that_is_not_finite(
    late: bool, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop.Compute, "queues", late)
    update, spoilt = loop.update, []

    def spoiling(state: TrainState, *rest: Any) -> None:
        update(state, *rest)
        if state.step == 6 and not spoilt:
            spoilt.append(next(iter(state.model.parameters())).data.fill_(math.nan))

    monkeypatch.setattr(loop, "update", spoiling)
    settings = {"training.steps": 10, "training.save_every": 4, "training.spike_factor": 1e9}
    events = run(corpus, tmp_path / "run", **settings)
    (spike,) = [event for event in events if event["event"] == "spike"]
    assert (spike["step"], spike["action"], spike["to"], spike["windows_ahead"]) == (7, "go_back", 4, 12)
    assert "the update of step 7 made" in spike["reason"]
    newest = load_checkpoint(list_checkpoints(tmp_path / "run" / "checkpoints")[-1])
    assert newest.state["step"] == 10 and len(newest.state["spikes"]["norms"]) == 10
    steps = [event["step"] for event in events if event["event"] == "step"]
    assert steps == [*range(1, 8 if late else 7), *range(5, 11)], "a step read late was logged"


@pytest.mark.whole
def test_before_the_first_checkpoint_a_spike_is_skipped(corpus: Path, tmp_path: Path) -> None:
    events = run(corpus, tmp_path / "run", **{"training.save_every": 39})
    assert {event["action"] for event in events if event["event"] == "spike"} == {"skip"}


def test_settings_that_cannot_work_are_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no checkpoint to go back to: set training\.save_every above 0"):
        load_recipe("unilmv2-base", RUN | {"training.save_every": 0})
    with pytest.raises(UsageError, match="fine-tuning has no other records to continue with: set it to skip"):
        load_recipe("classification", {"training.on_spike": "go_back"})
    with pytest.raises(UsageError, match=r"training\.spike_factor is 0\.5; it must be at least 1"):
        load_recipe("unilmv2-base", RUN | {"training.spike_factor": 0.5})
    run(corpus, tmp_path / "run", **{"training.steps": 6})
    with pytest.raises(UsageError, match=r"holds a run with training\.save_every 6"):
        run(corpus, tmp_path / "run", **{"training.save_every": 3})


@pytest.mark.filterwarnings("ignore:the learning rate")
def test_fine_tuning_skips_spikes_too(tmp_path: Path) -> None:
    start = nlu_toys.start()
    texts = [{"text": f"the old cat {number}", "label": "ab"[number % 2]} for number in range(8)]
    records = nlu_toys.write(tmp_path / "records.jsonl", texts)
    settings = {"training__batch_size": 4, "finetuning__epochs": 12, "training__spike_factor": 1.0}
    settings["training__learning_rate"] = 1e-6
    recipe = nlu_toys.recipe_for(start, "classification", training__on_spike="skip", **settings)
    assert finetune_run(recipe, start, records, records, tmp_path / "run", progress=False).step == 24
    spikes = [event for event in read_ledger(tmp_path / "run" / "ledger.jsonl") if event["event"] == "spike"]
    assert spikes and {event["action"] for event in spikes} == {"skip"}
    newest = load_checkpoint(list_checkpoints(tmp_path / "run" / "checkpoints")[-1])
    assert len(newest.state["spikes"]["norms"]) == 24 - len(spikes)
