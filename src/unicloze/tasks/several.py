"""Several tasks as one: texts (Raffel et al. 2020), or taggers that share all but their heads (Clark et al. 2018).

As texts, every record becomes a source with the name of its task, and a target text. A source is "stsb sentence1: ...
sentence2: ..." as in T5's Appendix D, a class is a word and a similarity is its number rounded to a step of 0.2 (Section
2.4). A part without labels continues the beginning of a text, T5's prefix language model (Section 3.3.1). Each tagger
has its own tags and head, and every step trains one of them.
"""

from __future__ import annotations

import dataclasses
import typing
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from unicloze import keyed
from unicloze.errors import UniclozeError
from unicloze.records import read_records
from unicloze.records.record import Record
from unicloze.rules import Problem
from unicloze.settings import TaskSettings
from unicloze.tasks.columns import TARGET
from unicloze.tasks.task import Baseline

TAGGING = "tagging"
TASK = "task"
"""Field of a record that names its part."""
SOURCE = "source"
GOLD = "gold"
"""Field of a record's answer as its file has it, which its target text may round."""
NO_CLASS = "(no class)"
"""What a generated text stands for that is the text of no class."""


@dataclass(frozen=True, kw_only=True)
class TaskPart:
    """One of several tasks: an entry of `task.parts`."""

    label: str  # its name, which begins its sources
    train: str  # its training file, in the folder `--train`
    dev: str | None = None  # its development file, in the folder `--dev`; without one it is not evaluated
    format: str = "auto"  # file format, as `task.format`
    # field of each text of the source, by the name shown before it; of a tagger, `{tokens: FIELD}`
    source: Mapping[str, str] = field(default_factory=lambda: {"text": "text"})
    target: str = "label"  # field of the answer; of a tagger, by default `tags`
    labels: Sequence[str] | None = None  # tags of a tagger; default: sorted tags of the training file
    classes: Mapping[str, str] | None = None  # target text of each class; default: the class itself
    step: float | None = None  # round numbers to a multiple of this (STS-B: 0.2)
    # metrics of its predictions; the first counts in the mean that selects the checkpoint
    metrics: Sequence[str] = ("accuracy",)
    share: float | None = None  # fixed share of the training rows; default: by the number of its rows
    # continue the beginning of the first text of the source, cut at a random word; there is no answer
    unsupervised: bool = False

    @property
    def compares(self) -> Collection[str]:
        """What the metrics of its predictions may compare, see `unicloze.evaluation.metrics.registry`."""
        return ("tags",) if {*self.source} == {"tokens"} else ("texts", "labels", "numbers")

    @property
    def digits(self) -> int:
        """Decimals that multiples of the step need."""
        exponent = Decimal(repr(self.step or 1)).normalize().as_tuple().exponent
        return max(0, -int(exponent))

    def target_of(self, record: Record) -> str | None:
        """The target text of a record; None without an answer."""
        value = record.get(TaskSettings(), self.target)
        if value is None:
            return None
        if self.step is not None:
            try:
                return f"{round(float(value) / self.step) * self.step:.{self.digits}f}"
            except (TypeError, ValueError, OverflowError) as error:
                raise UniclozeError(
                    f"{record.place}: {value!r:.40} is not a number, as task {self.label} needs"
                ) from error
        if self.classes is not None and str(value) not in self.classes:
            known = ", ".join(self.classes)
            raise UniclozeError(
                f"{record.place}: '{value!s:.40}' is not a class of task {self.label}, which has {known}"
            )
        return str(value) if self.classes is None else self.classes[str(value)]

    def reference_of(self, record: Record, reference: Any, *, compares: str) -> Any:
        """The right answer of a record of this part, in the form of `answer_of`: numbers are not rounded."""
        if compares not in ("labels", "numbers"):
            return reference
        if GOLD in record.fields:
            gold = record.fields[GOLD]
            return float(gold) if compares == "numbers" else str(gold)
        return self.answer_of(reference[0], compares=compares)

    def answer_of(self, text: Any, *, compares: str) -> Any:
        """The class or number that a text stands for, to compare it by a metric."""
        if compares not in ("labels", "numbers"):
            return text
        bare = _bare(text)
        if compares == "numbers":
            try:
                number = float(bare)
            except ValueError:
                return -1.0
            return number if np.isfinite(number) else -1.0
        if self.classes is None:
            return bare
        return {_bare(each): name for name, each in self.classes.items()}.get(bare, NO_CLASS)


