"""Two tasks as texts in one model, beside each alone: T5's multi-task mixture.

    python benchmarks/mixed_tasks.py --model MODEL --glue FOLDER --out FILE
        [--records 800] [--test-records 400] [--epochs 3] [--seeds 3]

The tasks are SST-2 (the answer is a word) and STS-B (a number rounded to 0.2) of FOLDER, GLUE's labelled files; MODEL is a
run directory, a model folder or an installed model. Each run takes the same evenly spaced records of a task and as many
epochs over them, so the mixture takes the steps of both. The score is that of the last step on evenly spaced records of a
test file; nothing is selected on them. FILE gets one JSON line for each run; the same command continues after a stop.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from json_lines import cell, evenly_spaced, once
from unicloze import verbs
from unicloze.finetuning.seeds import FinetuneSummary

PARTS: Mapping[str, Mapping[str, Any]] = {
    "sst2": {
        "format": "glue-sst-2",
        "source": {"sentence": "text"},
        "classes": {"0": "negative", "1": "positive"},
        "metrics": ["accuracy"],
    },
    "stsb": {
        "format": "glue-sts-b",
        "source": {"sentence1": "text", "sentence2": "pair"},
        "step": 0.2,
        "metrics": ["pearson"],
    },
}
FILES = {
    "sst2": ("SST-2/train.tsv.gz", "SST-2/test.tsv.gz", True),
    "stsb": ("STS-B/sts-train.csv.gz", "STS-B/sts-dev.csv.gz", False),
}
"""Training and test file of each task, and whether they have a header."""
SYSTEMS = {**{name: (name,) for name in PARTS}, "both": tuple(PARTS)}
"""The tasks of each run."""


def ran(model: str, parts: Sequence[str], folder: Path, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Fine-tune on some tasks, and the score of each."""
    with tempfile.TemporaryDirectory() as name:
        task = Path(name, "task.yaml")
        listed = [{"label": part, "train": f"{part}-train", "dev": f"{part}-test", **PARTS[part]} for part in parts]
        task.write_text(yaml.safe_dump({"base": "generation", "task": {"metrics": ["rouge"], "parts": listed}}))
        began = time.process_time()
        summary = verbs.finetune(
            str(task), model, folder, folder, Path(name, "run"), quiet=True,
            overrides={
                "training.device": "cpu", "training.precision": "fp32", "training.batch_size": 16, "training.seed": seed,
                "finetuning.epochs": options.epochs, "finetuning.evaluations": 1 / options.epochs,
                "task.max_length": 128, "generation.max_target": 8, "decoding.beams": 1, "decoding.max_length": 8,
                "task.evaluate_records": None,
            },
        )  # fmt: skip
    assert isinstance(summary, FinetuneSummary)
    result = summary.runs[0]
    if result.stopped_by:
        raise SystemExit("stopped; the same command continues")
    values = {name: value for found in result.scores.values() for name, value in found.values.items()}
    scores = {part: values[f"{part} {PARTS[part]['metrics'][0]}"] for part in parts}
    return {"scores": scores, "cpu seconds": round(time.process_time() - began, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--glue", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    for name, default in (("records", 800), ("test-records", 400), ("epochs", 3), ("seeds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    shape = {key: getattr(asked, key) for key in ("records", "test_records", "epochs")}
    shape["model"] = Path(asked.model).name
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part, (train, test, header) in FILES.items():
            for side, source, count in (("train", train, asked.records), ("test", test, asked.test_records)):
                evenly_spaced(asked.glue / source, folder / f"{part}-{side}", count, header=header)
        scores: dict[tuple[str, str], dict[int, float]] = {}
        for seed, system in itertools.product(range(asked.seeds), SYSTEMS):
            key = {"system": system, "seed": seed, **shape}
            line = once(asked.out, key, functools.partial(ran, asked.model, SYSTEMS[system], folder, asked, seed))
            for part, score in line["scores"].items():
                scores.setdefault((part, system), {})[seed] = score
    for (part, system), values in scores.items():
        print(f"{part:6} {system:6} {cell(values, None if system == part else scores[part, part])}")


if __name__ == "__main__":
    main()
