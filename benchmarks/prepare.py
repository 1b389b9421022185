"""Compares the cost of `prepare` with the tokenizer's own: peak memory and the ratio of their times on the same text.

    python benchmarks/prepare.py --corpus PATH... [--megabytes N] [--tokenizer PATH] [--rounds 3] [--jobs N] [--out FILE]
    python benchmarks/prepare.py --synthetic GIGABYTES [--tokenizer PATH] [--jobs N] [--out FILE]

Each measurement is a separate process; the two kinds take turns, and medians are compared. *encode* is the wall time
inside the tokenizers library alone: its batch encoding of the same documents, in pieces and batches of the size that
`prepare` uses, without reading and writing. *prepare* is a whole preparation with the same, loaded tokenizer: reading
twice, hashing, dropping duplicates, holding out, encoding, writing and fsync. *train + prepare* is one more run that also
trains the tokenizer. With `--jobs` above 1, worker processes prepare. Processor seconds are summed over cores and workers and
are more reliable on a busy machine. The peak is that of the largest process. With `--synthetic`, one preparation of random
words in files of 16 MB is measured, and nothing is compared. Goals: at most 1 GB for 140 MB of text, and at
least 90 % of the tokenizer's own speed per core.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

VOCAB_SIZE = 30522
FILE_SIZE = 16e6


def measure_encode(corpus: list[str], tokenizer_path: str) -> dict[str, float]:
    """Time inside the tokenizers library for all documents of a corpus."""
    from tokenizers import Tokenizer

    from unicloze.text.documents import read_documents
    from unicloze.text.pipeline import batches

    tokenizer = Tokenizer.from_file(tokenizer_path)
    seconds, processor_seconds, size = 0.0, 0.0, 0
    documents = ((document, False) for path in corpus for document in read_documents(path))
    for batch in batches(documents):
        pieces = [piece.text for piece in batch]
        size += sum(len(piece.encode()) for piece in pieces)
        start, processor_start = time.perf_counter(), time.process_time()
        tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
        seconds += time.perf_counter() - start
        processor_seconds += time.process_time() - processor_start
    return {"seconds": seconds, "processor_seconds": processor_seconds, "megabytes": size / 1e6}


def measure_prepare(corpus: list[str], tokenizer_path: str | None, out: Path, jobs: int) -> dict[str, float]:
    """Time and tokens of a whole preparation."""
    from unicloze.settings import DataSettings, TokenizerSettings
    from unicloze.text.prepare import prepare_data

    start, processor_start = time.perf_counter(), sum(os.times()[:4])
    settings = TokenizerSettings(path=tokenizer_path, vocab_size=VOCAB_SIZE)
    prepared = prepare_data(DataSettings(corpus=corpus), settings, out, progress=False, jobs=jobs)
    seconds, processor_seconds = time.perf_counter() - start, sum(os.times()[:4]) - processor_start
    tokens = sum(source.num_tokens for source in prepared.train)
    return {"seconds": seconds, "processor_seconds": processor_seconds, "tokens": tokens}


def child(what: str, corpus: list[str], tokenizer: str | None, out: str, jobs: int = 1) -> dict[str, float]:
    """Runs one measurement in a separate process."""
    arguments = [sys.executable, __file__, "--child", what, "--corpus", *corpus, "--out", out, "--jobs", str(jobs)]
    arguments += ["--tokenizer", tokenizer] if tokenizer else []
    output = subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True).stdout
    figures: dict[str, float] = json.loads(output)
    return figures


def median(runs: list[dict[str, float]], what: str) -> float:
    """Median of one figure over runs."""
    return statistics.median(run[what] for run in runs)


def slice_corpus(corpus: list[str], megabytes: float, out: Path) -> list[str]:
    """The first `megabytes` MB of the text as one .jsonl file."""
    from unicloze.text.documents import read_documents

    size = 0
    with out.open("w", encoding="utf-8") as file:
        for path in corpus:
            for document in read_documents(path):
                file.write(json.dumps({"text": document.text}) + "\n")
                size += len(document.text.encode())
                if size >= megabytes * 1e6:
                    return [str(out)]
    return [str(out)]


def synthetic_corpus(gigabytes: float, folder: Path) -> list[str]:
    """Files of random words, as frequent as in a language by Zipf's law, with a document of about 3 kB on each line."""
    import numpy as np

    draw, folder = np.random.default_rng(0), folder / "synthetic"
    folder.mkdir()
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    words = np.array(["".join(draw.choice(letters[: 6 + n % 20], 2 + n % 9)) for n in range(20_000)])
    size = number = 0
    while size < gigabytes * 1e9:
        with (folder / f"{number:05}.txt").open("w", encoding="utf-8") as file:
            while file.tell() < min(FILE_SIZE, gigabytes * 1e9 - size):
                places = np.minimum(draw.zipf(1.3, 50_000) - 1, len(words) - 1)
                for text in np.array_split(words[places], 100):
                    file.write(" ".join(text) + "\n\n")
            size += file.tell()
        number += 1
    return [str(folder)]


