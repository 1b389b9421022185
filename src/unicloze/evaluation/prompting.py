r"""Zero- and few-shot prompting: answers records with a model that was not trained on them.

The answer to a record is the likeliest one in the blank of its prompt (Brown et al. 2020, Section 2.4); a template without a
blank is continued by the model, as in GPT-2's "TL;DR:" (Radford et al. 2019, Section 3.6).

A prompt file turns a record into a text with a blank, as YAML or JSON:

    template: "Review: {text}\nSentiment: {label}"
    labels: {positive: good, negative: bad}

`{label}` is the blank; every other name in braces is a field of the record. See `Prompt` for all keys.
"""

from __future__ import annotations

import dataclasses
import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import yaml

from unicloze import keyed
from unicloze.decoding import generate as generation
from unicloze.decoding.likelihood import Blank, By, fill_blanks, way_of
from unicloze.errors import UniclozeError, UsageError, check_at_least, check_seed
from unicloze.evaluation.metrics.registry import metric, of_lists
from unicloze.evaluation.metrics.result import MetricResult
from unicloze.files import Plain, read_bytes
from unicloze.progress import Progress, counted
from unicloze.recipes.schema import Setting, parsed
from unicloze.records import read_records
from unicloze.records.record import Record
from unicloze.settings import DecodingSettings, TaskSettings
from unicloze.tasks.classification import choice_of
from unicloze.tasks.columns import texts_of
from unicloze.training.loading import LoadedModel
from unicloze.yaml_loader import LARGEST_FILE, Loader

Normaliser = Literal["sum", "token", "byte"]

NORMALISERS: Mapping[Normaliser, Callable[[float, int, str], float]] = {
    "sum": lambda log, tokens, text: log,
    "token": lambda log, tokens, text: log / tokens,
    "byte": lambda log, tokens, text: log / len(text.encode("utf-8")),
}
"""Normalise an answer's log-likelihood, given it, the number of tokens and the text without the space before it."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A text with a blank and its candidate answers."""

    id: str  # its name in predictions
    before: str  # text before the blank
    after: str  # text after the blank
    names: Sequence[str]  # names of the answers in predictions
    answers: Sequence[str]  # the answers, with the white space before them
    gold: str | None  # name of the right answer; None if unknown
    place: str  # its origin, for messages

    @classmethod
    def of(
        cls, before: str, after: str, answers: Mapping[str, str], *, id: str, gold: str | None, place: str
    ) -> Choice:
        """A choice between answers by name, which begin with the white space at the end of the text before them."""
        kept = before.rstrip()
        texts = [before[len(kept) :] + answer for answer in answers.values()]
        return cls(id=id, before=kept, after=after, names=list(answers), answers=texts, gold=gold, place=place)


@dataclass(frozen=True, kw_only=True)
class PromptResult(Plain):
    """A model's zero- or few-shot predictions for a file and their scores.

    Args:
        task: Name of the task.
        model: The checkpoint.
        by: `chain` rule or `par`, see `unicloze.decoding.likelihood`; `generation` if texts were generated.
        normalise: Divisor of the log-likelihoods.
        shots: Number of examples per prompt.
        records: Number of records.
        unknown: Records with an answer that has tokens not in the vocabulary, which is never chosen.
        scores: Results by metric; empty if a record has no right answer.
        predictions: One per record: `id`, `prediction`, `reference`, and the `scores` of the answers.
    """

    task: str
    model: str
    by: By | Literal["generation"]
    records: int
    normalise: Normaliser = "sum"
    shots: int = 0
    unknown: int = 0
    scores: Mapping[str, MetricResult] = field(default_factory=dict)
    predictions: Sequence[Mapping[str, Any]] = ()

    def __str__(self) -> str:
        how = {"chain": "by the chain rule", "par": "by PAR", "generation": "generated"}[self.by]
        each = {"sum": "", "token": ", log-likelihood per token", "byte": ", log-likelihood per byte"}[self.normalise]
        shots = counted(self.shots, "example")
        lines = [f"{self.task}, {self.records:,} records, {shots} in the prompt, {how}{each}"]
        lines += [f"  {line}" for result in self.scores.values() for line in str(result).split("\n")]
        if not self.scores:
            lines.append("  not measured: some records have no right answer")
        if self.unknown:
            lines.append(f"  {self.unknown:,} records have answers with tokens not in the vocabulary, never chosen")
        return "\n".join(lines)


