"""Progress displays on a terminal and if stderr is a file."""

from __future__ import annotations

import io
import os
import sys

import pytest

from unicloze import progress, terminal
from unicloze.progress import Progress, each, say, short


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
    ("number", "shown"), [(850.4, "850"), (1234, "1.2k"), (12345, "12k"), (3.44e6, "3.4M"), (1e9, "1.0G")]
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
