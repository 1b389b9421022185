"""A repeatedly killed run ends with the weights of an uninterrupted one, bit for bit."""

from __future__ import annotations

import os
import pty
import random
import select
import signal
import subprocess
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import killable
from conftest import slow_except
from corpora import write_corpus
from unicloze.training.checkpoint import list_checkpoints
from unicloze.training.ledger import read_ledger

STEPS = 9
OVERRIDES: dict[str, Any] = {
    "training.steps": STEPS,
    "training.batch_size": 12,
    "training.micro_batch_size": 4,
    "training.save_every": 2,
    "training.evaluate_every": 3,
    "training.optimizer": "muon",
    "model.dropout": 0.1,
    "model.attention_dropout": 0.1,
    "training.precision": "fp32",
    "objective.mixture": [{"label": "low", "share": 3}, {"label": "high", "mask_rate": 0.9}],
}


MOMENTS = {"micro-batch": 8, "update": 5, "checkpoint-file": 3, "checkpoint-manifest": 2, "checkpoint-renamed": 2}
"""At which of its occurrences a run is killed."""


def start(
    folder: Path, out: Path, moment: str, count: int, sends: signal.Signals = signal.SIGKILL, **changes: Any
) -> BaseProcess:
    overrides = OVERRIDES | {"data.corpus": [str(folder / "corpus")]} | changes
    return killable.start(overrides, out, moment, count, output_of(out), sends)


def output_of(out: Path) -> Path:
    """File with what the processes of a run print."""
    return out.with_suffix(".log")


def ended(process: BaseProcess, out: Path, seconds: float = 120) -> int:
    """The exit code, which is that of a run that ended or was killed."""
    process.join(seconds)
    code = process.exitcode
    assert code in (0, -signal.SIGKILL), output_of(out).read_text()
    return code


def finish(folder: Path, out: Path, moment: str = "never", count: int = 0, **changes: Any) -> int:
    return ended(start(folder, out, moment, count, **changes), out)


def final_state(out: Path, steps: int = STEPS) -> dict[str, torch.Tensor]:
    newest = list_checkpoints(out / "checkpoints")[-1]
    assert newest.name == f"step-{steps:08d}"
    return {
        f"{file}:{name}": tensor
        for file in ("model", "optimizer")
        for name, tensor in load_file(newest / f"{file}.safetensors").items()
    }


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    different = [name for name in left if not torch.equal(left[name], right[name])]
    assert not different, different


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    write_corpus(folder / "corpus")
    assert finish(folder, folder / "whole") == 0
    return folder


@pytest.mark.whole
@pytest.mark.parametrize("moment", slow_except(["update", "checkpoint-file"], MOMENTS))
def test_killed_at_the_worst_moment(uninterrupted: Path, moment: str) -> None:
    out = uninterrupted / f"killed-{moment}"
    assert finish(uninterrupted, out, moment, MOMENTS[moment]) == -signal.SIGKILL
    assert finish(uninterrupted, out) == 0
    assert_same(final_state(out), final_state(uninterrupted / "whole"))
    starts = [event for event in read_ledger(out / "ledger.jsonl") if event["event"] == "start"]
    assert starts[-1]["resumed_from"] in (None, "step-00000002", "step-00000004")
    assert not list((out / "checkpoints").glob(".building*")), "what a kill left behind is cleared"


@pytest.mark.slow
def test_spikes_are_decided_alike_by_a_run_that_was_killed(uninterrupted: Path) -> None:
    """The ledgers of both runs tell of the same spikes once those of repeated steps are counted once."""
    changes: dict[str, Any] = {
        "training.steps": 40, "training.save_every": 5, "training.evaluate_every": 40, "training.on_spike": "skip",
        "training.spike_factor": 1.2, "model.relative_start": "zero",
    }  # fmt: skip
    whole, out = uninterrupted / "skip-whole", uninterrupted / "skip-killed"
    assert finish(uninterrupted, whole, **changes) == 0
    for moment, count in (("update", 18), ("micro-batch", 25)):
        assert finish(uninterrupted, out, moment, count, **changes) == -signal.SIGKILL
    assert finish(uninterrupted, out, **changes) == 0
    assert_same(final_state(out, 40), final_state(whole, 40))

    def spikes(run: Path) -> set[tuple[int, str]]:
        events = [event for event in read_ledger(run / "ledger.jsonl") if event["event"] == "spike"]
        return {(event["step"], event["reason"]) for event in events}

    assert spikes(out) == spikes(whole) != set()


