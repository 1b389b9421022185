"""What a run did, read from its ledger, whatever state a kill left that in."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unicloze.errors import UniclozeError
from unicloze.run_files import LEDGER
from unicloze.training.ledger import read_ledger

Event = Mapping[str, Any]
Points = list[tuple[float, float]]

_CHECKPOINT = re.compile(r"step-(\d+)")


@dataclass
class History:
    """The events of a run that count: where steps were done twice, the later ones.

    Args:
        run: The run's directory.
        start: The newest start of the program on this run.
        processes: How often it was started.
        seconds: Time it ran, over all starts.
        steps: Logged steps by number.
        evaluations: Evaluations by step.
        samples: Filled samples by step.
        checkpoint: Name of the newest checkpoint, None if none was saved.
        end: How it came to its end, nothing if it did not.
        last: The newest event.
    """

    run: Path
    start: Event
    processes: int = 0
    seconds: float = 0.0
    steps: dict[int, Event] = field(default_factory=dict)
    evaluations: dict[int, Event] = field(default_factory=dict)
    samples: dict[int, list[Event]] = field(default_factory=dict)
    checkpoint: str | None = None
    end: Event = field(default_factory=dict)
    last: Event = field(default_factory=dict)

    @classmethod
    def read(cls, run: Path) -> History:
        """Reads `RUN/ledger.jsonl`; torn lines and unknown events are passed over.

        Raises:
            UniclozeError: The directory is no run, or its ledger cannot be read or holds no start.
        """
        ledger = run / LEDGER
        cure = "give the directory that `unicloze pretrain` wrote to (--out)."
        if not run.is_dir():
            raise UniclozeError(f"There is no run at {run}: {cure}")
        if not ledger.is_file():
            raise UniclozeError(f"{run} is no run, it has no ledger.jsonl: {cure}")
        history = cls(run=run, start={})
        try:
            for event in read_ledger(ledger):
                history._add(event)
        except OSError as error:
            raise UniclozeError(f"{ledger}: cannot read it: {error.strerror}.") from error
        if not history.start:
            raise UniclozeError(
                f"{ledger} holds no start of a run: it was cut off or is no ledger; train into {run} again."
            )
        for kept in (history.steps, history.evaluations, history.samples):
            ordered = sorted(kept.items())
            kept.clear()
            kept.update(ordered)  # type: ignore[arg-type]
        return history

    def _add(self, event: Event) -> None:
        name, step = event.get("event"), event.get("step")
        now, before = number(event.get("time")), number(self.last.get("time"))
        if name == "start":
            self._begin(event)
        elif not self.start or not isinstance(step, int):
            return
        elif name == "step":
            self.steps[step] = event
        elif name == "evaluate":
            self.evaluations[step] = event
        elif name == "samples":
            self.samples[step] = [sample for sample in sequence(event.get("samples")) if isinstance(sample, dict)]
        elif name == "save":
            self.checkpoint = str(event.get("checkpoint"))
        elif name == "end":
            self.end = event
        if name != "start" and now is not None and before is not None:
            self.seconds += max(0.0, now - before)
        self.last = event

    def _begin(self, event: Event) -> None:
        """What an earlier process did after the checkpoint this one goes on from is forgotten."""
        resumed = _CHECKPOINT.fullmatch(str(event.get("resumed_from")))
        first = int(resumed[1]) if resumed else -1
        for kept in (self.steps, self.evaluations, self.samples):
            for step in [step for step in kept if step > first]:
                del kept[step]
        if isinstance(ended := self.end.get("step"), int) and ended > first:
            self.end = {}
        self.start = event
        self.processes += 1

    @property
    def recipe(self) -> Event:
        """The recipe as the newest start recorded it."""
        return mapping(self.start.get("recipe"))

    @property
    def step(self) -> int:
        """Steps done."""
        started = self.start.get("step")
        return max([*self.steps, *self.evaluations, started if isinstance(started, int) else 0], default=0)

    @property
    def planned_steps(self) -> int | None:
        """Steps the recipe asks for."""
        steps = mapping(self.recipe.get("training")).get("steps")
        return steps if isinstance(steps, int) else None

    @property
    def verdict(self) -> str:
        """What its figures mean, as the run said at its end; empty while it goes on, and of older runs."""
        return str(self.end.get("verdict") or "") if self.end.get("step") == self.step else ""

    @property
    def trained(self) -> list[str]:
        """Names of the targets of the training steps; one name for all parts of a mixture that have it."""
        return _targets(self.steps.values())

    @property
    def evaluated(self) -> list[str]:
        """Names of the targets that were measured; with the part in front (`bidirectional.ae`) where it is one of several."""
        return _targets(self.evaluations.values())

    def curve(self, key: str, target: str | None = None, *, evaluated: bool = False) -> Points:
        """A measure over the steps; steps without it are left out, infinite values are kept.

        Args:
            key: Name of the measure in the ledger.
            target: Name of the target, for measures that are taken of each.
            evaluated: Of the evaluations instead of the training steps.
        """
        points = []
        for step, event in (self.evaluations if evaluated else self.steps).items():
            value = number(event.get(key) if target is None else mapping(event.get(key)).get(target))
            if value is not None:
                points.append((float(step), value))
        return points

    def latest(self, key: str, target: str) -> float | None:
        """A measure of a target at the newest evaluation."""
        event = next(reversed(self.evaluations.values()), {})
        return number(mapping(event.get(key)).get(target))


def _targets(events: Iterable[Event]) -> list[str]:
    return list(dict.fromkeys(str(name) for event in events for name in mapping(event.get("loss"))))


def number(value: Any) -> float | None:
    """A number of the ledger, None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    return float(value)


def mapping(value: Any) -> Event:
    """A mapping of the ledger, empty for what is none."""
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Any]:
    """A list of the ledger, empty for what is none."""
    return value if isinstance(value, list) else []
