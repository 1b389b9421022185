"""Prepares a model and records for texts that are given directly instead of in a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
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
    decoding = loaded.recipe.decoding
    own = {key: value for key, value in _giving_way(decoding, given).items() if f"decoding.{key}" not in given}
    recipe = dataclasses.replace(loaded.recipe, decoding=dataclasses.replace(decoding, **own))
    refuse_unread_in_generation(recipe, given)
    if not recipe.task.kind:
        own = {}
        if "decoding.max_length" not in given:  # the default may exceed the model's positions
            own["max_length"] = min(decoding.max_length, loaded.model.max_positions // 2)
        if "decoding.no_repeat_ngram" not in given:
            own["no_repeat_ngram"] = repetition_guard(dataclasses.replace(loaded, recipe=recipe))
        recipe = dataclasses.replace(recipe, decoding=dataclasses.replace(recipe.decoding, **own))
    return dataclasses.replace(loaded, recipe=recipe)


def _giving_way(decoding: DecodingSettings, given: Collection[str]) -> dict[str, Any]:
    """Values of settings that agree with the given ones, to replace those of the recipe."""
    plain, own = DecodingSettings(), {"min_length": min(decoding.min_length, decoding.max_length)}
    replaced: tuple[str, ...] = ()
    if "decoding.parallel" in given and decoding.parallel is not None:
        replaced = "sample", "beams", "no_repeat_ngram"
    elif "decoding.sample" in given and decoding.sample:
        replaced = "beams", "early_stop", "parallel"
    elif "decoding.beams" in given:
        replaced = "sample", "temperature", "top_k", "top_p", "seed", "parallel"
        replaced += ("early_stop",) * (decoding.beams == 1)
    if ("decoding.no_repeat_ngram" in given and not decoding.no_repeat_ngram) or "no_repeat_ngram" in replaced:
        replaced += ("may_repeat",)
    return {**own, **{name: getattr(plain, name) for name in replaced}}


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
