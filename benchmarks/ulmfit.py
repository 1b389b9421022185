"""ULMFiT's three stages on sentiment and on topics, beside each stage left out and a classifier from random weights.

    python benchmarks/ulmfit.py --general books.jsonl.gz --sst SST-2 --textbooks textbooks.jsonl.gz --out DIR --lines FILE
        [--tasks sentiment topic] [--steps 300] [--domain-steps 80] [--records 400] [--test-records 400] [--epochs 6]
        [--seeds 3] [--cells 256]

Stage 1 trains the recipe `ulmfit` at a small size on the general text, stage 2 `ulmfit-domain` on the texts of the task's
training file, stage 3 `ulmfit-classification` on evenly spaced records:

all          the three stages
no domain    stages 1 and 3
no general   stage 2 from random weights, with as many steps; then stage 3
scratch      stage 3 from random weights, all layers at once and with one rate

sentiment is SST-2 (phrases of eight words or more; tested on its test file). topic asks for the book that a paragraph of a
textbook is from, six books, with other sections for testing. The tokenizer is that of the general text. A seed decides the
order, dropout and new weights of stage 3; nothing is selected on the test records. Language models in DIR are used again, and
FILE gets one JSON line for each run: the same command continues after an interruption.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import gzip
import itertools
import json
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from json_lines import cell, once
from unicloze import verbs
from unicloze.files import LEDGER
from unicloze.finetuning.data import open_records
from unicloze.finetuning.predict import predict
from unicloze.finetuning.scores import measure
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe
from unicloze.training.ledger import read_ledger
from unicloze.training.loading import LoadedModel, load_model

BASELINE = "scratch"
SYSTEMS = "all", "no domain", "no general", BASELINE
CPU = {"training.device": "cpu", "training.precision": "fp32"}
TOPICS, FEWEST_WORDS, LONGEST_TEXT = 6, 8, 400
"""Number of books, fewest words of a phrase, most characters of a paragraph."""
Pairs = Sequence[tuple[str, str]]
"""Texts with their labels."""


def spaced(found: Pairs, count: int) -> Pairs:
    """Evenly spaced ones."""
    return [found[place * len(found) // count] for place in range(min(count, len(found)))]


def sentiment(folder: Path) -> tuple[Pairs, Pairs]:
    """Training and test texts of SST-2."""
    sides = []
    for name in ("train", "test"):
        lines = gzip.decompress((folder / f"{name}.tsv.gz").read_bytes()).decode().splitlines()[1:]
        pairs = [(text.strip(), label) for text, _, label in (line.rpartition("\t") for line in lines)]
        sides.append([pair for pair in pairs if name == "test" or len(pair[0].split()) >= FEWEST_WORDS])
    return sides[0], sides[1]


def topics(file: Path) -> tuple[Pairs, Pairs]:
    """Training and test paragraphs of the books with most sections; every fifth section is for testing."""
    sections = [json.loads(line) for line in gzip.decompress(file.read_bytes()).decode().splitlines()]
    books = [book for book, _ in Counter(section["book"] for section in sections).most_common(TOPICS)]
    sections = [section for section in sections if section["book"] in books]
    sides: tuple[list[tuple[str, str]], list[tuple[str, str]]] = ([], [])
    for number, section in enumerate(sections):
        for paragraph in section["text"].split("\n"):
            if len(paragraph) > LONGEST_TEXT // 4:
                sides[number % 5 == 4].append((paragraph[:LONGEST_TEXT].rpartition(" ")[0], section["book"]))
    return sides


def write(pairs: Pairs, path: Path) -> Path:
    """Write records."""
    lines = [json.dumps({"text": text, "label": label}) for text, label in pairs]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def language_model(name: str, text: Path, folder: Path, settings: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """Train a language model, and its perplexity on held-out text."""
    common = {
        "data.corpus": [str(text)], "training.steps": steps, "training.warmup_steps": max(1, steps // 10),
        "training.evaluate_every": 0, "training.save_every": 0, **CPU,
    }  # fmt: skip
    began = time.process_time()
    if pretrain_run(load_recipe(name, {**common, **settings}), folder, progress=False).stopped_by:
        raise SystemExit("stopped; the same command continues")
    perplexity = [event["perplexity"] for event in read_ledger(folder / LEDGER) if event["event"] == "evaluate"][-1]
    return {"perplexity": perplexity, "cpu seconds": round(time.process_time() - began, 1)}


def accuracy(place: Path, forgets: int | None, files: tuple[Path, Path], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Train a classifier from a model, or from its network with random weights, and its accuracy on the test records."""
    start = load_model(place) if forgets is None else untrained(load_model(place), forgets)
    with tempfile.TemporaryDirectory() as name:
        began = time.process_time()
        if verbs.finetune(
            "ulmfit-classification", start, files[0], None, name, quiet=True, overrides=settings
        ).exit_code:
            raise SystemExit("stopped; the same command continues")
        spent = time.process_time() - began
        tuned = load_model(Path(name))
        data = open_records(files[1], tuned.recipe, tuned.tokenizer)
        (result, *_) = measure(predict(tuned, data), data.records, tuned.recipe).values()
    return {"accuracy": result.values["accuracy"], "cpu seconds": round(spent, 1)}


