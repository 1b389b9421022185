"""Checks data and tokenizer settings against `data.prepared` and `tokenizer.path`, and adopts those of a prepared corpus."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unicloze.errors import UsageError
from unicloze.recipes import validate
from unicloze.recipes.schema import flatten
from unicloze.settings import Recipe
from unicloze.text.lineage import LOADED_TOKENIZER, is_corpus, known_settings, read_lineage

OF_A_TRAINED_TOKENIZER = (
    "tokenizer.kind",
    "tokenizer.vocab_size",
    "tokenizer.lowercase",
    "tokenizer.strip_accents",
    "tokenizer.extra_tokens",
)
"""Settings that have no effect on a loaded tokenizer."""


def check_beside_path(recipe: Recipe, overrides: Mapping[str, Any]) -> None:
    """Reject tokenizer-training options combined with `tokenizer.path`."""
    asked = flatten(overrides, lambda key: key)
    unread = [key for key in OF_A_TRAINED_TOKENIZER if key in asked]
    if recipe.tokenizer.path is not None and unread:
        raise UsageError(
            f"option --{unread[0]} applies to training a tokenizer, but tokenizer.path loads {recipe.tokenizer.path}: "
            "leave one of them out."
        )


def check_beside_prepared(recipe: Recipe, given: Mapping[str, str]) -> None:
    """Reject data and tokenizer settings that contradict the prepared corpus in `data.prepared`."""
    if recipe.data.prepared is None:
        return
    lineage = read_lineage(Path(recipe.data.prepared))
    of_training = [key for key in given if key.startswith("tokenizer.") and key != "tokenizer.path"]
    if LOADED_TOKENIZER in lineage["settings"] and recipe.tokenizer.path is None and of_training:
        raise UsageError(
            f"{given[of_training[0]]}: {of_training[0]} applies to training a tokenizer, but data.prepared "
            f"{recipe.data.prepared} was made with a loaded one: leave it out, or leave out data.prepared to prepare again."
        )
    for key, made_with in known_settings(lineage).items():
        section, _, name = key.partition(".")
        value = getattr(getattr(recipe, section), name)
        loaded = section == "tokenizer" and recipe.tokenizer.path is not None
        if key in given and not loaded and not _agree(lineage, key, value, made_with):
            raise UsageError(
                f"{given[key]}: {key} is {value!r}, but data.prepared {recipe.data.prepared} was made with {made_with!r}: "
                f"leave out {key} to use the prepared corpus, or data.prepared to prepare again."
            )


def _agree(lineage: Mapping[str, Any], key: str, value: Any, made_with: Any) -> bool:
    if key == "data.corpus":
        return is_corpus(lineage, value)
    return value == made_with or (key == "tokenizer.vocab_size" and value == lineage["tokenizer"]["vocab_size"])


def as_prepared(recipe: Recipe, lineage: Mapping[str, Any]) -> Recipe:
    """The recipe with the data and tokenizer settings recorded in a lineage."""
    changes: dict[str, dict[str, Any]] = {"data": {}, "tokenizer": {}}
    for key, value in known_settings(lineage).items():
        section, _, name = key.partition(".")
        changes[section][name] = value
    changed = dataclasses.replace(
        recipe,
        data=dataclasses.replace(recipe.data, **changes["data"]),
        tokenizer=dataclasses.replace(recipe.tokenizer, **changes["tokenizer"]),
    )
    validate(changed)
    return changed
