"""The ledger: an append-only log of a run, one JSON object per line."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from unicloze.errors import UniclozeError
from unicloze.example import predicts_tokens
from unicloze.files import LEDGER, LONGEST_LINE, parse_json

SCHEMA = 1
NUMBERS = "nats", "weight", "counted_nats", "counted_squares", "counted_weight"
"""Fields of a figure that are summed."""
HELD_OUT, TRAINING_TEXT = "held-out", "training-text"
"""What an evaluation of pre-training measured on, its `part`: the latter if nothing is held out."""


def mapping(value: Any) -> Mapping[str, Any]:
    """A ledger value as a mapping; empty if it is not one."""
    return value if isinstance(value, dict) else {}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A loss with what it counts; only figures of one meaning are added or compared."""

    target: str  # name of the target
    part: str = ""  # label of the part of a mixture; empty if there is only one
    phase: int = 0  # index of the phase of the run
    labels: Literal["hard", "soft"] = "hard"  # `soft` if a teacher's predictions or label smoothing are in the loss
    nats: float = 0.0  # sum of the losses of all predictions
    weight: float = 0.0  # normaliser of `nats`: the number of predictions, unless the objective weighs them
    counted_nats: float = 0.0  # sum over the predictions of ordinary tokens that the row does not show elsewhere
    counted_squares: float = 0.0  # sum of the squares of these losses, each times its weight
    counted_weight: float = 0.0  # normaliser of both; 0 if they were not measured

    @classmethod
    def of(cls, target: str, sums: Iterable[float]) -> Figure:
        """A figure with the sums named in `NUMBERS`."""
        fields: dict[str, Any] = dict(zip(NUMBERS, sums, strict=True))
        return cls(target=target, **fields)

    @classmethod
    def read(cls, values: Any) -> Figure | None:
        """A figure of a ledger; None if it is damaged."""
        if not isinstance(values, dict):
            return None
        fields = {field.name: values[field.name] for field in dataclasses.fields(cls) if field.name in values}
        texts = "target", "part", "labels"
        if any(not isinstance(value, str if key in texts else int | float) for key, value in fields.items()):
            return None
        return cls(**fields) if "target" in fields else None

    def to_dict(self, **changes: Any) -> dict[str, Any]:
        """The fields that differ from their defaults, some of them changed, as a JSON-serialisable dictionary."""
        changed = dataclasses.replace(self, **changes)
        values = {field.name: (getattr(changed, field.name), field.default) for field in dataclasses.fields(self)}
        return {key: value for key, (value, default) in values.items() if value != default}

    @property
    def meaning(self) -> tuple[str, str, int, str]:
        """What it counts."""
        return self.target, self.part, self.phase, self.labels

    @property
    def name(self) -> str:
        """Its target, prefixed with its part."""
        return f"{self.part}.{self.target}" if self.part else self.target

    def __add__(self, other: Figure) -> Figure:
        if self.meaning != other.meaning:
            raise ValueError(f"losses of different meaning have no sum: {self.meaning}, {other.meaning}")
        return dataclasses.replace(self, **{name: getattr(self, name) + getattr(other, name) for name in NUMBERS})

    @property
    def mean(self) -> float | None:
        """Mean loss of all predictions; None if there are none."""
        return self.nats / self.weight if self.weight else None

    @property
    def token_mean(self) -> float | None:
        """Mean loss of ordinary tokens that the row does not show elsewhere, with hard labels; None if not measured."""
        if not self.counted_weight or self.labels != "hard" or not predicts_tokens(self.target):
            return None
        return self.counted_nats / self.counted_weight

    @property
    def error(self) -> float:
        """Standard error of `token_mean`, of predictions that are independent; 0 if it is not measured."""
        mean = self.token_mean
        if mean is None:
            return 0.0
        return math.sqrt(max(0.0, self.counted_squares / self.counted_weight - mean**2) / self.counted_weight)

    @property
    def perplexity(self) -> float | None:
        """exp of `token_mean`, infinite on overflow."""
        mean = self.token_mean
        return None if mean is None else math.exp(mean) if mean < 700 else math.inf


def figures_of(event: Mapping[str, Any]) -> list[Figure]:
    """The figures of a ledger's event; none for older ledgers, whose losses do not tell what they count."""
    listed = event.get("figures")
    return [figure for each in (listed if isinstance(listed, list) else ()) if (figure := Figure.read(each))]


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
        content = {"schema": SCHEMA, "event": event, "time": round(time.time(), 3), **values}
        line = json.dumps(content, ensure_ascii=False)
        try:
            self._file.write(line.encode("utf-8", "replace") + b"\n")
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


def read_ledger(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a ledger in order, skipping truncated lines and events with an impossible step."""
    with path.open("rb") as lines:
        while line := lines.readline(LONGEST_LINE):
            try:
                event = parse_json(line.decode(errors="replace"))
            except ValueError:
                continue
            step = event.get("step", 0) if isinstance(event, dict) else None
            if isinstance(step, int) and 0 <= step < 2**53:
                yield event


def trained_on(checkpoint: Path) -> dict[str, Any]:
    """Lineage of the text a checkpoint's run, or the model it started from, was trained on; empty if unknown."""
    file = checkpoint.parent.parent / LEDGER
    starts = [event for event in read_ledger(file) if event.get("event") == "start"] if file.is_file() else []
    return (starts[-1].get("lineage") or {}) if starts else {}


def errors_since_saved(path: Path) -> set[str]:
    """Names of the classes of the errors that stopped a run since its last checkpoint.

    A process that resumed the run with other settings may have been stopped too before it saved any.
    """
    events = list(read_ledger(path)) if path.is_file() else []
    saved = max((number for number, event in enumerate(events) if event.get("event") == "save"), default=-1)
    return {str(event.get("kind")) for event in events[saved + 1 :] if event.get("event") == "failed"}
