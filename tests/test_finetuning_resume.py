"""An interrupted fine-tuning run resumes with what it started with; it starts only if it can be evaluated."""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import nlu_toys
import unicloze.finetuning.run as room
from conftest import slow_except
from hf_toys import same_bits, same_ends
from nlu_toys import Killed, events_of, finetuned, resumed_alike
from unicloze.errors import UniclozeError
from unicloze.finetuning.run import FinetuneResult
from unicloze.settings import Recipe
from unicloze.training import loop
from unicloze.training.checkpoint import load_checkpoint
from unicloze.training.ledger import Ledger
from unicloze.training.loading import LoadedModel, load_model

SHORT = {"finetuning__epochs": 3, "finetuning__evaluations": 1, "training__batch_size": 8}


@pytest.fixture(scope="module")
def start() -> LoadedModel:
    return nlu_toys.start()


def records(count: int = 24, labels: Sequence[str] = "ab") -> list[dict[str, Any]]:
    words = nlu_toys.WORDS
    return [{"text": f"{words[i % 6]} {words[i // 6]}", "label": labels[i * 7 % 3 % 2]} for i in range(count)]


def files(folder: Path) -> tuple[Path, Path]:
    train = nlu_toys.write(folder / "train.jsonl", records())
    return train, nlu_toys.write(folder / "dev.jsonl", records(9))


def recipe_for(start: LoadedModel, **settings: Any) -> Recipe:
    return nlu_toys.recipe_for(start, "classification", **{**SHORT, **settings})


Tune = Callable[..., FinetuneResult]


@pytest.fixture
def tune(start: LoadedModel, tmp_path: Path) -> Tune:
    """Fine-tunes, or resumes, in a folder with this name."""
    train, dev = files(tmp_path)

    def run(name: str = "run", *, evaluated: bool = True, **settings: Any) -> FinetuneResult:
        return finetuned(recipe_for(start, **settings), start, train, dev if evaluated else None, tmp_path / name)

    return run


def kill_at(patch: pytest.MonkeyPatch, owner: Any, name: str, when: Callable[..., bool]) -> None:
    """Kill the process at a call of a function."""
    original = getattr(owner, name)

    def kill(*arguments: Any, **more: Any) -> Any:
        if when(*arguments, **more):
            raise Killed
        return original(*arguments, **more)

    patch.setattr(owner, name, kill)


@contextlib.contextmanager
def killed_at(owner: Any, name: str, when: Callable[..., bool] = lambda *_: True) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, owner, name, when)
        yield


