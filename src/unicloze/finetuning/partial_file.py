"""Writes a file of JSON lines incrementally; interrupted work resumes where it stopped."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from unicloze.errors import UniclozeError
from unicloze.files import real_place, replace_file
from unicloze.training.lock import hold

Line = dict[str, Any]


class PartialFile:
    """A file that is written as NAME.part and renamed once all its lines are there.

    NAME.part.json holds the fingerprints of what the lines depend on. If they match, writing resumes after the last
    complete line; otherwise a warning is printed and the part is replaced when the first new lines are written. After an
    error or a signal the part is kept, with a warning.

    Args:
        path: The file.
        total: Number of lines of the complete file.
        begun_with: Fingerprints of everything the lines depend on, by what they identify.
        fits: Whether a line can have a given number.
    """

    def __init__(
        self, path: Path, total: int, begun_with: Mapping[str, str], fits: Callable[[int, Line], bool]
    ) -> None:
        path = real_place(path)
        self._path, self._total, self._begun_with, self._fits = path, total, dict(begun_with), fits
        self._part = path.with_name(f"{path.name}.part")
        self._about = path.with_name(f"{path.name}.part.json")
        self.lines: list[Line] = []
        """The lines written so far, in order."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            lock = self._part.with_name(f"{self._part.name}.lock")
            stack.enter_context(hold(lock, self._part, "wait for it, or give another --out"))
            self._file = stack.enter_context(self._part.open("a+b"))
            self._begin()
            self._held = stack.pop_all()
        return self

    def _begin(self) -> None:
        """Take over an earlier part if it fits."""
        self._file.seek(0)
        raw = self._file.read()
        if raw and not self._about.is_file():
            raise UniclozeError(f"{self._part} was not started by this command: move it away, or give another --out")
        kept, other = raw[: raw.rfind(b"\n") + 1], self._other()
        self.lines = [] if other else self._read(kept)
        if raw and not self.lines:
            why = f"was started with another {other}" if other else "has other lines"
            warnings.warn(f"{self._part} {why}, and is started again", stacklevel=2)
        self._size: int | None = len(kept) if self.lines else 0

    def _other(self) -> str | None:
        """The first thing that has changed since the part was started; None if nothing has."""
        try:
            former = json.loads(self._about.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            former = None
        former = former if isinstance(former, dict) else {}
        return next((what for what, now in self._begun_with.items() if former.get(what) != now), None)

    def _read(self, raw: bytes) -> list[Line]:
        """The lines of a part; empty if one of them cannot belong to this file."""
        try:
            lines = [json.loads(line) for line in raw.splitlines()]
        except ValueError:
            return []
        fit = len(lines) <= self._total and all(
            isinstance(line, dict) and self._fits(number, line) for number, line in enumerate(lines)
        )
        return lines if fit else []

    def append(self, lines: Sequence[Line]) -> None:
        """Write the next lines and flush them to disk."""
        self._settle()
        self._file.write("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self.lines += lines

    def _settle(self) -> None:
        """Once, truncate what is not kept, but not before there is something to replace it."""
        if self._size is not None:
            self._file.truncate(self._size)
            self._size = None
            if not self.lines:
                replace_file(self._about, json.dumps(self._begun_with))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._held:
            if error is None:
                self._settle()
            self._file.close()  # some systems cannot rename an open file
            self._leave(finished=error is None)

    def _leave(self, *, finished: bool) -> None:
        if finished:
            self._part.replace(self._path)
            self._about.unlink(missing_ok=True)
        else:
            done = self._part.read_bytes().count(b"\n")  # a signal may have arrived between writing and counting
            if not done:
                self._part.unlink()
                self._about.unlink(missing_ok=True)
            elif self.lines or self._size is None:
                warnings.warn(
                    f"{self._part} has {done:,} of {self._total:,} lines; the same command resumes from there",
                    stacklevel=2,
                )
