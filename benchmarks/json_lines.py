"""Results as JSON lines that a repeated command continues: one line for each finished run."""

from __future__ import annotations

import gzip
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
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


def differences(values: Sequence[float], base: Sequence[float]) -> str:
    """Mean of some values, and their difference from paired ones, with its standard error where there are several."""
    each = [value - other for value, other in zip(values, base, strict=True)]
    error = f" ± {statistics.stdev(each) / len(each) ** 0.5:.1f}" if len(each) > 1 else ""
    return f"{statistics.mean(values):6.1f}  {statistics.mean(each):+6.1f}{error}"
