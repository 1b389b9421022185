"""Sampling, counting and reporting: the parts of `mutate.py` that need neither a parser nor a test run."""

from __future__ import annotations

import difflib
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import yaml

PACKAGE = Path("src", "unicloze")
MODULES = (
    "visibility", "visibility_masks", "recipes",
    "objectives/masking", "objectives/unilmv2", "objectives/permuted", "objectives/diffusion",
    "text/pipeline", "text/shards", "text/sampler", "model/heads", "tasks/extraction", "training/batches", "training/loop",
    "training/optimizers", "training/checkpoint", "training/process", "decoding/search", "decoding/likelihood",
    "evaluation/metrics/registry", "interop/tokenizer_files", "finetuning/run",
)  # fmt: skip
"""Modules sampled by default."""
KILLED = {"killed", "timeout"}
Z = 1.959964


class Place(Protocol):
    @property
    def line(self) -> int: ...
    @property
    def operator(self) -> str: ...


P = TypeVar("P", bound=Place)


def drawn(places: Iterable[P], seed: str) -> Iterator[P]:
    """All mutations of a module in a random order determined by the seed.

    Each line is drawn once before any is drawn again; a draw picks one kind of mutation of the line, then one of that kind.
    So a call with ten arguments counts no more than a comparison, and a longer sample begins with the shorter one.
    """
    rng = random.Random(seed)
    by_line: dict[int, list[P]] = defaultdict(list)
    for place in places:
        by_line[place.line].append(place)
    while by_line:
        for line in rng.sample(sorted(by_line), len(by_line)):
            here = by_line[line]
            kind = rng.choice(sorted({place.operator for place in here}))
            place = rng.choice([place for place in here if place.operator == kind])
            here.remove(place)
            if not here:
                del by_line[line]
            yield place


def module_file(root: Path, name: str) -> Path:
    """The file of a module named like `training/loop`, relative to the root of the repository."""
    stem = PACKAGE / name.removeprefix(f"{PACKAGE}/").removesuffix(".py").replace(".", "/")
    for path in (stem.with_suffix(".py"), stem / "__init__.py"):
        if (root / path).is_file():
            return path
    raise SystemExit(f"{PACKAGE} has no module {name}: name one like training/loop")


def shares(count: int, modules: int) -> list[int]:
    """Number of mutations per module in a sample of `count`: equal, except that the first ones may have one more."""
    return [count // modules + (number < count % modules) for number in range(modules)]


def changed(old: str, new: str) -> tuple[str, str]:
    """The lines of a source that a mutation changes, before and after, each as one line."""
    before, after = old.splitlines(), new.splitlines()
    codes = difflib.SequenceMatcher(None, before, after, False).get_opcodes()
    parts = [code[1:] for code in codes if code[0] != "equal"]

    def joined(lines: Sequence[str], spans: Iterable[tuple[int, int]]) -> str:
        return " ⏎ ".join(line.strip() for start, end in spans for line in lines[start:end])

    return joined(before, (part[:2] for part in parts)), joined(after, (part[2:] for part in parts))


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share (Wilson 1927)."""
    if not trials:
        return 0.0, 1.0
    share, spread = successes / trials, Z * Z / trials
    middle = (share + spread / 2) / (1 + spread)
    half = Z * math.sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class Equivalent:
    """A mutation that no test can kill, and why. It is identified by its text, so it stays valid when lines move."""

    module: str
    line: str
    mutant: str
    reason: str


def read_equivalents(file: Path) -> list[Equivalent]:
    """The committed list."""
    return [Equivalent(**entry) for entry in yaml.safe_load(file.read_text(encoding="utf-8")) or []]


def summary(records: Sequence[dict[str, Any]], equivalents: Sequence[Equivalent]) -> str:
    """The share killed with its interval, by module too, and a table of survivors, in Markdown.

    Args:
        records: For each mutation `module`, `line`, `old`, `new`, `verdict` (killed, timeout, survived, uncovered), `by`,
            `tests` and `left_out`.
        equivalents: Mutations that are not counted if they survive.
    """
    reasons = {(entry.module, entry.line, entry.mutant): entry.reason for entry in equivalents}

    def shown(record: dict[str, Any]) -> str | None:
        return reasons.get((record["module"], record["old"], record["new"]))

    killed = [record for record in records if record["verdict"] in KILLED]
    spared = [record for record in records if record["verdict"] not in KILLED and shown(record)]
    survivors = [record for record in records if record["verdict"] not in KILLED and not shown(record)]
    real = len(killed) + len(survivors)
    late = sum(record["verdict"] == "timeout" for record in killed)
    low, high = wilson(len(killed), real)
    lines = [
        f"{len(records)} mutations, {len(spared)} of them shown to be equivalent; {len(killed)} of the other {real} killed:",
        f"**{len(killed) / max(real, 1):.1%}** (95 % interval {low:.1%} to {high:.1%}), {late} of them by the time limit.",
    ]
    lines += [
        f"Listed as equivalent, yet killed by {record['by']}: {record['module']}, `{record['old']}` → `{record['new']}`."
        for record in killed
        if shown(record)
    ]
    lines += ["", "| module | killed | real |", "|---|---|---|"]
    for module in dict.fromkeys(record["module"] for record in records):
        counts = [sum(record["module"] == module for record in part) for part in (killed, survivors)]
        lines.append(f"| {module} | {counts[0]} | {sum(counts)} |")
    if survivors:
        lines += ["", "| survivor | mutation | tests run | left out |", "|---|---|---|---|"]
    for record in sorted(survivors, key=lambda record: (record["module"], record["line"])):
        text = f"`{record['old']}` → `{record['new']}`".replace("|", "\\|")
        tests = "none covers it" if record["verdict"] == "uncovered" else record["tests"]
        lines.append(f"| {record['module']}:{record['line']} | {text} | {tests} | {record['left_out']} |")
    return "\n".join(lines) + "\n"