def untrained(start: LoadedModel, seed: int) -> LoadedModel:
    """The network of a model with random weights."""
    model = copy.deepcopy(start.model)
    model.initialize(seed)
    return dataclasses.replace(start, model=model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("general", "sst", "textbooks", "out", "lines"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    parser.add_argument("--tasks", nargs="+", choices=("sentiment", "topic"), default=["sentiment", "topic"])
    for name, default in (
        ("steps", 300), ("domain-steps", 80), ("records", 400), ("test-records", 400), ("epochs", 6), ("seeds", 3),
        ("cells", 256), ("batch-size", 32), ("vocabulary", 4000),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    sizes = {
        "tokenizer.vocab_size": asked.vocabulary, "model.hidden_size": asked.cells // 2, "model.num_layers": 2,
        "model.intermediate_size": asked.cells, "model.dropout": 0.1, "model.input_dropout": 0.1,
        "model.hidden_dropout": 0.1, "model.weight_dropout": 0.1, "training.batch_size": asked.batch_size,
        "training.learning_rate": 1e-2,
    }  # fmt: skip
    names = ("steps", "domain_steps", "records", "test_records", "epochs", "cells", "batch_size", "vocabulary")
    shape = {name: getattr(asked, name) for name in names}
    general = asked.out / "general"
    once(
        asked.lines,
        {"stage": "general", **shape},
        functools.partial(language_model, "ulmfit", asked.general, general, sizes, asked.steps),
    )
    scores: dict[tuple[str, str], dict[int, float]] = {}
    for task in asked.tasks:
        train, test = sentiment(asked.sst) if task == "sentiment" else topics(asked.textbooks)
        files = (
            write(spaced(train, asked.records), asked.out / f"{task}-train.jsonl"),
            write(spaced(test, asked.test_records), asked.out / f"{task}-test.jsonl"),
        )
        text = write(spaced(train, 20 * asked.records), asked.out / f"{task}-text.jsonl")
        domain, alone = asked.out / f"{task}-domain", asked.out / f"{task}-alone"
        after = {"training.initialize_from": str(general), "training.learning_rate": 4e-3}
        own = sizes | {"tokenizer.path": str(general / "tokenizer.json")}
        made = functools.partial(language_model, "ulmfit-domain", text, domain, own | after, asked.domain_steps)
        once(asked.lines, {"stage": "domain", "task": task, **shape}, made)
        made = functools.partial(language_model, "ulmfit", text, alone, own, asked.domain_steps)
        once(asked.lines, {"stage": "domain alone", "task": task, **shape}, made)
        starts = {"all": domain, "no domain": general, "no general": alone, BASELINE: general}
        for seed, system in itertools.product(range(asked.seeds), SYSTEMS):
            settings: dict[str, Any] = {
                **CPU, "training.batch_size": 16, "finetuning.epochs": asked.epochs, "training.seed": seed,
                "task.max_length": 96,
            }  # fmt: skip
            if system == BASELINE:
                settings |= {"finetuning.layer_decay": 1.0, "finetuning.unfreeze_epochs": None}
            key = {"stage": "classifier", "task": task, "system": system, "seed": seed, **shape}
            forgets = seed + 1 if system == BASELINE else None
            line = once(asked.lines, key, functools.partial(accuracy, starts[system], forgets, files, settings))
            scores.setdefault((task, system), {})[seed] = line["accuracy"]
    for (task, system), values in scores.items():
        base = None if system == BASELINE else scores[task, BASELINE]
        print(f"{task:10} {system:11} {cell(values, base)}")


if __name__ == "__main__":
    main()
