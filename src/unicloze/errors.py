"""Errors a user can fix, reported as one sentence instead of a traceback."""

from __future__ import annotations

import difflib
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_PREFIX: ContextVar[str] = ContextVar("_PREFIX", default="")


class UniclozeError(Exception):
    """An error the user can fix. Its message says what is wrong, where, and how to fix it.

    The command line prints only the message and exits with `exit_code`; `--debug` adds the traceback.
    """

    exit_code = 1


class UsageError(UniclozeError):
    """The command, a recipe or a setting is invalid; nothing was started."""

    exit_code = 2


def check_at_least(least: int, **values: int | None) -> None:
    """Refuse a number below the least; None is not checked."""
    for name, value in values.items():
        if value is not None and value < least:
            raise UsageError(f"{name} is {value}: give {least} or more.")


def check_seed(seed: int) -> None:
    """Refuse a seed that is not a natural number of 63 bits."""
    if not 0 <= seed < 2**63:
        raise UsageError(f"seed is {seed}: give a whole number from 0 to 2^63 - 1.")


class FailedElsewhere(UniclozeError):
    """Another process of the run has failed and says why; the first process repeats it, with the class of its error."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The known name that is most likely meant, as the end of a sentence; a full stop if none is near."""
    names = list(known)
    beginning = [one for one in names if len(name) > 2 and one.startswith(name)]
    near = difflib.get_close_matches(name, beginning, n=1, cutoff=0) or difflib.get_close_matches(name, names, n=1)
    return f"; did you mean '{near[0]}'?" if near else "."


def folder_meant(place: str | os.PathLike[str], known: Iterable[str] = ()) -> str:
    """The folder beside a missing one, or the known name, that is most likely meant, as the end of a sentence."""
    parent = Path(place).parent
    beside = (str(one) for one in sorted(parent.iterdir()) if one.is_dir()) if parent.is_dir() else ()
    return did_you_mean(str(Path(place)), [*beside, *known])


def option_of(key: str) -> str:
    """The option that sets a dotted key, for messages."""
    return f"--{_PREFIX.get()}{key}"


@contextmanager
def options_begin_with(prefix: str) -> Iterator[None]:
    """Within, options of settings have a prefix: `--probe.task.labels` of a comparison for `--task.labels`."""
    outer = _PREFIX.set(prefix)
    try:
        yield
    finally:
        _PREFIX.reset(outer)


def signal_name(number: object) -> str:
    """What a signal is called, for messages."""
    if number == signal.SIGINT:
        return "Ctrl-C"
    return next((known.name for known in signal.Signals if known == number), f"signal {number}")
