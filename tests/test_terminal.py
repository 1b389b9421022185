"""The terminal: errors and warnings in one sentence or with the traceback on request, and progress."""

from __future__ import annotations

import errno
import io
import os
import sys
import warnings
from collections.abc import Callable

import pytest

from cli_toys import Command
from unicloze import progress, terminal, verbs
from unicloze.errors import UniclozeError
from unicloze.progress import Progress, each, say, short

# Errors in one sentence


def raising(error: BaseException) -> Callable[..., None]:
    def verb(*_: object, **__: object) -> None:
        raise error

    return verb


class OutOfMemoryError(RuntimeError):
    """Named like torch's."""


@pytest.mark.parametrize(("error", "code", "says"), [
    (UniclozeError("mend this"), 1, "mend this"),
    (KeyboardInterrupt(), 130, "Ctrl-C"),
    (MemoryError(), 1, "not enough memory"),
    (OutOfMemoryError("CUDA out of memory.\nTried"), 1, "(CUDA out of memory. Tried)"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: 5 bytes"), 1, "not enough memory"),
    (PermissionError(errno.EACCES, "Permission denied", "runs/mine"), 1, "runs/mine: permission denied: change"),
    (OSError(errno.ENOSPC, "No space left on device"), 1, "free some space"),
    (Exception("I/O error: No space left on device (os error 28)"), 1, "free some space"),
    (OSError(errno.EIO, "Input/output error", "disk"), 1, "disk: input/output error"),
    (ZeroDivisionError("division\nby zero"), 70, "bug in unicloze: ZeroDivisionError: division by zero in test_terminal.py"),
], ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "")  # fmt: skip
def test_every_error_is_one_sentence(
    error: BaseException, code: int, says: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verbs, "recipes", raising(error))
    said = command("recipes")
    assert said.code == code and says in said.sentence


def test_a_half_built_progress_bar_prints_no_error_after_a_signal(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bar:
        def __init__(self) -> None:
            raise terminal.Terminated

        def __del__(self) -> None:
            self.close()

    complained: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", complained.append)
    monkeypatch.setattr(verbs, "recipes", lambda: Bar())
    said = command("recipes")
    assert said.code == 143 and said.sentence == "Stopped by SIGTERM."
    assert complained == []


@pytest.mark.parametrize("words", [["--debug", "recipes"], ["recipes", "--debug"]], ids=" ".join)
def test_debug_shows_the_traceback(words: list[str], command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "recipes", raising(UniclozeError("mend this")))
    said = command(*words)
    assert said.code == 1 and said.err.startswith("Traceback")
    assert said.err.endswith("unicloze: error: mend this\n")


def test_a_warning_is_one_line(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def warn() -> list[verbs.RecipeSummary]:
        warnings.warn("mind\n the gap", stacklevel=1)
        return []

    monkeypatch.setattr(verbs, "recipes", warn)
    assert command("recipes", "--json") == (0, "[]\n", "unicloze: warning: mind the gap\n")


# Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_without_a_terminal_a_line_comes_every_few_seconds(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress("", 1000, "steps", initial=100) as bar:
        for _ in range(900):
            clock[0] += 0.1
            bar.note("ae 5.9 par 5.9 12k tok/s")
            bar.update()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 5 and not any("\r" in line for line in lines)
    assert lines[0] == "300 of 1,000 steps, ae 5.9 par 5.9 12k tok/s, 20 s, about 70 s left"
    assert lines[-1] == "1,000 of 1,000 steps, ae 5.9 par 5.9 12k tok/s, 90 s"


def test_short_work_prints_one_line_and_hidden_work_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(each("ab", "count words", "parts")) == ["a", "b"]
    list(each("ab", "count words", "parts", show=False))
    assert capsys.readouterr().err == "count words: 2 parts, 0 s\n"


def test_at_a_terminal_a_bar_with_losses_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(progress.shutil, "get_terminal_size", lambda *_: os.terminal_size((80, 24)))
    monkeypatch.setenv("COLUMNS", "80")
    with Progress("", 100_000, "steps", initial=99_000) as bar:
        bar.note("ae 5.9 par 5.9 12k tok/s")
        bar.update(1000)
        say("step 1: " + "perplexity of the held-out text and what the counts say " * 3)
    for line in shown.getvalue().replace("\n", "\r").split("\r"):
        assert len(line.rstrip()) <= 80, line
    assert "100000/100000" in shown.getvalue() and "ae 5.9 par 5.9 12k tok/s" in shown.getvalue()


@pytest.mark.parametrize(
    ("number", "shown"),
    [(850.4, "850"), (1234, "1.2k"), (12345, "12k"), (3.44e6, "3.4M"), (1e9, "1.0G"), (999_600, "1.0M")],
)
def test_numbers_are_short(number: float, shown: str) -> None:
    assert short(number) == shown


def test_tables_break_at_words_under_their_last_column(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = "name  what\ngpt   " + "words and more words " * 5 + "end\n" + "a" * 50 + "  " + "words " * 10 + "end"
    terminal.show(table, json=False)
    assert capsys.readouterr().out == f"{table}\n"  # a file or a pipe gets whole lines
    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr(terminal.shutil, "get_terminal_size", lambda *_: os.terminal_size((60, 24)))
    terminal.show(table, json=False)
    lines = shown.getvalue().splitlines()
    assert all(len(line) <= 60 for line in lines)
    assert lines[2].startswith("      ")
    assert lines[-3] == "a" * 50 and lines[-2].startswith("    words words")
    assert " ".join(shown.getvalue().split()) == " ".join(table.split())
