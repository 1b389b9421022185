"""Errors a user can fix, reported as one sentence instead of a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_PREFIX: ContextVar[str] = ContextVar("_PREFIX", default="")


class UniclozeError(Exception):
    """An error the user can fix. Its message says what is wrong, where, and how to fix it.

    The command line prints only the message and exits with `exit_code`; `--debug` adds the traceback.
    """

    exit_code = 1


class UsageError(UniclozeError):
    """The command, a recipe or a setting is invalid; nothing was started."""

    exit_code = 2


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
