"""A budget of time: what the clock decides, and that a resumed run repeats it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from corpora import toy_corpus, write_corpus
from hf_toys import cut_after, same_ends
from unicloze.mixtures import phases
from unicloze.pretraining.automatic import choose
from unicloze.pretraining.budget import Budget
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe
from unicloze.report.history import History
from unicloze.settings import Recipe, TrainingSettings
from unicloze.training.ledger import read_ledger
from unicloze.training.optimizers import schedule_factor
from unicloze.training.pace import Clock, Decay, decided, recorded_decays

PLAN = TrainingSettings(steps=90, warmup_steps=10, schedule="wsd", decay_steps=60)


def simulated(
    seconds_of: Any, budget: float, *, most: int = 10**6, steps: int = 90, planned: bool = False
) -> tuple[int, float, list[Decay]]:
    """Steps and seconds of a run whose steps take as long as a function of the time says, and the decisions."""
    time = 0.0
    clock = Clock(0.0, budget, most, planned, now=lambda: time)
    recipe = Recipe(
        training=dataclasses.replace(PLAN, steps=steps, decay_steps=2 * steps // 3, evaluate_every=steps // 8)
    )
    decays: list[Decay] = []
    for step in itertools.count(1):
        time += seconds_of(time)
        clock.stepped()
        if (decay := clock.decide(step, recipe, decays)) is not None:
            decays.append(decay)
        if step >= (decays[-1].end if decays else steps):
            return step, time + 2.0, decays
        if step % (steps // 8) == 0:
            time += 1.0
            clock.evaluated(1.0)
    raise AssertionError


def test_a_steady_run_uses_its_budget_and_decays_for_two_thirds() -> None:
    steps, seconds, decays = simulated(lambda _: 0.5, 240, steps=450)
    assert 0.95 * 240 < seconds <= 240 * 1.01
    assert decays[0].first == pytest.approx(steps / 3, rel=0.05)


@pytest.mark.parametrize("slower", [1.5, 2.0, 3.0, 10.0])
@pytest.mark.parametrize("since", [0.0, 0.2, 0.5, 0.8])
def test_a_run_that_others_slow_down_ends_in_time(slower: float, since: float) -> None:
    """Loops that start at any time: at most 1.1 times the budget, though the plan was for a quiet machine."""
    steps, seconds, decays = simulated(lambda now: 0.25 * (slower if now >= since * 240 else 1.0), 240, steps=900)
    assert seconds <= 1.1 * 240
    assert seconds >= 0.9 * 240, "and it uses what it may"
    assert decays and decays[-1].end == steps


@pytest.mark.parametrize("slower", [1.0, 1.5, 3.0])
@pytest.mark.parametrize("since", [0.0, 0.5])
def test_a_planned_run_keeps_its_schedule_unless_it_is_late(slower: float, since: float) -> None:
    steps, seconds, decays = simulated(
        lambda now: 0.25 * (slower if now >= since * 240 else 1.0), 240, most=900, steps=900, planned=True
    )
    assert seconds <= 1.1 * 240 and steps <= 900
    assert bool(decays) == (slower > 1)
    assert all(decay.first * 0.25 * slower >= 240 / 3 - 5 for decay in decays)


def test_a_run_that_gets_faster_goes_on_up_to_the_most_steps() -> None:
    free = simulated(lambda now: 1.0 if now < 60 else 0.25, 240, steps=220)
    assert free[0] > 400 and free[1] <= 240 * 1.03
    assert simulated(lambda now: 1.0 if now < 60 else 0.25, 240, most=300, steps=220)[0] == 300


def test_the_rate_falls_from_what_it_was_to_its_end() -> None:
    decays = [Decay(40, 80), Decay(60, 70)]
    rates = [schedule_factor(step, PLAN, decays) for step in range(70)]
    assert rates[:30] == [schedule_factor(step, PLAN) for step in range(30)]
    assert rates[40] == pytest.approx(5 / 6)  # 10 of the planned 60 steps of decay are done
    assert rates[60] == pytest.approx(5 / 12) and rates[65] == pytest.approx(5 / 24)
    assert schedule_factor(70, PLAN, decays) == 0.0
    assert all(one >= other for one, other in itertools.pairwise(rates[10:]))


def test_phases_that_have_begun_keep_their_steps() -> None:
    recipe = load_recipe("quickstart", {"training.steps": 90, "training.warmup_steps": 1})
    bounds = [[phase.last_step for phase in phases(decided(recipe, decays))] for decays in (
        [], [Decay(20, 60)], [Decay(20, 60), Decay(50, 55)], [Decay(20, 120)], [Decay(10, 25)])]  # fmt: skip
    assert bounds == [[30, 90], [30, 60], [30, 55], [30, 120], [8, 25]]


class Scripted(Clock):
    """Decides as told."""

    def __init__(self, *decays: Decay) -> None:
        super().__init__(0.0, 1.0, 1)
        self.told = {decay.first: decay for decay in decays}

    def decide(self, step: int, *_: Any) -> Decay | None:
        return self.told.get(step)


@pytest.mark.whole
def test_a_planned_clock_ends_a_resumed_run_too(tmp_path: Path) -> None:
    settings = toy_corpus(tmp_path, {"training.steps": 9, "training.save_every": 4})
    recipe, clock = load_recipe("quickstart", settings), Scripted(Decay(5, 6))
    stopping = Scripted()
    stopping.decide = lambda step, *_: signal.raise_signal(signal.SIGTERM) if step == 4 else None  # type: ignore[method-assign]
    assert pretrain_run(recipe, tmp_path / "run", progress=False, clock=stopping).step == 4
    clock.planned = True
    for name, later in (
        ("one", ""),
        ("other", json.dumps({"event": "decay", "step": 7, "end": 9, "planned": 9}) + "\n"),
    ):
        shutil.copytree(tmp_path / "run", tmp_path / name)
        with (tmp_path / name / "ledger.jsonl").open("a") as ledger:
            ledger.write(later)  # what a killed process decided of steps that are now repeated
        longer = Scripted(Decay(5, 12))
        longer.planned = True
        assert pretrain_run(recipe, tmp_path / name, progress=False, clock=longer).step == 12
    same_ends(tmp_path / "one", tmp_path / "other")
    assert pretrain_run(recipe, tmp_path / "run", progress=False, clock=clock).step == 6


@pytest.mark.whole
@pytest.mark.parametrize("kept", [0, 4, 8, 12])
def test_a_resumed_run_repeats_the_decisions(kept: int, tmp_path: Path) -> None:
    """Cut before, between and after two decisions; the same bits, without a clock."""
    settings = toy_corpus(tmp_path, {
        "training.steps": 30, "training.save_every": 4, "training.warmup_steps": 2, "training.keep_checkpoints": 9,
        "training.schedule": "wsd", "training.decay_steps": 20,
    })  # fmt: skip
    recipe = load_recipe("quickstart", settings)
    pretrain_run(recipe, tmp_path / "whole", progress=False, clock=Scripted(Decay(6, 20), Decay(10, 15)))
    events = list(read_ledger(tmp_path / "whole" / "ledger.jsonl"))
    names = [(event["event"], event.get("step")) for event in events]
    assert names.index(("decay", 6)) < names.index(("step", 7)) and names[-1] == ("end", 15)
    assert recorded_decays(events, 30) == [Decay(6, 20), Decay(10, 15)] and not recorded_decays(events, 31)
    assert History.read(tmp_path / "whole").planned_steps == 15
    if kept == 0:
        with pytest.warns(
            UserWarning, match="already trained to step 15, where its time budget ended it; give more .* 30"
        ):
            assert pretrain_run(recipe, tmp_path / "whole", progress=False).step == 15
        return
    cut = cut_after(tmp_path / "whole", kept)
    assert pretrain_run(recipe, cut, progress=False, clock=Scripted(Decay(13, 14))).step == 15
    same_ends(tmp_path / "whole", cut)


def test_the_page_and_the_trainer_read_the_same_decisions(tmp_path: Path) -> None:
    """Those of another plan do not hold, nor those of a run that left no checkpoint."""

    def start(steps: int, resumed: str | None) -> dict[str, Any]:
        return {"event": "start", "recipe": {"training": {"steps": steps}}, "resumed_from": resumed}

    decay = {"event": "decay", "step": 90, "end": 200, "planned": 300}
    save = {"event": "save", "checkpoint": "step-00000240"}
    for events, expected in (
        ([start(300, None), decay], 200),
        ([start(300, None), decay, start(300, "step-00000100")], 200),
        ([start(300, None), decay, start(1000, "step-00000200")], 1000),
        ([start(300, None), decay, start(1000, "step-00000200"), save, start(300, "step-00000240")], 300),
        ([start(300, None), decay, start(1000, "step-00000100"), start(300, "step-00000100")], 200),
        ([start(300, None), decay, start(300, None)], 300),
    ):
        lines = [json.dumps({"schema": 1, "time": 0.0, "step": 0, **event}) for event in events]
        (tmp_path / "ledger.jsonl").write_text("\n".join(lines) + "\n")
        history = History.read(tmp_path)
        decays = recorded_decays(read_ledger(tmp_path / "ledger.jsonl"), history.steps_of_recipe or 0)
        assert history.planned_steps == expected
        if events[-1].get("resumed_from", "the run"):  # else the trainer has left out the events before it
            assert (decays[-1].end if decays else history.steps_of_recipe) == expected


def test_a_schedule_of_ones_own_has_no_clock(tmp_path: Path) -> None:
    given = {"data.corpus": [str(write_corpus(tmp_path / "corpus.txt"))], "training.schedule": "constant"}
    choice = choose(given, Budget.parse("1min"), tmp_path / "run", progress=False)
    assert choice.clock is None and any("you chose its schedule" in reason for reason in choice.reasons)
