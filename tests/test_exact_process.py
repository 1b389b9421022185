"""Exact texts, keys and arguments of a process's work on a run directory."""

from __future__ import annotations

import json
import platform
import signal
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import toys
from unicloze.errors import UniclozeError
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.settings import TrainingSettings
from unicloze.training import process as module
from unicloze.training.checkpoint import Checkpoint, load_checkpoint
from unicloze.training.loop import Compute, TrainState
from unicloze.training.optimizers import build_optimizers
from unicloze.training.parallel import World
from unicloze.training.process import RunProcess, load_moments, pinned_threads
from unicloze.version import __version__

COPIED = ["recipe.yaml", "tokenizer.json", "tokenizer_config.json"]


class TwoProcesses(World):
    """The first of two processes; records what they compare."""

    size = 2

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank
        self.compared: list[tuple[str, str, str]] = []

    def same(self, what: str, fingerprint: str, cure: str) -> None:
        self.compared.append((what, fingerprint, cure))


def process_in(
    out: Path,
    *,
    step: int = 0,
    world: World | None = None,
    progress: bool = False,
    device: str = "cpu",
    **training: Any,
) -> RunProcess:
    recipe = load_recipe("quickstart", {**toy_overrides(), **{f"training.{k}": v for k, v in training.items()}})
    model = toys.model(num_layers=1)
    optimizers = build_optimizers(model, recipe.training)
    state = TrainState(model=model, optimizers=optimizers, step=step, text_tokens=70 * step)
    compute = Compute(device=torch.device(device), precision="bf16", world=world or World())
    for name in COPIED:
        (out / name).write_text(name)
    return RunProcess(recipe, out, None, state, compute, progress=progress)


def ledger(out: Path) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
    for event in events:
        del event["schema"], event["time"]
    return events


def test_only_the_first_process_shows_progress_and_writes_the_ledger(tmp_path: Path) -> None:
    assert process_in(tmp_path, progress=True).progress and not process_in(tmp_path).progress
    second = process_in(tmp_path, progress=True, world=TwoProcesses(rank=1))
    assert not second.progress
    with second:
        second.write_stop()
    assert not (tmp_path / "ledger.jsonl").exists()


@pytest.mark.parametrize(
    "error, message", [(ValueError("broken"), "broken"), (KeyboardInterrupt(), "KeyboardInterrupt")]
)
def test_a_failure_is_recorded(tmp_path: Path, error: BaseException, message: str) -> None:
    with pytest.raises(type(error)), process_in(tmp_path, step=3):
        raise error
    assert ledger(tmp_path) == [{"event": "failed", "step": 3, "message": message, "kind": type(error).__name__}]


