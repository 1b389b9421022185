"""Several tasks as one: texts (Raffel et al. 2020), or taggers that share all but their heads (Clark et al. 2018).

As texts, every record becomes a source with the name of its task, and a target text. A source is "stsb sentence1: ...
sentence2: ..." as in T5's Appendix D, a class is a word and a similarity is its number rounded to a step of 0.2 (Section
2.4). A part without labels continues the beginning of a text, T5's prefix language model (Section 3.3.1). Each tagger
has its own tags and head, and every step trains one of them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from unicloze import keyed
from unicloze.errors import UniclozeError
from unicloze.records import read_records
from unicloze.records.record import Record, number_of
from unicloze.rules import AT_LEAST_ONE, Problem, needs, setting
from unicloze.settings import Recipe, TaskSettings
from unicloze.tasks.columns import TARGET
from unicloze.tasks.task import Baseline, Task

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
    """One of several tasks, an entry of `task.parts`; or the whole of a single task, which has no label."""

    label: str  # its name, which begins its sources
    train: str = ""  # its training file, in the folder `--train`
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
    def tags(self) -> bool:
        """Whether it is one of several taggers."""
        return bool(self.label) and {*self.source} == {"tokens"}

    @property
    def where(self) -> str:
        """What names its metrics, for messages."""
        return f"{self.label} of task.parts" if self.label else "task.metrics"

    def name(self, value: str) -> str:
        """Name of one of its values among those of all parts."""
        return f"{self.label} {value}".strip()

    def compares(self, task: Task) -> Collection[str]:
        """What the metrics of its predictions may compare, see `unicloze.evaluation.metrics.registry`; empty for anything."""
        if not self.label:
            return task.compares
        return ("tags",) if self.tags else ("texts", "labels", "numbers")

    def target_of(self, record: Record) -> str | None:
        """The target text of a record; None without an answer."""
        value = record.get(TaskSettings(), self.target)
        if value is None:
            return None
        if self.step is not None:
            if (number := number_of(value)) is None:
                raise UniclozeError(f"{record.place}: {value!r:.40} is not a number, as task {self.label} needs")
            decimals = max(0, -int(Decimal(repr(self.step)).normalize().as_tuple().exponent))
            return f"{round(number / self.step) * self.step:.{decimals}f}"
        if self.classes is not None and str(value) not in self.classes:
            known = f"task {self.label}, which has {', '.join(self.classes)}"
            raise UniclozeError(f"{record.place}: '{value!s:.40}' is not a class of {known}")
        return str(value) if self.classes is None else self.classes[str(value)]

    def reference_of(self, record: Record, reference: Any, *, compares: str) -> Any:
        """The right answer of one of its records, in the form of `answer_of`: numbers are not rounded."""
        if not self._reads(compares):
            return reference
        if GOLD in record.fields:
            gold = record.fields[GOLD]
            return float(gold) if compares == "numbers" else str(gold)
        return self.answer_of(reference[0], compares=compares)

    def answer_of(self, text: Any, *, compares: str) -> Any:
        """The class or number that a text stands for, to compare it by a metric."""
        if not self._reads(compares):
            return text
        bare = _bare(text)
        if compares == "numbers":
            return -1.0 if (number := number_of(bare)) is None else number
        if self.classes is None:
            return bare
        return {_bare(each): name for name, each in self.classes.items()}.get(bare, NO_CLASS)

    def _reads(self, compares: str) -> bool:
        """Whether its texts stand for what a metric compares."""
        return bool(self.label) and compares in ("labels", "numbers")


def _bare(text: str) -> str:
    """A text without case and white space, which tokenizers change."""
    return "".join(text.lower().split())


@dataclass(frozen=True, kw_only=True)
class SeveralSettings(TaskSettings):
    """Settings of tasks that may be several, trained together.

    Args:
        parts: Several tasks to train together: for each a mapping of `label`, `train` and `dev` (its files in the folders
            --train and --dev), `target` (the field of its answers), `metrics`, `format` and `share`. As texts (T5) an entry
            also has `source` (field by shown name), `classes`, `step` and `unsupervised`; as taggers (CVT), of which every
            step trains one drawn at random, `source` (`{tokens: FIELD}`) and `labels`. See
            `unicloze.tasks.several.TaskPart`.
        mixing_cap: Most rows of a part that count in its share of an epoch, or when a step's part is drawn; default: all.
        mixing_temperature: Temperature of the shares or of the draw: 1 for shares by number of rows, higher for more equal
            ones, 2 for its square root.
    """

    parts: list[dict[str, Any]] = setting([])
    mixing_cap: int | None = setting(None, AT_LEAST_ONE, needs("task.parts"))
    mixing_temperature: float = setting(1.0, AT_LEAST_ONE, needs("task.parts"))

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Reject invalid entries of `parts`, and settings that each entry has of its own."""
        yield from super().problems(recipe)
        for number, entry in enumerate(self.parts, 1):
            if wrong := _wrong(entry, self.kind == TAGGING):
                yield "task.parts", f"entry {number}{wrong}"
        labels = [entry["label"] for entry in self.parts]
        if again := next((label for label in labels if labels.count(label) > 1), None):
            yield "task.parts", f"two entries are labelled '{again}'"
        shares = [float(entry["share"]) for entry in self.parts if "share" in entry]
        if self.parts and (sum(shares) >= 1 or len(shares) == len(self.parts)):
            yield "task.parts", "the shares must leave something to an entry without one"
        if self.parts and (self.fields or self.format != "auto"):
            yield "task.parts", "each entry names its own fields and format: leave out task.fields and task.format"


