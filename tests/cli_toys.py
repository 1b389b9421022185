"""Runs commands in this process, and makes a model for them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from corpora import write_corpus
from unicloze import cli


class Said(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The error, which must be one line without a traceback."""
        lines = [line for line in self.err.splitlines() if line.startswith("unicloze: error: ")]
        assert len(lines) == 1 and "Traceback" not in self.err and not self.out
        return lines[0].removeprefix("unicloze: error: ")


Command = Callable[..., Said]


def command_of(capsys: pytest.CaptureFixture[str]) -> Command:
    """A function that runs a command and returns its output."""

    def run(*words: str | Path) -> Said:
        capsys.readouterr()
        code = cli.main([str(word) for word in words])
        return Said(code, *capsys.readouterr())

    return run


def train_quickstart(place: Path) -> Path:
    """A working directory with a run `runs/quickstart`, made by the command line, and its corpus `my_text`."""
    write_corpus(place / "my_text")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        words = "pretrain --recipe quickstart --toy --data.corpus my_text --out runs/quickstart --training.save_every 1"
        assert cli.main(["--debug", *words.split(), "--quiet"]) == 0
    return place


def copied(run: Path, to: Path) -> Path:
    shutil.copytree(run, to)
    return to
