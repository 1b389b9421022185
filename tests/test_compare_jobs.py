"""Several processes work on one comparison: each run is done once, that of a killed process again, for the same table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import toys
from unicloze import verbs
from unicloze.comparison import compare
from unicloze.comparison.compare import Job, do_all
from unicloze.comparison.table import Comparison
from unicloze.errors import UniclozeError
from unicloze.files import hold

NAMES = "unilmv2-ablation-ae", "unilmv2-ablation-ar"


def three(folder: Path) -> list[Job]:
    return [Job(None, 0, folder / f"run-{number}", f"run {number}") for number in range(3)]  # type: ignore[arg-type]


def test_a_run_of_another_process_is_waited_for_and_results_stay_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run-1").mkdir()
    done: list[str] = []
    said: list[str] = []

    def do(job: Job) -> str:
        done.append(job.run.name)
        with pytest.raises(UniclozeError, match="is in use by process"):
            hold(job.run / "job.lock", job.run, "no").__enter__()
        return job.run.name.upper()

    other = hold(tmp_path / "run-1" / "job.lock", tmp_path / "run-1", "", keep=True)
    other.__enter__()
    monkeypatch.setattr(compare.time, "sleep", lambda _: other.__exit__(None, None, None))
    assert do_all(three(tmp_path), do, said.append) == ["RUN-0", "RUN-1", "RUN-2"]
    assert done == ["run-0", "run-2", "run-1"]
    assert said[:2] == ["run 0", "run 2"] and said[-1] == "run 1"
    assert said[2].startswith(f"{tmp_path / 'run-1'} is in use by process {os.getpid()} on ")
    assert said[2].endswith(": waiting for it")


def test_an_error_in_a_run_is_raised_and_frees_it(tmp_path: Path) -> None:
    def fail(_: Job) -> None:
        with hold(tmp_path / "lock", tmp_path, "stop it"), hold(tmp_path / "lock", tmp_path, "stop it"):
            pass

    with pytest.raises(UniclozeError, match="stop it"):
        do_all(three(tmp_path), fail, lambda _: None)
    with hold(tmp_path / "run-0" / "job.lock", tmp_path, ""):
        pass


def settings(corpus: Path) -> dict[str, Any]:
    overrides: dict[str, Any] = {**toys.toy_settings(), "data.corpus": [str(corpus)], "data.heldout_share": 0.2}
    del overrides["training.steps"]
    overrides |= {"training.evaluate_windows": 8, "training.precision": "fp32", "training.threads": 1}
    return overrides | {"training.save_every": 1}


def run(corpus: Path, out: Path) -> Comparison:
    return verbs.compare(NAMES, "steps=6", seeds=1, out=out, quiet=True, overrides=settings(corpus))


def scores(comparison: Comparison) -> list[tuple[str, Any, float]]:
    return [(row.name, row.scores, row.text_tokens) for row in comparison.rows]


@pytest.mark.whole
@pytest.mark.parametrize("killed", [False, True])
def test_a_second_command_does_runs_and_one_that_is_killed_is_replaced(
    corpus: Path, tmp_path: Path, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = run(corpus, tmp_path / "alone")
    arguments = {"recipes": NAMES, "budget": "steps=6", "seeds": 1, "out": str(tmp_path / "c"), "quiet": True}
    sent = json.dumps({**arguments, "overrides": settings(corpus)})
    called = "import json, sys; from unicloze import verbs; verbs.compare(**json.loads(sys.argv[1]))"
    other = subprocess.Popen([sys.executable, "-c", called, sent], stdout=subprocess.DEVNULL)

    def watched(todo: list[Job], *others: Any) -> Any:
        begun, file = (todo[:1], "checkpoints") if killed else (todo, "scores.json")
        wait_until(lambda: all((job.run / file).exists() for job in begun))
        if killed:
            other.kill()
            other.wait()
        return do_all(todo, *others)

    monkeypatch.setattr(compare, "do_all", watched)
    try:
        wait_until((tmp_path / "c" / "comparison.json").is_file)
        assert scores(run(corpus, tmp_path / "c")) == scores(alone)
    finally:
        other.kill()
        other.wait()
    ledgers = [(tmp_path / "c" / name / "seed-0" / "ledger.jsonl").read_text() for name in NAMES]
    starts = [ledger.count('"event": "start"') for ledger in ledgers]
    assert starts[1] == 1 and starts[0] in ((1, 2) if killed else (1,))


def wait_until(happened: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(2400):
        if happened():
            return
        pause.wait(0.05)
    raise AssertionError("the other process did nothing within two minutes")
