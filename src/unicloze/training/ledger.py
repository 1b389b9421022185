"""The ledger: an append-only log of a run, one JSON object per line."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from unicloze.bounded import LONGEST_LINE, parse_json
from unicloze.errors import UniclozeError
from unicloze.run_files import LEDGER

SCHEMA = 1


class Ledger:
    """Appends events to a JSONL file; a line truncated by a kill remains and is skipped by `read_ledger`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a+b", buffering=0)
        self._file.seek(0, os.SEEK_END)
        if self._file.tell() > 0:
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")

    def write(self, event: str, **values: Any) -> None:
        """Append one event, unbuffered."""
        line = json.dumps(
            {"schema": SCHEMA, "event": event, "time": round(time.time(), 3), **values}, ensure_ascii=False
        )
        try:
            self._file.write(line.encode() + b"\n")
        except OSError as error:
            raise UniclozeError(
                f"could not write {self._path}: {error.strerror}; checkpoints are unchanged: fix it and run the same "
                "command again"
            ) from error

    def sync(self) -> None:
        """Return once all events are on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class NoLedger(Ledger):
    """Ledger of every process but the first: it writes nothing."""

    def __init__(self) -> None:
        pass

    def write(self, event: str, **values: Any) -> None:
        """Write nothing."""

    def sync(self) -> None:
        """Nothing was written."""

    def close(self) -> None:
        """Nothing is open."""


def read_ledger(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a ledger in order, skipping truncated lines and events with an impossible step."""
    with path.open("rb") as lines:
        while line := lines.readline(LONGEST_LINE):
            try:
                event = parse_json(line.decode(errors="replace"))
            except ValueError:
                continue
            if isinstance(event, dict) and _is_step(event.get("step", 0)):
                yield event


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 2**53


def trained_on(checkpoint: Path) -> dict[str, Any]:
    """Lineage of the text a checkpoint's run, or the model it started from, was trained on; empty if unknown."""
    file = checkpoint.parent.parent / LEDGER
    starts = [event for event in read_ledger(file) if event.get("event") == "start"] if file.is_file() else []
    return (starts[-1].get("lineage") or {}) if starts else {}


def stopped_by_error(path: Path) -> str | None:
    """Name of the class of the error that stopped a run, if no checkpoint was saved since; otherwise None.

    A process that resumed the run with other settings may have been killed before it saved any.
    """
    events = list(read_ledger(path)) if path.is_file() else []
    last: Mapping[str, Any] = next(
        (event for event in reversed(events) if event.get("event") in ("failed", "save")), {}
    )
    return str(last.get("kind")) if last.get("event") == "failed" else None
