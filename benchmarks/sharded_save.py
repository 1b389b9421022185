"""Measures how long a checkpoint stops a sharded run: written in the background, and written before the run goes on.

    python benchmarks/sharded_save.py [--processes 2] [--hidden 256] [--steps 6] [--corpus PATH] [--json FILE] [--toy]

Both runs train the same model and save at every second step; `stall` is the median time of a save on the slowest process,
without the first, and `step` that of a step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import frame


def worker(out: Path, overrides: dict[str, Any], *, waits: bool) -> None:
    """Train, and record the times of saves and steps."""
    from unicloze.pretraining.run import pretrain_run
    from unicloze.recipes import load_recipe
    from unicloze.training import checkpoint, process

    saves: list[float] = []
    steps: list[float] = []
    save, log, start = process.RunProcess.save, process.RunProcess.log, checkpoint.Background.start

    def timed(self: Any, *arguments: Any, **named: Any) -> None:
        begun = time.perf_counter()
        save(self, *arguments, **named)
        saves.append(time.perf_counter() - begun)

    def noted(self: Any, state: Any, measures: Any) -> None:
        steps.append(state.step_tokens / measures["text_tokens_per_second"])
        log(self, state, measures)

    def started(self: Any, *arguments: Any) -> None:
        start(self, *arguments)
        self.finish()

    process.RunProcess.save, process.RunProcess.log = timed, noted  # type: ignore[method-assign]
    if waits:
        checkpoint.Background.start = started  # type: ignore[method-assign, assignment]
    pretrain_run(load_recipe("unilmv2-base", overrides), out, progress=False)
    (out / f"times-{os.environ['RANK']}.json").write_text(json.dumps({"saves": saves, "steps": steps}))


def measure(arguments: argparse.Namespace, out: Path, *, waits: bool) -> dict[str, float]:
    """One run."""
    overrides = {
        "data.corpus": arguments.corpus, "data.window": 64, "tokenizer.vocab_size": 8000, "training.device": "cpu",
        "training.precision": "fp32", "training.parallel": "shard", "training.optimizer": "adamw", "training.phases": [],
        "training.batch_size": 2 * arguments.processes, "training.micro_batch_size": 2, "training.save_every": 2,
        "training.steps": arguments.steps, "training.evaluate_every": 0, "training.warmup_steps": 1,
        "model.hidden_size": arguments.hidden, "model.num_heads": 4, "model.num_layers": 4,
        "model.intermediate_size": 4 * arguments.hidden,
    }  # fmt: skip
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(arguments.processes), __file__]
    command += ["--worker", json.dumps(overrides), "--out", str(out), *(["--waits"] if waits else [])]
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
    found = [json.loads(file.read_text()) for file in sorted(out.glob("times-*.json"))]
    size = sum(file.stat().st_size for file in max(out.glob("checkpoints/step-*")).iterdir())
    return {
        "stall": max(statistics.median(each["saves"][1:]) for each in found),
        "step": max(statistics.median(each["steps"]) for each in found),
        "megabytes": size / 1e6,
    }


def main() -> None:
    """Measure both, print, and write JSON."""
    parser = frame.options(__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--corpus", default="python-docs")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--waits", action="store_true", help=argparse.SUPPRESS)
    arguments = frame.parsed(parser, "--processes 2 --hidden 16 --steps 4")
    if arguments.worker:
        worker(arguments.out, json.loads(arguments.worker), waits=arguments.waits)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = {
            name: measure(arguments, Path(folder) / name, waits=name == "waits") for name in ("background", "waits")
        }
    for name, figures in found.items():
        print(f"{name:12} " + ", ".join(f"{what} {figure:.2f}" for what, figure in figures.items()))
    frame.write({"processes": arguments.processes, **found}, arguments.json)


if __name__ == "__main__":
    main()
