"""docs/trust.md names existing tests, every file of this folder, and the number of cases."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import test_fuzz

ROOT = Path(__file__).parents[2]


def rows() -> list[tuple[list[str], int, str]]:
    """Of each promise: its tests, the number of their cases, and what they are."""
    lines = [
        line for line in (ROOT / "docs" / "trust.md").read_text(encoding="utf-8").splitlines() if "`tests/" in line
    ]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [(re.findall(r"`(tests/[^`]+)`", tests), int(count), what) for _, tests, count, what in cells]


def test_the_page_of_promises_names_tests_that_are_there() -> None:
    named = {name.partition("::")[0] for names, _, _ in rows() for name in names} | {"tests/trust/test_page.py"}
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
    here = {file.relative_to(ROOT).as_posix() for file in Path(__file__).parent.glob("test_*.py")}
    assert here <= named


@pytest.mark.whole
def test_the_counts_of_the_page_are_those_of_the_tests() -> None:
    files = sorted({name.partition("::")[0] for names, _, _ in rows() for name in names})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-p", "no:cacheprovider", *files]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for names, count, _ in rows():
        found = {name: [case for case in collected if case.startswith(name)] for name in names}
        assert all(found.values()), found
        assert len({case for cases in found.values() for case in cases}) == count, names


def test_the_mutations_of_the_page_are_those_tried() -> None:
    (what,) = (what for names, _, what in rows() if "tests/trust/test_fuzz.py" in names)
    assert f"{sum(test_fuzz.FEW.get(name, 200) + cases for name, cases in test_fuzz.CASES.items()):,} mutations" in what
