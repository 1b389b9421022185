"""Prepares a model and records for texts that are given directly instead of in a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from unicloze.decoding.abilities import repetition_guard
from unicloze.decoding.inputs import check_text
from unicloze.finetuning.data import encoded
from unicloze.finetuning.predict import predict
from unicloze.finetuning.task_model import load_task_model
from unicloze.recipes import with_overrides
from unicloze.recipes.unread_settings import given_settings, refuse_unread_in_generation
from unicloze.records.record import Record
from unicloze.settings import DecodingSettings
from unicloze.tasks import TASKS
from unicloze.tasks.raw_texts import record_of_texts, roles_of
from unicloze.tasks.roles import check_fields
from unicloze.tasks.task import Prediction
from unicloze.training.loading import LoadedModel


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
    refuse_unread_in_generation(recipe, given)
    if not recipe.task.kind:
        own: dict[str, Any] = {}
        if "decoding.max_length" not in given:  # the default may exceed the model's positions
            own["max_length"] = min(decoding.max_length, loaded.model.max_positions // 2)
        if "decoding.no_repeat_ngram" not in given:
            own["no_repeat_ngram"] = repetition_guard(dataclasses.replace(loaded, recipe=recipe))
        recipe = dataclasses.replace(recipe, decoding=dataclasses.replace(recipe.decoding, **own))
    return dataclasses.replace(loaded, recipe=recipe)


def _contradictions(own: DecodingSettings) -> Iterator[dict[str, Any]]:
    """For each contradiction that `check_settings` refuses, the value with which each of its settings gives way."""
    plain = DecodingSettings()
    if own.sample and own.beams > 1:
        yield {"sample": False, "beams": 1}
    for name in ("sample", "beams", "no_repeat_ngram"):
        if own.parallel is not None and getattr(own, name) != getattr(plain, name):
            yield {name: getattr(plain, name), "parallel": None}
    for name in ("temperature", "top_k", "top_p", "seed"):
        if not own.sample and getattr(own, name) != getattr(plain, name):
            yield {name: getattr(plain, name)}
    if own.beams == 1 and own.early_stop != plain.early_stop:
        yield {"early_stop": plain.early_stop}
    if own.may_repeat and not own.no_repeat_ngram:
        yield {"may_repeat": plain.may_repeat}
    if not own.sample and own.num_results > own.beams:
        yield {"num_results": own.beams, **({"beams": own.num_results} if own.beams > 1 else {})}
    if own.min_length > own.max_length:
        yield {"min_length": own.max_length, "max_length": max(own.min_length, plain.max_length)}


def _giving_way(decoding: DecodingSettings, given: Collection[str]) -> DecodingSettings:
    """The settings, of which those of the recipe that contradict given ones have other values; given ones are kept."""
    asked = {key.removeprefix("decoding.") for key in given if key.startswith("decoding.")}
    if "beams" in asked:  # a search, be it a greedy one
        search: dict[str, Any] = {
            name: value for name, value in (("sample", False), ("parallel", None)) if name not in asked
        }
        decoding = dataclasses.replace(decoding, **search)
    for _ in dataclasses.fields(decoding) if asked else ():
        every = ([name for name in values.items() if name[0] not in asked] for values in _contradictions(decoding))
        own = next((left[0] for left in every if left), None)
        if own is None:
            break
        decoding = dataclasses.replace(decoding, **dict([own]))
    return decoding


def record_of(model: LoadedModel, text: str | Sequence[str]) -> Record:
    """The record of a single source, given in parts."""
    parts = [text] if isinstance(text, str) else list(text)
    record = record_of_texts(parts, model.recipe)
    for role, part in zip(roles_of(model.recipe), parts, strict=False):
        check_text(part, f"the {role}")
    return record


def predict_given(model: LoadedModel, records: Sequence[Record]) -> list[Prediction]:
    """Predictions for records made by `record_of`; those of a tagger include the words it found."""
    task = load_task_model(model)
    found = predict(task, encoded(records, model.recipe, model.tokenizer, answers=False))
    if model.recipe.task.kind != "tagging":
        return found
    words = (record.texts(model.recipe.task, "tokens") for record in records)
    return [{"id": one["id"], "tokens": each, **one} for one, each in zip(found, words, strict=True)]
