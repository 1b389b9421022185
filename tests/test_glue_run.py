"""All GLUE tasks in a folder: scores with standard errors, the grid, and the files for the benchmark's server."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import nlu_toys
from unicloze import verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.metrics.labels import GLUE
from unicloze.evaluation.metrics.registry import metric
from unicloze.evaluation.metrics.result import MetricResult
from unicloze.finetuning.glue import GRID, _task, grid
from unicloze.finetuning.predict import load_task_model
from unicloze.recipes import load_recipe
from unicloze.training.loading import LoadedModel, load_model

QUICK: dict[str, Any] = {
    "training.device": "cpu", "training.precision": "fp32", "training.learning_rate": 1e-2, "training.batch_size": 8,
    "finetuning.epochs": 2, "task.max_length": 24,
}  # fmt: skip
WORDS = ["anna", "carl", "eva", "fargo"]


@pytest.fixture(scope="module")
def start() -> LoadedModel:
    return nlu_toys.start()


def table(path: Path, header: str, rows: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header.replace(" ", "\t"), *rows]) + "\n")
    return path


def glue(folder: Path) -> Path:
    """RTE with and STS-B without a test file, MNLI with both development sets and the diagnostic set, and half of CoLA."""
    two = [f"{i}\t{WORDS[i % 4]} sees\t{WORDS[i // 4 % 4]}" for i in range(16)]
    alike = [f"{row}\t{'entailment' if i % 3 else 'not_entailment'}" for i, row in enumerate(two)]
    for name in ("train", "dev"):
        table(folder / "RTE" / f"{name}.tsv", "index sentence1 sentence2 label", alike)
        numbers = [f"{row}\t{i % 5}.5" for i, row in enumerate(two)]
        table(folder / "STS-B" / f"{name}.tsv", "index sentence1 sentence2 score", numbers)
    table(folder / "RTE" / "test.tsv", "index sentence1 sentence2", two)
    kinds = ["contradiction", "entailment", "neutral"]
    labelled = [f"{row}\t{kinds[i % 3]}" for i, row in enumerate(two)]
    for name in ("train", "dev_matched", "dev_mismatched"):
        table(folder / "MNLI" / f"{name}.tsv", "index sentence1 sentence2 gold_label", labelled)
    for name in ("test_matched", "test_mismatched"):
        table(folder / "MNLI" / f"{name}.tsv", "index sentence1 sentence2", two)
    table(folder / "diagnostic" / "diagnostic.tsv", "index sentence1 sentence2", two[:4])
    table(folder / "CoLA" / "train.tsv", "sentence label", ["anna\t1"])
    return folder


@pytest.mark.whole
def test_the_tasks_that_are_there_give_a_score_and_files_for_the_server(start: LoadedModel, tmp_path: Path) -> None:
    folder = glue(tmp_path / "glue")
    with pytest.warns(UserWarning, match="CoLA has no development file: skipping CoLA"):
        found = verbs.finetune("glue", start, folder, out=tmp_path / "out", quiet=True, overrides=QUICK)
    assert [task.name for task in found.tasks] == ["STS-B", "MNLI", "RTE"]
    stsb, mnli, rte = found.tasks
    assert list(stsb.values) == ["spearman", "pearson"]
    assert list(mnli.values) == ["accuracy", "mismatched"]
    for task in found.tasks:
        assert task.score == pytest.approx(sum(task.values.values()) / len(task.values))
        assert task.error >= 0 and load_model(task.out).recipe.name == f"glue-{task.name.lower()}"
    assert mnli.values["mismatched"] == pytest.approx(mnli.values["accuracy"]), "both halves hold the same here"
    assert found.score == pytest.approx((stsb.score + mnli.score + rte.score) / 3)
    assert found.error == pytest.approx(math.sqrt(sum(task.error**2 for task in found.tasks)) / 3)
    assert "6 of GLUE's 9 tasks missing" in str(found)
    files = sorted(path.name for path in (tmp_path / "out" / "leaderboard").iterdir())
    assert files == ["AX.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "RTE.tsv"] == sorted(path.name for path in found.files)
    lines = (tmp_path / "out" / "leaderboard" / "AX.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction" and [line.split("\t")[0] for line in lines[1:]] == ["0", "1", "2", "3"]
    model = load_task_model(load_model(mnli.out))
    said = verbs.predict(load_model(mnli.out), folder / "diagnostic" / "diagnostic.tsv", quiet=True)
    assert [line.split("\t")[1] for line in lines[1:]] == [one["prediction"] for one in said]
    assert set(model.recipe.task.labels or ()) == {"contradiction", "entailment", "neutral"}
    saved = json.loads((tmp_path / "out" / "glue.json").read_text())
    assert saved == json.loads(json.dumps(found.to_dict()))


def test_the_grid_is_that_of_the_paper_and_the_recipe_comes_first() -> None:
    recipe = load_recipe("glue-rte")
    every = grid(recipe, 1000)
    assert len(every) == 2 * 5 * 2 * 2 * 2 and every[0] == {}
    assert all(set(changes) == set(GRID) for changes in every[1:])
    assert len({tuple(changes.items()) for changes in every}) == 80
    assert grid(recipe, 3) == every[:3] and grid(recipe, 1) == [{}]
    assert grid(load_recipe("glue-rte", {"training.seed": 1}), 5) != every[:5]


def test_the_grid_chooses_by_the_value_of_the_papers_table() -> None:
    """UniLMv2, Table 3: accuracy, Matthews' correlation for CoLA, Pearson's for STS-B."""
    assert {name: task.selects for name, task in GLUE.items() if task.selects != "accuracy"} == {
        "cola": "matthews", "sts-b": "pearson", "ax": "matthews",
    }  # fmt: skip
    for name, task in GLUE.items():
        metrics = load_recipe(f"glue-{name}").task.metrics if name != "ax" else ["matthews"]
        assert metric(metrics[0]).headline == task.selects, name


def test_mnli_is_chosen_by_the_mean_of_both_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the grid and among the seeds, as the table of the papers has both parts."""
    for name in ("train", "dev_matched", "dev_mismatched"):
        table(tmp_path / "MNLI" / f"{name}.tsv", "sentence1", ["a"])
    parts = {("setting-0", 0): (90.0, 70.0), ("setting-0", 1): (90.0, 72.0),
             ("setting-1", 0): (85.0, 79.0), ("setting-1", 1): (87.0, 71.0)}  # fmt: skip

    def result(value: float) -> MetricResult:
        return MetricResult(metric="accuracy", values={"accuracy": value}, items=100, errors={"accuracy": 2.0})

    def seeds(*given: Any, **_: Any) -> Any:
        place = given[4]
        runs = [
            SimpleNamespace(
                out=place / str(seed), stopped_by=0, scores={"accuracy": result(parts[place.name, seed][0])}
            )
            for seed in range(2)
        ]
        return SimpleNamespace(runs=runs)

    monkeypatch.setattr("unicloze.finetuning.glue.finetune_seeds", seeds)
    monkeypatch.setattr(
        "unicloze.finetuning.glue._measured", lambda run, file: result(parts[run.out.parent.name, int(run.out.name)][1])
    )
    train, dev = tmp_path / "MNLI" / "train.tsv", tmp_path / "MNLI" / "dev_matched.tsv"
    start: Any = None
    found, best = _task(
        lambda task, changes: load_recipe(f"glue-{task}", changes),
        start,
        "mnli",
        train,
        dev,
        tmp_path / "out",
        2,
        2,
        False,
    )
    assert found is not None and found.out.name == "setting-0", "81 and 81.5 against 82 and 79"
    assert best.out.name == "1" and found.values == {"accuracy": 90.0, "mismatched": 71.0} and found.score == 80.5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the learning rate .* suits models of about")
