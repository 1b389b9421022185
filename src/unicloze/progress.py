"""Shows progress on stderr: a bar at a terminal, otherwise a line every 20 seconds."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from tqdm import tqdm

T = TypeVar("T")

SECONDS = 20.0
"""Interval between progress lines without a terminal."""


def at_terminal() -> bool:
    """Whether stderr is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def short(number: float) -> str:
    """A number in short form, such as 850, 1.2k, 12k or 3.4M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= 0.9995 * size:  # 999,600 is 1.0M
            return f"{number / size:.{int(number < 10 * size)}f}{unit}"
    return f"{number:.0f}"


def span(seconds: float) -> str:
    """A span of time in words, such as 90 s, 12 min, 3.5 h or 4.2 days."""
    for unit, size in (("days", 86_400.0), ("h", 3_600.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds / 60:,.0f} min" if seconds >= 120 else f"{seconds:,.0f} s"


def counted(number: int, noun: str) -> str:
    """A number with its noun in the singular or plural, such as 1 step or 1,200 steps."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def say(line: str) -> None:
    """Print a line to stderr, above the progress bar if there is one; at a terminal it wraps at words."""
    width = _width() if at_terminal() else sys.maxsize
    wrapped = textwrap.wrap(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    tqdm.write("\n".join(wrapped), file=sys.stderr)


class Progress:
    """A context manager that counts items, of which some may be done already, and shows the progress.

    The label `what` may be empty; the unit is a plural, such as "steps"; the total is None if it is unknown.
    """

    def __init__(self, what: str, total: int | None, unit: str, *, initial: int = 0, show: bool = True) -> None:
        self.what, self.total, self.unit, self.done = what, total, unit, initial
        self._note, self._show = "", show
        self._bar: tqdm[Any] | None = None
        self._initial = self._said = initial
        self._began = self._last = time.monotonic()

    def __enter__(self) -> Self:
        if self._show and at_terminal():
            count = "{n_fmt} {unit} {elapsed}" if self.total is None else "{n_fmt}/{total_fmt} {elapsed}<{remaining}"
            self._bar = tqdm(
                total=self.total, desc=self.what or None, unit=self.unit, initial=self.done, file=sys.stderr,
                dynamic_ncols=True, mininterval=0.5, unit_scale=self.unit == "bytes",
                bar_format=("{desc}: " * bool(self.what) + count if self.total is None else "{l_bar}{bar}| " + count)
                + "{postfix}",
            )  # fmt: skip
        self._began = self._last = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._show and kind is None and self.done != self._said:
            self._say()

    def update(self, count: int = 1) -> None:
        """Count more items as done."""
        self.done += count
        if self._bar is not None:
            self._bar.update(count)
        elif self._show and time.monotonic() - self._last >= SECONDS:
            self._say()

    def end_at(self, total: int) -> None:
        """Change the number of items."""
        self.total = total
        if self._bar is not None:
            self._bar.total = total

    def note(self, text: str) -> None:
        """Set the text shown next to the count."""
        self._note = text
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)

    def _say(self) -> None:
        count = f"{self.done:,}" if self.unit != "bytes" else short(self.done)
        if self.total is not None:
            count += f" of {self.total:,}" if self.unit != "bytes" else f" of {short(self.total)}"
        spent = time.monotonic() - self._began
        line = f"{self.what}: {count} {self.unit}" if self.what else f"{count} {self.unit}"
        say(", ".join(filter(None, [line, self._note, f"{spent:,.0f} s" + self._left(spent)])))
        self._said, self._last = self.done, time.monotonic()

    def _left(self, spent: float) -> str:
        if self.total is None or self.done >= self.total or self.done <= self._initial:
            return ""
        left = spent / (self.done - self._initial) * (self.total - self.done)
        return f", about {left:,.0f} s left" if left >= 1 else ""


def each(things: Iterable[T], what: str, unit: str, *, show: bool = True) -> Iterator[T]:
    """Yield the items and show how many are done."""
    with Progress(what, None, unit, show=show) as progress:
        for thing in things:
            yield thing
            progress.update()


def _width() -> int:
    return max(40, shutil.get_terminal_size().columns)
