"""Vectors of texts beside sentence-transformers' `encode`: texts per second, and whether the vectors agree.

    python benchmarks/embed.py --model DIR [--precision fp32] [--rounds 5] [--short 256] [--long 32] [--json FILE]

DIR is a Hugging Face folder that sentence-transformers reads too, without normalisation. Short texts have 4 to 12 words, long
ones 60 to 160. Each contender is a separate process with batches of 32; they take turns, and the first round, which warms up,
is not counted. Ratios are medians over the rounds, of wall time and of processor time, which depends less on other work.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

WORDS = tuple("the a list of items is empty return value given state and not in to when if an object string".split())  # noqa: SIM905
LENGTHS = {"short": (4, 12), "long": (60, 160)}
BATCH = 32


def ours(model: str, precision: str) -> Any:
    """A function from texts to vectors."""
    from unicloze import verbs

    loaded = verbs.load_model(model)
    return lambda texts: np.asarray(verbs.embed(loaded, texts, precision=precision))


def theirs(model: str, _precision: str) -> Any:
    """A function from texts to vectors, by sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    loaded = SentenceTransformer(model, device="cpu")
    return lambda texts: loaded.encode(texts, batch_size=BATCH, show_progress_bar=False)


def work(who: str, model: str, precision: str) -> None:
    """Answer lines of texts with the seconds, the processor seconds and the vectors."""
    encode = {"ours": ours, "theirs": theirs}[who](model, precision)
    for line in sys.stdin:
        texts = json.loads(line)
        begin, used = time.perf_counter(), time.process_time()
        vectors = encode(texts)
        spent = time.perf_counter() - begin, time.process_time() - used
        print(json.dumps([*spent, np.asarray(vectors[:8], dtype=float).tolist()]), flush=True)


def cosines(one: Any, other: Any) -> float:
    """The lowest cosine of corresponding vectors."""
    a, b = np.asarray(one), np.asarray(other)
    return float(((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--short", type=int, default=256)
    parser.add_argument("--long", type=int, default=32)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.model, options.precision)
        return
    draw = random.Random(0)
    texts = {
        kind: [" ".join(draw.choices(WORDS, k=draw.randint(*LENGTHS[kind]))) for _ in range(getattr(options, kind))]
        for kind in LENGTHS
    }
    command = [sys.executable, "-W", "ignore", __file__, "--model", options.model, "--precision", options.precision]
    workers = {
        who: subprocess.Popen([*command, "--worker", who], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for who in ("ours", "theirs")
    }
    found: dict[str, dict[str, list[list[float]]]] = {kind: {who: [] for who in workers} for kind in LENGTHS}
    agree: dict[str, float] = {}
    for number in range(options.rounds + 1):
        for kind in LENGTHS:
            vectors = {}
            for who in list(workers)[:: 1 if number % 2 else -1]:
                pipe = workers[who]
                assert pipe.stdin is not None and pipe.stdout is not None
                pipe.stdin.write(json.dumps(texts[kind]) + "\n")
                pipe.stdin.flush()
                *spent, vectors[who] = json.loads(pipe.stdout.readline())
                if number:
                    found[kind][who].append(spent)
            agree[kind] = cosines(vectors["ours"], vectors["theirs"])
    for pipe in workers.values():
        pipe.communicate()
    results: dict[str, Any] = {"processor": platform.processor() or platform.machine(), "precision": options.precision}
    for kind, each in found.items():
        pairs = list(zip(each["ours"], each["theirs"], strict=True))
        results[kind] = {
            "texts": len(texts[kind]),
            "times faster": round(statistics.median(b[0] / a[0] for a, b in pairs), 3),
            "times less processor time": round(statistics.median(b[1] / a[1] for a, b in pairs), 3),
            "lowest cosine": agree[kind],
            "seconds": each,
        }
        print(f"{kind}: {results[kind]['times faster']} times faster, {results[kind]['times less processor time']} by "
              f"processor time, cosines >= {agree[kind]:.6f}")  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
