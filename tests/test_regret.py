"""The benchmark of the automatic learning rate: what its table says, and that a measured cell is not measured again."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from qa_toys import small_model
from unicloze.finetuning.initial import learning_rate

REPOSITORY = Path(__file__).parent.parent
WEIGHTS = 22_713_216


@pytest.fixture(scope="module")
def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("regret", REPOSITORY / "benchmarks" / "regret.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def cell(task: str, seed: int, factor: float, score: float, **changes: Any) -> dict[str, Any]:
    rate = float(f"{learning_rate(WEIGHTS) * factor:.1e}")
    found = {"size": "22.7M", "start": "a", "weights": WEIGHTS, "task": task, "seed": seed, "factor": "?"}
    return found | {"records": 1600, "rate": rate, "score": score, "majority": 50.0} | changes


def seed_of(task: str, seed: int, *scores: float) -> list[dict[str, Any]]:
    return [cell(task, seed, factor, score) for factor, score in zip((0.5, 1, 2), scores, strict=True)]


def test_the_regret_is_what_the_best_rate_gains_over_the_chosen_one(benchmark: Any) -> None:
    results = [*seed_of("SST-2", 0, 60, 61, 64), *seed_of("SST-2", 1, 60, 63, 62), *seed_of("RTE", 0, 50, 52, 49)]
    lines = benchmark.table(results, 1600).splitlines()
    # means over the seeds: 60, 62, 63; the best on the other seed: the chosen rate by seed 1, twice the rate by seed 0
    assert lines[1].split() == ["22.7M", "SST-2", "2", "60.0", "62.0", "63.0", "1.0", "-0.5", "50.0"]
    assert lines[2].split() == ["22.7M", "RTE", "1", "50.0", "52.0", "49.0", "0.0", "-", "50.0"]
    # 0.5 and the quantile of t with one degree of freedom, 12.71, times the standard error 0.5
    assert lines[3] == "22.7M: regret 0.50 (-5.85 to 6.85) over 2 tasks, unseen -0.50 over 1 task"
    assert lines[4:] == ["  2 of 9 cells at the majority class", "  45 of 54 cells missing"]
    others = [cell("SST-2", 2, 1, 40), cell("SST-2", 2, 3, 90), cell("SST-2", 2, 1, 90, records=100)]
    assert benchmark.table([*results, *others], 1600).splitlines()[1:4] == lines[1:4], (
        "a seed counts once it is complete"
    )


@pytest.mark.whole
def test_cells_are_measured_once_and_kept(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(0)
    lines = [f"x\t{n % 2}\t\t{'good' if n % 2 else 'bad'} {draw.choice('abc')} {n}" for n in range(60)]
    (tmp_path / "cola.tsv").write_text("\n".join(lines) + "\n")
    tagged = ["\n".join(f"{n}\t{w}\t_\t{t}" + "\t_" * 6 for n, (w, t) in enumerate((("a", "DET"), ("cat", "NOUN")), 1))]
    (tmp_path / "tags.conllu").write_text("\n\n".join(tagged * 40) + "\n\n")
    task = benchmark.Task
    tasks = {
        "CoLA": task("classification", "matthews", "glue-cola", "cola.tsv", ("cola.tsv",)),
        "tags": task("tagging", "tag-accuracy", "conllu", "tags.conllu", ("tags.conllu",), roles=("tokens", "tags")),
    }
    for name, value in {"TASKS": tasks, "SEEDS": 1, "DEVELOPMENT": 8, "TEST": 12}.items():
        monkeypatch.setattr(benchmark, name, value)
    model = str(small_model(tmp_path).path)
    results = tmp_path / "cells.jsonl"

    def run(*words: str) -> str:
        given = ["--data", str(tmp_path), "--models", model, "--records", "12", "--results", str(results)]
        monkeypatch.setattr(sys, "argv", ["regret.py", *given, *words])
        benchmark.main()
        return capsys.readouterr().out

    run("--cells", "*/CoLA/*/twice")
    first = results.read_text()
    assert json.loads(first)["factor"] == "twice" and json.loads(first)["majority"] == 0
    assert "4 of 6 cells missing" not in run("--minutes", "0") and results.read_text() == first
    said = run()
    assert results.read_text().startswith(first) and results.read_text().count("\n") == 6
    assert "0 of 6 cells missing" in said
    known = results.read_text()
    run()
    assert results.read_text() == known
    of_tags = [one for one in map(json.loads, known.splitlines()) if one["task"] == "tags"]
    assert {one["majority"] for one in of_tags} == {50.0} and len({one["rate"] for one in of_tags}) == 3
