"""Reads the history of a run from its ledger, even if the run was killed."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unicloze.errors import UniclozeError, folder_meant
from unicloze.evaluation.metrics.registry import METRICS
from unicloze.evaluation.metrics.result import shown
from unicloze.files import DEV_PREDICTIONS, DEV_SAMPLES, LEDGER
from unicloze.training.ledger import HELD_OUT, mapping, read_ledger
from unicloze.training.pace import recorded_decays

Event = Mapping[str, Any]
Points = list[tuple[float, float]]

_CHECKPOINT = re.compile(r"step-(\d+)")


@dataclass
class History:
    """The effective events of a run: of repeated steps only the latest."""

    run: Path  # the run directory
    start: Event  # event of the newest start of the run
    processes: int = 0  # number of starts, without attempts that left no checkpoint
    seconds: float = 0.0  # running time, summed over these starts
    steps: dict[int, Event] = field(default_factory=dict)  # events of logged steps, by step
    evaluations: dict[int, Event] = field(default_factory=dict)  # events of evaluations, by step
    samples: dict[int, list[Event]] = field(default_factory=dict)  # filled samples, by step
    checkpoint: str | None = None  # name of the newest checkpoint; None if none was saved
    end: Event = field(default_factory=dict)  # event of the end of the run; empty if it has not ended
    last: Event = field(default_factory=dict)  # the newest event
    deciding: list[Event] = field(default_factory=list)  # events that tell which decisions of a clock hold

    @classmethod
    def read(cls, run: Path) -> History:
        """Read `RUN/ledger.jsonl`, skipping incomplete lines and unknown events."""
        ledger = run / LEDGER
        cure = "give the directory that `unicloze pretrain` wrote to (--out)."
        if not run.is_dir():
            raise UniclozeError(f"There is no run at {run}: {cure.removesuffix('.')}{folder_meant(run)}")
        if not ledger.is_file():
            raise UniclozeError(f"{run} is not a run: it has no ledger.jsonl; {cure}")
        history = cls(run=run, start={})
        try:
            for event in read_ledger(ledger):
                history._add(event)
        except OSError as error:
            raise UniclozeError(f"{ledger}: cannot read it: {error.strerror}.") from error
        if not history.start:
            lacks = f"{ledger} has no start of a run"
            raise UniclozeError(f"{lacks}: it is truncated or not a ledger; train into {run} again.")
        for name in ("steps", "evaluations", "samples"):
            setattr(history, name, dict(sorted(getattr(history, name).items())))
        return history

    def _add(self, event: Event) -> None:
        name, step = event.get("event"), event.get("step")
        now, before = moment(event.get("time")), moment(self.last.get("time"))
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
        if name in ("start", "save") or (name == "decay" and isinstance(event.get("end"), int)):
            self.deciding.append(event)
        if name != "start" and now is not None and before is not None:
            self.seconds += max(0.0, now - before)
        self.last = event

    def _begin(self, event: Event) -> None:
        """Handle a start: drop what earlier processes did after the checkpoint from which this one resumes."""
        resumed = _CHECKPOINT.fullmatch(str(event.get("resumed_from")))
        first = int(resumed[1]) if resumed else -1
        for kept in (self.steps, self.evaluations, self.samples):
            for step in [step for step in kept if step > first]:
                del kept[step]
        if isinstance(ended := self.end.get("step"), int) and ended > first:
            self.end = {}
        if not resumed:
            self.seconds, self.processes, self.deciding = 0.0, 0, []
        self.start = event
        self.processes += 1

    @property
    def recipe(self) -> Event:
        """The recipe recorded at the newest start."""
        return mapping(self.start.get("recipe"))

    @property
    def step(self) -> int:
        """Steps completed."""
        started = self.start.get("step")
        return max([*self.steps, *self.evaluations, started if isinstance(started, int) else 0], default=0)

    @property
    def part(self) -> str:
        """What the newest evaluation measured on, see `TRAINING_TEXT`."""
        return str(next(reversed(self.evaluations.values()), {}).get("part", HELD_OUT))

    @property
    def steps_of_recipe(self) -> int | None:
        """Steps that the recipe sets."""
        steps = mapping(self.recipe.get("training")).get("steps")
        return steps if isinstance(steps, int) else None

    @property
    def planned_steps(self) -> int | None:
        """Steps that a clock decided, or that the recipe sets."""
        steps = self.steps_of_recipe
        if steps is None:
            return None
        decays = recorded_decays(self.deciding, steps)
        return decays[-1].end if decays else steps

    @property
    def counts(self) -> dict[str, dict[str, float]]:
        """Held-out perplexities of counts of the training text by target and kind; empty for a run without them."""
        counted = mapping(mapping(self.start.get("baselines")).get("perplexity"))
        return {target: kinds for target, given in counted.items() if (kinds := _numbers(given))}

    @property
    def content_words(self) -> Event:
        """The score on held-out content words at the end of the run; empty for unfinished runs and where it is undefined."""
        return mapping(self.end.get("content_words")) if self.end.get("step") == self.step else {}

    @property
    def verdict(self) -> str:
        """The verdict recorded at the end of the run; empty for unfinished and older runs."""
        return str(self.end.get("verdict") or "") if self.end.get("step") == self.step else ""

    @property
    def trained(self) -> list[str]:
        """Names of the targets in training; parts of a mixture with the same target share its name."""
        return _targets(self.steps.values())

    @property
    def evaluated(self) -> list[str]:
        """Names of the evaluated targets, prefixed with their part (`bidirectional.ae`) in a mixture."""
        return _targets(self.evaluations.values())

    def curve(self, key: str, target: str | None = None, *, evaluated: bool = False) -> Points:
        """A measure over the steps, without steps that lack it; infinite values are kept."""
        events = (self.evaluations if evaluated else self.steps).items()
        given = [
            (step, event.get(key) if target is None else mapping(event.get(key)).get(target)) for step, event in events
        ]
        return [(float(step), value) for step, found in given if (value := number(found)) is not None]

    def latest(self, key: str, target: str) -> float | None:
        """A measure of a target at the newest evaluation."""
        event = next(reversed(self.evaluations.values()), {})
        return number(mapping(event.get(key)).get(target))

    # Of a fine-tuning

    @property
    def task(self) -> Event:
        """The recipe's task; without a kind for a pre-training."""
        return mapping(self.recipe.get("task"))

    @functools.cached_property
    def answers(self) -> Sequence[Event]:
        """Predictions of the best checkpoint on the development file, with references; empty if there is no such file."""
        return [one for one in _lines(self.run / DEV_PREDICTIONS) if "prediction" in one and "reference" in one]

    @functools.cached_property
    def answered_records(self) -> Sequence[Event]:
        """A sample of these predictions with their records."""
        return _lines(self.run / DEV_SAMPLES)

    @property
    def metrics(self) -> list[str]:
        """Its metrics; the first one selects the best checkpoint. Of several tasks, those of each and their mean."""
        if sequence(self.task.get("parts")):
            return [str(name) for name in mapping(self.best.get("results"))]
        return [str(name) for name in sequence(self.task.get("metrics"))]

    @property
    def measured(self) -> list[str]:
        """These metrics, and what else was measured at the best evaluation: the calibration of confidences."""
        return list(dict.fromkeys([*self.metrics, *mapping(self.best.get("results"))]))

    @property
    def best_step(self) -> int | None:
        """Step of the best checkpoint; None if nothing was evaluated."""
        if kept := [step for step, event in self.evaluations.items() if event.get("kept")]:
            return max(kept)
        values = _numbers({step: event.get("headline") for step, event in self.evaluations.items()})
        return max(map(int, values), key=lambda step: values[str(step)], default=None)

    @property
    def best(self) -> Event:
        """The best evaluation."""
        return self.evaluations.get(self.best_step or 0, {})

    @property
    def rivals(self) -> list[Event]:
        """Baselines without a model, the simplest first: each a `name`, and `results` as in an evaluation."""
        return [event for event in map(mapping, sequence(self.start.get("rivals"))) if event]

    def values(self, metric: str, event: Event | None = None) -> dict[str, float]:
        """The values of one metric in an evaluation; default: the best evaluation."""
        results = mapping((self.best if event is None else event).get("results"))
        return _numbers(mapping(results.get(metric)).get("values"))

    def errors(self, metric: str) -> dict[str, float]:
        """Standard errors of a metric's values, which the end of the run records; empty before or if unknown."""
        return _numbers(mapping(self.end.get("errors")).get(metric))

    def points(self, metric: str, key: str) -> Points:
        """One value of a metric over the steps."""
        each = ((step, self.values(metric, event)) for step, event in self.evaluations.items())
        return [(float(step), values[key]) for step, values in each if key in values]

    def shown(self, metric: str, key: str, value: float, deviation: float | None = None) -> str:
        """A value of a metric, with its deviation if known, and its unit, which is omitted for percent."""
        unit = str(mapping(mapping(mapping(self.best.get("results")).get(metric)).get("units")).get(key, "%"))
        return shown(value, unit, deviation)


