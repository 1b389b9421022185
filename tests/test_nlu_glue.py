"""GLUE: its files, its recipes, the files for its server."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest

from nlu_toys import finetuned, recipe_for
from unicloze import verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.metrics.registry import METRICS, binomial_error, metric
from unicloze.evaluation.metrics.result import MetricResult
from unicloze.finetuning.predict import as_glue
from unicloze.finetuning.run import FinetuneResult
from unicloze.finetuning.seeds import GLUE, GRID, FinetuneSummary, _task, grid
from unicloze.recipes import load_recipe, task_names
from unicloze.records import FORMATS, read_records
from unicloze.records.published import LAYOUTS
from unicloze.records.record import Record
from unicloze.tasks import TASKS, task_settings
from unicloze.training.loading import LoadedModel, load_model

MNLI = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
)


def read(folder: Path, task: str, content: str, name: str = "train.tsv") -> list[Record]:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return read_records(path, task_settings(kind="classification", format=f"glue-{task}"))


@pytest.mark.parametrize(("task", "content", "text", "pair", "label", "name"), [
    ("cola", 'gj04\t0\t*\tHe said "no.\n', 'He said "no.', None, "0", "0"),
    ("cola", "index\tsentence\n7\tBill ran.\n", "Bill ran.", None, None, "7"),
    ("sst-2", "sentence\tlabel\nso good \t1\n", "so good ", None, "1", "0"),
    ("sst-2", "index\tsentence\n3\tso good\n", "so good", None, None, "3"),
    ("mrpc", "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t70\t71\tA a.\tB \"b\".\r\n",
     "A a.", 'B "b".', "1", "0"),
    ("mrpc", "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n5\t70\t71\tA\tB\n", "A", "B", None, "5"),
    ("sts-b", "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
     "2\tg\tf\t2012\t1\tnone\tnone\tA plane\tA jet\t4.25\n", "A plane", "A jet", "4.25", "2"),
    ("sts-b", "g\tf\t2012\t0001\t5.000\tA plane\tA jet\n", "A plane", "A jet", "5.000", "0"),
    ("sts-b", "g\tf\t2012\t0001\t5.000\tA plane\tA jet\tone\ttwo\n", "A plane", "A jet", "5.000", "0"),
    ("qqp", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n9\t1\t2\tHow?\tWhy?\t0\n", "How?", "Why?", "0", "9"),
    ("qqp", "id\tquestion1\tquestion2\n4\tHow?\tWhy?\n", "How?", "Why?", None, "4"),
    ("mnli", f"{MNLI}\tsentence1\tsentence2\tlabel1\tgold_label\n0\t1\t1n\tg\ta\tb\tc\td\tP.\tH.\tneutral\tentailment\n",
     "P.", "H.", "entailment", "0"),
    ("mnli", f"{MNLI}\tsentence1\tsentence2\n8\t1\t1n\tg\ta\tb\tc\td\tP.\tH.\n", "P.", "H.", None, "8"),
    ("mnli", "index\tsentence1\tsentence2\n1\tP.\tH.\n", "P.", "H.", None, "1"),  # AX
    ("mnli", "Lexical Semantics\tLogic\tDomain\tPremise\tHypothesis\tLabel\n\t\tnews\tP.\tH.\tneutral\n",
     "P.", "H.", "neutral", "0"),  # AX with its labels
    ("qnli", "index\tquestion\tsentence\tlabel\n0\tWho?\tHe.\tentailment\n", "Who?", "He.", "entailment", "0"),
    ("qnli", "index\tquestion\tsentence\n6\tWho?\tHe.\n", "Who?", "He.", None, "6"),
    ("rte", "index\tsentence1\tsentence2\tlabel\n0\tP.\tH.\tnot_entailment\n", "P.", "H.", "not_entailment", "0"),
    ("wnli", "index\tsentence1\tsentence2\tlabel\n0\tP.\tH.\t1\n", "P.", "H.", "1", "0"),
])  # fmt: skip
def test_the_files_of_every_task(
    tmp_path: Path, task: str, content: str, text: str, pair: str | None, label: str | None, name: str
) -> None:
    (record,) = read(tmp_path, task, content)
    settings = task_settings(kind="classification")
    found = [record.get(settings, role) for role in ("text", "pair", "label")]
    assert (found, record.id) == ([text, pair, label], name)


@pytest.mark.parametrize(("task", "content", "message"), [
    ("cola", "gj04\t0\t*\tHe ran.\ngj04\t0\tHe ran.\n", r"line 2: 3 columns where 4 are expected: mend"),
    ("sts-b", "g\tf\t2012\t1\t5.000\tA\tB\ng\tf\n", r"line 2: 2 columns where 7 or 9 are expected"),
    ("rte", "index\tsentence1\tsentence2\tlabel\n0\tP.\tH.\n", r"line 2: 3 columns where 4 are expected"),
    ("rte", "0\tP.\tH.\tentailment\n", r"line 1: the columns 0, P., H., entailment are not those of GLUE's rte"),
    ("rte", "index\tsentence1\tlabel\n0\tP.\tentailment\n", r"not those of GLUE's rte: its header names sentence1 and"),
    ("qqp", "id\tquestion1\tquestion2\n4\tHow?\n", r"line 2: 2 columns where 3 are expected"),
    ("sst-2", "\n\n", r"contains no records"),
])  # fmt: skip
def test_a_file_that_does_not_fit_the_task_is_named(tmp_path: Path, task: str, content: str, message: str) -> None:
    with pytest.raises(UniclozeError, match=message):
        read(tmp_path, task, content)


def test_the_broken_lines_of_qqp_are_left_out_and_named(tmp_path: Path) -> None:
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    with pytest.warns(UserWarning, match=r"train.tsv: 1 broken lines are skipped \(3\)"):
        records = read(tmp_path, "qqp", f'{header}9\t1\t2\tHow?\tWhy?\t0\n"\tWhy? What?\t0\n8\t1\t2\tHow?\tWho?\t1\n')
    assert [record.id for record in records] == ["9", "8"]


@pytest.mark.whole
@pytest.mark.parametrize(("task", "file", "count", "positive"), [
    ("cola", "CoLA/train.tsv.gz", 8551, 6023), ("cola", "CoLA/dev_in.tsv.gz", 527, 365),
    ("cola", "CoLA/dev_out.tsv.gz", 516, 354),
    ("mrpc", "MRPC/msr_paraphrase_train.tsv.gz", 4076, 2753), ("mrpc", "MRPC/msr_paraphrase_test.tsv.gz", 1725, 1147),
    ("rte", "RTE/train.tsv.gz", 2490, 1249), ("rte", "RTE/dev.tsv.gz", 277, 146),
    ("sst-2", "SST-2/train.tsv.gz", 60614, 33828), ("sst-2", "SST-2/dev.tsv.gz", 6735, 3741),
    ("sst-2", "SST-2/test.tsv.gz", 872, 444),
    ("sts-b", "STS-B/sts-train.csv.gz", 5749, None), ("sts-b", "STS-B/sts-dev.csv.gz", 1500, None),
    ("sts-b", "STS-B/sts-test.csv.gz", 1379, None),
])  # fmt: skip
def test_the_real_files_are_read_whole(
    shared_data: Path, task: str, file: str, count: int, positive: int | None
) -> None:
    settings = task_settings(kind="classification", format=f"glue-{task}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        records = read_records(shared_data / "glue" / file, settings)
    assert len(records) == count
    assert all(record.text(settings, "text").strip() for record in records)
    assert not LAYOUTS[task].pair or all(record.text(settings, "pair").strip() for record in records)
    labels = [record.text(settings, "label") for record in records]
    if positive is None:
        assert all(0 <= float(label) <= 5 for label in labels)
    else:
        assert sum(label in ("1", "entailment") for label in labels) == positive
        assert set(labels) == set(load_recipe(f"glue-{task}").task.labels or ())


# Recipes


@pytest.mark.parametrize("name", task_names())
def test_a_task_recipe_names_the_source_of_its_values(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.task.kind in TASKS and all((recipe.provenance.paper, recipe.provenance.place))
    assert recipe.task.format == "auto" or recipe.task.format in FORMATS
    assert set(recipe.task.metrics) <= set(METRICS)
    assert set(recipe.task.fields) <= {*TASKS[recipe.task.kind].roles, "id"}


UNILM_V1_TABLE_8 = {"cola": "matthews", "mrpc": "f1", "qqp": "f1", "sts-b": "correlation"}
"""The metric of what it reports for each task; accuracy for all others."""


@pytest.mark.parametrize("task", LAYOUTS)
def test_the_recipes_of_glue_are_those_of_both_papers(task: str) -> None:
    second, first = load_recipe(f"glue-{task}"), load_recipe(f"glue-{task}-v1")
    for recipe in (first, second):
        assert (recipe.task.format, recipe.task.head) == (f"glue-{task}", "plain")
        assert recipe.task.kind == ("regression" if task == "sts-b" else "classification")
        assert (recipe.training.schedule, recipe.finetuning.warmup_share) == ("linear", 0.1)
        first_of_v2 = task == "sts-b" and recipe is second
        assert ("pearson" if first_of_v2 else UNILM_V1_TABLE_8.get(task, "accuracy")) in recipe.task.metrics
        assert len(getattr(recipe.task, "labels", ())) == {"mnli": 3, "sts-b": 0}.get(task, 2)
    training = second.training
    assert training.batch_size in (16, 32) and training.learning_rate in (5e-6, 1e-5, 1.5e-5, 2e-5, 3e-5)  # Table 9
    assert training.weight_decay in (0.01, 0.1) and second.finetuning.epochs in (10, 15)
    training = first.training
    assert (training.optimizer, training.learning_rate, training.batch_size) == ("adamax", 5e-5, 32)  # Section 3.5
    assert (first.finetuning.epochs, training.clip_norm, first.task.max_length) == (5, 1.0, 512)
    assert first.task.head_dropout == {"mnli": 0.3, "cola": 0.05, "sst-2": 0.05}.get(task, 0.1)


# From a file to a submission


def test_from_the_files_of_a_task_to_its_submission(bert: LoadedModel, tmp_path: Path) -> None:
    words, header = ["anna", "carl", "eva", "fargo"], "index\tsentence1\tsentence2"
    labels = ["not_entailment" if i // 4 in (0, 3) else "entailment" for i in range(16)]
    lines = [f"{i}\t{words[i % 4]} sees\t{words[i // 4]}" for i in range(16)]
    train, test = tmp_path / "train.tsv", tmp_path / "test.tsv"
    train.write_text("\n".join([f"{header}\tlabel", *(f"{a}\t{b}" for a, b in zip(lines, labels, strict=True))]))
    test.write_text("\n".join([header, *lines]))
    recipe = recipe_for(bert, "glue-rte-v1", training__learning_rate=1e-2, task__head_dropout=0.0)
    result = finetuned(recipe, bert, train, train, tmp_path / "run")
    accuracy = result.scores["accuracy"]
    assert accuracy.values["accuracy"] == 100 and accuracy.errors["accuracy"] == binomial_error(100, 16) == 0
    verbs.predict(tmp_path / "run", test, out=tmp_path / "RTE.tsv", format="glue", quiet=True)
    sent = (tmp_path / "RTE.tsv").read_text().splitlines()
    assert sent == ["index\tprediction", *(f"{i}\t{label}" for i, label in enumerate(labels))]
    with pytest.raises(UsageError, match="format is 'csv': give one of jsonl, json, glue"):
        verbs.predict(tmp_path / "run", test, format="csv", quiet=True)


def test_quantities_and_other_predictions_as_glue() -> None:
    assert as_glue([{"id": "3", "prediction": 2.34567}]) == "index\tprediction\n3\t2.346\n"
    with pytest.raises(UsageError, match="the prediction of 3 is not a class"):
        as_glue([{"id": "3", "prediction": ["O"]}])


# All GLUE tasks in a folder: scores with standard errors, the grid, and the files for the benchmark's server.


QUICK: dict[str, Any] = {
    "training.device": "cpu", "training.precision": "fp32", "training.learning_rate": 1e-2, "training.batch_size": 8,
    "finetuning.epochs": 2, "task.max_length": 24,
}  # fmt: skip
WORDS = ["anna", "carl", "eva", "fargo"]


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
def test_the_tasks_that_are_there_give_a_score_and_files_for_the_server(bert: LoadedModel, tmp_path: Path) -> None:
    folder = glue(tmp_path / "glue")
    with pytest.warns(UserWarning, match="CoLA has no development file: skipping CoLA"):
        found = verbs.finetune("glue", bert, folder, out=tmp_path / "out", quiet=True, overrides=QUICK)
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
    model = load_model(mnli.out)
    said = verbs.predict(model, folder / "diagnostic" / "diagnostic.tsv", quiet=True)
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
        "cola": "matthews", "sts-b": "pearson",
    }  # fmt: skip
    for name, task in GLUE.items():
        assert metric(load_recipe(f"glue-{name}").task.metrics[0]).headline == task.selects, name


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
            FinetuneResult(place / str(seed), 1, 1, 0, {"accuracy": result(parts[place.name, seed][0])})
            for seed in range(2)
        ]
        return FinetuneSummary(place, runs, {})

    monkeypatch.setattr("unicloze.finetuning.seeds.finetune_seeds", seeds)
    monkeypatch.setattr(
        "unicloze.finetuning.seeds._measured",
        lambda run, file: result(parts[run.out.parent.name, int(run.out.name)][1]),
    )
    train, dev = tmp_path / "MNLI" / "train.tsv", tmp_path / "MNLI" / "dev_matched.tsv"

    def recipe_of(task: str, changes: Any) -> Any:
        return load_recipe(f"glue-{task}", changes)

    start: Any = None
    found, best = _task(recipe_of, start, "mnli", (train, dev), tmp_path / "out", 2, seeds=2, progress=False)
    assert found is not None and found.out.name == "setting-0", "81 and 81.5 against 82 and 79"
    assert best.out.name == "1" and found.values == {"accuracy": 90.0, "mismatched": 71.0} and found.score == 80.5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the learning rate .* suits models of about")
def test_the_best_of_a_grid_is_kept(bert: LoadedModel, tmp_path: Path) -> None:
    folder = glue(tmp_path / "glue") / "RTE"
    alone = tmp_path / "alone"
    alone.mkdir()
    folder.rename(alone / "RTE")
    quick = {key: value for key, value in QUICK.items() if key not in GRID}
    found = verbs.finetune("glue", bert, alone, out=tmp_path / "out", grid_budget=2, quiet=True, overrides=quick)
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


def test_what_makes_no_sense_is_refused(bert: LoadedModel, tmp_path: Path) -> None:
    folder = glue(tmp_path / "glue")
    (tmp_path / "empty").mkdir()

    def refused(message: str, **given: Any) -> None:
        arguments = {"task": "glue", "model": bert, "train": folder, "out": tmp_path / "out", "quiet": True}
        with pytest.raises((UsageError, UniclozeError), match=message):
            verbs.finetune(**{**arguments, **given})

    refused("holds no GLUE task: give a folder with some of the folders CoLA, SST-2", train=tmp_path / "empty")
    refused(r"option --dev: the folder --train holds the development file", dev=folder / "RTE" / "dev.tsv")
    refused(r"option --task\.labels differs between GLUE tasks", overrides={"task.labels": ["a", "b"]})
    refused(r"option --grid-budget: UniLM v1 gives no grid", task="glue-v1", grid_budget=2)
    refused(r"option --training\.learning_rate: --grid-budget searches it", grid_budget=2, overrides=QUICK)
    refused(r"option --grid-budget: only --task glue searches a grid", task="glue-rte", grid_budget=2)
