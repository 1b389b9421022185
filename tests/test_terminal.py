"""Errors and warnings on the terminal: one sentence, or the traceback on request."""

from __future__ import annotations

import errno
import sys
import warnings
from collections.abc import Callable

import pytest

from cli_toys import Command
from unicloze import terminal, verbs
from unicloze.errors import UniclozeError

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
    (
        ZeroDivisionError("division\nby zero"),
        70,
        "bug in unicloze: ZeroDivisionError: division by zero in test_terminal.py",
    ),
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
