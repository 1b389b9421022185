"""Compares the speed of two commits: both do the same work in turn, and the ratios of their times are reported.

    git worktree add ../old COMMIT
    python benchmarks/against.py ../old . [--what pretrain_step decode embed help] [--pairs 20] [--json FILE]
        [--toy]

Each checkout has separate processes, which import its `src` and do the work defined in its `benchmarks/`. A pair is one
piece of work by each, the old one first in every other pair, so that drift of the machine affects both equally. Processes
are restarted every `--restart` pairs, since their memory layout makes each a little faster or slower for its whole life.
The median of the new/old ratios of all pairs is printed with its 95 % bootstrap interval. The exit code is 1 if the upper
end of an interval reaches `--limit` (default: 1.05).

  pretrain_step  a step of AE+PAR with relative bias and dropout (benchmarks/pretrain_step.py; 6 layers of 384, window 128)
  decode         beam search with pseudo masks (benchmarks/decode.py --size small)
  embed          vectors of 64 texts of up to 126 tokens, by a model of 6 layers of 384
  help           `unicloze pretrain --help`, in seconds of CPU

Run it on a quiet machine. With 20 pairs all four take about five minutes of CPU.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import frame

SHAPE: dict[str, Any] = dict(hidden_size=384, num_layers=6, num_heads=6, intermediate_size=1536)
COMMON: dict[str, Any] = dict(kind="ours", shape=SHAPE, precision="fp32", device="cpu")
WORK: dict[str, tuple[str, dict[str, Any]]] = {
    "pretrain_step": (
        "pretrain_step.py",
        COMMON | dict(targets=["ae", "par"], relative_bias=True, dropout=0.1, window=128, batch=16),
    ),
    "decode": ("decode.py", COMMON | dict(predicts="pseudo", source=128, target=32, beams=5, batch=8)),
    "embed": ("against.py", dict(kind="embed")),
    "help": ("against.py", dict(kind="help")),
}
"""The script whose `--worker` does each work, and its specification."""
HERE = Path(__file__).resolve().parent
RESAMPLES = 10_000


def embed() -> Callable[[], float]:
    """Vectors of texts by a model after a single training step."""
    from unicloze import verbs

    words = [f"{first}{second}" for first in "bdfgklmnprstvz" for second in ("a", "e", "i", "o", "u", "al", "en", "or")]
    draw = random.Random(0)
    texts = [" ".join(draw.choices(words, k=draw.randint(8, 126))) for _ in range(64)]
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.txt"
        corpus.write_text("\n\n".join(texts * 2), encoding="utf-8")
        overrides = {f"model.{key}": value for key, value in SHAPE.items()}
        overrides |= {"data.corpus": str(corpus), "data.window": 128, "data.deduplicate": False, "training.steps": 1}
        overrides |= {"training.warmup_steps": 0, "training.precision": "fp32", "training.batch_size": 2}
        run = Path(folder) / "run"
        verbs.pretrain(recipe="unilmv2-base", out=run, toy=True, quiet=True, overrides=overrides)
        model = verbs.load_model(run)

    def work() -> float:
        start = time.perf_counter()
        verbs.embed(model=model, texts=texts)
        return time.perf_counter() - start

    return work


def help_text() -> Callable[[], float]:
    """The help of a verb, printed by a separate process."""

    def work() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "unicloze", "pretrain", "--help"], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return work


def worker(spec: dict[str, Any]) -> None:
    """Worker process: does the work once per line it reads, and answers with the seconds."""
    work = {"embed": embed, "help": help_text}[spec["kind"]]()
    frame.answer_lines(lambda _number, _line: {"seconds": work()}, {})


def worker_of(checkout: Path, script: str, spec: dict[str, Any]) -> frame.Worker:
    """A worker of a checkout, which has `src` and `benchmarks`; a script it lacks is the one next to this file."""
    own = checkout / "benchmarks" / script
    return frame.Worker(own if own.is_file() else HERE / script, spec, checkout=checkout)


def measure(what: str, checkouts: list[Path], options: argparse.Namespace) -> list[list[float]]:
    """Seconds of the old and of the new checkout, pair by pair."""
    pairs: list[list[float]] = []
    while len(pairs) < options.pairs:
        workers = [worker_of(checkout, *WORK[what]) for checkout in checkouts]
        for _ in range(options.warmup):
            for each in workers:
                each.ask()
        for _ in range(min(options.restart, options.pairs - len(pairs))):
            order = (0, 1) if len(pairs) % 2 == 0 else (1, 0)
            taken = {side: workers[side].ask()["seconds"] for side in order}
            pairs.append([taken[0], taken[1]])
        for each in workers:
            each.stop()
    return pairs


def compared(pairs: list[list[float]]) -> dict[str, Any]:
    """The median ratio and its bootstrap interval."""
    seconds = np.array(pairs)
    ratios = seconds[:, 1] / seconds[:, 0]
    drawn = np.random.default_rng(0).integers(len(ratios), size=(RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(ratios[drawn], axis=1), [0.025, 0.975])
    old, new = np.median(seconds, axis=0)
    return {
        "old_seconds": float(old), "new_seconds": float(new), "ratio": float(np.median(ratios)),
        "interval": [float(low), float(high)], "pairs": pairs,
    }  # fmt: skip


def main() -> int:
    """Measure, print one line per work, write JSON.

    Returns:
        0 if the new checkout is as fast, otherwise 1.
    """
    parser = frame.options(__doc__)
    parser.add_argument("checkouts", metavar="CHECKOUT", nargs="*", type=Path, help="the old one and the new one")
    parser.add_argument("--what", nargs="+", choices=WORK, default=list(WORK), metavar="WORK", help=", ".join(WORK))
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--restart", type=int, default=5, help="pairs after which processes are restarted (default: 5)")
    parser.add_argument("--warmup", type=int, default=1, help="pieces of work of a new process that are not counted")
    parser.add_argument("--limit", type=float, default=1.05)
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    options = frame.parsed(parser, "--what help --pairs 2 --warmup 0")
    if options.worker is not None:
        worker(options.worker)
        return 0
    if len(options.checkouts) != 2:
        parser.error("name two checkouts, the old one and the new one")
    results = {}
    start = time.perf_counter()
    print(f"{'':<14} {'old s':>8} {'new s':>8} {'new/old':>8}  95 % interval")
    for what in options.what:
        found = compared(measure(what, [checkout.resolve() for checkout in options.checkouts], options))
        found["holds"] = found["interval"][1] < options.limit
        results[what] = found
        low, high = found["interval"]
        print(
            f"{what:<14} {found['old_seconds']:>8.3f} {found['new_seconds']:>8.3f} {found['ratio']:>8.3f}  "
            f"{low:.3f} to {high:.3f}{'' if found['holds'] else f', not below {options.limit}'}"
        )
    print(f"{options.pairs} pairs each, in {time.perf_counter() - start:.0f} seconds")
    frame.write(results, options.json)
    return int(not all(found["holds"] for found in results.values()))


if __name__ == "__main__":
    sys.exit(main())
