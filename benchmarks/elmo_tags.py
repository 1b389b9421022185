"""Parts of speech from ELMo's mix of a small language model, beside the same network trained on the tags alone.

    python benchmarks/elmo_tags.py --text books.jsonl.gz --train en_ewt-train.conllu.gz --test en_ewt-dev.conllu.gz --out DIR
        [--steps 600] [--sentences 500] [--test-sentences 1000] [--epochs 10] [--seeds 3] [--cells 256] [--json FILE]

It pre-trains the recipe `elmo` at a small size on the text (once; a finished run in DIR is reused), and trains four taggers
on the sentences with each seed, which decides their order, dropout and new weights:

scratch        the same network and head with random weights, all of which learn; its biLSTM reads the last layer
linear         the frozen network; a linear layer reads the mix of its layers
mix            the frozen network; a biLSTM reads the mix
mix and output the same, with a second mix beside the output of the biLSTM

Nothing is selected on the test sentences: the last checkpoint counts. Without --test every fifth document of the training
file is for testing; documents are those of "newdoc", or of the part of "sent_id" before its last dot or hyphen. The tokenizer
is that of the language model for all of them.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import gzip
import itertools
import json
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import frame
from unicloze import verbs
from unicloze.files import LEDGER
from unicloze.finetuning.data import open_records
from unicloze.finetuning.predict import predict
from unicloze.finetuning.scores import measure
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe
from unicloze.training.ledger import read_ledger
from unicloze.training.loading import LoadedModel, load_model

TESTED_DOCUMENTS = 5
"""One document in this many is for testing."""
BASELINE = "scratch"
FROZEN = {"model.layer_mix": True, "training.frozen": ["backbone"]}
SYSTEMS: Mapping[str, Mapping[str, Any]] = {
    BASELINE: {"task.encoder_size": 128},
    "linear": {**FROZEN, "training.learning_rate": 1e-2},
    "mix": {**FROZEN, "task.encoder_size": 128},
    "mix and output": {**FROZEN, "task.encoder_size": 128, "task.output_mix": True},
}
"""The settings of each tagger."""
COMMON: Mapping[str, Any] = {
    "use.visibility": "both_directions",
    "task.head": "plain",
    "task.metrics": ["tag-accuracy"],
    "task.max_length": 128,
    "training.learning_rate": 5e-3,
    "training.batch_size": 16,
    "training.device": "cpu",
    "training.precision": "fp32",
}


def sentences_of(path: Path) -> list[tuple[str, str]]:
    """Each sentence of a CoNLL-U file with the name of its document."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    document, found = "", []
    for block in re.split(r"\n\s*\n", text.strip()):
        named = re.search(r"^# newdoc id = (.+)$", block, re.MULTILINE)
        sentence = re.search(r"^# sent_id = (.+)[.-][^.-]+$", block, re.MULTILINE)
        document = named[1] if named else sentence[1] if sentence and "# newdoc" not in text else document
        found.append((document, block))
    return found


def split(train: Path, test: Path | None) -> tuple[list[str], list[str]]:
    """The sentences to train on and to test on."""
    sentences = sentences_of(train)
    if test is not None:
        return [block for _, block in sentences], [block for _, block in sentences_of(test)]
    documents = list(dict.fromkeys(document for document, _ in sentences))
    tested = set(documents[TESTED_DOCUMENTS - 1 :: TESTED_DOCUMENTS])
    sides = [[block for document, block in sentences if (document in tested) == side] for side in (False, True)]
    return sides[0], sides[1]