@pytest.mark.whole
@pytest.mark.parametrize("place", ["_keep_best", "_save", "replace_file", "write"])
def test_a_kill_at_any_place_of_the_last_evaluation_changes_nothing(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The best checkpoint is the last, which is written before it is evaluated."""
    steps, run_class, original = iter(range(100)), room._Run, room._Run._evaluate
    monkeypatch.setattr(room, "headline", lambda *_: float(next(steps)))

    def last(self: Any, state: Any) -> bool:
        if state.step < 9:
            return bool(original(self, state))
        owner = {"replace_file": room, "write": self.ledger}.get(place, run_class)
        with killed_at(owner, place, lambda *arguments, **_: arguments[0] != "failed"):
            original(self, state)
        raise Killed

    assert tune("whole").best_step == 9
    with monkeypatch.context() as patch:
        patch.setattr(run_class, "_evaluate", last)
        with pytest.raises(Killed):
            tune("broken")
    with pytest.warns(UserWarning, match="already fully trained"):
        assert tune("broken").best_step == 9
    for name in ("best", "checkpoints"):
        assert [path.name for path in (tmp_path / "broken" / name).glob("step-*")] == ["step-00000009"]
        same_bits(*(load_checkpoint(tmp_path / run / name / "step-00000009") for run in ("whole", "broken")))
    assert len((tmp_path / "broken" / "dev_predictions.jsonl").read_text().splitlines()) == 9


def headlines(monkeypatch: pytest.MonkeyPatch, *values: float) -> list[str]:
    """Makes consecutive evaluations return these scores, and records the predictions of each."""
    worth, said, original = iter(values), [], room.measure

    def measured(predictions: Any, records: Any, recipe: Any, **more: Any) -> Any:
        said.append("".join(json.dumps(one["probabilities"]) for one in predictions))
        return original(predictions, records, recipe, **more)

    monkeypatch.setattr(room, "measure", measured)
    monkeypatch.setattr(room, "headline", lambda *_: next(worth))
    return said


def kept(folder: Path) -> str:
    """The predictions stored with a run, as `headlines` writes them."""
    lines = (folder / "dev_predictions.jsonl").read_text().splitlines()
    return "".join(json.dumps(json.loads(line)["probabilities"]) for line in lines)


def stop_behind(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """A signal arrives during a step."""
    original = loop.set_learning

    def set_learning(optimizers: Any, done: int) -> None:
        original(optimizers, done)
        if done + 1 == step:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(loop, "set_learning", set_learning)


def test_a_resumed_run_keeps_the_checkpoint_that_its_ledger_marks(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version may choose by another rule; the weights that this one would choose are gone, and beat no later ones."""
    headlines(monkeypatch, 5.0, 1.0, 7.0, 1.0)
    with monkeypatch.context() as patch:
        stop_behind(patch, 7)
        assert tune(finetuning__epochs=4).best_step == 3
    ledger = tmp_path / "run" / "ledger.jsonl"
    events = [json.loads(line) for line in ledger.read_text().splitlines()]
    changed = [{**one, "headline": 9.0} if one["event"] == "evaluate" and one["step"] == 6 else one for one in events]
    ledger.write_text("".join(json.dumps(one) + "\n" for one in changed))
    assert tune(finetuning__epochs=4).best_step == 9 and load_model(tmp_path / "run").step == 9


@pytest.mark.parametrize(("owner", "name", "when"), [
    (Ledger, "write", lambda _, event, step=0, **__: event == "evaluate" and step == 9),  # before it is recorded
    (room._Run, "_save", lambda _, state: state.step == 9),  # recorded, but not saved
])  # fmt: skip
def test_an_evaluation_that_was_lost_does_not_count(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, when: Any
) -> None:
    """Resumed and stopped before the next evaluation, the best is an earlier one, and so are its predictions."""
    out, said = tmp_path / "run", headlines(monkeypatch, 5.0, 1.0, 9.0)
    with killed_at(owner, name, when):
        tune(finetuning__epochs=4)
    assert kept(out) == said[2] != said[0]
    stop_behind(monkeypatch, 7)
    stopped = tune(finetuning__epochs=4)
    assert (stopped.step, stopped.best_step, stopped.stopped_by) == (7, 3, signal.SIGTERM)
    assert kept(out) == said[0] and load_model(out).step == 3
    assert len((out / "dev_samples.jsonl").read_text().splitlines()) == 9
    assert [path.name for path in (out / "best").glob("*.jsonl")] == []


@pytest.mark.filterwarnings("ignore:the learning rate")
def test_what_a_run_without_a_checkpoint_evaluated_is_not_taken_for_the_next_ones(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its evaluations, nor its predictions, nor its weights."""
    out = tmp_path / "run"
    headlines(monkeypatch, 9.0, 5.0)
    with killed_at(room._Run, "_save"):
        tune(finetuning__evaluations=1.5)
    assert load_model(out).step == 2 and (out / "dev_predictions.jsonl").exists()
    for step in (1, 4, 5):
        with monkeypatch.context() as patch:
            stop_behind(patch, step)
            stopped = tune(training__learning_rate=1e-9)
        best = 3 if step > 3 else step
        assert (stopped.step, stopped.best_step, len(list(out.glob("dev_*")))) == (step, best, 2 * (step > 3))
    assert load_model(out).step == 3 and load_model(out).recipe.training.learning_rate == 1e-9


def test_a_signal_in_the_last_step_before_patience_ends_the_run_does_not_stop_it(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headlines(monkeypatch, 5.0, 1.0)
    stop_behind(monkeypatch, 6)
    came: list[int] = []
    former = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        result = tune(finetuning__patience=1)
    finally:
        signal.signal(signal.SIGTERM, former)
    assert (result.step, result.stopped_by) == (6, 0) and came == [signal.SIGTERM], "it is passed on afterwards"
    events = [each["event"] for each in events_of(tmp_path / "run")]
    assert events[-1] == "end" and "stop" not in events


@pytest.mark.whole
def test_a_run_saves_between_its_evaluations_too_and_resumes_there(tune: Tune, tmp_path: Path) -> None:
    resumed_alike(lambda name: tune(name, training__save_every=2), 5, folder=tmp_path)
    steps = {
        name: [event["step"] for event in events_of(tmp_path / out) if event["event"] == name]
        for out, name in (("whole", "save"), ("broken", "start"))
    }
    assert steps == {"save": [2, 3, 4, 6, 8, 9], "start": [0, 4]}


def test_a_run_saves_after_its_evaluations_and_in_the_precision_it_chose(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    monkeypatch.setattr(room, "choose_precision", lambda *_: "bf16")
    with monkeypatch.context() as patch:
        stop_behind(patch, 5)
        tune(training__precision="auto")
    monkeypatch.setattr(room, "choose_precision", lambda *_: "fp32")
    tune(training__precision="auto")
    events = events_of(out)
    assert [event["step"] for event in events if event["event"] == "save"] == [3, 5, 6, 9]
    assert [event["precision"] for event in events if event["event"] == "start"] == ["bf16", "bf16"]
    assert load_model(out).recipe.training.precision == "bf16"


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_a_run_ended_by_patience_stays_ended_whatever_its_ledger_lost(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    out = tmp_path / "run"
    headlines(monkeypatch, 5.0, 1.0, 1.0)
    ended = tune(finetuning__patience=1)
    assert (ended.step, ended.best_step) == (6, 3)
    assert [each["event"] for each in events_of(out)][-3:] == ["evaluate", "save", "end"]
    lines = (out / "ledger.jsonl").read_text().splitlines(keepends=True)
    (out / "ledger.jsonl").write_text("".join(lines[: len(lines) - lost]))
    with pytest.warns(UserWarning, match="already fully trained"):
        again = tune(finetuning__patience=1)
    assert (again.step, again.best_step, again.scores) == (6, 3, ended.scores)
    assert load_model(out).step == 3 and (out / "checkpoints" / "step-00000006").is_dir()
    events = [each["event"] for each in events_of(out)]
    assert events[-1] == "end" and events.count("end") == 1
    assert lost == 0 or events[len(lines) - lost] == "start"  # the time before it is not that of the run


def test_patience_restarts_with_every_better_evaluation(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    headlines(monkeypatch, 1.0, 1.0, 2.0, 0.0, 3.0, 2.9, 2.0, 9.0, 9.0)
    result = tune(finetuning__epochs=9, finetuning__patience=2)
    assert (result.step, result.best_step) == (21, 15), "two evaluations in a row without a better one"


@pytest.mark.whole
def test_damaged_checkpoints_are_set_aside_and_rewritten(tune: Tune, tmp_path: Path) -> None:
    """Otherwise a newer, unreadable checkpoint would be taken for the step of its name."""
    with pytest.MonkeyPatch.context() as patch:
        stop_behind(patch, 5)
        tune()
    folder = tmp_path / "run" / "checkpoints"
    for name in ("step-00000006", "step-00000009"):
        shutil.copytree(folder / "step-00000005", folder / name)
        (folder / name / "model.safetensors").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="using step-00000005 instead"):
        assert tune().step == 9
    assert sorted(path.name for path in folder.iterdir()) == [
        "damaged-step-00000006", "damaged-step-00000009", "step-00000009",
    ]  # fmt: skip
    same_ends(tune("whole").out, tmp_path / "run")


def weights_of(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return load_checkpoint(folder / f"step-{step:08d}").model


@pytest.mark.whole
def test_the_mean_of_the_last_evaluations_is_measured_and_kept(tune: Tune) -> None:
    """Training continues from the weights as they are; the means are computed here from the weights of a plain run."""
    raw: dict[int, dict[str, torch.Tensor]] = {}
    for epochs in (1, 2, 3):  # at a constant rate a longer run begins like a shorter one
        plain = tune(f"raw{epochs}", evaluated=False, finetuning__epochs=epochs, training__schedule="constant")
        raw[plain.step] = weights_of(plain.out / "checkpoints", plain.step)
    for evaluated in (True, False):
        changes = {"finetuning__average_last": 2, "training__schedule": "constant"}
        result = tune(f"averaged {evaluated}", evaluated=evaluated, **changes)
        out = result.out
        assert not (out / "averaged").exists(), "only an unfinished run needs them"
        assert all(torch.equal(weights_of(out / "checkpoints", 9)[key], value) for key, value in raw[9].items())
        best = weights_of(out / "best", result.best_step)
        last = [step for step in (3, 6, 9) if step <= result.best_step][-2:]
        for key, value in best.items():
            mean = torch.stack([raw[step][key] for step in last]).mean(dim=0)
            torch.testing.assert_close(value, mean, rtol=0, atol=1e-7)
        assert load_model(out).step == result.best_step
    assert result.best_step == 9
    assert any(not torch.equal(best[key], raw[9][key]) for key in best)


@pytest.mark.whole
@pytest.mark.parametrize("held", slow_except([True], [True, False]))
@pytest.mark.parametrize("place", ["mean_weights", "_save", "write_checkpoint"])
@pytest.mark.parametrize("step", slow_except([6], [6, 9]))
def test_a_resumed_run_averages_alike(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bool, place: str, step: int
) -> None:
    run = functools.partial(tune, evaluated=held, finetuning__average_last=2)
    whole = run("whole")
    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        run_class: Any = room._Run
        original, owner = run_class._evaluate, room if place == "mean_weights" else run_class

        def evaluate(self: Any, state: Any) -> bool:
            if state.step == step:
                kill_at(patch, owner, place, lambda *given, **_: place != "write_checkpoint" or given[1] == "best")
            return bool(original(self, state))

        patch.setattr(run_class, "_evaluate", evaluate)
        run("broken")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        again = run("broken")
    assert again.best_step == whole.best_step
    for folder in ("best", "averaged", "checkpoints"):
        steps = sorted(path.name for path in (tmp_path / "whole" / folder).glob("step-*"))
        assert steps == sorted(path.name for path in (tmp_path / "broken" / folder).glob("step-*"))
        for name in steps:
            same_bits(*(load_checkpoint(tmp_path / out / folder / name) for out in ("whole", "broken")))


def test_missing_weights_of_an_evaluation_are_refused(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_behind(patch, 7)
        tune(finetuning__average_last=2)
    kept = tmp_path / "run" / "averaged"
    assert sorted(path.name for path in kept.iterdir()) == ["step-00000003", "step-00000006"]
    shutil.rmtree(kept / "step-00000006")
    with pytest.raises(UniclozeError, match=r"averaged/step-00000006.* is missing or damaged"):
        tune(finetuning__average_last=2)
