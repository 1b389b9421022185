"""The page about a fine-tuning run: a complete one, an unfinished one, several seeds, and every kind of answer."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corpora import write_corpus
from report_toys import Page
from unicloze import verbs
from unicloze.evaluation.metrics.registry import metric
from unicloze.evaluation.metrics.standard_errors import bootstrap_errors, standard_errors
from unicloze.finetuning.predict import SAMPLES, is_right, samples
from unicloze.records.record import Record
from unicloze.report.charts import by_class, confusion, deviations, lengths, scatter
from unicloze.report.history import TaskRun
from unicloze.report.page import build_report
from unicloze.tasks import task_settings

WORDS = ["a", "bc", "def", "gh", "ij", "klm", "no", "pq"]


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def pairs(count: int) -> list[dict[str, Any]]:
    return [
        {"text": f"<b>{WORDS[i % 4]}</b> {WORDS[i // 4 % 8]}", "label": "yes" if i * 7 % 3 else "<no>"}
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of a classification."""
    folder = tmp_path_factory.mktemp("task")
    overrides = {"data.corpus": [str(write_corpus(folder))], "tokenizer.vocab_size": 300}
    verbs.pretrain("quickstart", folder / "start", toy=True, quiet=True, overrides=overrides)
    train, dev = write(folder / "train.jsonl", pairs(16)), write(folder / "dev.jsonl", pairs(30))
    settings = {
        "finetuning.epochs": 3, "training.batch_size": 8, "training.learning_rate": 3e-3,
        "task.metrics": ["accuracy", "macro-f1"], "training.log_every": 1, "training.precision": "fp32",
    }  # fmt: skip
    verbs.finetune("classification", folder / "start", train, dev, folder / "runs", 2, quiet=True, overrides=settings)
    return folder / "runs"


@pytest.mark.whole
def test_the_page_shows_scores_and_answers(seeds: Path) -> None:
    path = build_report(seeds / "seed-0")
    text = path.read_text()
    page, run = Page(text), TaskRun.read(seeds / "seed-0")
    assert path == seeds / "seed-0" / "report.html"
    assert not re.search(r'(?:src|href)="(?!seed-|#)', text) and "<script" not in text
    accuracy = run.values("accuracy")["accuracy"]
    error = 100 * math.sqrt(accuracy / 100 * (1 - accuracy / 100) / 30)
    assert f"{accuracy:.2f}" in page.words and f"\u00b1 {error:.2f} standard error, 30 records" in page.words
    answers = [json.loads(line) for line in (seeds / "seed-0" / "dev_predictions.jsonl").read_text().splitlines()]
    assert [answer["reference"] for answer in answers] == [record["label"] for record in pairs(30)]
    assert sum(a["prediction"] == a["reference"] for a in answers) / 30 == pytest.approx(accuracy / 100)
    for right in ("yes", "<no>"):
        for said in ("yes", "<no>"):
            count = sum(a["prediction"] == said and a["reference"] == right for a in answers)
            assert f"{right} as {said}: {count} (" in page.words
    assert "<b>a</b> a" in page.words  # escaped, not interpreted
    assert text.count('<div class="answer ') == SAMPLES
    best = max(run.history.evaluations.values(), key=lambda event: event["headline"])
    assert run.best == best and f"best, step {best['step']}" in page.words
    assert text.count('class="mark"') == 3  # the loss and both metrics


@pytest.mark.whole
def test_the_predictions_file_measures_itself(seeds: Path) -> None:
    file = seeds / "seed-0" / "dev_predictions.jsonl"
    result = verbs.measure("accuracy", file, file)
    assert result.values == TaskRun.read(seeds / "seed-0").values("accuracy")


@pytest.mark.whole
def test_several_seeds_have_one_page_with_mean_and_spread(seeds: Path) -> None:
    page = Page(build_report(seeds).read_text())
    values = [TaskRun.read(seeds / name).values("accuracy")["accuracy"] for name in ("seed-0", "seed-1")]
    assert f"{np.mean(values):.2f} \u00b1 {np.std(values, ddof=1):.2f}" in page.words
    links = [href for tag, attributes in page.tags if tag == "a" and not (href := attributes["href"]).startswith("#")]
    assert links == ["seed-0/report.html", "seed-1/report.html"]
    assert all((seeds / str(link)).is_file() for link in links)
    assert "over all 2 seeds" in page.words