def write(sentences: Sequence[str], count: int, path: Path) -> Path:
    """Write evenly spaced sentences to a CoNLL-U file."""
    chosen = [sentences[place * len(sentences) // count] for place in range(min(count, len(sentences)))]
    path.write_text("\n\n".join(chosen) + "\n\n", encoding="utf-8")
    return path


def pretrained(options: argparse.Namespace) -> tuple[LoadedModel, dict[str, Any]]:
    """The small language model, and its perplexity on held-out text."""
    folder = options.out / "elmo"
    recipe = load_recipe(
        "elmo",
        {
            "data.corpus": [str(path) for path in options.text],
            "tokenizer.vocab_size": options.vocabulary,
            "model.hidden_size": options.cells // 2,
            "model.intermediate_size": options.cells,
            "model.character_filters": [16, 16, 32, 64, 64, 64, 64],
            "model.initializer_range": (options.cells // 2) ** -0.5,
            "training.steps": options.steps,
            "training.batch_size": options.batch_size,
            "training.learning_rate": 3e-3,
            "training.warmup_steps": options.steps // 10,
            "training.evaluate_every": 0,
            "training.save_every": 0,
            "training.device": "cpu",
            "training.precision": "fp32",
        },
    )
    started = time.process_time()
    if pretrain_run(recipe, folder, progress=not options.quiet).stopped_by:
        raise SystemExit("stopped; the same command resumes")
    perplexity = [event["perplexity"] for event in read_ledger(folder / LEDGER) if event["event"] == "evaluate"][-1]
    return load_model(folder), {"perplexity": perplexity, "cpu seconds": time.process_time() - started}


def of_random_weights(start: LoadedModel, seed: int) -> LoadedModel:
    """The same network, newly initialised."""
    model = copy.deepcopy(start.model)
    model.initialize(seed)
    return dataclasses.replace(start, model=model)


def accuracy(
    system: str, start: LoadedModel, train: Path, test: Path, folder: Path, seed: int, options: argparse.Namespace
) -> float:
    """Train a tagger, and its accuracy on the test sentences."""
    settings = {**COMMON, **SYSTEMS[system], "training.seed": seed, "finetuning.epochs": options.epochs}
    model = of_random_weights(start, seed + 1) if system == BASELINE else start
    if verbs.finetune("pos", model, train, None, folder, quiet=True, overrides=settings).exit_code:
        raise SystemExit("stopped; the same command resumes")
    tagger = load_model(folder)
    data = open_records(test, tagger.recipe, tagger.tokenizer)
    (result,) = measure(predict(tagger, data), data.records, tagger.recipe).values()
    return float(result.values["accuracy"])


def summary(found: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Mean accuracy of each tagger, and mean and standard deviation of its difference to the baseline, seed by seed."""
    table = {}
    for system, values in found.items():
        differences = [value - base for value, base in zip(values, found[BASELINE], strict=True)]
        spread = statistics.stdev(differences) if len(differences) > 1 else 0.0
        table[system] = {
            "each": list(values),
            "mean": statistics.mean(values),
            "difference": statistics.mean(differences),
            "spread": spread,
        }
    return table


def main() -> None:
    parser = frame.options(__doc__)
    parser.add_argument("--text", required=True, nargs="+", type=Path)
    parser.add_argument("--train", required=True, type=Path)
    parser.add_argument("--test", type=Path)
    parser.add_argument("--out", required=True, type=Path)
    for name, default in (
        ("steps", 600), ("batch-size", 64), ("vocabulary", 4000), ("cells", 256), ("sentences", 500),
        ("test-sentences", 1000), ("epochs", 10), ("seeds", 3),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    start, about = pretrained(options)
    print(json.dumps(about), flush=True)
    sides = split(options.train, options.test)
    train = write(sides[0], options.sentences, options.out / "train.conllu")
    test = write(sides[1], options.test_sentences, options.out / "test.conllu")
    found: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    started = time.process_time()
    for seed, system in itertools.product(range(options.seeds), SYSTEMS):
        folder = options.out / f"{system.replace(' ', '-')}-{seed}"
        found[system].append(accuracy(system, start, train, test, folder, seed, options))
        print(f"seed {seed}, {system}: {found[system][-1]:.2f}", flush=True)
    table = summary(found)
    for system, row in table.items():
        print(f"{system:15} {row['mean']:6.2f}  {row['difference']:+6.2f} +- {row['spread']:.2f}")
    settings = {key: value.name if isinstance(value, Path) else value for key, value in vars(options).items()}
    settings |= {"text": [path.name for path in options.text]}
    results: dict[str, Any] = {"settings": settings, "pre-training": about, "table": table}
    results["cpu seconds of taggers"] = time.process_time() - started
    frame.write(results, options.json)


if __name__ == "__main__":
    main()
