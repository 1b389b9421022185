"""Fine-tuning with few labels beside what a user would take instead: TF-IDF, and frozen vectors with logistic regression.

    python benchmarks/few_labels.py --model DIR --data FOLDER --out FILE [--sets textbooks questions kinds]
        [--labels 8 16 32 80 400]
        [--classes 8] [--test-records 2000] [--seeds 1] [--device auto] [--page FILE]
    python benchmarks/few_labels.py                                             # only the table, of what is measured

FOLDER has `text/openstax_train.jsonl.gz`, `qa/squad-dev-v1.1.from-explorer.json.gz` and `qa/fairytaleqa_train.jsonl.gz`
with its `val`. A sentence of a textbook is to be assigned to its book (training and test sentences are of other sections),
a question to its article, and a question about a fairy tale to the kind of answer that it asks for (training and test
questions are of other tales). The development file has as many records as the training file; classes with fewer records
than both need are left out. FILE gets one JSON line for each run; the same command continues after an interruption, prints
the table and writes it into the page.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import importlib
import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from frame import options, parsed, show
from json_lines import against, cell, once, read_lines
from unicloze import verbs
from unicloze.evaluation.metrics.labels import calibration
from unicloze.evaluation.metrics.result import MetricResult
from unicloze.finetuning.data import open_records
from unicloze.finetuning.predict import predict
from unicloze.finetuning.scores import measure
from unicloze.interop.read import open_model
from unicloze.records.record import Record
from unicloze.settings import Recipe
from unicloze.tasks import TASKS, task_settings

RESULTS = Path(__file__).parent / "results" / "few_labels.jsonl"
Rows = list[dict[str, str]]


def textbooks(folder: Path, test: bool) -> Rows:
    """Sentences of 60 to 240 characters with their books, of every third section for the test."""
    found: Rows = []
    with gzip.open(folder / "text" / "openstax_train.jsonl.gz", "rt", encoding="utf-8") as file:
        for number, line in enumerate(file):
            if (number % 3 == 0) == test:
                section = json.loads(line)
                sentences = [one.strip() for one in section["text"].split(". ")]
                found += [{"text": one, "label": section["book"]} for one in sentences if 60 <= len(one) <= 240]
    return found


def questions(folder: Path, test: bool) -> Rows:
    """Questions with their articles, of every third paragraph for the test."""
    with gzip.open(folder / "qa" / "squad-dev-v1.1.from-explorer.json.gz", "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    return [
        {"text": question["question"], "label": article["title"]}
        for article in articles
        for number, paragraph in enumerate(article["paragraphs"])
        if (number % 3 == 0) == test
        for question in paragraph["qas"]
    ]


def kinds(folder: Path, test: bool) -> Rows:
    """Questions about fairy tales with the kind of answer they ask for, of the validation file for the test."""
    name = f"fairytaleqa_{'val' if test else 'train'}.jsonl.gz"
    with gzip.open(folder / "qa" / name, "rt", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    return [{"text": record["question"], "label": record["attribute"]} for record in records]


SETS = {"textbooks": textbooks, "questions": questions, "kinds": kinds}


def frequent(rows: Rows, count: int, classes: int) -> list[str]:
    """The most frequent classes that have `count` rows."""
    counts = Counter(sorted(row["label"] for row in rows))
    return [label for label, rows_of in counts.most_common(classes) if rows_of >= count]


def drawn(rows: Rows, names: Sequence[str], count: int, seed: int) -> Rows:
    """`count` rows of each class, drawn without replacement."""
    rng = np.random.default_rng(seed)
    of = {name: [row for row in rows if row["label"] == name] for name in names}
    return [of[name][place] for name in names for place in rng.permutation(len(of[name]))[:count]]


def rounded(result: MetricResult) -> dict[str, float]:
    """The values of a metric with two decimals."""
    return {key: round(value, 2) for key, value in result.values.items()}


def compared(given: argparse.Namespace, name: str, labels: int, seed: int) -> dict[str, Any]:
    """Accuracy of the three, in percent, and what the development file kept."""
    every, held = (SETS[name](given.data, test) for test in (False, True))
    names = frequent(every, 2 * labels, given.classes)
    rows = drawn(every, names, 2 * labels, seed)
    parts = {"train": [row for number, row in enumerate(rows) if number % (2 * labels) < labels],
             "dev": [row for number, row in enumerate(rows) if number % (2 * labels) >= labels],
             "test": drawn(held, names, given.test_records // given.classes, 0)}  # fmt: skip
    records = {part: [Record(id=str(n), fields=row, place=f"line {n}") for n, row in enumerate(each)]
               for part, each in parts.items()}  # fmt: skip
    right = [row["label"] for row in parts["test"]]

    def percent(said: Sequence[Any]) -> float:
        return round(100 * float(np.mean([one == other for one, other in zip(said, right, strict=True)])), 2)

    recipe = Recipe(task=task_settings("classification", labels=names))
    words = TASKS["classification"].rival(records["train"], records["test"], recipe)
    assert words is not None
    vectors = {
        part: np.array(list(verbs.embed(given.model, [row["text"] for row in parts[part]])))
        for part in ("train", "test")
    }
    linear = importlib.import_module("sklearn.linear_model")
    frozen = linear.LogisticRegressionCV(
        Cs=9, cv=min(5, labels), max_iter=1000, scoring="neg_log_loss", use_legacy_attributes=False, l1_ratios=(0,)
    )
    frozen.fit(vectors["train"], [row["label"] for row in parts["train"]])
    places = [frozen.classes_.tolist().index(label) for label in right]
    with tempfile.TemporaryDirectory() as folder:
        files = {part: Path(folder) / f"{part}.jsonl" for part in parts}
        for part, file in files.items():
            file.write_text("".join(json.dumps(row) + "\n" for row in parts[part]), encoding="utf-8")
        settings = {"training.seed": seed, "training.device": given.device}
        result = verbs.finetune(
            "classification",
            given.model,
            files["train"],
            files["dev"],
            Path(folder) / "run",
            quiet=True,
            overrides=settings,
        ).runs[0]  # type: ignore[union-attr]
        tuned = open_model(Path(folder) / "run")
        data = open_records(files["test"], tuned.recipe, tuned.tokenizer)
        scores = measure(predict(tuned, data), data.records, tuned.recipe)
    return {
        "names": names,
        "words": percent(words.answers),
        "frozen": percent(frozen.predict(vectors["test"]).tolist()),
        "finetune": round(scores["accuracy"].values["accuracy"], 2),
        "calibration": rounded(scores["calibration"]),
        "frozen calibration": rounded(calibration(frozen.predict_proba(vectors["test"]).tolist(), places)),
        "best step": result.best_step,
        "steps": result.step,
        "verdict": result.verdict,
    }


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Accuracy and calibration error of each set and number of labels, over the seeds, as Markdown."""
    of: dict[tuple[str, int], dict[int, Mapping[str, Any]]] = {}
    for line in lines:
        of.setdefault((line["set"], line["labels"]), {})[line["seed"]] = line
    heads = ["texts", "classes", "labels per class", "seeds", "TF-IDF", "frozen vectors", "finetune", "against TF-IDF",
             "against frozen vectors", "ECE of frozen vectors", "ECE of finetune"]  # fmt: skip
    rows = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for (name, labels), runs in sorted(of.items()):
        words, frozen, tuned = (
            {seed: run[what] for seed, run in runs.items()} for what in ("words", "frozen", "finetune")
        )
        errors = [
            {seed: run[what]["ece"] for seed, run in runs.items() if what in run}
            for what in ("frozen calibration", "calibration")
        ]
        cells = [*(cell(each, None) for each in (words, frozen, tuned)), against(tuned, words), against(tuned, frozen)]
        cells += [cell(each, None) for each in errors]
        classes = {len(run.get("names", ())) or run["classes"] for run in runs.values()}
        rows.append("| " + " | ".join([name, *map(str, (*classes, labels, len(runs))), *cells]) + " |")
    return "\n".join(rows) + "\n"


def tables() -> str:
    """What is measured, as text of a page."""
    return table(read_lines(RESULTS))


def main() -> None:
    """Run what is missing, print the table and write it into the page."""
    parser = options(__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--labels", nargs="+", type=int, default=[8, 16, 32, 80, 400])
    parser.add_argument("--classes", type=int, default=8)
    parser.add_argument("--test-records", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--page", type=Path, help="write the table into this page")
    given = parsed(parser, "--labels 4 --classes 2 --test-records 8 --sets questions")
    for labels in given.labels if given.model and given.data else ():
        for name in given.sets:
            if len(frequent(SETS[name](given.data, False), 2 * labels, given.classes)) < 2:
                print(
                    f"{name}: fewer than two classes have {2 * labels} records, so {labels} per class are not measured"
                )
                continue
            for seed in range(given.seeds):
                key = {"model": given.model.name, "set": name, "labels": labels, "classes": given.classes,
                       "test records": given.test_records, "seed": seed}  # fmt: skip
                once(given.out, key, functools.partial(compared, given, name, labels, seed))
    show(table(read_lines(given.out)), given.page, Path(__file__))


if __name__ == "__main__":
    main()