_OF_TAGGERS: Mapping[str, Any] = {"source": {"tokens": "tokens"}, "target": "tags", "metrics": ("tag-accuracy",)}
"""Defaults of a tagger's entry."""


def _wrong(entry: Mapping[str, Any], taggers: bool) -> str:
    """What is wrong with an entry; empty if nothing is."""
    foreign = {"classes", "step", "unsupervised"} if taggers else {"labels"}
    fields = sorted({each.name for each in dataclasses.fields(TaskPart)} - foreign)
    if unknown := sorted(entry.keys() - {*fields}):
        return f" has '{unknown[0]}'; an entry has {', '.join(fields)}"
    if missing := [name for name in ("label", "train") if not entry.get(name) or not isinstance(entry[name], str)]:
        return f" has no text '{missing[0]}'"
    if taggers and "." in entry["label"]:
        return ": the label of a tagger names weights, and cannot contain a full stop"
    tags = entry.get("labels")
    if tags is not None and (not isinstance(tags, list) or len(set(map(str, tags))) < max(1, len(tags))):
        return ": labels is not a list of different tags"
    for name in ("source", "classes"):
        if name in entry and not isinstance(entry[name], Mapping):
            return f": {name} is not a mapping"
    if taggers and not {*entry.get("source", ())} <= {"tokens"}:
        return ": the source of a tagger is {tokens: FIELD}"
    texts = [_bare(str(text)) for text in entry.get("classes", {}).values()]
    if len(set(texts)) < len(texts):
        return ": two classes have the same text"
    for name, limit in (("step", np.inf), ("share", 1)):
        value = entry.get(name, 1e-9)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < limit:
            return f": {name} must be above 0" + " and below 1" * (name == "share")
    if not entry.get("unsupervised") and not entry.get("metrics", ["accuracy"]):
        return ": name at least one metric"
    return ""


def parts_of(settings: TaskSettings) -> list[TaskPart]:
    """The parts of a task; of a single task, the whole."""
    if not has_parts(settings):
        return [TaskPart(label="", metrics=settings.metrics, labels=getattr(settings, "labels", None))]
    defaults = _OF_TAGGERS if settings.kind == TAGGING else {}
    return [TaskPart(**{**defaults, **entry, **_as_texts(entry)}) for entry in settings.parts]


def has_parts(settings: TaskSettings) -> TypeGuard[SeveralSettings]:
    """Whether several tasks are trained together."""
    return isinstance(settings, SeveralSettings) and bool(settings.parts)


def part_of(record: Record, settings: TaskSettings) -> TaskPart | None:
    """The part that a record names; the whole of a single task; None if it names none of several."""
    named = record.fields.get(TASK) if has_parts(settings) else ""
    return next((part for part in parts_of(settings) if part.label == named), None)


def metrics_of(settings: TaskSettings) -> list[str]:
    """The metrics of all parts."""
    return list(dict.fromkeys(name for part in parts_of(settings) for name in part.metrics))