def test_events_have_exactly_these_keys(tmp_path: Path) -> None:
    run = process_in(tmp_path, step=4)
    run.signal, run.started = signal.SIGTERM, time.perf_counter() - 12.34
    with run:
        run.write_start(task="labels")
        run.checkpoint = Checkpoint(tmp_path / "step-00000003", {}, [], {})
        run.write_start()
        run.write_end(verdict="good")
        run.write_stop()
    start, again, end, stop = ledger(tmp_path)
    weights = sum(weight.numel() for weight in run.state.model.parameters())
    expected = {
        "event": "start", "step": 4, "recipe": json.loads(json.dumps(run.recipe.to_dict())), "task": "labels",
        "parameters": weights, "learned": weights, "device": f"cpu ({platform.machine()})", "precision": "bf16",
        "threads": torch.get_num_threads(), "processes": 1,
        "versions": {"unicloze": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "resumed_from": None,
    }  # fmt: skip
    assert start == expected and list(start) == list(expected)
    assert again == {key: value for key, value in expected.items() if key != "task"} | {"resumed_from": "step-00000003"}
    assert end == {"event": "end", "step": 4, "seconds": pytest.approx(12.3, abs=0.11), "verdict": "good"}
    assert end["seconds"] == round(end["seconds"], 1)
    assert stop == {"event": "stop", "step": 4, "signal": signal.SIGTERM}


@pytest.fixture
def bare_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints of these tests hold neither weights nor moments."""
    monkeypatch.setattr(module, "fit_weights", lambda *_: None)
    monkeypatch.setattr(module, "load_moments", lambda *_: None)


@pytest.mark.usefixtures("bare_checkpoints")
def test_resuming_with_another_number_of_threads_warns(tmp_path: Path) -> None:
    now, path = torch.get_num_threads(), tmp_path / "step-00000005"
    run = process_in(tmp_path)
    with pytest.warns(UserWarning) as found:
        run.take_over(Checkpoint(path, {}, [], {"step": 5, "text_tokens": 9, "threads": now + 2}))
    (warning,) = found
    assert warning.filename == __file__
    assert str(warning.message) == (
        f"{path} was computed with {now + 2} threads and the run continues with {now}: sums are rounded differently from "
        f"here on (--training.threads {now + 2} keeps them)"
    )
    assert (run.state.step, run.state.text_tokens, run.state.memories) == (5, 9, {})


@pytest.mark.usefixtures("bare_checkpoints")
def test_no_warning_for_equal_or_unknown_threads_or_on_a_gpu(tmp_path: Path) -> None:
    now = torch.get_num_threads()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for device, facts in (("cpu", {"threads": now}), ("cpu", {}), ("cuda", {"threads": now + 2})):
            run = process_in(tmp_path, device=device)
            run.take_over(Checkpoint(tmp_path, {}, [], {"step": 5, **facts}))
            assert (run.state.step, run.state.text_tokens) == (5, 0)


def test_former_events_begin_at_the_last_new_start(tmp_path: Path) -> None:
    run = process_in(tmp_path)
    first, failed = {"event": "start", "step": 0}, {"event": "failed", "step": 0}
    again, step = (
        {"event": "start", "step": 0, "resumed_from": None},
        {"event": "step", "step": 1, "resumed_from": None},
    )
    resumed, end = {"event": "start", "step": 1, "resumed_from": "step-00000001"}, {"event": "end", "step": 2}
    rest = [step, resumed, end]
    for written, ours in (([first, failed, again, *rest], [again, *rest]), (rest, rest), ([first, failed],) * 2):
        (tmp_path / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in written))
        assert run.former_events() == ours


def test_a_signal_that_came_too_late_is_raised_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[int] = []
    monkeypatch.setattr(module.signal, "raise_signal", raised.append)
    run = process_in(tmp_path)
    run.heed(0)
    run.signal = signal.SIGINT
    run.heed(signal.SIGINT)
    assert raised == []
    run.heed(0)
    assert raised == [signal.SIGINT]


class Bar:
    """A progress bar that records its calls."""

    def __init__(self) -> None:
        self.updates, self.notes = 0, list[str]()

    def update(self) -> None:
        self.updates += 1

    def note(self, text: str) -> None:
        self.notes.append(text)


def logged(out: Path, step: int, seconds: Sequence[float] = (), **training: Any) -> tuple[Bar, list[dict[str, Any]]]:
    run = process_in(out, step=step, **training)
    run.bar, run.state.seconds = (bar := Bar()), list(seconds)  # type: ignore[assignment]
    measures = {"loss": {"ae": 6.123456, "par": 0.5}, "gradient_norm": 1.234567, "text_tokens_per_second": 1234.567}
    with run:
        run.log(run.state, measures)
    return bar, ledger(out)


def test_a_logged_step(tmp_path: Path) -> None:
    settings = {"steps": 9, "warmup_steps": 4, "learning_rate": 0.008, "schedule": "linear", "log_every": 2}
    bar, events = logged(tmp_path, 2, [0.12345, 2.0], **settings)
    assert (bar.updates, bar.notes) == (1, ["ae 6.1 par 0.5 1.2k tok/s"])
    expected = {
        "event": "step", "step": 2, "loss": {"ae": 6.1235, "par": 0.5}, "figures": [], "gradient_norm": 1.2346,
        "learning_rate": 0.004, "text_tokens": 140, "text_tokens_per_second": 1234.6, "seconds": [0.123, 2.0],
    }  # fmt: skip
    assert events == [expected] and list(events[0]) == list(expected)


def test_steps_are_logged_at_intervals_and_at_the_end(tmp_path: Path) -> None:
    for step, is_logged in ((1, False), (2, False), (3, True), (6, True), (7, True)):
        (folder := tmp_path / str(step)).mkdir()
        bar, events = logged(folder, step, steps=7, log_every=3)
        assert (bar.updates, len(bar.notes), len(events)) == (1, is_logged, is_logged), step
        assert "seconds" not in [key for event in events for key in event]


def test_a_saved_checkpoint(tmp_path: Path) -> None:
    run = process_in(tmp_path, step=6)
    with run:
        run.save({"fingerprint": "f"}, keep=1)
    folder = tmp_path / "checkpoints" / "step-00000006"
    expected = {
        "schema": 1, "step": 6, "text_tokens": 420, "fingerprint": "f", "vocab_size": 50, "max_positions": 40,
        "threads": torch.get_num_threads(),
    }  # fmt: skip
    found = json.loads((folder / "state.json").read_text())
    assert found == expected and list(found) == list(expected)
    assert sorted(file.name for file in folder.iterdir()) == sorted(
        [*COPIED, "manifest.json", "model.safetensors", "optimizer.json", "optimizer.safetensors", "state.json"]
    )
    assert [(folder / name).read_text() for name in COPIED] == COPIED
    assert ledger(tmp_path) == [{"event": "save", "step": 6, "checkpoint": "step-00000006"}]
    assert len(load_checkpoint(folder).optimizers) == len(run.state.optimizers)


def test_older_checkpoints_are_removed_and_other_files_copied(tmp_path: Path) -> None:
    run = process_in(tmp_path, step=1)
    (tmp_path / "more.txt").write_text("more")
    for step in (1, 2, 3):
        run.state.step = step
        path = run.write_checkpoint("best", [], tmp_path / "recipe.yaml", {}, keep=2, more=[tmp_path / "more.txt"])
        assert path == tmp_path / "best" / f"step-{step:08d}"
    assert sorted(each.name for each in (tmp_path / "best").iterdir()) == ["step-00000002", "step-00000003"]
    assert (path / "more.txt").read_text() == "more"
    assert load_checkpoint(path).optimizers == []


def test_processes_compare_their_models_before_saving(tmp_path: Path) -> None:
    world = TwoProcesses()
    with process_in(tmp_path, world=world) as run:
        run.save({}, keep=1)
    norm = float(sum(float(weight.detach().square().sum()) for weight in run.state.model.parameters())) ** 0.5
    ((what, fingerprint, cure),) = world.compared
    assert (what, cure) == ("the model", "use identical machines, and check them for faults")
    assert float.fromhex(fingerprint) == pytest.approx(norm, rel=1e-5)


def test_threads_are_set_within_the_context_only(monkeypatch: pytest.MonkeyPatch) -> None:
    now, world = torch.get_num_threads(), TwoProcesses()
    cure = "set the same OMP_NUM_THREADS for all, or --training.threads"
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    with pinned_threads(TrainingSettings(threads=None), world):
        pass
    assert asked == []
    with pytest.raises(ValueError), pinned_threads(TrainingSettings(threads=now + 1), world):
        assert asked == [now + 1]
        raise ValueError
    assert asked == [now + 1, now]
    assert world.compared == [("the number of threads", str(now), cure)] * 2


def optimizer_state(**changes: Any) -> dict[str, Any]:
    weight = torch.nn.Parameter(torch.zeros(3, 2))
    optimizer = torch.optim.Adam([weight], lr=0.5)
    weight.grad = torch.ones(3, 2)
    optimizer.step()
    return {**optimizer.state_dict(), **changes}


def moments_of(state: dict[str, Any]) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(3, 2))], lr=0.125)
    load_moments([optimizer], Checkpoint(Path("step-1"), {}, [state], {}))
    return optimizer


def test_moments_are_loaded_but_not_settings() -> None:
    state = optimizer_state()
    state["state"][0]["step"] = torch.ones(1)  # a single number fits every weight
    optimizer = moments_of(state)
    assert optimizer.param_groups[0]["lr"] == 0.125
    (moments,) = optimizer.state.values()
    assert moments["step"] == 1 and moments["exp_avg"].tolist() == [[pytest.approx(0.1)] * 2] * 3


@pytest.mark.parametrize(("groups", "moments", "problem"), [
    ([{"params": [0, 1]}], {}, "its moments are those of other weights"),
    (None, {0: {"exp_avg": torch.zeros(2)}}, r"exp_avg of weight 0 has shape \(2,\)"),
    (None, {1: {"step": 1}}, "a moment is missing"),
])  # fmt: skip
def test_moments_of_other_weights_are_refused(groups: Any, moments: dict[int, Any], problem: str) -> None:
    state = optimizer_state(**({} if groups is None else {"param_groups": groups}))
    for weight, changed in moments.items():
        state["state"].setdefault(weight, {}).update(changed)
    with pytest.raises(UniclozeError, match=f"step-1 does not fit the run .ValueError: {problem}.: go back to an ear"):
        moments_of(state)


def test_moments_without_an_optimiser_are_refused() -> None:
    with pytest.raises(UniclozeError, match="ValueError"):
        load_moments([], Checkpoint(Path("step-1"), {}, [optimizer_state()], {}))
