"""Three tasks on real data from one checkpoint; summaries are compared with baselines.

    python benchmarks/real_tasks.py squad --model DIR --train squad.json [--json FILE] [dotted settings]
    python benchmarks/real_tasks.py summaries --model DIR --train scitldr-A_train.jsonl --test scitldr-A_dev.jsonl ...
    python benchmarks/real_tasks.py questions --model DIR --train fairytaleqa_train.jsonl --test fairytaleqa_val.jsonl ...
        [--limit N] [--test-limit N]

squad      SQuAD v1.1's development file, split by article: every fifth article is for testing, the others for training.
           Exact match and F1.
summaries  SciTLDR, abstract to its first reference: ROUGE, also of the abstract's first sentence (lead-1) and of the same
           network fine-tuned from random weights.
questions  FairytaleQA, passage and answer to the question: BLEU-4 and ROUGE-L as in pycocoevalcap.

DIR is a run directory or a Hugging Face folder. Nothing is selected on the test records: the last checkpoint is used.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import gzip
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import frame
from unicloze import verbs
from unicloze.evaluation.metrics.registry import metric
from unicloze.finetuning.data import open_records
from unicloze.finetuning.predict import predict
from unicloze.finetuning.scores import measure
from unicloze.recipes import parse_options
from unicloze.training.loading import LoadedModel, load_model

TESTED_ARTICLES = 5
"""One article in this many is for testing."""

TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "squad": ("squad-v1.1", {}),
    "summaries": ("xsum", {"task.fields": {"target": "target.0"}, "task.metric_options": {}}),
    "questions": ("squad-question-generation", {"task.fields": {"answer": "answers.0", "target": "question"}}),
}
"""The recipe of each, and its settings for the files."""


def text_of(path: Path) -> str:
    """A file's text, decompressed if necessary."""
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).decode()


def split_articles(path: Path, folder: Path) -> tuple[Path, Path]:
    """Write train and test files from one SQuAD file."""
    content = json.loads(text_of(path))
    parts: dict[str, list[Any]] = {"train": [], "test": []}
    for number, article in enumerate(content["data"]):
        parts["test" if number % TESTED_ARTICLES == TESTED_ARTICLES - 1 else "train"].append(article)
    for name, articles in parts.items():
        (folder / f"{name}.json").write_text(json.dumps({**content, "data": articles}), encoding="utf-8")
    return folder / "train.json", folder / "test.json"


def first_lines(path: Path, folder: Path, name: str, limit: int | None) -> Path:
    """Write the first records of a file of JSON lines."""
    lines = text_of(path).splitlines()[:limit]
    (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / f"{name}.jsonl"


def scores_of(results: Mapping[str, Any]) -> dict[str, float]:
    """All values of all metrics."""
    return {name: value for result in results.values() for name, value in result.values.items()}


def trained(
    task: str, start: LoadedModel, train: Path, test: Path, folder: Path, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Fine-tune, predict and measure."""
    name, given = TASKS[task]
    began = time.perf_counter()
    if verbs.finetune(name, start, train, None, folder, overrides={**given, **settings}).exit_code:
        raise SystemExit("stopped: nothing to compare")
    learned = time.perf_counter()
    model = load_model(folder)
    data = open_records(test, model.recipe, model.tokenizer)
    predictions = predict(model, data)
    return {
        "scores": scores_of(measure(predictions, data.records, model.recipe)),
        "seconds": {"fine-tuning": learned - began, "predicting": time.perf_counter() - learned},
        "samples": list(predictions[:5]),
    }


def of_random_weights(start: LoadedModel) -> LoadedModel:
    """The same network, newly initialised."""
    model = copy.deepcopy(start.model)
    model.initialize(0)
    return dataclasses.replace(start, model=model)


def lead(test: Path) -> dict[str, float]:
    """Scores of each source's first sentence as its summary."""
    records = [json.loads(line) for line in test.read_text(encoding="utf-8").splitlines()]
    said, wanted = [record["source"][0] for record in records], [record["target"][:1] for record in records]
    return scores_of({"rouge": metric("rouge")(said, wanted)})


def tell(results: Mapping[str, Any], settings: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Print the results so far, and write them if requested."""
    print(json.dumps(results, indent=1), flush=True)
    if options.json:
        about = {"task": options.task, "settings": settings, "limit": options.limit, "test limit": options.test_limit}
        options.json.write_text(json.dumps({**about, "results": results}, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = frame.options(__doc__)
    parser.add_argument("task", choices=tuple(TASKS))
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--train", required=True, type=Path)
    parser.add_argument("--test", type=Path)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--test-limit", type=int)
    options, extra = parser.parse_known_args()
    if options.task != "squad" and options.test is None:
        parser.error(f"{options.task} needs --test")
    if options.task == "squad" and (options.limit or options.test or options.test_limit):
        parser.error("squad splits all of --train by article; --test, --limit and --test-limit are for the others")
    settings = parse_options(extra)
    start = verbs.load_model(options.model)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.task == "squad":
            train, test = split_articles(options.train, folder)
        else:
            train = first_lines(options.train, folder, "train", options.limit)
            test = first_lines(options.test, folder, "test", options.test_limit)
        if options.task == "summaries":
            results["first sentence"] = {"scores": lead(test)}
        results["this checkpoint"] = trained(options.task, start, train, test, folder / "run", settings)
        tell(results, settings, options)
        if options.task == "summaries":
            random = of_random_weights(start)
            results["random weights"] = trained(options.task, random, train, test, folder / "random", settings)
            tell(results, settings, options)


if __name__ == "__main__":
    main()
