"""What benchmarks share: options, processes that take turns, and the file of results."""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def options(description: str | None) -> argparse.ArgumentParser:
    """A parser with `--json` for the file of results."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    return parser


def parsed(parser: argparse.ArgumentParser, toy: str) -> argparse.Namespace:
    """The options given; `--toy` stands for the options `toy`, which only try the benchmark."""
    options, others = parsed_known(parser, toy)
    if others:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    return options


def parsed_known(parser: argparse.ArgumentParser, toy: str) -> tuple[argparse.Namespace, list[str]]:
    """As `parsed`, with the arguments that the parser does not know."""
    parser.add_argument("--toy", action="store_true", help=f"try the benchmark, for seconds: {toy}")
    given = sys.argv[1:]
    return parser.parse_known_args([*toy.split(), *given] if "--toy" in given else given)


def show(text: str, page: Path | None, script: Path) -> None:
    """Print a text, and replace what the script made in a page, between `<!-- made by SCRIPT -->` and `<!-- end -->`."""
    print(text)
    if page is None:
        return
    begin, end = f"<!-- made by benchmarks/{script.name} -->\n", "<!-- end -->"
    before, found, after = page.read_text(encoding="utf-8").partition(begin)
    if not found or end not in after:
        raise SystemExit(f"{page} has no text between {begin.strip()} and {end}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after.partition(end)[2]}", encoding="utf-8")


def write(results: Mapping[str, Any], file: Path | None) -> None:
    """Write the results, if a file is asked for."""
    if file is not None:
        file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


class Worker:
    """A process that runs `SCRIPT --worker SPEC` and answers each line it gets, see `answer_lines`."""

    def __init__(self, script: Path, spec: Mapping[str, Any], *, checkout: Path | None = None) -> None:
        environment = os.environ if checkout is None else os.environ | {"PYTHONPATH": str(checkout / "src")}
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(script), "--worker", json.dumps(spec)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=checkout,
        )  # fmt: skip

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """What the process says once it is ready; processes started together get ready side by side."""
        return self._answer()

    def ask(self, line: str = "go") -> dict[str, Any]:
        """The answer to a line."""
        _ = self.facts
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def stop(self) -> None:
        """End the process."""
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended with exit code {self._process.wait()}; its error is above")
        answer: dict[str, Any] = json.loads(line)
        return answer


def answer_lines(work: Callable[[int, str], Mapping[str, Any]], facts: Mapping[str, Any]) -> None:
    """The worker's side: print the facts, then for each line of the input the answer to its number and text."""
    print(json.dumps(facts), flush=True)
    for number, line in enumerate(sys.stdin):
        print(json.dumps(work(number, line)), flush=True)


def answers_in_turn(workers: Mapping[str, Worker], *, warmup: int, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """The answers of workers that take turns, so that drift of the machine affects all; those of the warm-up are left out."""
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in workers}
    for number in range(warmup + rounds):
        for name, worker in workers.items():
            answer = worker.ask()
            if number >= warmup:
                answers[name].append(answer)
    for worker in workers.values():
        worker.stop()
    return answers


def peak_mb(device: str) -> float:
    """Largest memory of this process so far, on a GPU that of its tensors."""
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
