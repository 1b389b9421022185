"""docs/trust.md names existing tests, and every file of this folder."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_of_promises_names_tests_that_are_there() -> None:
    page = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", page))
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
    here = {file.relative_to(ROOT).as_posix() for file in Path(__file__).parent.glob("test_*.py")}
    assert here <= named