def _targets(events: Iterable[Event]) -> list[str]:
    return list(dict.fromkeys(str(name) for event in events for name in mapping(event.get("loss"))))


def _lines(path: Path) -> list[Event]:
    """The objects of a .jsonl file, skipping incomplete lines; empty if the file is missing."""
    return list(read_ledger(path)) if path.is_file() else []


def _numbers(values: Any) -> dict[str, float]:
    """The numbers of a mapping in a ledger."""
    return {str(key): read for key, value in mapping(values).items() if (read := number(value)) is not None}


def number(value: Any) -> float | None:
    """A ledger value as a number; None if it is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    return float(value) if isinstance(value, float) or abs(value) < 2**63 else None


def moment(value: Any) -> float | None:
    """A ledger value as seconds since 1970; None if it is no time before the year 10,000."""
    seconds = number(value)
    return seconds if seconds is not None and 0 <= seconds < 253_402_300_800 else None


def sequence(value: Any) -> list[Any]:
    """A ledger value as a list; empty if it is not one."""
    return value if isinstance(value, list) else []


def headline_of(metric: str, values: Mapping[str, Any]) -> str:
    """The name of a metric's main value."""
    known = METRICS.get(metric)
    return known.headline if known and known.headline in values else next(iter(values), "")


SUFFIX = ".unicloze"
"""Ending of the event files written here; those of an earlier call are replaced."""
_NOT_A_CURVE = {"schema", "event", "time", "step", "windows", "window"}


def tensorboard_writer() -> Any:
    """TensorBoard's writer of event files."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        cure = "in the clone, pip install -e '.[tensorboard]'."
        raise UniclozeError(f"writing for TensorBoard needs the package tensorboard: {cure}") from error
    return SummaryWriter


def write_tensorboard(run: str | Path, folder: str | Path) -> Path:
    """Write the curves of a run, finished or not."""
    history, target, opened = History.read(Path(run)), Path(folder), tensorboard_writer()
    for old in target.glob(f"events.out.tfevents.*{SUFFIX}"):
        old.unlink()
    with opened(log_dir=str(target), filename_suffix=SUFFIX) as writer:
        for part, events in (("train", history.steps), (history.part, history.evaluations)):
            for step, event in events.items():
                for name, value in curves(event):
                    writer.add_scalar(f"{part}/{name}", value, step, walltime=event.get("time"))
    return target


def curves(event: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Names and values of the numbers in an event, as in `loss/ae`."""
    for name, value in event.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}/{key}", one) for key, one in curves(value))
        elif isinstance(value, int | float) and not isinstance(value, bool) and name not in _NOT_A_CURVE:
            yield name, float(value)