NONE = ""
"""The prediction if every answer has tokens not in the vocabulary."""


def choose(
    model: LoadedModel,
    choices: Sequence[Choice],
    *,
    task: str,
    metrics: Sequence[str] = ("accuracy",),
    normalise: Normaliser = "sum",
    shots: int = 0,
    batch_size: int = 64,
    progress: bool = True,
) -> PromptResult:
    """Choose the likeliest answer of each choice; ties go to the first, and `NONE` is chosen if no answer can be scored."""
    if normalise not in get_args(Normaliser):
        raise UsageError(f"normalise is {normalise!r}: give one of {', '.join(get_args(Normaliser))}")
    by = way_of(model.recipe)
    pairs = [(choice, answer) for choice in choices for answer in choice.answers]
    blanks = [Blank(before=one.before, answer=answer, after=one.after, place=one.place) for one, answer in pairs]
    with Progress(task, len(blanks), "answers", show=progress) as bar:
        filled = iter(fill_blanks(model, blanks, batch_size=batch_size, progress=bar.update))
    predictions, unknown = [], 0
    for choice in choices:
        scores = []
        for answer in choice.answers:
            logs, scored = next(filled).logs, answer.strip() + (choice.after if by == "chain" else "")
            scores.append(NORMALISERS[normalise](float(logs.sum()), len(logs), scored))
        unknown += any(np.isnan(scores))
        best = NONE if all(np.isnan(scores)) else choice.names[int(np.nanargmax(scores))]
        by_name = zip(choice.names, (None if np.isnan(score) else round(score, 6) for score in scores), strict=True)
        predictions.append({"id": choice.id, "prediction": best, "reference": choice.gold, "scores": dict(by_name)})
    return PromptResult(
        task=task, model=str(model.path), by=by, normalise=normalise, shots=shots, records=len(choices),
        unknown=unknown, scores=measure(predictions, metrics), predictions=predictions,
    )  # fmt: skip


