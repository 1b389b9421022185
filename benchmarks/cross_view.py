"""Cross-view training of a part-of-speech tagger beside the same tagger without unlabelled text, paired over seeds.

    python benchmarks/cross_view.py --train en_ewt-train.conllu.gz --test en_ewt-dev.conllu.gz [--labelled 500] [--seeds 3]
        [--hidden 128] [--cells 128] [--embedding 64] [--vocabulary 4000] [--json FILE] [dotted settings]

Some sentences of --train, evenly spaced, keep their tags; the words of the others are the unlabelled text. Without --test
every fifth sentence of --train is for testing. Both taggers start from the same random weights, see the same labelled
sentences in the same order and make the same number of steps on them; cross-view training makes as many steps on unlabelled
text as well. Nothing is selected on the test sentences: the last checkpoint is used. Options give the size of the network,
otherwise the recipe cvt.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

import frame
from unicloze import verbs
from unicloze.finetuning.data import open_records
from unicloze.finetuning.predict import predict
from unicloze.finetuning.scores import measure
from unicloze.recipes import parse_options
from unicloze.records import read_records
from unicloze.records.record import Record
from unicloze.settings import TaskSettings
from unicloze.tasks import task_settings
from unicloze.training.loading import load_model

TESTED = 5
"""One sentence in this many is for testing if there is no file for it."""


def write(path: Path, records: Sequence[Record], *, tags: bool = True) -> Path:
    """Write sentences as JSON lines, without their tags unless wanted."""
    roles = ("tokens", "tags") if tags else ("tokens",)
    lines = [json.dumps({role: record.fields[role] for role in roles}, ensure_ascii=False) for record in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def split(options: argparse.Namespace, folder: Path) -> dict[str, int]:
    """Write labelled, unlabelled and test sentences; returns the number of each."""
    settings = TaskSettings(format="conllu")
    records = read_records(options.train, settings)
    if options.test is None:
        tested = records[TESTED - 1 :: TESTED]
        records = [record for number, record in enumerate(records) if number % TESTED != TESTED - 1]
    else:
        tested = read_records(options.test, settings)
    chosen = {place * len(records) // options.labelled for place in range(options.labelled)}
    parts = {
        "labelled": [record for number, record in enumerate(records) if number in chosen],
        "unlabelled": [record for number, record in enumerate(records) if number not in chosen],
        "test": tested,
    }
    for name, some in parts.items():
        write(folder / f"{name}.jsonl", some, tags=name != "unlabelled")
    return {name: len(some) for name, some in parts.items()}


def network(options: argparse.Namespace, seed: int, folder: Path) -> Path:
    """The recipe of the network for a seed."""
    recipe = {
        "base": "cvt",
        "tokenizer": {"vocab_size": options.vocabulary},
        "model": {
            "hidden_size": options.hidden, "intermediate_size": options.cells, "embedding_size": options.embedding,
            "projection": options.cells > options.hidden // 2,
        },
        "training": {"seed": seed},
    }  # fmt: skip
    path = folder / f"network-{seed}.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


def trained(start: Path, folder: Path, out: str, settings: Mapping[str, Any]) -> dict[str, float]:
    """Fine-tune and test; returns the accuracy in percent and the seconds of training."""
    began = time.perf_counter()
    given = {"task.metrics": ["tag-accuracy"], **settings}
    verbs.finetune("cvt-tagging", start, folder / "labelled.jsonl", None, folder / out, quiet=True, overrides=given)
    seconds = time.perf_counter() - began
    model = load_model(folder / out)
    if model.step < model.recipe.training.steps:
        raise SystemExit(f"stopped at step {model.step} of {model.recipe.training.steps}: nothing to compare")
    data = open_records(folder / "test.jsonl", model.recipe, model.tokenizer)
    results = measure(predict(model, data), data.records, model.recipe)
    return {"accuracy": next(iter(results["tag-accuracy"].values.values())), "seconds": round(seconds, 1)}


def main() -> None:
    parser = frame.options(__doc__)
    parser.add_argument("--train", required=True, type=Path)
    parser.add_argument("--test", type=Path)
    for name, default in (("labelled", 500), ("seeds", 3), ("hidden", 128), ("cells", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--embedding", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=4000)
    options, extra = parser.parse_known_args()
    settings = parse_options(extra)
    named = {key: value.name if isinstance(value, Path) else value for key, value in vars(options).items()}
    found: dict[str, Any] = {"settings": {**named, **settings}, "seeds": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found["sentences"] = split(options, folder)
        test = read_records(folder / "test.jsonl", task_settings("tagging"))
        found["tags of the test"] = sum(len(record.fields["tags"]) for record in test)
        unlabelled = {"finetuning.unlabelled": [str(folder / "unlabelled.jsonl")]}
        for seed in range(options.seeds):
            start, own = network(options, seed, folder), {**settings, "training.seed": seed}
            of_seed = {
                "supervised": trained(start, folder, f"supervised-{seed}", own),
                "cross-view": trained(start, folder, f"cross-view-{seed}", {**own, **unlabelled}),
            }
            found["seeds"].append(of_seed)
            print(json.dumps({"seed": seed, **of_seed}), flush=True)
    arms = {
        name: statistics.fmean(one[name]["accuracy"] for one in found["seeds"]) for name in ("supervised", "cross-view")
    }
    gains = [one["cross-view"]["accuracy"] - one["supervised"]["accuracy"] for one in found["seeds"]]
    spread = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
    found |= {"mean": arms, "gain": statistics.fmean(gains), "standard error of the gain": spread}
    print(json.dumps({key: found[key] for key in ("sentences", "mean", "gain", "standard error of the gain")}))
    frame.write(found, options.json)


if __name__ == "__main__":
    main()