def stream(arguments: argparse.Namespace, work: Path) -> None:
    """Measure one preparation of synthetic text; prints and writes JSON."""
    corpus = synthetic_corpus(arguments.synthetic, work)
    figures = child("prepare", corpus, arguments.tokenizer, str(work / "out"), arguments.jobs)
    files = list(Path(corpus[0]).iterdir())
    report = {
        "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        "synthetic_megabytes": sum(file.stat().st_size for file in files) / 1e6,
        "files": len(files),
        "jobs": arguments.jobs,
        **figures,
    }
    print(f"{report['synthetic_megabytes']:,.0f} MB of random words, {figures['tokens'] / 1e6:,.1f} M tokens")
    print(f"{figures['seconds']:,.0f} s, at most {figures['peak_megabytes']:,.0f} MB in a process")
    Path(arguments.out).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Measures, prints a table and writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", nargs="+")
    parser.add_argument("--synthetic", type=float, help="measure one preparation of this many GB of random words")
    parser.add_argument("--megabytes", type=float, help="use only this many MB from the start of the text")
    parser.add_argument("--tokenizer", help="tokenizer.json (default: trained in the first run)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", default="prepare.json")
    parser.add_argument("--child", choices=("encode", "prepare"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        import resource

        if arguments.child == "encode":
            figures = measure_encode(arguments.corpus, arguments.tokenizer)
        else:
            figures = measure_prepare(arguments.corpus, arguments.tokenizer, Path(arguments.out), arguments.jobs)
        kilobytes = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        print(json.dumps({**figures, "peak_megabytes": kilobytes * (1 if sys.platform == "darwin" else 1024) / 1e6}))
        return

    if (arguments.corpus is None) == (arguments.synthetic is None):
        parser.error("give either --corpus or --synthetic")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        if arguments.synthetic is not None:
            stream(arguments, work)
            return
        corpus = arguments.corpus
        if arguments.megabytes:
            corpus = slice_corpus(corpus, arguments.megabytes, work / "slice.jsonl")
        tokenizer, trained = arguments.tokenizer, None
        if tokenizer is None:
            trained = child("prepare", corpus, None, str(work / "trained"), arguments.jobs)
            tokenizer = str(work / "trained" / "tokenizer.json")
        encode, prepare = [], []
        for i in range(arguments.rounds):
            encode.append(child("encode", corpus, tokenizer, ""))
            prepare.append(child("prepare", corpus, tokenizer, str(work / f"out-{i}"), arguments.jobs))
    report: dict[str, Any] = {
        "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        "corpus": arguments.corpus,
        "jobs": arguments.jobs,
        "megabytes": encode[0]["megabytes"],
        "tokens": prepare[0]["tokens"],
        "encode": encode,
        "prepare": prepare,
        "train_and_prepare": trained,
        "ratio": {unit: median(prepare, unit) / median(encode, unit) for unit in ("seconds", "processor_seconds")},
    }
    print(f"{report['megabytes']:.1f} MB of text, {report['tokens'] / 1e6:.1f} M tokens")
    print(f"{'':18}{'seconds':>10}{'MB/s':>8}{'processor s':>13}{'peak MB':>10}")
    rows = {"encode": encode, "prepare": prepare, "train + prepare": [trained] if trained else []}
    for name, runs in rows.items():
        if runs:
            seconds, processor_seconds = median(runs, "seconds"), median(runs, "processor_seconds")
            peak = max(run["peak_megabytes"] for run in runs)
            speed = report["megabytes"] / seconds
            print(f"{name:18}{seconds:10.1f}{speed:8.2f}{processor_seconds:13.1f}{peak:10.0f}")
    print(
        "prepare / encode = {seconds:.2f} by time, {processor_seconds:.2f} by processor time".format(**report["ratio"])
    )
    Path(arguments.out).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
