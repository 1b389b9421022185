"""LoRA and adapters beside fine-tuning of all weights: the same model, records, epochs and seeds.

    python benchmarks/few_weights.py --model DIR --glue FOLDER --out FILE [--tasks sst-2 mrpc sts-b]
        [--systems all lora adapters] [--rates auto] [--records 400] [--test-records 400] [--epochs 4] [--seeds 3]

FOLDER has the labelled files of GLUE. The records are evenly spaced ones of a training file, and the score is that of the
last step on as many of a test file; nothing is selected on them. A system is trained with each of the learning rates
(`auto` is the package's choice). FILE gets one JSON line for each run; the same command continues after an interruption.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from json_lines import cell, evenly_spaced, once
from short_runs import finetuned

FILES = {
    "sst-2": ("SST-2/train.tsv.gz", "SST-2/test.tsv.gz", True),
    "mrpc": ("MRPC/msr_paraphrase_train.tsv.gz", "MRPC/msr_paraphrase_test.tsv.gz", True),
    "sts-b": ("STS-B/sts-train.csv.gz", "STS-B/sts-dev.csv.gz", False),
    "rte": ("RTE/train.tsv.gz", "RTE/dev.tsv.gz", True),
}
"""Training and test file of each task, and whether they have a header."""
SYSTEMS: Mapping[str, Mapping[str, Any]] = {
    "all": {},
    "lora": {"finetuning.lora_rank": 8},
    "adapters": {"finetuning.adapter_size": 64},
}
"""The settings of each."""
COMMON = {
    "training.batch_size": 16, "training.device": "cpu", "training.precision": "fp32", "training.clip_norm": 1.0,
    "finetuning.fit_head": False,  # as of few weights
}  # fmt: skip


def ran(task: str, model: Path, settings: Mapping[str, Any], files: tuple[Path, Path]) -> dict[str, Any]:
    """Fine-tune, predict and score."""
    found = finetuned(f"glue-{task}", model, files, settings)
    return {**found, "score": next(iter(found["scores"].values()))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--glue", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--tasks", nargs="+", choices=tuple(FILES), default=["sst-2", "mrpc", "sts-b"])
    parser.add_argument("--systems", nargs="+", choices=tuple(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--rates", nargs="+", default=["auto"])
    for name, default in (("records", 400), ("test-records", 400), ("epochs", 4), ("seeds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    shape = {"model": asked.model.resolve().name, "records": asked.records, "test records": asked.test_records}
    shape["epochs"] = asked.epochs
    scores: dict[tuple[str, str, str], dict[int, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        files: dict[str, tuple[Path, Path]] = {}
        for task in asked.tasks:
            train, test, header = FILES[task]
            counts = {"train": (train, asked.records), "test": (test, asked.test_records)}
            parts = [
                evenly_spaced(
                    asked.glue / source, Path(name, f"{task}-{side}{Path(source).suffixes[0]}"), count, header=header
                )
                for side, (source, count) in counts.items()
            ]
            files[task] = parts[0], parts[1]
        for seed, task, system, rate in itertools.product(range(asked.seeds), asked.tasks, asked.systems, asked.rates):
            settings = {
                **COMMON, **SYSTEMS[system], "finetuning.epochs": asked.epochs, "training.seed": seed,
                "training.learning_rate": rate if rate == "auto" else float(rate),
            }  # fmt: skip
            key = {"task": task, "system": system, "rate": rate, "seed": seed, **shape}
            line = once(asked.out, key, functools.partial(ran, task, asked.model, settings, files[task]))
            scores.setdefault((task, system, rate), {})[seed] = line["score"]
    for (task, system, rate), values in scores.items():
        base = None if system == "all" else scores.get((task, "all", rate))
        print(f"{task:6} {system:9} {rate:7} {cell(values, base)}")


if __name__ == "__main__":
    main()
