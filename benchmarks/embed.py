"""Vectors of texts beside sentence-transformers' `encode`: texts per second, and whether the vectors agree.

    python benchmarks/embed.py --model DIR [--precision fp32] [--rounds 5] [--short 256] [--long 32] [--json FILE] [--toy]

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
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np

import frame

WORDS = tuple("the a list of items is empty return value given state and not in to when if an object string".split())  # noqa: SIM905
LENGTHS = {"short": (4, 12), "long": (60, 160)}
BATCH = 32


def ours(model: str, precision: Literal["auto", "bf16", "fp32"]) -> Any:
    """A function from texts to vectors."""
    from unicloze import verbs

    loaded = verbs.load_model(model)
    return lambda texts: np.asarray(verbs.embed(loaded, texts, precision=precision))


def theirs(model: str, _precision: str) -> Any:
    """A function from texts to vectors, by sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    loaded = SentenceTransformer(model, device="cpu")
    return lambda texts: loaded.encode(texts, batch_size=BATCH, show_progress_bar=False)


def work(who: str, model: str, precision: Literal["auto", "bf16", "fp32"]) -> None:
    """Answer lines of texts with the seconds, the processor seconds and the vectors."""
    encode = {"ours": ours, "theirs": theirs}[who](model, precision)

    def timed(_number: int, line: str) -> dict[str, Any]:
        texts = json.loads(line)
        begin, used = time.perf_counter(), time.process_time()
        vectors = encode(texts)
        spent = time.perf_counter() - begin, time.process_time() - used
        return {"spent": spent, "vectors": np.asarray(vectors[:8], dtype=float).tolist()}

    frame.answer_lines(timed, {})


def cosines(one: Any, other: Any) -> float:
    """The lowest cosine of corresponding vectors."""
    a, b = np.asarray(one), np.asarray(other)
    return float(((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min())


def main() -> None:
    parser = frame.options(__doc__)
    parser.add_argument("--model")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--short", type=int, default=256)
    parser.add_argument("--long", type=int, default=32)
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    options = frame.parsed(parser, "--rounds 1 --short 8 --long 2")
    if options.worker:
        work(**options.worker)
        return
    if options.model is None:
        parser.error("give --model")
    draw = random.Random(0)
    texts = {
        kind: [" ".join(draw.choices(WORDS, k=draw.randint(*LENGTHS[kind]))) for _ in range(getattr(options, kind))]
        for kind in LENGTHS
    }
    common = {"model": options.model, "precision": options.precision}
    workers = {who: frame.Worker(Path(__file__), {"who": who, **common}) for who in ("ours", "theirs")}
    found: dict[str, dict[str, list[list[float]]]] = {kind: {who: [] for who in workers} for kind in LENGTHS}
    agree: dict[str, float] = {}
    for number in range(options.rounds + 1):
        for kind in LENGTHS:
            vectors = {}
            for who in list(workers)[:: 1 if number % 2 else -1]:
                answer = workers[who].ask(json.dumps(texts[kind]))
                vectors[who] = answer["vectors"]
                if number:
                    found[kind][who].append(answer["spent"])
            agree[kind] = cosines(vectors["ours"], vectors["theirs"])
    for worker in workers.values():
        worker.stop()
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
    frame.write(results, options.json)


if __name__ == "__main__":
    main()