def measure(predictions: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> dict[str, MetricResult]:
    """Results with standard errors by metric; empty if any reference is unknown."""
    said, gold = [one["prediction"] for one in predictions], [one["reference"] for one in predictions]
    if any(one is None for one in gold):
        return {}
    return {name: of_lists(name, said, gold, errors=True) for name in metrics}


LABEL = "label"
"""The blank in a template, and the role of the right answer."""

IN_FILE = "`{}: {}` in the prompt file"
"""How to set the fields and format of records there; see `unicloze.records.record.OPTION`."""

Parts = Sequence[tuple[str, str | None]]
"""Pairs of literal text and the field after it, None at the end."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Turns records into texts with a blank."""

    name: str  # name of the prompt
    # Text with field names in braces; `{{` and `}}` are literal braces. Without `{label}` the model continues the text,
    # and `labels`, `options` and `normalise` do not apply.
    template: str
    labels: Mapping[str, str] = field(default_factory=dict)  # answer of each label; ties go to the first
    # field with a list of answers, instead of `labels`; the label is the text of the right one, or its number from 0
    options: str | None = None
    separator: str = "\n\n"  # text between examples, and before the record itself
    instruction: str = ""  # text before everything else, if not empty
    normalise: Normaliser = "sum"  # divisor of log-likelihoods: `sum` (none), `token` or `byte`
    # names in the file of `label`, `id`, `options` and the template's other fields; default: the same names
    fields: Mapping[str, str] = field(default_factory=dict)
    format: str = "auto"  # format of the records, as `TaskSettings.format`
    metrics: Sequence[str] = ()  # metrics to compute: of labels if the template has a blank, else of texts
    # settings of `DecodingSettings` for templates without a blank
    generate: Mapping[str, Any] = field(default_factory=dict)

    @property
    def records(self) -> TaskSettings:
        """Settings for reading its files of records."""
        return TaskSettings(format=self.format, fields=dict(self.fields))

    @property
    def has_blank(self) -> bool:
        """Whether answers are chosen; otherwise texts are generated."""
        return any(name == LABEL for _, name in self._parts)

    @cached_property
    def _parts(self) -> Parts:
        return [(literal, name) for literal, name, _, _ in string.Formatter().parse(self.template)]

    def sides(self, record: Record) -> tuple[str, str]:
        """The text before and after the blank; the whole text and "" if there is no blank."""
        sides = [""]
        for literal, name in self._parts:
            sides[-1] += literal
            if name == LABEL:
                sides.append("")
            elif name is not None:
                value = record.get(self.records, name)
                is_number = isinstance(value, int | float)
                sides[-1] += str(value) if is_number else " ".join(texts_of(record, self.records, name))
        before, after = [*sides, ""][:2]
        return before, after

    def answers(self, record: Record) -> dict[str, str]:
        """The possible answers to a record, by name."""
        if self.options is None:
            return dict(self.labels)
        found = record.get(self.records, self.options)
        if not isinstance(found, list) or not found or not all(isinstance(one, str) and one.strip() for one in found):
            raise UniclozeError(f"{record.place}: '{self.options}' is not a list of texts, as `options` needs")
        return {str(number): text for number, text in enumerate(found)}

    def gold(self, record: Record) -> str | None:
        """Name of the right answer; None if the record has no label."""
        value = record.get(self.records, LABEL)
        if value is None:
            return None
        answers = self.answers(record)
        if self.options is not None:
            return str(choice_of(value, list(answers.values()), record.place))
        named = next((name for name in (str(value), _spelled(value)) if name in answers), None)
        if named is None:
            known = f"not one of those of the prompt ({', '.join(answers)})"
            raise UniclozeError(f"{record.place}: the label '{value}' is {known}")
        return named

    def example(self, record: Record) -> str:
        """A record with its right answer in the blank, or followed by its target text if there is no blank."""
        before, after = self.sides(record)
        if not self.has_blank:
            return f"{before.rstrip()} {record.text(self.records, LABEL).strip()}"
        gold = self.gold(record)
        if gold is None:
            raise UniclozeError(f"{record.place}: an example needs a label, and this record has none")
        return before + self.answers(record)[gold] + after

    def text(self, record: Record, examples: Sequence[Record] = ()) -> tuple[str, str]:
        """The text before the blank, including instruction and examples, and the text after it."""
        before, after = self.sides(record)
        shown = [self.instruction] if self.instruction else []
        return self.separator.join([*shown, *map(self.example, examples), before]), after


def read_prompt(path: Path) -> Prompt:
    """Read a prompt file."""
    if not path.is_file():
        raise UniclozeError(f"There is no prompt file {path}: name one in YAML or JSON.")
    try:
        values = yaml.load(read_bytes(path, LARGEST_FILE).decode(), Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise UniclozeError(f"{where} is neither YAML nor JSON ({' '.join(problem.split())}): fix it.") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path} is not a mapping of settings: write it as in 'template: \"...{{label}}\"'.")
    values = {"name": path.stem, "template": None, **values}
    if (problem := next(_strange_values(values), None)) is not None:
        raise UsageError(f"{path}: {problem}.")
    labels = {_spelled(label): str(answer) for label, answer in values.get("labels", {}).items()}
    prompt = Prompt(**{**values, "labels": labels})
    if (problem := next(_contradictions(prompt), None)) is not None:
        raise UsageError(f"{path}: {problem}.")
    chosen = {f"decoding.{key}": Setting(value, str(path)) for key, value in prompt.generate.items()}
    generate: dict[str, Any] = parsed(chosen, {}).get("decoding", {})
    metrics = tuple(prompt.metrics) or (("accuracy",) if prompt.has_blank else ("rouge",))
    return dataclasses.replace(prompt, generate=generate, metrics=metrics)


def _spelled(label: Any) -> str:
    """A label as text: YAML reads yes and no as booleans, but records spell them out."""
    return {True: "yes", False: "no"}[label] if isinstance(label, bool) else str(label)


def _strange_values(values: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the keys and the types of their values."""
    keys = [one.name for one in dataclasses.fields(Prompt)]
    kinds = {**dict.fromkeys(keys, str), **dict.fromkeys(("labels", "fields", "generate"), dict), "metrics": list}
    what = {str: "a text", dict: "a mapping", list: "a list of names"}
    for key in values:
        if key not in kinds:
            yield f"there is no key '{key}': the keys are {', '.join(keys)}"
    for key, value in values.items():
        if not isinstance(value, kinds.get(key, object)) and not (key == "options" and value is None):
            yield f"{key} is {value!r}: give {what[kinds[key]]}"
    for key, names in (("fields", [*values.get("fields", {}).values()]), ("metrics", values.get("metrics", []))):
        if not all(isinstance(name, str) for name in names):
            yield f"{key} is {values[key]!r}: give text for each name"
    labels = values.get("labels", {})
    if len({_spelled(label) for label in labels}) < len(labels):
        yield "two labels read the same, such as 1 and '1': remove one"
    for label, answer in labels.items():
        if not isinstance(answer, str | int | float) or isinstance(answer, bool):
            yield f"the answer of {_spelled(label)} is read as {answer!r}: put the word in quotation marks"


def _contradictions(prompt: Prompt) -> Iterator[str]:
    """What is wrong with a prompt whose values have the right types."""
    try:
        parts = list(string.Formatter().parse(prompt.template))
    except ValueError as error:
        yield f"template cannot be read ({error}): write a literal brace as two"
        return
    names = [name for _, name, _, _ in parts if name is not None]
    if not all(names) or names.count(LABEL) > 1:
        yield "template needs a name in each pair of braces, and {label} once or not at all"
    for _, name, format_spec, conversion in parts:
        if format_spec or conversion:
            yield f"template formats {name}, and formats such as :.5 and !r are not supported: write {{{name}}}"
    plain = Prompt(name="", template="")
    for key in () if prompt.has_blank else ("labels", "options", "normalise"):
        if getattr(prompt, key) != getattr(plain, key):
            yield f"{key} needs {{label}} in the template: put it where the answer goes, or leave out {key}"
    known = {*names, LABEL, "id", *([prompt.options] if prompt.options is not None else [])}
    for role in prompt.fields:
        if role not in known:
            yield f"fields: {role} is not used: give names from the template, {', '.join(sorted(known))}"
    if prompt.normalise not in NORMALISERS:
        yield f"normalise is '{prompt.normalise}': give one of {', '.join(NORMALISERS)}"
    if prompt.has_blank and (len(prompt.labels) < 2) == (prompt.options is None):
        yield "give either two or more labels with their answers, or options"
    answers = [answer.strip() for answer in prompt.labels.values()]
    if not all(answers):
        yield "an answer in labels is empty: give each a word"
    if len(set(answers)) < len(answers):
        yield "two labels have the same answer, so the second could never be chosen: give each its own"
    for key in sorted(set(prompt.generate) - {one.name for one in dataclasses.fields(DecodingSettings)}):
        yield f"there is no generation setting '{key}': see DecodingSettings"
    if (several := prompt.generate.get("num_results", 1)) != 1:
        yield f"generate: num_results is {several}, but one text per record is measured: leave it out"
    if prompt.generate and prompt.has_blank:
        yield "generate does not apply with {label}: see DecodingSettings"


def prompted(
    model: LoadedModel,
    prompt: str | Path | Prompt,
    records: str | Path,
    *,
    examples: str | Path | None = None,
    shots: int = 0,
    seed: int = 0,
    limit: int | None = None,
    batch_size: int = 64,
    progress: bool = True,
) -> PromptResult:
    """Answer a file of records with a prompt."""
    check_at_least(1, limit=limit)
    asked = prompt if isinstance(prompt, Prompt) else read_prompt(Path(prompt))
    chosen = read_records(Path(records), asked.records, cure=IN_FILE)[:limit]
    _check_metrics(asked)
    drawn = draw_examples(asked, chosen, None if examples is None else Path(examples), shots, seed)
    texts = (asked.text(record, few) for record, few in zip(chosen, drawn, strict=True))
    if asked.has_blank:
        choices = [
            Choice.of(*sides, asked.answers(record), id=record.id, gold=asked.gold(record), place=record.place)
            for record, sides in zip(chosen, texts, strict=True)
        ]
        return choose(
            model, choices, task=asked.name, metrics=asked.metrics, normalise=asked.normalise, shots=shots,
            batch_size=batch_size, progress=progress,
        )  # fmt: skip
    references = [_references(asked, record) for record in chosen]
    usual = DecodingSettings()
    longest, rows = min(usual.max_length, model.model.max_positions // 2), min(usual.batch_size, batch_size)
    given = {"precision": model.precision, "max_length": longest, "batch_size": rows, **asked.generate}
    sources = [before.rstrip() for before, _ in texts]
    # The end of a prompt is the record itself.
    written = generation.generate(model, sources, DecodingSettings(**given), keep="end", progress=progress)
    predictions = []
    for record, one, several in zip(chosen, written, references, strict=True):
        text = one.text.partition(asked.separator)[0] if asked.separator else one.text
        predictions.append({"id": record.id, "prediction": text.strip(), "reference": several})
    return PromptResult(
        task=asked.name, model=str(model.path), by="generation", shots=shots, records=len(chosen),
        scores=measure(predictions, asked.metrics), predictions=predictions,
    )  # fmt: skip


def _check_metrics(prompt: Prompt) -> None:
    """Reject metrics that cannot score what the prompt produces, before the model runs."""
    compares = "labels" if prompt.has_blank else "texts"
    for name in prompt.metrics:
        chosen = metric(name)
        if chosen.compares != compares:
            does = f"{'chooses answers' if prompt.has_blank else 'writes texts'}, but {name} compares {chosen.compares}"
            raise UsageError(f"the prompt {prompt.name} {does}: name metrics of {compares}")
        if not prompt.has_blank:
            chosen(["a b c"], [["a b c"]])
        elif prompt.labels:
            chosen([*prompt.labels], [*prompt.labels])


def draw_examples(
    prompt: Prompt, records: Sequence[Record], path: Path | None, shots: int, seed: int
) -> list[list[Record]]:
    """The examples of each record: distinct, drawn uniformly, and never with the same text as the record."""
    check_seed(seed)
    check_at_least(0, shots=shots)
    if (shots > 0) != (path is not None):
        raise UsageError("examples and shots go together: give a file to draw from and their number, or neither")
    if path is None:
        if seed:
            raise UsageError(f"seed is {seed}, but no examples are drawn: give examples and shots, or leave it out")
        return [[] for _ in records]
    known = read_records(path, prompt.records, cure=IN_FILE)
    said = [prompt.sides(example) for example in known]
    times = Counter(said)
    drawn = []
    for number, asked in enumerate(map(prompt.sides, records)):
        if len(known) - times[asked] < shots:
            has = f"{len(known) - times[asked]} records{' other than the one to be answered' * bool(times[asked])}"
            raise UsageError(f"shots is {shots}, but {path} has {has}: give as many")
        places = np.arange(shots + times[asked])
        order = keyed.permutation(places, len(known), keyed.key(seed, keyed.Purpose.SHOTS, number)[0])
        # The record itself, if drawn, would give away its answer.
        drawn.append([known[place] for place in order.tolist() if said[place] != asked][:shots])
    return drawn


def _references(prompt: Prompt, record: Record) -> list[str] | None:
    """The reference texts of a record; None if it has no label."""
    gold = record.get(prompt.records, LABEL)
    if gold is None:
        return None
    several = record.texts(prompt.records, LABEL) if isinstance(gold, list) else [record.text(prompt.records, LABEL)]
    if not several:
        raise UniclozeError(f"{record.place}: '{LABEL}' has no text to compare with: give one, or leave it out")
    return several
