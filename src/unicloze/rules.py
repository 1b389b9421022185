"""Rules of settings, declared with the field: its valid values, and what it needs to have an effect."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

Problem = tuple[str, str]
"""Dotted key of an invalid value, and what it must be."""
T = TypeVar("T")


@dataclass(frozen=True)
class Range:
    """The valid values of a setting; null and `auto` are valid as well."""

    fits: Callable[[Any], bool]  # whether a value is valid
    rule: str  # the same in words


POSITIVE = Range(lambda value: 0 < value < math.inf, "it must be above 0 and finite")
NOT_NEGATIVE = Range(lambda value: 0 <= value < math.inf, "it must be at least 0 and finite")
AT_LEAST_ONE = Range(lambda value: 1 <= value < math.inf, "it must be at least 1 and finite")
SHARE = Range(lambda value: 0 <= value <= 1, "it must lie between 0 and 1")
BELOW_ONE = Range(lambda value: 0 <= value < 1, "it must be at least 0 and below 1")
UP_TO_ONE = Range(lambda value: 0 < value <= 1, "it must be above 0 and at most 1")
DISTINCT = Range(lambda names: 0 < len({*names}) == len(names), "name at least one, and each once")


def at_most(most: int) -> Range:
    """What no model comes near; larger values take a machine down before anything else is reported."""
    return Range(lambda value: value <= most, f"it must be at most {most:,}")


@dataclass(frozen=True)
class Needs:
    """What a setting needs to have an effect."""

    what: str  # in words, to follow "without"
    holds: Callable[[Any], bool]  # whether a `Recipe` without parts and phases has it


def needs(key: str, *values: Any) -> Needs:
    """Another setting must have one of some values; without values, it must be true or not empty."""
    section, _, name = key.partition(".")

    def holds(recipe: Any) -> bool:
        value = getattr(getattr(recipe, section), name, None)
        return value in values if values else bool(value)

    return Needs(f"{key} {listed([str(value).lower() for value in values])}".strip(), holds)


def listed(names: list[str], last: str = "or") -> str:
    """Names in a sentence."""
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


@dataclass(frozen=True)
class Derived:
    """Fine-tuning derives the setting from others or takes it from the model."""

    instead: str  # what to do instead


@dataclass(frozen=True)
class ReadBy:
    """Verbs that read the setting besides `pretrain` and `finetune`; the last such rule of a setting counts."""

    verbs: tuple[str, ...] = ()


Rule = Range | Needs | Derived | ReadBy


def setting(default: T, *rules: Rule) -> T:
    """A field of a dataclass of settings with its rules."""
    metadata = {"rules": rules}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: copy.copy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def rules_of(kind: type, name: str) -> tuple[Rule, ...]:
    """The rules of a field: those in `rules` of its section, and those of every class that declares it, subclasses last."""
    fields = [vars(one).get("__dataclass_fields__", {}).get(name) for one in reversed(kind.__mro__)]
    own = dict.fromkeys(rule for field in fields if field is not None for rule in field.metadata.get("rules", ()))
    return (*getattr(kind, "rules", ()), *own)
