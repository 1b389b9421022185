"""`make mutate`: its samples and its summary. No mutation is run here."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest

from conftest import REPOSITORY
from mutants import MODULES, Equivalent, changed, drawn, module_file, read_equivalents, shares, summary, wilson


@dataclass(frozen=True)
class Place:
    line: int
    operator: str
    number: int = 0


PLACES = [Place(line, operator, number) for line in (3, 5, 8, 9) for operator in ("a", "b") for number in range(line)]


def test_the_seed_decides_the_sample() -> None:
    once = list(drawn(PLACES, "0/module"))
    assert once == list(drawn(PLACES, "0/module"))
    assert once != list(drawn(PLACES, "1/module"))
    assert len(once) == len(PLACES) and set(once) == set(PLACES)


def test_every_line_is_drawn_before_any_again() -> None:
    for seed in map(str, range(20)):
        places = drawn(PLACES, seed)
        for _ in range(3):
            assert {place.line for place in islice(places, 4)} == {3, 5, 8, 9}


def test_each_kind_of_mutation_is_drawn_equally_often() -> None:
    places = [Place(1, "rare"), *(Place(1, "common", number) for number in range(50))]
    first = [next(drawn(places, str(seed))).operator for seed in range(400)]
    assert 160 < first.count("rare") < 240


def test_modules_share_the_sample_equally() -> None:
    assert shares(8, 3) == [3, 3, 2]
    assert shares(2, 3) == [1, 1, 0]


@pytest.mark.parametrize(
    ("successes", "trials", "interval"),
    [(81, 263, (0.2553, 0.3662)), (15, 148, (0.0624, 0.1605)), (0, 20, (0.0, 0.1611)), (1, 29, (0.0061, 0.1718))],
)
def test_the_interval_is_that_of_newcombe_1998(successes: int, trials: int, interval: tuple[float, float]) -> None:
    assert wilson(successes, trials) == pytest.approx(interval, abs=5e-5)


def test_a_mutation_is_shown_in_one_line() -> None:
    old = "def f(a):\n    return sum(\n        a, 1\n    )\n"
    assert changed(old, old.replace("a, 1", "a, 2")) == ("a, 1", "a, 2")
    assert changed(old, "def f(a):\n    pass\n") == ("return sum( ⏎ a, 1 ⏎ )", "pass")


def record(verdict: str, line: int, new: str, **more: Any) -> dict[str, Any]:
    fixed = {"module": "m.py", "old": "x | y", "by": "", "tests": 4, "left_out": 0}
    return {**fixed, "verdict": verdict, "line": line, "new": new, **more}


def test_the_summary_leaves_out_what_is_equivalent() -> None:
    records = [
        record("killed", 1, "x & y", by="tests/test_a.py::test_b"),
        record("timeout", 2, "x ^ y"),
        record("survived", 9, "x", left_out=3),
        record("uncovered", 4, "y", tests=0),
        record("survived", 6, "y | x"),
    ]
    listed = [Equivalent("m.py", "x | y", "y | x", "or commutes"), Equivalent("n.py", "x | y", "x", "another module")]
    text = summary(records, listed)
    assert "5 mutations, 1 of them shown to be equivalent; 2 of the other 4 killed:\n**50.0%**" in text
    assert ", 1 of them by the time limit." in text
    assert "| m.py | 2 | 4 |" in text
    assert text.endswith("\n| m.py:4 | `x \\| y` → `y` | none covers it | 0 |\n| m.py:9 | `x \\| y` → `x` | 4 | 3 |\n")
    assert "yet killed" not in text
    text = summary([record("killed", 1, "y | x", by="test_b")], listed)
    assert "Listed as equivalent, yet killed by test_b: m.py, `x | y` → `y | x`." in text
    assert "1 of the other 1 killed:\n**100.0%**" in text


def test_the_modules_are_there() -> None:
    files = [module_file(REPOSITORY, name) for name in MODULES]
    assert len(set(files)) == len(files)
    assert module_file(REPOSITORY, str(files[0])) == files[0]
    with pytest.raises(SystemExit, match="no module training/lop"):
        module_file(REPOSITORY, "training/lop")


def test_what_is_listed_as_equivalent_is_there_and_has_a_reason() -> None:
    for entry in read_equivalents(REPOSITORY / "benchmarks" / "mutation" / "equivalent.yaml"):
        lines = {line.strip() for line in (REPOSITORY / entry.module).read_text(encoding="utf-8").splitlines()}
        assert set(entry.line.split(" ⏎ ")) <= lines, entry
        assert entry.line != entry.mutant and entry.reason, entry


SOURCE = '''"""Documentation."""
from typing import cast

LIMIT: int | None = 3
__all__ = ["f"]


def f(a, b=True):
    """Documentation."""
    if a:
        raise ValueError("a message")
    b.c = g(
        a,
        key=a,
    )
    for x, y in zip(a, b, strict=True):
        cast("int", x)
'''


@pytest.mark.whole
def test_what_is_mutated_and_which_lines_its_tests_run() -> None:
    pytest.importorskip("mutmut", reason="the extra `mutate` is not installed")
    from mutation_sites import mutated_source, sites

    module, found = sites(SOURCE)
    seen = {(*changed(SOURCE, mutated_source(module, site)), site.line, site.lines) for site in found}
    assert seen == {
        ("LIMIT: int | None = 3", "LIMIT: int | None = 4", 4, None),
        ("def f(a, b=True):", "def f(a, b=False):", 8, range(9, 18)),
        ("if a:", "if not (a):", 10, range(10, 11)),
        ('raise ValueError("a message")', "pass", 11, range(11, 12)),
        ("b.c = g( ⏎ a, ⏎ key=a, ⏎ )", "pass", 12, range(12, 16)),
        ("key=a, ⏎ )", ")", 12, range(12, 16)),
        ('cast("int", x)', "pass", 17, range(17, 18)),
    }
