"""Generates texts for records, or for texts given directly, with any model that can generate."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from unicloze.decoding.generate import Part, contradictions, generate_parts, ready
from unicloze.decoding.inputs import check_text, generation_format_of, longest_target, place_of, repetition_guard
from unicloze.errors import UniclozeError
from unicloze.files import digest, hold, real_place, replace_file
from unicloze.finetuning.data import encoded, model_fingerprint, records_fingerprint
from unicloze.finetuning.predict import cut_records, generated, predict, predictions_of
from unicloze.recipes import with_overrides
from unicloze.recipes.validation import given_settings, refuse_unread_in_task
from unicloze.records.record import Record
from unicloze.settings import DecodingSettings
from unicloze.tasks import TASKS
from unicloze.tasks.columns import check_fields, record_of_texts, roles_of
from unicloze.tasks.task import Prediction
from unicloze.training.loading import LoadedModel
from unicloze.version import __version__

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
        self._path, self._total, self._begun_with, self._fits = real_place(path), total, dict(begun_with), fits
        self._part, self._about, lock = (
            self._path.with_name(f"{self._path.name}.part{ending}") for ending in ("", ".json", ".lock")
        )
        self._lock = hold(lock, self._part, "wait for it, or give another --out")
        self.lines: list[Line] = []
        """The lines written so far, in order."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._lock)
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
        kept = raw[: raw.rfind(b"\n") + 1]
        former, lines = _json_lines(self._about.read_bytes() if raw else b""), _json_lines(kept)
        began = former[0] if former else {}
        other = next((what for what, now in self._begun_with.items() if began.get(what) != now), None)
        fit = len(lines) <= self._total and all(itertools.starmap(self._fits, enumerate(lines)))
        self.lines = lines if fit and not other else []
        if raw and not self.lines:
            why = f"was started with another {other}" if other else "has other lines"
            warnings.warn(f"{self._part} {why}, and is started again", stacklevel=3)
        self._size: int | None = len(kept) if self.lines else 0

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

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        with self._held:
            if error is None:
                self._settle()
            self._file.close()  # some systems cannot rename an open file
            done = self._part.read_bytes().count(b"\n")  # a signal may have arrived between writing and counting
            if error is None:
                self._part.replace(self._path)
            elif not done:
                self._part.unlink()
            elif self.lines or self._size is None:
                lines = f"{self._part} has {done:,} of {self._total:,} lines"
                warnings.warn(f"{lines}; the same command resumes from there", stacklevel=2)
            if error is None or not done:
                self._about.unlink(missing_ok=True)


def _json_lines(raw: bytes) -> list[Line]:
    """The JSON objects of a file's lines; empty if one of them is none."""
    try:
        lines = [json.loads(line) for line in raw.splitlines()]
    except ValueError:
        return []
    return lines if all(isinstance(line, dict) for line in lines) else []


def with_settings(model: LoadedModel, overrides: Mapping[str, Any] | None) -> LoadedModel:
    """The model with overridden recipe settings."""
    if not overrides:
        return model
    recipe = with_overrides(model.recipe, overrides)
    if "task.fields" in given_settings(overrides):
        check_fields(recipe, TASKS.get(recipe.task.kind))
    return dataclasses.replace(model, recipe=recipe)


def ready_to_write(model: LoadedModel, overrides: Mapping[str, Any] | None) -> LoadedModel:
    """The model with overridden settings of `decoding`, ready to generate.

    Settings of its recipe that contradict a given one give way. A small pre-trained model repeats no three tokens, unless
    `decoding.no_repeat_ngram` is given.
    """
    given = given_settings(overrides)
    loaded = with_settings(model, overrides)
    decoding = _giving_way(loaded.recipe.decoding, given)
    recipe = dataclasses.replace(loaded.recipe, decoding=decoding)
    refuse_unread_in_task([recipe], given)
    if not recipe.task.kind:
        own: dict[str, Any] = {}
        if "decoding.max_length" not in given:  # the default may exceed the model's positions
            own["max_length"] = longest_target(dataclasses.replace(loaded, recipe=recipe))
        if "decoding.no_repeat_ngram" not in given:
            own["no_repeat_ngram"] = repetition_guard(dataclasses.replace(loaded, recipe=recipe))
        recipe = recipe.changed("decoding", **own)
    return dataclasses.replace(loaded, recipe=recipe)


