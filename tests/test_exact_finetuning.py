"""Exact texts, keys and warnings of fine-tuning runs."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

import nlu_toys
from unicloze.errors import UniclozeError
from unicloze.finetuning import run as module
from unicloze.finetuning.run import FinetuneResult, finetune_run, with_steps
from unicloze.settings import Recipe
from unicloze.training.loading import LoadedModel
from unicloze.training.world import World

ONE_STEP = {"finetuning__epochs": 1, "finetuning__evaluations": 1, "training__batch_size": 8}


@pytest.fixture(scope="module")
def start() -> LoadedModel:
    return nlu_toys.start()


def recipe_for(start: LoadedModel, **settings: Any) -> Recipe:
    return nlu_toys.recipe_for(start, "classification", **{**ONE_STEP, **settings})


def write(file: Path, count: int) -> Path:
    words = nlu_toys.WORDS
    return nlu_toys.write(
        file, [{"text": f"{words[i % 6]} {words[i // 6]}", "label": "ab"[i % 2]} for i in range(count)]
    )


def events(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]


def test_a_run_says_and_records_what_it_does(
    start: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compared: list[tuple[str, str]] = []
    monkeypatch.setattr(World, "same", lambda _self, what, _fingerprint, cure: compared.append((what, cure)))
    train, dev, out = write(tmp_path / "train.jsonl", 8), write(tmp_path / "dev.jsonl", 9), tmp_path / "run"
    recipe = recipe_for(start, task__evaluate_records=4)
    with pytest.warns(UserWarning) as found:
        result = finetune_run(recipe, start, train, dev, out)
    evenly = "evaluating on 4 of the 9 development records, evenly spaced (task.evaluate_records)"
    assert [(Path(warning.filename), str(warning.message)) for warning in found] == [(Path(module.__file__), evenly)]
    assert compared == [
        ("the recipe", "give all processes the same recipe and settings"),
        ("the number of threads", "set the same OMP_NUM_THREADS for all, or --training.threads"),
        ("the model or the records", "give all processes the same files"),
    ] or compared == [
        ("the number of threads", "set the same OMP_NUM_THREADS for all, or --training.threads"),
        ("the recipe", "give all processes the same recipe and settings"),
        ("the model or the records", "give all processes the same files"),
    ]
    said = capsys.readouterr().err.splitlines()
    values = ", ".join(
        f"{name} {value:.2f}" for score in result.scores.values() for name, value in score.values.items()
    )
    assert f"step 1: {values}" in said
    assert not [line for line in said if line.startswith("chosen: ")]
    first, _, saved, evaluated, end = events(out)
    assert list(first) == [
        "schema", "event", "time", "step", "recipe", "task", "model", "model_step", "drawn", "changed", "lineage", "files",
        "fingerprints", "records", "baseline", "rivals", "parameters", "learned", "device", "precision", "threads",
        "processes", "versions", "resumed_from",
    ]  # fmt: skip
    state = json.loads((out / "checkpoints" / "step-00000001" / "state.json").read_text())
    facts = {
        "task": "classification", "model": "none", "model_step": 0, "lineage": {},
        "files": {"train": str(train), "dev": str(dev)}, "records": {"train": 8, "dev": 9},
        "fingerprints": state["origin"], "baseline": result.baselines[0].to_dict() if result.baselines else None,
        "rivals": [one.to_dict() for one in result.baselines[1:]],
    }  # fmt: skip
    assert {name: first[name] for name in facts} == facts
    assert first["drawn"] and isinstance(state["segments"], int)
    assert list(evaluated) == [
        "schema",
        "event",
        "time",
        "step",
        "headline",
        "kept",
        "results",
        "records",
    ]
    assert (evaluated["event"], evaluated["step"], evaluated["records"]) == ("evaluate", 1, 4)
    assert evaluated["headline"] == result.scores["accuracy"].values["accuracy"]
    assert (saved["event"], saved["checkpoint"]) == ("save", "step-00000001")
    assert (
        list(end) == ["schema", "event", "time", "step", "seconds", "verdict", "errors"]
        and end["verdict"] == result.verdict != ""
    )
    expected = (out, 1, 1, 0, "accuracy")
    assert (result.out, result.step, result.best_step, result.stopped_by, result.chosen_by) == expected
    assert len((out / "dev_predictions.jsonl").read_text(encoding="utf-8").splitlines()) == 4
    assert sorted(path.name for path in (out / "best").iterdir()) == ["recipe.yaml", "step-00000001"]

    with pytest.warns(UserWarning) as found:
        again = finetune_run(recipe, start, train, dev, out, progress=False)
    done = f"{out} is already fully trained: give another --out to train again"
    assert [(Path(w.filename), str(w.message)) for w in found] == [
        (Path(module.__file__), evenly),
        (Path(module.__file__), done),
    ]
    assert (again.verdict, again.scores) == (result.verdict, result.scores)
    assert len(events(out)) == 5 and capsys.readouterr().err == ""

    lines = (out / "ledger.jsonl").read_text().splitlines()
    damaged = {name: value for name, value in evaluated.items() if name != "headline"}
    (out / "ledger.jsonl").write_text("\n".join([*lines[:3], json.dumps(damaged), *lines[4:]]) + "\n")
    with warnings.catch_warnings(), pytest.raises(UniclozeError) as refused:
        warnings.simplefilter("ignore")
        finetune_run(recipe, start, train, dev, out, progress=False)
    assert str(refused.value) == f"{out / 'ledger.jsonl'} is damaged ('headline'): start again in another --out"


def test_a_run_without_development_file(start: LoadedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    recipe = recipe_for(start, training__learning_rate="auto")
    result = finetune_run(recipe, start, write(tmp_path / "train.jsonl", 8), None, out)
    unjudged = "not judged: there is no development file"
    assert result == FinetuneResult(out, 1, 1, 0, {}, "", (), unjudged)
    first, *_, saved, end = events(out)
    assert (first["files"]["dev"], first["records"], first["baseline"]) == (None, {"train": 8, "dev": 0}, None)
    assert (saved["event"], end["verdict"]) == ("save", unjudged)
    chosen = [line for line in capsys.readouterr().err.splitlines() if line.startswith("chosen: ")]
    assert len(chosen) == 1 and chosen[0].startswith("chosen: learning rate 0.003 for ")
    assert not (out / "best").exists() and not (out / "dev_predictions.jsonl").exists()


def test_layers_that_stay_frozen_are_counted(start: LoadedModel, tmp_path: Path) -> None:
    recipe = recipe_for(start, finetuning__unfreeze_epochs=1.5)
    with pytest.warns(UserWarning) as found:
        finetune_run(recipe, start, write(tmp_path / "train.jsonl", 8), None, tmp_path / "run", progress=False)
    (warning,) = found
    assert Path(warning.filename) == Path(module.__file__)
    assert str(warning.message) == (
        "the lowest 3 of 4 layers stay frozen: one layer is unfrozen every 1.5 epochs, and training lasts 1 "
        "(finetuning.unfreeze_epochs)"
    )


def test_a_rate_that_is_too_low_warns_the_caller(
    start: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.automatic, "too_low_a_rate", lambda *_: "too low")
    with pytest.warns(UserWarning) as found:
        finetune_run(recipe_for(start), start, write(tmp_path / "train.jsonl", 8), None, tmp_path / "r", progress=False)
    assert [(warning.filename, str(warning.message)) for warning in found] == [(__file__, "too low")]


def test_steps_of_some_epochs(start: LoadedModel) -> None:
    recipe = recipe_for(start, finetuning__epochs=2.5, finetuning__evaluations=3, finetuning__warmup_share=0.25)
    for rows, steps, warmup, every in ((1, 3, 1, 1), (8, 3, 1, 1), (40, 13, 3, 2), (80, 25, 6, 3)):
        found = with_steps(recipe, rows).training
        assert (found.steps, found.warmup_steps, found.evaluate_every) == (steps, warmup, every), rows
    tiny = with_steps(recipe_for(start, finetuning__epochs=0.001, finetuning__evaluations=9), 8).training
    assert (tiny.steps, tiny.evaluate_every) == (1, 1)


def test_defaults_of_a_result(tmp_path: Path) -> None:
    assert FinetuneResult(tmp_path, 3, 2, 0, {}) == FinetuneResult(tmp_path, 3, 2, 0, {}, "", (), "")
    assert [field.name for field in dataclasses.fields(FinetuneResult)] == [
        "out", "step", "best_step", "stopped_by", "scores", "chosen_by", "baselines", "verdict", "likeliest",
    ]  # fmt: skip
