"""Rules for declaring settings: their valid values, and what they need to have an effect."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Problem = tuple[str, str]
"""Dotted key of an invalid value, and what it must be."""


@dataclass(frozen=True)
class Range:
    """The valid numbers of a setting.

    Args:
        fits: Whether a number is valid.
        rule: The same in words.
    """

    fits: Callable[[float], bool]
    rule: str


POSITIVE = Range(lambda value: 0 < value < math.inf, "it must be above 0 and finite")
NOT_NEGATIVE = Range(lambda value: 0 <= value < math.inf, "it must be at least 0 and finite")
AT_LEAST_ONE = Range(lambda value: 1 <= value < math.inf, "it must be at least 1 and finite")
SHARE = Range(lambda value: 0 <= value <= 1, "it must lie between 0 and 1")
BELOW_ONE = Range(lambda value: 0 <= value < 1, "it must be at least 0 and below 1")


@dataclass(frozen=True)
class Needs:
    """What a setting needs to have an effect.

    Args:
        what: In words, to follow "without".
        holds: Whether a `Recipe` without parts and phases has it.
    """

    what: str
    holds: Callable[[Any], bool]


def declared(kind: type, table: str) -> dict[str, Any]:
    """Merged `ranges` or `needs` of a class and its base classes, by the name of the setting."""
    found: dict[str, Any] = {}
    for one in reversed(kind.__mro__):
        own: Mapping[str, Any] = vars(one).get(table, {})
        found |= own
    return found