def test_the_best_of_a_grid_is_kept(start: LoadedModel, tmp_path: Path) -> None:
    folder = glue(tmp_path / "glue") / "RTE"
    alone = tmp_path / "alone"
    alone.mkdir()
    folder.rename(alone / "RTE")
    quick = {key: value for key, value in QUICK.items() if key not in GRID}
    found = verbs.finetune("glue", start, alone, out=tmp_path / "out", grid_budget=2, quiet=True, overrides=quick)
    (task,) = found.tasks
    scores = []
    for number in range(2):
        results = json.loads((tmp_path / "out" / "RTE" / f"setting-{number}" / "results.json").read_text())
        scores.append(results["scores"]["accuracy"]["accuracy"]["mean"])
    assert task.tried == 2 and task.score == max(scores)
    assert task.out.name == f"setting-{scores.index(max(scores))}"
    second = load_recipe(tmp_path / "out" / "RTE" / "setting-1" / "recipe.yaml")
    wanted = grid(load_recipe("glue-rte"), 2)[1]
    assert second.training.learning_rate == wanted["training.learning_rate"]
    assert second.finetuning.epochs == wanted["finetuning.epochs"]


def test_what_makes_no_sense_is_refused(start: LoadedModel, tmp_path: Path) -> None:
    folder = glue(tmp_path / "glue")
    (tmp_path / "empty").mkdir()

    def refused(message: str, **given: Any) -> None:
        arguments = {"task": "glue", "model": start, "train": folder, "out": tmp_path / "out", "quiet": True}
        with pytest.raises((UsageError, UniclozeError), match=message):
            verbs.finetune(**{**arguments, **given})

    refused("holds no GLUE task: give a folder with some of the folders CoLA, SST-2", train=tmp_path / "empty")
    refused(r"option --dev: the folder --train holds the development file", dev=folder / "RTE" / "dev.tsv")
    refused(r"option --task\.labels differs between GLUE tasks", overrides={"task.labels": ["a", "b"]})
    refused(r"option --grid-budget: UniLM v1 gives no grid", task="glue-v1", grid_budget=2)
    refused(r"option --training\.learning_rate: --grid-budget searches it", grid_budget=2, overrides=QUICK)
    refused(r"option --grid-budget: only --task glue searches a grid", task="glue-rte", grid_budget=2)
