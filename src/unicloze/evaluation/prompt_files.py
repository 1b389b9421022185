r"""Reads prompt files, which turn a record into a text with a blank, as YAML or JSON.

    template: "Review: {text}\nSentiment: {label}"
    labels: {positive: good, negative: bad}

`{label}` is the blank; every other name in braces is a field of the record. See `Prompt` for all keys.
"""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from unicloze.bounded import read_bytes
from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.answer_choice import NORMALISERS, Normaliser
from unicloze.recipes.list_entries import typed
from unicloze.records.record import Record
from unicloze.settings import DecodingSettings, TaskSettings
from unicloze.tasks.choice import choice_of
from unicloze.yaml_loader import LARGEST_FILE, Loader

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
        sides = ["", ""]
        behind = 0
        for literal, name in self._parts:
            sides[behind] += literal
            if name == LABEL:
                behind = 1
            elif name is not None:
                sides[behind] += self._said(record, name)
        return sides[0], sides[1]

    def _said(self, record: Record, name: str) -> str:
        """A field as text: numbers as strings, lists of texts joined by spaces."""
        value = record.get(self.records, name)
        if isinstance(value, int | float):
            return str(value)
        return (
            " ".join(record.texts(self.records, name)) if isinstance(value, list) else record.text(self.records, name)
        )

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
            raise UniclozeError(
                f"{record.place}: the label '{value}' is not one of those of the prompt ({', '.join(answers)})"
            )
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
    known = {one.name: one for one in dataclasses.fields(Prompt)}
    for key in values:
        if key not in known:
            raise UsageError(f"{path}: there is no key '{key}': the keys are {', '.join(known)}.")
    values = {"name": path.stem, "template": None, **values}
    _check_types(path, values)
    given = values.get("labels", {})
    labels = {_spelled(label): str(answer) for label, answer in given.items()}
    if len(labels) < len(given):
        raise UsageError(f"{path}: two labels read the same, such as 1 and '1': remove one.")
    for label, answer in given.items():
        if not isinstance(answer, str | int | float) or isinstance(answer, bool):
            raise UsageError(
                f"{path}: the answer of {_spelled(label)} is read as {answer!r}: put the word in quotation marks."
            )
    prompt = _checked(path, Prompt(**{**values, "labels": labels}))
    default = ("accuracy",) if prompt.has_blank else ("rouge",)
    return dataclasses.replace(prompt, metrics=tuple(prompt.metrics) or default)


def _spelled(label: Any) -> str:
    """A label as text: YAML reads yes and no as booleans, but records spell them out."""
    return {True: "yes", False: "no"}[label] if isinstance(label, bool) else str(label)


def _check_types(path: Path, values: Mapping[str, Any]) -> None:
    kinds: Mapping[str, tuple[type[Any], str]] = {
        **dict.fromkeys(("labels", "fields", "generate"), (dict, "a mapping")),
        "metrics": (list, "a list of names"),
    }
    for key, value in values.items():
        kind, said = kinds.get(key, (str, "a text"))
        if not isinstance(value, kind) and not (key == "options" and value is None):
            raise UsageError(f"{path}: {key} is {value!r}: give {said}.")
    for key, names in (("fields", [*values.get("fields", {}).values()]), ("metrics", values.get("metrics", []))):
        if not all(isinstance(name, str) for name in names):
            raise UsageError(f"{path}: {key} is {values[key]!r}: give text for each name.")


def _checked(path: Path, prompt: Prompt) -> Prompt:
    """Validate a prompt and convert its generation settings to their types."""
    _check_template(path, prompt)
    if prompt.normalise not in NORMALISERS:
        raise UsageError(f"{path}: normalise is '{prompt.normalise}': give one of {', '.join(NORMALISERS)}.")
    if prompt.has_blank and (len(prompt.labels) < 2) == (prompt.options is None):
        raise UsageError(f"{path}: give either two or more labels with their answers, or options.")
    answers = [answer.strip() for answer in prompt.labels.values()]
    if not all(answers):
        raise UsageError(f"{path}: an answer in labels is empty: give each a word.")
    if len(set(answers)) < len(answers):
        raise UsageError(
            f"{path}: two labels have the same answer, so the second could never be chosen: give each its own."
        )
    unknown = set(prompt.generate) - {one.name for one in dataclasses.fields(DecodingSettings)}
    if unknown or (prompt.generate and prompt.has_blank):
        which = (
            f"there is no generation setting '{min(unknown)}'" if unknown else "generate does not apply with {label}"
        )
        raise UsageError(f"{path}: {which}: see DecodingSettings.")
    generate: dict[str, Any] = {}
    if prompt.generate:
        generate = typed({f"decoding.{key}": value for key, value in prompt.generate.items()}, str(path))["decoding"]
    if generate.get("num_results", 1) != 1:
        raise UsageError(
            f"{path}: generate: num_results is {generate['num_results']}, but one text per record is measured: leave it out."
        )
    return dataclasses.replace(prompt, generate=generate)


def _check_template(path: Path, prompt: Prompt) -> None:
    """Check the names in the template and the keys that depend on its blank."""
    try:
        parts = list(string.Formatter().parse(prompt.template))
    except ValueError as error:
        raise UsageError(f"{path}: template cannot be read ({error}): write a literal brace as two.") from error
    names = [name for _, name, _, _ in parts if name is not None]
    if not all(names) or names.count(LABEL) > 1:
        raise UsageError(f"{path}: template needs a name in each pair of braces, and {{label}} once or not at all.")
    formatted = next((name for _, name, format_spec, conversion in parts if format_spec or conversion), None)
    if formatted is not None:
        raise UsageError(
            f"{path}: template formats {formatted}, and formats such as :.5 and !r are not supported: write {{{formatted}}}."
        )
    if LABEL not in names:
        for key, silent in (("labels", {}), ("options", None), ("normalise", "sum")):
            if getattr(prompt, key) != silent:
                raise UsageError(
                    f"{path}: {key} needs {{label}} in the template: put it where the answer goes, or leave out {key}."
                )
    known = {*names, LABEL, "id", *([prompt.options] if prompt.options is not None else [])}
    strange = next((role for role in prompt.fields if role not in known), None)
    if strange is not None:
        raise UsageError(
            f"{path}: fields: {strange} is not used: give names from the template, {', '.join(sorted(known))}."
        )