def _as_texts(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The names of an entry as texts: YAML reads 0 and 1, which may be columns, classes or tags, as numbers."""
    texts: dict[str, Any] = {
        key: {str(name): str(text) for name, text in entry[key].items()}
        for key in ("source", "classes")
        if entry.get(key) is not None
    }
    if "target" in entry:
        texts["target"] = str(entry["target"])
    if entry.get("labels") is not None:
        texts["labels"] = [str(label) for label in entry["labels"]]
    return texts


def records_of(path: Path, settings: TaskSettings, *, dev: bool = False) -> list[Record]:
    """The records of a task.

    Those of several tasks are read from the files of the parts in a folder, or from one file whose records name their part
    in the field `task`.
    """
    if not has_parts(settings):
        return read_records(path, settings)
    parts = parts_of(settings)
    if not path.is_dir():
        known = {part.label: part for part in parts}
        records = read_records(path, TaskSettings(format="auto"))
        unnamed = next((record for record in records if record.fields.get(TASK) not in known), None)
        if unnamed is not None:
            raise UniclozeError(f"{unnamed.place}: the field 'task' must name one of {', '.join(known)}")
        converted = [_converted(record, known[record.fields[TASK]], settings.kind) for record in records]
        return [record for record in converted if record.fields]
    converted = []
    for part in parts:
        if (name := part.dev if dev else part.train) is not None:
            records = read_records(path / name, TaskSettings(format=part.format), cure=None)
            converted += [_converted(record, part, settings.kind) for record in records]
    if not any(record.fields for record in converted):
        raise UniclozeError(f"{path}: no entry of task.parts has records there: name a `dev` file in one")
    return [record for record in converted if record.fields]


def _converted(record: Record, part: TaskPart, kind: str) -> Record:
    """The record as source and target, or as words and tags; without fields if an unsupervised text has a single word."""
    settings = TaskSettings(fields=dict(part.source))
    if kind == TAGGING:
        words, tags = record.get(settings, "tokens"), record.get(TaskSettings(), part.target)
        fields = {role: value for role, value in (("tokens", words), ("tags", tags)) if value is not None}
    else:
        texts = {name: record.text(settings, name) for name in part.source}
        shown, target = [f"{name}: {text}" for name, text in texts.items()], None
        if part.unsupervised:
            words = next(iter(texts.values())).split()
            if len(words) < 2:
                return dataclasses.replace(record, fields={})
            drawn = keyed.uniform(keyed.key(len(words), *map(len, words[:8])))[0]
            cut = 1 + int(drawn * (len(words) - 1))
            shown, target = words[:cut], " ".join(words[cut:])
        else:
            target = part.target_of(record)
        fields = {SOURCE: " ".join([part.label, *shown])} | ({} if target is None else {TARGET: target})
        if target is not None and not part.unsupervised and (part.step is not None or part.classes is not None):
            fields[GOLD] = record.get(TaskSettings(), part.target)
    return dataclasses.replace(record, id=f"{part.label}-{record.id}", fields={TASK: part.label, **fields})


def by_part(records: Sequence[Record], settings: TaskSettings) -> dict[str, list[int]]:
    """Indices of the records of each part, by label, in order."""
    if not has_parts(settings):
        return {"": [*range(len(records))]}
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for number, record in enumerate(records):
        numbers[str(record.fields[TASK])].append(number)
    return {**numbers}


def rows_per_epoch(counts: Mapping[str, int], settings: SeveralSettings, rows: int) -> dict[str, int]:
    """Rows of each part in an epoch: examples-proportional, with a cap and a temperature (Raffel et al., Section 3.5.2).

    A part's rate is its number of rows, at most the cap, to the power of one over the temperature; a part with a `share` has
    that share of all rows, and the others divide the rest. Each part has a row at least.
    """
    fixed = {part.label: part.share for part in parts_of(settings) if part.share is not None and part.label in counts}
    cap, power = settings.mixing_cap, 1 / settings.mixing_temperature
    rates = {label: min(count, cap or count) ** power for label, count in counts.items() if label not in fixed}
    rest, total = 1.0 - sum(fixed.values()), sum(rates.values())
    exact = {label: rows * fixed.get(label, rest * rates.get(label, 0.0) / (total or 1.0)) for label in counts}
    whole = {label: max(1, int(value)) for label, value in exact.items()}
    for label in sorted(exact, key=lambda name: int(exact[name]) - exact[name])[: max(0, rows - sum(whole.values()))]:
        whole[label] += 1
    return whole


def most_common(train: Sequence[Record], dev: Sequence[Record]) -> Baseline:
    """The most common target of each task."""
    targets: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for record in train:
        targets[str(record.fields[TASK])][str(record.fields.get(TARGET, ""))] += 1
    answers = [max(targets[str(record.fields[TASK])].most_common(1), default=("", 0))[0] for record in dev]
    return Baseline("the most common answer of each task", answers)