def _bare(text: str) -> str:
    """A text without case and white space, which tokenizers change."""
    return "".join(text.lower().split())


_KINDS = typing.get_type_hints(TaskPart)


_OF_TEXTS = "classes", "step", "unsupervised"
"""Fields of an entry that taggers do not have."""
_OF_TAGGERS: Mapping[str, Any] = {"source": {"tokens": "tokens"}, "target": "tags", "metrics": ("tag-accuracy",)}
"""Defaults of a tagger's entry."""


def part_problems(entries: Sequence[Mapping[str, Any]], *, taggers: bool = False) -> Iterator[Problem]:
    """Invalid entries of `task.parts`: the key and what they must be."""
    foreign = _OF_TEXTS if taggers else ("labels",)
    fields = {each.name for each in dataclasses.fields(TaskPart)} - {*foreign}
    labels = [entry.get("label") for entry in entries]
    for number, entry in enumerate(entries, 1):
        said = f"entry {number}"
        if unknown := sorted(entry.keys() - fields):
            yield "task.parts", f"{said} has '{unknown[0]}'; an entry has {', '.join(sorted(fields))}"
            return
        if missing := [name for name in ("label", "train") if not isinstance(entry.get(name), str)]:
            yield "task.parts", f"{said} has no text '{missing[0]}'"
            return
        if labels.count(entry["label"]) > 1:
            yield "task.parts", f"two entries are labelled '{entry['label']}'"
            return
        tags = entry.get("labels")
        if tags is not None and (not isinstance(tags, list) or len(set(map(str, tags))) < max(1, len(tags))):
            yield "task.parts", f"{said}: labels is not a list of different tags"
            return
        if taggers and not {*entry.get("source", ())} <= {"tokens"}:
            yield "task.parts", f"{said}: the source of a tagger is {{tokens: FIELD}}"
            return
        for name in ("source", "classes"):
            if name in entry and not isinstance(entry[name], Mapping):
                yield "task.parts", f"{said}: {name} is not a mapping"
                return
        texts = [_bare(str(text)) for text in (entry.get("classes") or {}).values()]
        if len(set(texts)) < len(texts):
            yield "task.parts", f"{said}: two classes have the same text"
            return
        for name in ("step", "share"):
            value = entry.get(name, 1e-9)
            limit = 1 if name == "share" else np.inf
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < limit:
                yield "task.parts", f"{said}: {name} must be above 0" + " and below 1" * (name == "share")
                return
        if not entry.get("unsupervised") and not entry.get("metrics", ["accuracy"]):
            yield "task.parts", f"{said}: name at least one metric"
            return
    fixed = [float(entry["share"]) for entry in entries if "share" in entry]
    if entries and (sum(fixed) >= 1 or len(fixed) == len(entries)):
        yield "task.parts", "the shares must leave something to an entry without one"


def parts_of(settings: TaskSettings) -> list[TaskPart]:
    """The parts of a task; empty for a single task."""
    entries: Sequence[Mapping[str, Any]] = getattr(settings, "parts", [])
    defaults = _OF_TAGGERS if settings.kind == TAGGING else {}
    return [TaskPart(**{**defaults, **entry, **_as_texts(entry)}) for entry in entries]


def part_of(record: Record, settings: TaskSettings) -> TaskPart | None:
    """The part that a record names; None for a single task or a record that names none."""
    return next((part for part in parts_of(settings) if part.label == record.fields.get(TASK)), None)


def metrics_of(settings: TaskSettings) -> list[str]:
    """The metrics of a task, or of all its parts."""
    parts = parts_of(settings)
    return list(dict.fromkeys(name for part in parts for name in part.metrics)) if parts else list(settings.metrics)


