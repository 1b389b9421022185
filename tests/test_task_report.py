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

from nlu_toys import start, write
from report_toys import Page
from unicloze import verbs
from unicloze.evaluation.metrics.registry import bootstrap_errors, metric, standard_errors
from unicloze.evaluation.metrics.result import MetricResult
from unicloze.finetuning.scores import SAMPLES, is_right, samples
from unicloze.finetuning.seeds import OverSeeds
from unicloze.records.record import Record
from unicloze.report.history import History
from unicloze.report.page import build_report
from unicloze.tasks import task_settings

WORDS = ["a", "bc", "def", "gh", "ij", "klm", "no", "pq"]


def pairs(count: int) -> list[dict[str, Any]]:
    return [
        {"text": f"<b>{WORDS[i % 4]}</b> {WORDS[i // 4 % 8]}", "label": "yes" if i * 7 % 3 else "<no>"}
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of a classification."""
    folder = tmp_path_factory.mktemp("task")
    train, dev = write(folder / "train.jsonl", pairs(16)), write(folder / "dev.jsonl", pairs(30))
    settings = {
        "finetuning.epochs": 3, "training.batch_size": 8, "training.learning_rate": 3e-3,
        "task.metrics": ["accuracy", "macro-f1"], "training.log_every": 1, "training.precision": "fp32",
    }  # fmt: skip
    verbs.finetune("classification", start(), train, dev, folder / "runs", 2, quiet=True, overrides=settings)
    return folder / "runs"


def begun(folder: Path, kind: str, metric: str, *events: dict[str, Any]) -> Path:
    """The ledger of a run of a task, with these events after its start."""
    start = {"event": "start", "recipe": {"name": "r", "task": {"kind": kind, "metrics": [metric]}}}
    folder.mkdir(exist_ok=True)
    write(folder / "ledger.jsonl", [{"schema": 1, "step": 0, "time": 0.0, **event} for event in (start, *events)])
    return folder


def links(page: Page) -> list[str]:
    return [link for link in page.all("href") if not link.startswith("#")]


@pytest.mark.whole
def test_the_page_shows_scores_and_answers(seeds: Path) -> None:
    path = build_report(seeds / "seed-0")
    text = path.read_text()
    page, run = Page(text), History.read(seeds / "seed-0")
    assert len(run.rivals) == 2 and all(rival["name"] in page.words for rival in run.rivals)
    assert f"{run.values('calibration')['ece']:.2f}" in text
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
            assert any(told.startswith(f"{right} as {said}: {count} (") for told in page.all("title"))
    assert "<b>a</b> a" in page.words  # escaped, not interpreted
    assert text.count('<div class="answer ') == SAMPLES
    best = max(run.evaluations.values(), key=lambda event: event["headline"])
    assert run.best == best and f"best, step {best['step']}" in page.words
    assert text.count('class="mark"') == 3  # the loss and both metrics


@pytest.mark.whole
def test_several_seeds_have_one_page_with_mean_and_spread(seeds: Path) -> None:
    page = Page(build_report(seeds).read_text())
    values = [History.read(seeds / name).values("accuracy")["accuracy"] for name in ("seed-0", "seed-1")]
    assert f"{np.mean(values):.2f} \u00b1 {np.std(values, ddof=1):.2f}" in page.words
    assert links(page) == ["seed-0/report.html", "seed-1/report.html"]
    assert all((seeds / link).is_file() for link in links(page))
    assert "over 2 seeds" in page.words
    runs = [History.read(seeds / name) for name in ("seed-0", "seed-1")]
    assert all(rival["name"] in page.words for rival in runs[0].rivals)
    assert all(f"{run.values('calibration')['ece']:.2f}" in page.words for run in runs)


@pytest.mark.whole
def test_the_card_of_an_export_says_what_its_rivals_reach(seeds: Path, tmp_path: Path) -> None:
    verbs.export(seeds / "seed-0", "package", tmp_path / "out")
    card, run = (tmp_path / "out" / "README.md").read_text(), History.read(seeds / "seed-0")
    for name, event in [("", run.best), *((f"of {rival['name']}: ", rival) for rival in run.rivals)]:
        value = run.values("accuracy", event)["accuracy"]
        assert f"| {name}accuracy on 30 records" in card and f"| {value:.2f} % |" in card


def test_small_values_are_shown_and_percents_have_two_digits() -> None:
    result = MetricResult(metric="loss", values={"mse": 0.00312, "accuracy": 50}, items=2, units={"mse": ""})
    assert [result.shown(name) for name in result.values] == ["0.00312", "50.00"]
    assert OverSeeds.of([0.001, 0.003]).shown("s") == "0.002 \u00b1 0.001414 s"
    assert str(OverSeeds.of([50.0])) == "50.00"


@pytest.mark.whole
def test_the_page_of_all_seeds_links_from_where_it_is_and_waits_for_those_to_start(seeds: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(seeds, folder)
    (folder / "seed-2").mkdir()
    (folder / "seed-2" / "ledger.jsonl").touch()
    page = Page(build_report(folder, tmp_path / "all.html").read_text())
    assert links(page) == ["runs/seed-0/report.html", "runs/seed-1/report.html"] and "over 2 seeds" in page.words
    ledger = folder / "seed-1" / "ledger.jsonl"
    ledger.write_text("".join(line for line in ledger.read_text().splitlines(True) if '"event": "end"' not in line))
    stopped = Page(build_report(folder).read_text())
    assert "2 seeds, 1 of them ended" in stopped.words and "1 of 2 seeds" in stopped.words


@pytest.mark.parametrize("kept", [1, 3, 6])
def test_a_run_that_was_killed_has_a_page(seeds: Path, tmp_path: Path, kept: int) -> None:
    lines = (seeds / "seed-0" / "ledger.jsonl").read_text().splitlines()
    (tmp_path / "ledger.jsonl").write_text("\n".join(lines[:kept]) + '\n{"event": "st')
    (tmp_path / "dev_predictions.jsonl").write_text('{"id": "0", "predic')
    page = Page(build_report(tmp_path).read_text())
    assert "still running, or killed" in page.words
    assert ("No predictions are kept" in page.words) and ("No samples are kept" in page.words)


def test_seeds_of_which_one_is_infinite_have_a_mean_and_no_deviation(tmp_path: Path) -> None:
    for first, second, said in (
        (2.0, math.inf, "perplexity, mean and deviation inf 2 seeds, 2 to inf"),
        (2.0, math.nan, "perplexity, mean and deviation 2 1 of 2 seeds, 2 to 2"),
    ):
        for number, value in enumerate((first, second)):
            results = {"loss": {"values": {"perplexity": value}, "units": {"perplexity": ""}}}
            found = {"event": "evaluate", "step": 1, "headline": 1.0, "results": results}
            begun(tmp_path / f"seed-{number}", "generation", "loss", found)
        assert said in Page(build_report(tmp_path).read_text()).words


def test_the_page_of_a_regression_that_diverged(tmp_path: Path) -> None:
    said = [1.0, math.nan, 1e308, None, "x", 2.0]
    answers = [{"id": number, "prediction": one, "reference": 1.0} for number, one in enumerate(said)]
    write(begun(tmp_path, "regression", "correlation") / "dev_predictions.jsonl", answers)
    page = Page(build_report(tmp_path).read_text())
    assert "4 values left out: infinite, undefined or too large" in page.words
    assert "mean absolute error 0.5" in page.words


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
    assert found[0]["fields"] == {"text": "t0"} and len({s["id"] for s in found}) == SAMPLES == 20
    few = samples(*answered(["a", "b", "a"], ["a", "a", "a"]), labels)
    assert [sample["id"] for sample in few] == ["1", "0", "2"]
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
    evaluations = [
        {"event": "evaluate", "step": step, "headline": value, "kept": kept,
         "results": {"accuracy": {"metric": "accuracy", "values": {"accuracy": value}, "items": 9}}}
        for step, value, kept in ((0, 60.0, True), (4, 62.0, False))
    ]  # fmt: skip
    begun(tmp_path, "classification", "accuracy", *evaluations)
    run = History.read(tmp_path)
    assert run.best_step == 0 and run.values("accuracy") == {"accuracy": 60.0}
    words = Page(build_report(tmp_path).read_text()).words
    assert "selected the best checkpoint, by likelihood within two standard errors of its highest." in words
