"""Fine-tuning with few labels beside what a user would take instead: TF-IDF, and frozen vectors with logistic regression.

    python benchmarks/few_labels.py --model DIR --data FOLDER --out FILE [--sets textbooks questions] [--labels 8 16 32 80]
        [--classes 8] [--test-records 400] [--seeds 1] [--device auto]

FOLDER has `text/openstax_train.jsonl.gz` and `qa/squad-dev-v1.1.from-explorer.json.gz`. A sentence of a textbook is to be
assigned to its book (training and test sentences are of other sections), a question to its article. The development file
has as many records as the training file. FILE gets one JSON line for each run; the same command continues after an
interruption, and prints the table.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import importlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from frame import options, parsed
from json_lines import once, read_lines
from unicloze import verbs
from unicloze.finetuning.data import open_records
from unicloze.finetuning.predict import predict
from unicloze.finetuning.scores import measure
from unicloze.interop.read import open_model
from unicloze.records.record import Record
from unicloze.settings import Recipe
from unicloze.tasks import TASKS, task_settings

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


SETS = {"textbooks": textbooks, "questions": questions}


def drawn(rows: Rows, names: Sequence[str], count: int, seed: int) -> Rows:
    """`count` rows of each class, drawn without replacement."""
    rng = np.random.default_rng(seed)
    of = {name: [row for row in rows if row["label"] == name] for name in names}
    return [of[name][place] for name in names for place in rng.permutation(len(of[name]))[:count]]


def compared(given: argparse.Namespace, name: str, labels: int, seed: int) -> dict[str, Any]:
    """Accuracy of the three, in percent, and what the development file kept."""
    every, held = (SETS[name](given.data, test) for test in (False, True))
    counts = {label: sum(row["label"] == label for row in every) for label in sorted({row["label"] for row in every})}
    names = sorted(counts, key=lambda label: -counts[label])[: given.classes]
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
        "words": percent(words.answers),
        "frozen": percent(frozen.predict(vectors["test"]).tolist()),
        "finetune": round(scores["accuracy"].values["accuracy"], 2),
        "calibration": {key: round(value, 2) for key, value in scores["calibration"].values.items()},
        "best step": result.best_step,
        "steps": result.step,
        "verdict": result.verdict,
    }


def main() -> None:
    """Run what is missing, and print the table."""
    parser = options(__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--labels", nargs="+", type=int, default=[8, 16, 32, 80])
    parser.add_argument("--classes", type=int, default=8)
    parser.add_argument("--test-records", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="auto")
    given = parsed(parser, "--labels 4 --classes 2 --test-records 8 --sets questions")
    for labels in given.labels:
        for name in given.sets:
            for seed in range(given.seeds):
                key = {"set": name, "labels": labels, "classes": given.classes, "test records": given.test_records,
                       "seed": seed}  # fmt: skip
                once(given.out, key, functools.partial(compared, given, name, labels, seed))
    for line in read_lines(given.out):
        print(f"{line['set']:<10} {line['labels']:>3}  words {line['words']:5.1f}  frozen {line['frozen']:5.1f}  "
              f"finetune {line['finetune']:5.1f}  best step {line['best step']} of {line['steps']}")  # fmt: skip


if __name__ == "__main__":
    main()
