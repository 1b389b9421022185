"""What other programs cost: training, `fill`, `embed` and `serve`, alone and beside busy loops.

    python benchmarks/busy.py [--loops 0 1 2] [--rounds 3] [--what train fill embed serve] [--threads 2] [--json FILE] [--toy]

Each piece of work is done twice in turn, with threads that sleep while they wait (what unicloze chooses) and with threads
that spin (what torch does by itself), each in a new process. `share` is the speed beside the loops over the speed alone;
`alone` is the time of spinning threads over that of sleeping ones where nothing else runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from unicloze.cores import WAITING

HERE = Path(__file__).resolve()
POLICIES = {"sleep": {}, "spin": {"KMP_BLOCKTIME": "200"}}
"""What the user has chosen: nothing, or a variable that makes unicloze choose nothing and that libgomp does not read."""
COUNTS = {"train": 40, "fill": 400, "embed": 400, "serve": 400}
"""Steps of training, texts filled, batches of 16 texts embedded, requests: some seconds each."""
WORDS = (
    "list",
    "of",
    "the",
    "values",
    "that",
    "a",
    "call",
    "returns",
    "is",
    "read",
    "from",
    "file",
    "and",
    "name",
    "module",
)
SHAPE = {"hidden_size": 128, "num_layers": 2, "num_heads": 4, "intermediate_size": 512}


def text(index: int) -> str:
    """A text of 24 words that differs from the others."""
    return " ".join(WORDS[(index * 7 + step * step) % len(WORDS)] for step in range(24))


def make_model(folder: Path) -> Path:
    """A model of the quickstart's size after one step."""
    from unicloze import verbs

    corpus = folder / "corpus.txt"
    corpus.write_text("\n\n".join(map(text, range(400))), encoding="utf-8")
    overrides: dict[str, Any] = {f"model.{key}": value for key, value in SHAPE.items()}
    overrides |= {
        "data.corpus": str(corpus),
        "data.deduplicate": False,
        "training.steps": 1,
        "training.warmup_steps": 0,
    }
    verbs.pretrain(recipe="unilmv2-base", out=folder / "run", toy=True, quiet=True, overrides=overrides)
    return folder / "run"


def work(what: str, run: Path, count: int) -> Callable[[], object]:
    """The piece of work, ready to be timed."""
    from unicloze import verbs

    if what == "train":
        overrides: dict[str, Any] = {f"model.{key}": value for key, value in SHAPE.items()}
        overrides |= {"data.corpus": str(run.parent / "corpus.txt"), "data.deduplicate": False}
        overrides |= {
            "training.steps": count,
            "training.warmup_steps": 0,
            "training.batch_size": 32,
            "data.window": 128,
        }
        out = run.parent / f"train-{os.getpid()}"
        return lambda: verbs.pretrain(recipe="unilmv2-base", out=out, toy=True, quiet=True, overrides=overrides)
    model = verbs.load_model(run)
    if what == "fill":
        return lambda: [
            verbs.fill(model=model, text=f"{text(index)} [MASK] {text(index + 1)}") for index in range(count)
        ]
    if what == "embed":
        return lambda: verbs.embed(model=model, texts=[text(index) for index in range(16 * count)])
    raise SystemExit(f"unknown work: {what}")


@contextlib.contextmanager
def served(run: Path) -> Iterator[str]:
    """The URL of a server of the model."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "unicloze", "serve", "--model", str(run), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            while True:
                if server.poll() is not None:
                    raise SystemExit("the server ended before it answered")
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"{url}/health").close()
                    break
                time.sleep(0.1)
            yield url
        finally:
            server.terminate()


def ask(url: str, count: int) -> None:
    """Send requests, one after the other."""
    for index in range(count):
        body = json.dumps({"text": f"{text(index)} [MASK]"}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{url}/fill", body, {"Content-Type": "application/json"})).read()


def timed(job: Callable[[], object]) -> float:
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """So many processes that compute without end."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def seconds(what: str, run: Path, count: int, policy: dict[str, str], threads: int) -> float:
    """How long the work takes in a new process."""
    environment = {name: value for name, value in os.environ.items() if name not in WAITING}
    environment |= {"OMP_NUM_THREADS": str(threads), **policy}
    command = [sys.executable, str(HERE), "--worker", what, str(run), str(count)]
    return float(
        subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()[-1]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--what", nargs="+", default=["train", "fill", "embed", "serve"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--toy", action="store_true", help="one short round")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        what, run, count = options.worker
        if what == "serve":
            with served(Path(run)) as url:
                print(timed(lambda: ask(url, int(count))))
        else:
            print(timed(work(what, Path(run), int(count))))
        return
    rounds = 1 if options.toy else options.rounds
    times: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        run = make_model(Path(folder))
        for _ in range(rounds):
            for loops in options.loops:
                with busy(loops):
                    for what in options.what:
                        for name, policy in POLICIES.items():
                            count = 2 if options.toy else COUNTS[what]
                            times[what, loops, name].append(seconds(what, run, count, policy, options.threads))
    medians = {key: statistics.median(values) for key, values in times.items()}
    results = []
    for what in options.what:
        for loops in options.loops:
            line: dict[str, object] = {"what": what, "loops": loops, "threads": options.threads, "rounds": rounds}
            line["seconds"] = {name: round(medians[what, loops, name], 3) for name in POLICIES}
            line["share"] = {name: round(medians[what, 0, name] / medians[what, loops, name], 3) for name in POLICIES}
            line["alone"] = round(medians[what, 0, "spin"] / medians[what, 0, "sleep"], 3)
            results.append(line)
            print(json.dumps(line))
    if options.json:
        options.json.write_text(json.dumps({"results": results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
