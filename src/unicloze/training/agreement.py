"""Settings beside `data.prepared` and `tokenizer.path`: whether they agree with what is there, and what they really are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unicloze.errors import UsageError
from unicloze.recipes import validate
from unicloze.recipes.schema import flatten
from unicloze.settings import Recipe
from unicloze.text.lineage import is_corpus, known_settings, read_lineage

OF_A_TRAINED_TOKENIZER = (
    "tokenizer.kind",
    "tokenizer.vocab_size",
    "tokenizer.lowercase",
    "tokenizer.strip_accents",
    "tokenizer.extra_tokens",
)
"""Settings that say nothing of a tokenizer that is loaded."""


def check_beside_path(recipe: Recipe, overrides: Mapping[str, Any]) -> None:
    """Refuse options of a tokenizer to train where one is loaded.

    Args:
        recipe: Nothing is checked if it has no `tokenizer.path`.
        overrides: What was asked for over its file, as of `load_recipe`.

    Raises:
        UsageError: One of them is.
    """
    asked = flatten(overrides, lambda key: key)
    unread = [key for key in OF_A_TRAINED_TOKENIZER if key in asked]
    if recipe.tokenizer.path is not None and unread:
        raise UsageError(
            f"option --{unread[0]}: it is for a tokenizer that is trained, and tokenizer.path loads {recipe.tokenizer.path}: "
            "leave one of them out."
        )


def check_beside_prepared(recipe: Recipe, given: Mapping[str, str]) -> None:
    """Refuse settings of text and tokenizer that were given beside `data.prepared` and are not those it was made with.

    Args:
        recipe: Nothing is checked if it has no `data.prepared`.
        given: By dotted name of a setting that was given, where it comes from.

    Raises:
        UsageError: One is another, and the cure.
        UniclozeError: `data.prepared` is no prepared corpus.
    """
    if recipe.data.prepared is None:
        return
    lineage = read_lineage(Path(recipe.data.prepared))
    of_training = [key for key in given if key.startswith("tokenizer.") and key != "tokenizer.path"]
    if "tokenizer.loaded" in lineage["settings"] and recipe.tokenizer.path is None and of_training:
        raise UsageError(
            f"{given[of_training[0]]}: {of_training[0]} is of training a tokenizer, and data.prepared {recipe.data.prepared} "
            "was made with a loaded one: leave it out, or data.prepared to prepare anew."
        )
    for key, made_with in known_settings(lineage).items():
        section, _, name = key.partition(".")
        value = getattr(getattr(recipe, section), name)
        loaded = section == "tokenizer" and recipe.tokenizer.path is not None
        if key in given and not loaded and not _agree(lineage, key, value, made_with):
            raise UsageError(
                f"{given[key]}: {key} is {value!r}, and data.prepared {recipe.data.prepared} was made with {made_with!r}: "
                f"leave {key} out to use what is prepared, or data.prepared to prepare anew."
            )


def _agree(lineage: Mapping[str, Any], key: str, value: Any, made_with: Any) -> bool:
    if key == "data.corpus":
        return is_corpus(lineage, value)
    return value == made_with or (key == "tokenizer.vocab_size" and value == lineage["tokenizer"]["vocab_size"])


def as_prepared(recipe: Recipe, lineage: Mapping[str, Any]) -> Recipe:
    """The recipe with the settings of text and tokenizer that a lineage tells of.

    Raises:
        UsageError: `data.weights` is not for as many sources.
    """
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