def _as_texts(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The names of an entry as texts: YAML reads 0 and 1, which may be columns, classes or tags, as numbers."""
    mappings = {
        key: {str(name): str(text) for name, text in entry[key].items()}
        for key in ("source", "classes")
        if entry.get(key) is not None
    }
    target = {"target": str(entry["target"])} if "target" in entry else {}
    labels = {} if entry.get("labels") is None else {"labels": [str(label) for label in entry["labels"]]}
    return {**mappings, **target, **labels}


def records_of(path: Path, settings: TaskSettings, *, dev: bool = False) -> list[Record]:
    """The records of a task.

    Those of several tasks are read from the files of the parts in a folder, or from one file whose records name their part
    in the field `task`.
    """
    parts = parts_of(settings)
    if not parts:
        return read_records(path, settings)
    if not path.is_dir():
        known = {part.label: part for part in parts}
        read = read_records(path, _reading("auto"))
        return [_converted(record, _named(record, known), settings.kind) for record in read]
    found = []
    for part in parts:
        name = part.dev if dev else part.train
        if name is not None:
            texts = read_records(path / name, _reading(part.format), cure=None)
            found += [one for record in texts if (one := _converted(record, part, settings.kind)).fields]
    if not found:
        raise UniclozeError(f"{path}: no entry of task.parts has records there: name a `dev` file in one")
    return found


def _reading(format: str) -> TaskSettings:
    return TaskSettings(format=format)


def _named(record: Record, known: Mapping[str, TaskPart]) -> TaskPart:
    label = record.fields.get(TASK)
    if label not in known:
        raise UniclozeError(f"{record.place}: the field 'task' must name one of {', '.join(known)}")
    return known[str(label)]


def _converted(record: Record, part: TaskPart, kind: str) -> Record:
    """The record as source and target, or as words and tags; without fields if an unsupervised text has a single word."""
    if kind == TAGGING:
        named = TaskSettings(fields={**part.source, "tags": part.target})
        roles = {role: record.get(named, role) for role in ("tokens", "tags")}
        fields = {TASK: part.label, **{role: value for role, value in roles.items() if value is not None}}
        return dataclasses.replace(record, id=f"{part.label}-{record.id}", fields=fields)
    settings = TaskSettings(fields=dict(part.source))
    texts = {name: record.text(settings, name) for name in part.source}
    if part.unsupervised:
        words = next(iter(texts.values())).split()
        drawn = keyed.uniform(keyed.key(len(words), *map(len, words[:8])))[0]
        cut = 1 + int(drawn * (len(words) - 1))
        fields = {SOURCE: f"{part.label} {' '.join(words[:cut])}", TARGET: " ".join(words[cut:]), TASK: part.label}
        return dataclasses.replace(record, id=f"{part.label}-{record.id}", fields=fields if len(words) > 1 else {})
    source = " ".join([part.label, *(f"{name}: {text}" for name, text in texts.items())])
    target = part.target_of(record)
    fields = {SOURCE: source, TASK: part.label, **({} if target is None else {TARGET: target})}
    if target is not None and (part.step is not None or part.classes is not None):
        fields[GOLD] = record.get(TaskSettings(), part.target)
    return dataclasses.replace(record, id=f"{part.label}-{record.id}", fields=fields)


def by_part(records: Sequence[Record]) -> dict[str, list[int]]:
    """Indices of the records of each part, by label, in order."""
    found: dict[str, list[int]] = {}
    for number, record in enumerate(records):
        found.setdefault(str(record.fields[TASK]), []).append(number)
    return found


def rows_per_epoch(counts: Mapping[str, int], settings: TaskSettings, rows: int) -> dict[str, int]:
    """Rows of each part in an epoch: examples-proportional, with a cap and a temperature (Raffel et al., Section 3.5.2).

    A part's rate is its number of rows, at most the cap, to the power of one over the temperature; a part with a `share` has
    that share of all rows, and the others divide the rest. Each part has a row at least.
    """
    fixed = {part.label: part.share for part in parts_of(settings) if part.share is not None and part.label in counts}
    cap: int | None = getattr(settings, "mixing_cap", None)
    temperature: float = getattr(settings, "mixing_temperature", 1.0)
    rates = {
        label: min(count, cap or count) ** (1 / temperature) for label, count in counts.items() if label not in fixed
    }
    rest, total = 1.0 - sum(fixed.values()), sum(rates.values())
    shares = {label: fixed.get(label, rest * rates.get(label, 0.0) / (total or 1.0)) for label in counts}
    exact = {label: share * rows for label, share in shares.items()}
    found = {label: max(1, int(value)) for label, value in exact.items()}
    for label in sorted(exact, key=lambda name: int(exact[name]) - exact[name])[: max(0, rows - sum(found.values()))]:
        found[label] += 1
    return found


def most_common(train: Sequence[Record], dev: Sequence[Record]) -> Baseline:
    """The most common target of each task."""
    targets: dict[str, Counter[str]] = {}
    for record in train:
        targets.setdefault(str(record.fields[TASK]), Counter())[str(record.fields.get(TARGET, ""))] += 1
    answers = [targets.get(str(record.fields[TASK]), Counter({"": 1})).most_common(1)[0][0] for record in dev]
    return Baseline("the most common answer of each task", answers)
