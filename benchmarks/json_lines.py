"""Results as JSON lines that a repeated command continues, one for each finished run, and cells of their tables."""

from __future__ import annotations

import gzip
import json
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines; none if there is no file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def once(path: Path, key: Mapping[str, Any], compute: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """The line of a file with this key, computed and appended if there is none.

    Args:
        path: File of JSON lines.
        key: What the run is: names, seed and settings, as JSON keeps them.
        compute: Returns the results of the run.
    """
    for line in read_lines(path):
        if key.items() <= line.items():
            return line
    line = {**key, **compute()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps(line), flush=True)
    return line


def evenly_spaced(source: Path, target: Path, count: int, *, header: bool) -> Path:
    """Write evenly spaced lines of a text file, which may be compressed, and its first line if that is a header."""
    content = source.read_bytes()
    lines = (gzip.decompress(content) if source.suffix == ".gz" else content).decode().splitlines()
    first, lines = (lines[:1], lines[1:]) if header else ([], lines)
    chosen = [lines[place * len(lines) // count] for place in range(count)] if count < len(lines) else lines
    target.write_text("\n".join([*first, *chosen]) + "\n", encoding="utf-8")
    return target


def cell(values: Mapping[int, float], base: Mapping[int, float] | None) -> str:
    """Mean and standard deviation over the seeds, and the difference from the base, see `against`."""
    if not values:
        return "-"
    spread = f" ± {statistics.stdev(values.values()):.1f}" if len(values) > 1 else ""
    differs = against(values, base or {})
    return f"{statistics.fmean(values.values()):.1f}{spread}" + (f" ({differs})" if differs else "")


def against(values: Mapping[int, float], base: Mapping[int, float]) -> str:
    """The mean difference from the base on the same seeds, with its standard error; empty without such seeds."""
    differences = [values[seed] - base[seed] for seed in values if seed in base]
    if not differences:
        return ""
    error = f" ± {statistics.stdev(differences) / len(differences) ** 0.5:.1f}" if len(differences) > 1 else ""
    return f"{statistics.fmean(differences):+.1f}{error}"
