"""Rejects settings given to a command that would have no effect.

`validate` checks values of any origin. These checks apply only to settings given by the caller: a recipe file may contain
settings that some parts of its mixture, or some commands, do not use. What a setting needs is declared with its field.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from unicloze.errors import UsageError
from unicloze.recipes.schema import KEYS, VARIED, find_key, flatten, having, keys_of
from unicloze.recipes.validation import value_of, variants
from unicloze.rules import Derived, Needs, ReadBy, listed, needs
from unicloze.settings import OF_THE_MODEL, Recipe

DECIDED_IN_A_TASK = {
    key: rule.instead for key, known in KEYS.items() for rule in known.rules if isinstance(rule, Derived)
}
"""Settings that are derived from others or from the model in fine-tuning, and what to do instead."""
OF_TASKS = "task", "generation", "finetuning"
"""Sections that only fine-tuning uses."""
OF_AN_AUXILIARY = (
    "masking", "mask_unit", "mask_rate", "block_probability", "max_span", "geometric_p", "factorization",
    "masks_in_context", "pseudo_token", "mask_share", "random_share", "corruption_unit", "block_size",
)  # fmt: skip
"""Settings of `objective` that `finetuning.auxiliary` uses."""
_AUXILIARY = needs("finetuning.auxiliary")


def given_settings(overrides: Mapping[str, Any] | None, prefix: str = "") -> dict[str, Any]:
    """The settings given by a caller, nested or not, by dotted key."""
    settings = flatten(overrides or {}, lambda key: f"option --{prefix}{key}")
    return {key: setting.value for key, setting in settings.items()}


def refuse_unread(recipes: Sequence[Recipe], given: Collection[str]) -> None:
    """Reject given settings that have no effect on pre-training in any recipe, part or phase.

    Settings equal to their default are accepted.
    """
    every = [variant for recipe in recipes for variant in variants(recipe)]
    for key in given:
        read_there = [variant.recipe for variant in every if key not in variant.set_by]
        if not read_there:
            place = next(variant.set_by[key] for variant in every)
            raise UsageError(
                f"option --{key}: it has no effect, because each entry of {place} sets it: change it there."
            )
        _refuse(key, read_there)


def refuse_unread_in_task(recipes: Sequence[Recipe], given: Collection[str], prefix: str = "") -> None:
    """Reject given settings that have no effect on fine-tuning or on generated text with any of the models."""
    for key in given:
        section, _, name = key.partition(".")
        if section == "objective" and name not in OF_AN_AUXILIARY:
            raise UsageError(f"option --{prefix}{key}: it has no effect, because {OF_THE_MODEL.instead}: leave it out.")
        _refuse(key, recipes, prefix, *([_AUXILIARY] if section == "objective" else []))


def refuse_decided_in_task(given: Collection[str], prefix: str = "") -> None:
    """Reject given settings that fine-tuning derives from others."""
    for key in given:
        if key in DECIDED_IN_A_TASK:
            raise UsageError(f"{prefix}{key} cannot be set in fine-tuning: {DECIDED_IN_A_TASK[key]}.")


def refuse_unread_in_task_files(recipe: Recipe, origins: Mapping[str, str]) -> None:
    """Reject settings of hand-written task files that fine-tuning derives from others or takes from the model."""
    for key, origin in origins.items():
        refuse_decided_in_task([key], f"{origin}: ")
        section, _, name = key.partition(".")
        if section == "objective" and (name not in OF_AN_AUXILIARY or not _AUXILIARY.holds(recipe)):
            unused = name in OF_AN_AUXILIARY
            reason = f"nothing but {_AUXILIARY.what} uses it" if unused else OF_THE_MODEL.instead
            raise UsageError(f"{origin}: {key} has no effect, because {reason}: leave it out.")


def refuse_not_of_pretraining(verb: str, given: Collection[str], prefix: str = "") -> None:
    """Reject given settings that only fine-tuning uses."""
    for key in given:
        if key.partition(".")[0] in OF_TASKS:
            instead = f"give --{prefix}{key}" if prefix else "give it to `unicloze finetune`"
            raise UsageError(f"option --{key}: `unicloze {verb}` does not use it: {instead}.")


def refuse_beyond(verb: str, given: Collection[str], instead: str) -> None:
    """Reject given settings that a verb does not read at all."""
    for key in given:
        known = find_key(key)
        readers = [rule.verbs for rule in (known.rules if known else ()) if isinstance(rule, ReadBy)]
        if key != "name" and verb not in (readers[-1] if readers else ()):
            raise UsageError(f"option --{key}: `unicloze {verb}` does not use it: {instead}.")


def _needs(key: str, recipe: Recipe) -> list[Needs]:
    """What a setting needs in a recipe without parts and phases: another objective or task, if its own lacks the setting."""
    section = key.partition(".")[0]
    known = keys_of(section, type(getattr(recipe, section))) if "." in key else KEYS
    if key not in known:
        return [Needs(f"{section}.{VARIED[section][1]} {listed(having(key))}", lambda _: False)]
    return [rule for rule in known[key].rules if isinstance(rule, Needs)]


def _refuse(key: str, recipes: Sequence[Recipe], prefix: str = "", *first: Needs) -> None:
    """Reject a key if every recipe lacks something it needs there."""
    lacks = [next((need.what for need in (*first, *_needs(key, one)) if not need.holds(one)), "") for one in recipes]
    known = find_key(key)
    if all(lacks) and known and any(value_of(recipe, key, known.default) != known.default for recipe in recipes):
        raise UsageError(
            f"option --{prefix}{key}: it has no effect without {lacks[0]}: set that as well, or leave it out."
        )
