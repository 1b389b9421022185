"""Fixtures of all tests, and the profile of those with drawn cases. The environment is set before anything imports torch."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Collection, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # a test may load torch before unicloze
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

TOO_LONG = 4.0
"""Processor seconds above which a test is marked `slow` or made shorter."""
PROCESSOR_SECONDS = "processor seconds"
BEGUN = pytest.StashKey[float]()
signal.signal(
    signal.SIGINT, signal.default_int_handler
)  # a shell's background jobs ignore it, and their children as well
settings.register_profile(
    "suite", derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile("suite")
REPOSITORY = Path(__file__).resolve().parent.parent


def slow_except(quick: Collection[object], values: Iterable[object]) -> list[Any]:
    """Values of a parameter, all marked `slow` but some."""
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)), marks=[pytest.mark.slow] * (value not in quick)
        )
        for value in values
    ]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command in this process, and returns its exit code and output."""
    from cli_toys import command_of

    return command_of(capsys)


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from cli_toys import train_quickstart

    return train_quickstart(tmp_path_factory.mktemp("quickstart"))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small corpus, which no test changes."""
    from corpora import write_corpus

    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def of_the_module(quickstart: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(quickstart, tmp_path_factory.mktemp("cli") / "here")


@pytest.fixture
def here(of_the_module: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a run `runs/quickstart` and its corpus `my_text`."""
    monkeypatch.chdir(of_the_module)
    return of_the_module


@pytest.fixture(scope="module")
def bert() -> Any:
    """An untrained model that reads in both directions."""
    from nlu_toys import start

    return start()


@pytest.fixture(scope="module")
def gpt() -> Any:
    """An untrained model that reads from left to right."""
    from nlu_toys import start

    return start("gpt")


@pytest.fixture
def hangup() -> Iterator[None]:
    """SIGHUP has its default effect, also if the tests run under nohup."""
    former = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, former)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real data next to the repository; tests are skipped without it."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no real data: there is no folder shared/data next to the repository")
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where there is no CUDA device."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked:
        import torch

        if not torch.cuda.is_available():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", type=Path, metavar="FILE", help="write the processor seconds of all tests as a table")


def processor_seconds() -> float:
    """Of this process and of the children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Note when a test begins; its report is made before this hook ends."""
    item.stash[BEGUN] = processor_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the processor seconds since the test began, fixtures included."""
    report = yield
    if report.when == "teardown":
        marked = item.get_closest_marker("slow") is not None
        report.user_properties.append((PROCESSOR_SECONDS, [processor_seconds() - item.stash[BEGUN], marked]))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """List the unmarked tests that take long, and write the table of all."""
    reports = [
        report for group in terminalreporter.stats.values() for report in group if isinstance(report, pytest.TestReport)
    ]
    times = {
        report.nodeid: dict(report.user_properties)[PROCESSOR_SECONDS]
        for report in reports
        if report.when == "teardown"
    }
    file = config.getoption("--times")
    if file is not None:
        ordered = sorted(times.items(), key=lambda one: -one[1][0])
        lines = [f"{seconds:.2f}\t{'slow' if marked else ''}\t{name}" for name, (seconds, marked) in ordered]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    terminalreporter.write_line(f"{sum(seconds for seconds, _ in times.values()) / 60:.1f} processor minutes of tests")
    long = {name: seconds for name, (seconds, marked) in times.items() if seconds > TOO_LONG and not marked}
    if long:
        terminalreporter.section(f"tests above {TOO_LONG:g} processor seconds that are not marked slow")
        for name, seconds in sorted(long.items(), key=lambda one: -one[1]):
            terminalreporter.write_line(f"{seconds:6.1f} s  {name}")
