"""Several processes work on one comparison: each run is done once, that of a killed process again, for the same table."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import toys
from corpora import write_corpus
from unicloze import verbs
from unicloze.comparison import compare
from unicloze.comparison.compare import Job, do_all
from unicloze.comparison.table import Comparison
from unicloze.errors import UniclozeError, UsageError
from unicloze.training.lock import hold
from unicloze.verbs import side_by_side

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


def test_the_number_of_jobs_is_checked() -> None:
    with pytest.raises(UsageError, match="--jobs is 0: give at least 1"):
        verbs.compare(NAMES, "steps=1", jobs=0)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("compare") / "corpus.txt")


def run(corpus: Path, out: Path, number: int) -> Comparison:
    overrides: dict[str, Any] = {**toys.toy_settings(), "data.corpus": [str(corpus)], "data.heldout_share": 0.2}
    del overrides["training.steps"]
    overrides |= {"training.evaluate_windows": 8, "training.precision": "fp32", "training.threads": 1}
    overrides |= {"training.save_every": 1}
    return verbs.compare(NAMES, "steps=6", seeds=1, out=out, quiet=True, overrides=overrides, jobs=number)


def scores(comparison: Comparison) -> list[tuple[str, Any, float]]:
    return [(row.name, row.scores, row.text_tokens) for row in comparison.rows]


@pytest.fixture(scope="module")
def alone(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return run(corpus, tmp_path_factory.mktemp("alone"), 1)


def wait_until(happened: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(2400):
        if happened():
            return
        pause.wait(0.05)
    raise AssertionError("the other process did nothing within two minutes")


@pytest.mark.whole
def test_another_process_does_the_runs(
    corpus: Path, alone: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watched(todo: list[Job], *others: Any) -> Any:
        wait_until(lambda: all((job.run / "scores.json").is_file() for job in todo))
        return do_all(todo, *others)

    monkeypatch.setattr(compare, "do_all", watched)
    together = run(corpus, tmp_path / "c", 2)
    assert scores(together) == scores(alone)
    for job in NAMES:
        ledger = (tmp_path / "c" / job / "seed-0" / "ledger.jsonl").read_text()
        assert ledger.count('"event": "start"') == 1
    names = {path.name for path in (tmp_path / "c").iterdir()}
    assert {"comparison.json", "table.md", "index.html", *NAMES} <= names


@pytest.mark.whole
def test_a_run_whose_process_is_killed_is_redone(
    corpus: Path, alone: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[Any] = []

    class Known(side_by_side._Helper):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            started.append(self._process.pid)

    def killed(todo: list[Job], *others: Any) -> Any:
        wait_until(lambda: (todo[0].run / "checkpoints").is_dir())
        os.kill(started[0], signal.SIGKILL)
        return do_all(todo, *others)

    monkeypatch.setattr(side_by_side, "_Helper", Known)
    monkeypatch.setattr(compare, "do_all", killed)
    assert scores(run(corpus, tmp_path / "c", 2)) == scores(alone)
    assert f"[1] ended with status {-signal.SIGKILL}; another process takes over its run" in capsys.readouterr().err
