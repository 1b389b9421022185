"""Compares several processes with one: wall time, processor time and bytes per step.

    python benchmarks/scaling.py [--recipe NAME] [--processes N] [--steps N] [--rounds N] [--json FILE] [--toy]

Every process computes with one thread. Each round trains three runs, in a different order: one process whose gradients are
added one after the other (`leaves` 1), one that adds them in a tree, and several that share the leaves. Then one run is
killed halfway and restarted by torchrun. Medians are over the steps of all rounds, without the first three steps of each
run; bytes are computed, not measured. The corpus is prepared once; there are no evaluations and checkpoints.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import frame

WARM_UP = 3
MICRO_BATCHES = 16
KINDS = "one after the other", "one with a tree", "several"


def worker(arguments: argparse.Namespace) -> None:
    """Train, and record the times of each step."""
    from unicloze.cores import tune_allocator
    from unicloze.pretraining import run
    from unicloze.recipes import load_recipe
    from unicloze.training import process

    tune_allocator()
    recipe = load_recipe(arguments.recipe, json.loads(arguments.overrides))
    rank, restarts = os.environ.get("RANK", "0"), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    steps: list[tuple[float, float, float]] = []
    log = process.RunProcess.log

    def note(self: Any, state: Any, measures: Any) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        steps.append((time.perf_counter(), used.ru_utime + used.ru_stime, time.time()))
        if state.step == arguments.kill and rank == "1" and restarts == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        log(self, state, measures)

    process.RunProcess.log = note  # type: ignore[method-assign]
    result = run.pretrain_run(recipe, arguments.out, progress=False)
    weights = json.loads((result.out / "ledger.jsonl").read_text().partition("\n")[0])["parameters"]
    name = f"steps-{rank}-{restarts}.json"
    (arguments.out / name).write_text(json.dumps({"steps": steps, "weights": weights}))


def start(arguments: argparse.Namespace, out: Path, processes: int, leaves: int, kill: int = 0) -> None:
    """One run under torchrun."""
    overrides = {
        "data.prepared": str(arguments.data),
        "training.steps": arguments.steps,
        "training.leaves": leaves,
        "training.threads": 1,
        "training.warmup_steps": 1,
        "training.phases": [],
        "training.micro_batch_size": arguments.micro,
        "training.evaluate_every": 0,
        "training.evaluate_windows": 1,
        "training.save_every": kill // 2 if kill else 0,
        "training.log_every": 1,
    }
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [*torchrun, "--max-restarts", str(int(kill > 0)), __file__, "--worker", "--recipe", arguments.recipe]
    command += ["--out", str(out), "--overrides", json.dumps(overrides), "--kill", str(kill)]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)


def differences(out: Path, rank: int, restarts: int = 0) -> list[tuple[float, float]]:
    """Wall and processor seconds of the steps of one process."""
    steps = json.loads((out / f"steps-{rank}-{restarts}.json").read_text())["steps"][WARM_UP:]
    return [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(steps)]


def measure(arguments: argparse.Namespace, place: Path) -> dict[str, Any]:
    """Run all rounds."""
    from unicloze.training.gradients import traffic

    wall: dict[str, list[float]] = {kind: [] for kind in KINDS}
    used: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(arguments.rounds):
        for kind in random.Random(number).sample(KINDS, len(KINDS)):
            out = place / f"{number}-{kind.replace(' ', '-')}"
            processes = arguments.processes if kind == "several" else 1
            start(arguments, out, processes, 1 if kind == "one after the other" else 64)
            each = [differences(out, rank) for rank in range(processes)]
            wall[kind] += [seconds for seconds, _ in each[0]]
            used[kind] += [sum(step[1] for step in steps) for steps in zip(*each, strict=True)]
    weights = json.loads((out / "steps-0-0.json").read_text())["weights"]
    size = arguments.processes
    kill = arguments.steps // 2
    killed = place / "killed"
    start(arguments, killed, size, 64, kill)
    lines = [json.loads(line) for line in (killed / "ledger.jsonl").read_text().splitlines()]
    again = [number for number, line in enumerate(lines) if line["event"] == "start"][1]
    times = [[line["time"] for line in part if line["event"] == "step"] for part in (lines[:again], lines[again:])]
    return {
        "processes": size,
        "weights": weights,
        "wall_ms": {kind: round(1000 * statistics.median(values), 1) for kind, values in wall.items()},
        "processor_ms": {kind: round(1000 * statistics.median(values), 1) for kind, values in used.items()},
        "bytes_sent_by_each": round(traffic(MICRO_BATCHES, size) * 2 * 4 * weights * (size - 1) / size),
        "restart_seconds": round(times[1][0] - times[0][-1], 1),
    }


def main() -> None:
    parser = frame.options(__doc__)
    parser.add_argument("--recipe", default="quickstart")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    for hidden in ("--worker", "--out", "--overrides", "--kill"):
        how: dict[str, Any] = {"action": "store_true"} if hidden == "--worker" else {}
        parser.add_argument(hidden, help=argparse.SUPPRESS, **how)
    arguments = frame.parsed(parser, "--steps 8 --rounds 1")
    if arguments.worker:
        arguments.out, arguments.kill = Path(arguments.out), int(arguments.kill)
        worker(arguments)
        return
    from unicloze.recipes import load_recipe
    from unicloze.text.prepare import prepare_data

    recipe = load_recipe(arguments.recipe)
    arguments.micro = max(1, recipe.training.batch_size // MICRO_BATCHES)
    with tempfile.TemporaryDirectory() as place:
        arguments.data = Path(place) / "data"
        prepare_data(recipe.data, recipe.tokenizer, arguments.data, progress=False)
        found = measure(arguments, Path(place))
    print(json.dumps(found, indent=1))
    frame.write(found, arguments.json)


if __name__ == "__main__":
    main()