@pytest.mark.whole
def test_the_page_of_all_seeds_links_from_where_it_is_and_waits_for_those_to_start(seeds: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(seeds, folder)
    (folder / "seed-2").mkdir()
    (folder / "seed-2" / "ledger.jsonl").touch()
    page = Page(build_report(folder, tmp_path / "all.html").read_text())
    links = [href for tag, attributes in page.tags if tag == "a" and not (href := attributes["href"]).startswith("#")]
    assert links == ["runs/seed-0/report.html", "runs/seed-1/report.html"] and "over all 2 seeds" in page.words


@pytest.mark.parametrize("kept", [1, 3, 6])
def test_a_run_that_was_killed_has_a_page(seeds: Path, tmp_path: Path, kept: int) -> None:
    lines = (seeds / "seed-0" / "ledger.jsonl").read_text().splitlines()
    (tmp_path / "ledger.jsonl").write_text("\n".join(lines[:kept]) + '\n{"event": "st')
    (tmp_path / "dev_predictions.jsonl").write_text('{"id": "0", "predic')
    page = Page(build_report(tmp_path).read_text())
    assert "still running, or killed" in page.words
    assert ("No predictions are kept" in page.words) and ("No samples are kept" in page.words)


def test_every_label_of_a_matrix_has_its_row_and_unknown_ones_come_last() -> None:
    chart = Page(confusion(["a", "b", "x"], ["a", "a", "b"], ["b", "a"]))
    names = [text for text in chart.texts if text in ("a", "b", "x")]
    assert names == ["b", "b", "a", "a", "x", "x"]
    assert "a as b: 1 (50.0%)" in chart.words and "b as x: 1 (100.0%)" in chart.words
    many = [str(number) for number in range(50)]
    listed = Page(confusion([*many[1:], "0"], many, many)).words
    assert "most frequent confusions" in listed and confusion([], [], ["a"]).startswith("<p")


def test_classes_have_precision_recall_and_f1() -> None:
    words = Page(by_class(["a", "a", "b", "b"], ["a", "b", "b", "b"], ["a", "b"])).words
    assert "a 1 50.0 100.0 66.7" in words and "b 3 100.0 66.7 80.0" in words


def test_quantities_are_dots_and_their_deviations() -> None:
    assert scatter([1.0, 2.0, math.nan], [1.0, 3.0, 2.0]).count("<circle") == 2
    assert scatter([1.0] * 9000, list(range(9000))).count("<circle") == 3000
    assert scatter([2.0], [2.0]).count("<circle") == 1
    words = Page(deviations([1.0, 4.0], [2.0, 2.0])).words
    assert "mean absolute error 1.5" in words and "root mean squared error 1.581" in words


@pytest.mark.parametrize("odd", [math.nan, math.inf, 1e308, -1.7e308])
def test_a_quantity_that_cannot_be_drawn_is_counted_and_left_out(odd: float) -> None:
    whole = [1.0, 4.0, 2.5], [2.0, 2.0, 3.0]
    note = '<p class="note">1 value left out: infinite, undefined or too large</p>'
    for chart in (scatter, deviations):
        for said, right in (([*whole[0], odd], [*whole[1], 0.0]), ([*whole[0], 0.0], [*whole[1], odd])):
            assert chart(said, right) == chart(*whole) + note
        assert "Nothing to compare" in chart([odd], [odd])
        assert not re.search(r"\b(nan|inf)\b", chart([1e300, -1e300], [-1e300, 1e300]))


def test_seeds_of_which_one_is_infinite_have_a_mean_and_no_deviation(tmp_path: Path) -> None:
    for number, value in enumerate((2.0, math.inf)):
        task = {"kind": "generation", "metrics": ["loss"]}
        start = {"event": "start", "step": 0, "time": 0.0, "recipe": {"name": "r", "task": task}}
        results = {"loss": {"values": {"perplexity": value}, "units": {"perplexity": ""}}}
        found = {"event": "evaluate", "step": 1, "time": 1.0, "headline": 1.0, "results": results}
        (tmp_path / f"seed-{number}").mkdir()
        write(tmp_path / f"seed-{number}" / "ledger.jsonl", [start, found])
    words = Page(build_report(tmp_path).read_text()).words
    assert "perplexity, mean and deviation inf 2 seeds, 2 to inf" in words and "mean and deviation inf" in words
    found["results"]["loss"]["values"]["perplexity"] = math.nan
    write(tmp_path / "seed-1" / "ledger.jsonl", [start, found])
    words = Page(build_report(tmp_path).read_text()).words
    assert "perplexity, mean and deviation 2 1 of 2 seeds, 2 to 2" in words


def test_the_page_of_a_regression_that_diverged(tmp_path: Path) -> None:
    task = {"kind": "regression", "metrics": ["correlation"]}
    start = {"event": "start", "step": 0, "time": 0.0, "recipe": {"name": "r", "task": task}}
    (tmp_path / "ledger.jsonl").write_text(json.dumps(start) + "\n")
    said = [1.0, math.nan, 1e308, None, "x", 2.0]
    write(
        tmp_path / "dev_predictions.jsonl",
        [{"id": i, "prediction": one, "reference": 1.0} for i, one in enumerate(said)],
    )
    page = Page(build_report(tmp_path).read_text())
    assert "4 values left out: infinite, undefined or too large" in page.words
    assert "mean absolute error 0.5" in page.words


def test_lengths_are_counted_in_bins() -> None:
    words = Page(lengths([0, 1, 2, 2], [2, 2, 30, 31])).words
    told = dict(re.findall(r"(\d+ to \d+ words: )(\d+) predicted", words))
    assert sum(map(int, told.values())) == 4
    assert "30 to 31 words: 2 gold" in words or "30 to 34 words: 2 gold" in words
    Page(lengths([0], [0]))


def answered(said: list[Any], right: list[Any]) -> tuple[list[dict[str, Any]], list[Record]]:
    answers = [
        {"id": str(i), "prediction": s, "reference": r} for i, (s, r) in enumerate(zip(said, right, strict=True))
    ]
    return answers, [Record(str(i), {"text": f"t{i}", "label": r}, "") for i, r in enumerate(right)]


def test_samples_show_the_wrong_ones_first() -> None:
    labels = task_settings(kind="classification", metrics=["accuracy"])
    said = ["a" if number % 4 else "b" for number in range(100)]
    found = samples(*answered(said, ["a"] * 100), labels)
    assert [sample["right"] for sample in found] == [False] * 12 + [True] * 8
    assert found[0]["fields"] == {"text": "t0"} and len({s["id"] for s in found}) == SAMPLES
    few = samples(*answered(["a", "b", "a"], ["a", "a", "a"]), labels)
    assert [sample["id"] for sample in few] == ["1", "0", "2"]
    all_wrong = samples(*answered(["b"] * 30, ["a"] * 30), labels)
    assert len(all_wrong) == SAMPLES
    quantities = task_settings(kind="regression", metrics=["correlation"])
    far = samples(*answered([float(i * i) for i in range(40)], [0.0] * 40), quantities)
    assert [sample["id"] for sample in far[:3]] == ["39", "38", "37"] and all(s["right"] is None for s in far)


def test_what_is_right() -> None:
    assert is_right("c", ["b", "c"]) and is_right("", []) and not is_right("c", [])
    assert is_right("The C.", ["b", "c"]) and is_right("the", ["b", "The"]) is False, "as SQuAD's script compares"
    assert is_right(["B", "O"], ["B", "O"]) and is_right(1, "1") and is_right(2.0, 1.0) is None


@pytest.mark.whole
def test_standard_errors_fit_the_metric() -> None:
    said, right = ["1", "0", "1", "1", "0", "1"] * 20, ["1", "1", "1", "0", "0", "1"] * 20
    f1 = standard_errors("f1", said, right)
    assert f1 == bootstrap_errors(metric("f1"), said, right, samples=200)
    texts = [f"{word} b c" for word in WORDS], [[f"{word} d {'c' * (number % 2)}"] for number, word in enumerate(WORDS)]
    alone = [metric("rouge")([p], [r]).values["rouge1"] for p, r in zip(*texts, strict=True)]
    assert standard_errors("rouge", *texts)["rouge1"] == pytest.approx(np.std(alone, ddof=1) / math.sqrt(8))
    long = [f"{text} e f g h" for text in texts[0]], [[f"{one[0]} e f g h"] for one in texts[1]]
    assert "rouge_l" in standard_errors("coco", *long) and "bleu_4" not in standard_errors("coco", *long)  # no mean
    assert standard_errors("bleu", *long) == {}
    squad = standard_errors("squad", ["a", "b", ""], [["a"], ["a"], []])
    assert squad["exact"] == pytest.approx(100 * np.std([1, 0, 1], ddof=1) / math.sqrt(3))


def test_the_page_says_when_the_likeliest_checkpoint_is_kept(tmp_path: Path) -> None:
    """By the mark of the evaluation, not by the highest value, as the trainer keeps it."""
    start = {"event": "start", "step": 0, "recipe": {"task": {"kind": "classification", "metrics": ["accuracy"]}}}
    evaluations = [
        {"event": "evaluate", "step": step, "headline": value, "kept": kept,
         "results": {"accuracy": {"metric": "accuracy", "values": {"accuracy": value}, "items": 9}}}
        for step, value, kept in ((0, 60.0, True), (4, 62.0, False))
    ]  # fmt: skip
    lines = [json.dumps({"schema": 1, "time": 0.0, **event}) for event in (start, *evaluations)]
    (tmp_path / "ledger.jsonl").write_text("\n".join(lines) + "\n")
    run = TaskRun.read(tmp_path)
    assert run.best_step == 0 and run.values("accuracy") == {"accuracy": 60.0}
    words = Page(build_report(tmp_path).read_text()).words
    assert "selected the best checkpoint, the likeliest of those within a standard error of its highest." in words
