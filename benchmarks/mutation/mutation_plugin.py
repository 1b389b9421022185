"""pytest's side of `mutate.py`: records which test runs which line, or runs chosen tests alone.

MUTATION_RECORD names the output file of the recording, with coverage.py started by COVERAGE_PROCESS_START; lines run by a
test's child processes count as the test's. MUTATION_SELECT names a file with the tests to run, MUTATION_FAILED one for the
test that failed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


class Recorder:
    """Records lines by test, and by fixture if several tests share it: it runs only in the first one but serves them all."""

    def __init__(self, file: Path) -> None:
        import coverage

        self.file = file
        self.coverage: Any = coverage.Coverage.current()
        self.context = ""
        self.tests: dict[str, dict[str, Any]] = {}
        self.seconds: dict[str, float] = defaultdict(float)
        self.outcomes: dict[str, set[str]] = defaultdict(set)

    @contextmanager
    def within(self, context: str) -> Iterator[None]:
        before, started = self.context, time.perf_counter()
        self._enter(context)
        try:
            yield
        finally:
            self.seconds[context] += time.perf_counter() - started
            self._enter(before)

    def _enter(self, context: str) -> None:
        self.context = os.environ["MUTATION_CONTEXT"] = context
        self.coverage.switch_context(context)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        forget_cached_values()
        fixtures = [f"@{name}" for name in getattr(item, "fixturenames", [])]
        self.tests[item.nodeid] = {"fixtures": fixtures}
        with self.within(item.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        forget_cached_values()
        with self.within(f"@{fixturedef.argname}"):
            return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.outcomes[report.nodeid].add(report.outcome)

    def pytest_sessionfinish(self) -> None:
        passed = {name: test for name, test in self.tests.items() if self.outcomes[name] == {"passed"}}
        failed = [name for name in self.tests if "failed" in self.outcomes[name]]
        found = {"known": list(self.tests), "tests": passed, "failed": failed, "seconds": self.seconds}
        self.file.write_text(json.dumps(found), encoding="utf-8")


def forget_cached_values() -> None:
    """Makes every test run the lines it depends on, since an earlier test may have cached their results."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "unicloze":
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear") and callable(value.cache_clear):
                    value.cache_clear()


class Selector:
    """Runs the chosen tests, and those that did not exist when lines were recorded: a mutation may rename a test."""

    def __init__(self, chosen: dict[str, list[str]], failed: Path) -> None:
        self.run = set(chosen["run"])
        self.known = set(chosen["known"])
        self.failed = failed

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self.run or item.nodeid not in self.known]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed.exists():
            self.failed.write_text(report.nodeid, encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    if "MUTATION_RECORD" in os.environ:
        config.pluginmanager.register(Recorder(Path(os.environ.pop("MUTATION_RECORD"))))
    elif "MUTATION_SELECT" in os.environ:
        chosen = json.loads(Path(os.environ.pop("MUTATION_SELECT")).read_text(encoding="utf-8"))
        config.pluginmanager.register(Selector(chosen, Path(os.environ.pop("MUTATION_FAILED"))))