@pytest.mark.slow
def test_killed_at_random_until_it_is_done(uninterrupted: Path) -> None:
    """In any line: a step makes about 10,000 calls, so that four runs of at most 20,000 each are all killed before step 9."""
    out, draw = uninterrupted / "random", random.Random(0)
    for _ in range(4):
        assert finish(uninterrupted, out, "call", draw.randrange(1, 20_000)) == -signal.SIGKILL
    assert finish(uninterrupted, out) == 0
    assert_same(final_state(out), final_state(uninterrupted / "whole"))


@pytest.mark.whole
@pytest.mark.parametrize("number", slow_except([signal.SIGTERM], [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]))
def test_a_signal_saves_and_stops(uninterrupted: Path, number: signal.Signals) -> None:
    out = uninterrupted / f"signal-{number.name}"
    assert ended(start(uninterrupted, out, "update", 3, number), out) == 0
    last = list(read_ledger(out / "ledger.jsonl"))[-1]
    assert (last["event"], last["signal"]) == ("stop", number)
    assert list_checkpoints(out / "checkpoints")[-1].name == f"step-{last['step']:08d}"
    assert finish(uninterrupted, out) == 0
    assert_same(final_state(out), final_state(uninterrupted / "whole"))


@pytest.mark.whole
@pytest.mark.parametrize("number", slow_except([signal.SIGTERM], [signal.SIGTERM, signal.SIGHUP]))
@pytest.mark.usefixtures("hangup")
def test_a_signal_before_training_is_one_sentence(tmp_path: Path, number: signal.Signals) -> None:
    corpus = write_corpus(tmp_path / "corpus", documents=20_000)
    command = ["-m", "unicloze", "prepare", "--data.corpus", str(corpus), "--out", str(tmp_path / "data")]
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    until = time.monotonic() + 60
    while time.monotonic() < until and not (tmp_path / ".data.partial").is_dir():
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert f"Stopped by {number.name}.".encode() in said
    assert b"Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


@pytest.mark.slow
@pytest.mark.usefixtures("hangup")
def test_a_run_whose_terminal_is_closed_saves_and_stops(tmp_path: Path) -> None:
    corpus, out = write_corpus(tmp_path / "corpus"), tmp_path / "run"
    words = ["pretrain", "--recipe", "unilmv2-base", "--toy", "--data.corpus", str(corpus), "--out", str(out)]
    words += ["--training.steps", "100000", "--training.save_every", "0", "--training.log_every", "1"]
    process, terminal = pty.fork()
    if not process:
        os.environ.pop("PYTHONUNBUFFERED", None)  # what cannot be written stays in a buffer
        os.execv(sys.executable, [sys.executable, "-m", "unicloze", *words])
    ledger, until = out / "ledger.jsonl", time.monotonic() + 60
    while time.monotonic() < until and not (ledger.exists() and '"event": "step"' in ledger.read_text()):
        if select.select([terminal], [], [], 0.01)[0]:
            os.read(terminal, 2**16)
    os.close(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert code in (128 + signal.SIGHUP, -signal.SIGHUP)
    events = list(read_ledger(ledger))
    assert (events[-1]["event"], events[-1]["signal"]) == ("stop", signal.SIGHUP)
    assert list_checkpoints(out / "checkpoints")[-1].name == f"step-{events[-1]['step']:08d}"