def _giving_way(decoding: DecodingSettings, given: Collection[str]) -> DecodingSettings:
    """The settings, of which those of the recipe that contradict given ones have other values; given ones are kept."""
    asked = {key.removeprefix("decoding.") for key in given if key.startswith("decoding.")}
    if "beams" in asked:  # a search, be it a greedy one
        search: dict[str, Any] = {"sample": False, "parallel": None}
        decoding = dataclasses.replace(decoding, **{name: search[name] for name in search if name not in asked})
    for _ in dataclasses.fields(decoding) if asked else ():
        yielding = ([name for name in values.items() if name[0] not in asked] for _, values in contradictions(decoding))
        first = next(filter(None, yielding), None)
        if first is None:
            break
        decoding = dataclasses.replace(decoding, **dict(first[:1]))
    return decoding


def record_of(model: LoadedModel, text: str | Sequence[str]) -> Record:
    """The record of a single source, given in parts."""
    parts = [text] if isinstance(text, str) else list(text)
    for role, part in zip(roles_of(model.recipe), parts, strict=False):
        check_text(part, f"the {role}")
    return record_of_texts(parts, model.recipe)


def predict_given(model: LoadedModel, records: Sequence[Record]) -> list[Prediction]:
    """Predictions for records made by `record_of`; those of a tagger include the words it found."""
    predictions = predict(model, encoded(records, model.recipe, model.tokenizer, answers=False))
    if model.recipe.task.kind != "tagging":
        return predictions
    words = (record.texts(model.recipe.task, "tokens") for record in records)
    return [{"id": one["id"], "tokens": tokens, **one} for one, tokens in zip(predictions, words, strict=True)]


def generate_for_records(
    model: LoadedModel, records: Sequence[Record], *, first: int = 0, progress: bool = False
) -> Iterator[list[Prediction]]:
    """Texts that a trained model generates for records, with the `decoding` settings of its recipe."""
    parts, cut = _generated(model, records, first, progress, None)
    return predictions_of(parts, records, model.recipe, model.tokenizer, cut, first)


def parts_for_records(
    model: LoadedModel, records: Sequence[Record], *, draws: Sequence[int] | None = None
) -> Iterator[Part]:
    """What each step generates for records; see `generate_for_records`."""
    return _generated(model, records, 0, False, draws)[0]


def _generated(
    model: LoadedModel, records: Sequence[Record], first: int, progress: bool, draws: Sequence[int] | None
) -> tuple[Iterator[Part], Collection[int]]:
    """What each step generates for the records from the `first` on, and which of all records were cut."""
    recipe = model.recipe
    if recipe.task.kind:
        # Refuses other tasks before their records are read.
        generation_format_of(recipe, model.tokenizer.vocabulary, place_of(model))
        data = encoded(records, recipe, model.tokenizer, answers=False)
        parts = generated(model, data, first=first, progress=progress, draws=draws)
        return parts, cut_records(data)
    prompts = [record.text(recipe.task, recipe.generation.source[0]) for record in records]
    layout, tokens, cut = ready(model, prompts, recipe.decoding)
    parts = generate_parts(model.model, tokens, recipe.decoding, layout, first=first, progress=progress, draws=draws)
    return parts, cut


def as_text(predictions: Sequence[Prediction]) -> str:
    """The text of a single prediction; if it has several candidates, each with its score."""
    (prediction,) = predictions
    several = prediction.get("candidates", [])
    return "\n".join(f"{each['score']:9.3f}  {each['text']}" for each in several) or str(prediction["prediction"])


def with_field(records: Iterable[Record], predictions: Sequence[Prediction], into: str | None) -> list[Prediction]:
    """The predictions; with `into`, the records instead, each with its prediction in that field."""
    if into is None:
        return list(predictions)
    return [
        {**record.fields, into: prediction["prediction"]}
        for prediction, record in zip(predictions, records, strict=False)
    ]


def generate_into(
    path: Path, model: LoadedModel, records: Sequence[Record], into: str | None, *, progress: bool = False
) -> list[Prediction]:
    """Generate texts for records into a file with one JSON object per line, written as they come.

    An interrupted call resumes if model, settings and records are the same; see `PartialFile`.
    """
    settings = model.recipe.to_dict()
    settings["decoding"].pop("batch_size")  # does not affect the texts
    settings |= {"into": into, "device": model.compute.device.type, "version": __version__}
    begun_with = {
        "model": model_fingerprint(model),
        "setting": digest(settings),
        "file of records": records_fingerprint(records),
    }

    def fits(number: int, line: Prediction) -> bool:
        record = records[number]
        if into is None:
            return line.get("id") == record.id
        expected = {**record.fields, into: line.get(into)}
        return json.dumps(line) == json.dumps(expected)  # as text, since NaN differs from itself

    with PartialFile(path, len(records), begun_with, fits) as part:
        for made in generate_for_records(model, records, first=len(part.lines), progress=progress):
            part.append(with_field(records[len(part.lines) :], made, into))
    return part.lines
