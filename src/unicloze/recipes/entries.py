"""Parts of a mixture and phases of a run: lists of mappings that change single settings, held to the same types."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from jsonargparse import ArgumentError

from unicloze.errors import UsageError
from unicloze.mixtures import PART_KEYS, PHASE_SETTINGS
from unicloze.recipes.schema import KEYS, expected, flatten, guess, listed, section_parser, unknown_key


def typed_mixture(entries: list[Any], origin: str) -> list[dict[str, Any]]:
    """The parts of a mixture with every value of its setting's type.

    Args:
        entries: As the recipe has them.
        origin: Where they stand, for messages.

    Raises:
        UsageError: A part is no mapping, or holds what no objective has.
    """
    found, labels = [], set()
    for number, entry in enumerate(entries, 1):
        place = f"{origin}, part {number} of objective.mixture"
        _check_mapping(entry, place)
        beside = {key: value for key, value in entry.items() if key in PART_KEYS}
        _check_share(beside, place)
        if not isinstance(beside.get("evaluate", True), bool):
            raise UsageError(f"{place}: evaluate is {beside['evaluate']!r}; expected true or false.")
        changes = {f"objective.{key}": value for key, value in entry.items() if key not in PART_KEYS}
        if "objective.mixture" in changes:
            raise UsageError(f"{place}: a part is itself no mixture; list its parts beside the others.")
        for key in changes:
            if key not in KEYS:
                raise unknown_key(key, place)
        values = typed({key: listed(key, value) for key, value in changes.items()}, place).get("objective", {})
        label = beside.get("label", values.get("name", f"part-{number}"))
        if not isinstance(label, str) or not label.strip():
            raise UsageError(f"{place}: label is {label!r}; expected text.")
        if label in labels:
            raise UsageError(f"{place}: label {label!r} stands twice; give each part a label of its own.")
        labels.add(label)
        found.append({**beside, "label": label, **values})
    return found


def typed_phases(entries: list[Any], origin: str) -> list[dict[str, Any]]:
    """The phases of a run as nested mappings with every value of its setting's type.

    Args:
        entries: As the recipe has them, nested or by dotted key.
        origin: Where they stand, for messages.

    Raises:
        UsageError: A phase is no mapping, or changes what must stay.
    """
    found = []
    for number, entry in enumerate(entries, 1):
        place = f"{origin}, phase {number} of training.phases"
        _check_mapping(entry, place)
        _check_share(entry, place)
        flat = flatten({key: value for key, value in entry.items() if key != "share"}, partial(_same, place))
        for key in flat:
            if not key.startswith("objective.") and key not in PHASE_SETTINGS:
                raise UsageError(
                    f"{place}: {key} cannot change during a run; settings of objective can, and {', '.join(PHASE_SETTINGS)}."
                )
        values = typed({key: setting.value for key, setting in flat.items()}, place)
        if values.get("objective", {}).get("mixture"):
            values["objective"]["mixture"] = typed_mixture(values["objective"]["mixture"], place)
        found.append({"share": entry.get("share", 1), **values})
    return found


def _same(place: str, _: str) -> str:
    return place


def _check_mapping(entry: Any, place: str) -> None:
    if not isinstance(entry, Mapping):
        raise UsageError(f"{place}: it is {entry!r}; expected settings, such as {{share: 0.5, mask_rate: 0.3}}.")


def _check_share(entry: Mapping[str, Any], place: str) -> None:
    share = entry.get("share", 1)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < math.inf:
        raise UsageError(f"{place}: share is {share!r}; it must be above 0 and finite.")


def typed(values: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Values by dotted key, nested and of the types of their settings.

    Args:
        values: Their keys are those of settings.
        place: Where they stand, for messages.

    Raises:
        UsageError: A value is of another type.
    """
    for key, value in values.items():
        if value is None and not KEYS[key].optional:
            raise UsageError(f"{place}: {key} is None; expected {expected(KEYS[key].type)}.")
    try:
        return _parsed(values)
    except ArgumentError as error:
        for key, value in values.items():
            try:
                _parsed({key: value})
            except ArgumentError:
                kind = KEYS[key].type
                problem = f"{key} is {value!r}; expected {expected(kind)}{guess(kind, value)}"
                raise UsageError(f"{place}: {problem}") from error
        raise UsageError(f"{place}: {error}") from error


def _parsed(values: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for section in dict.fromkeys(key.partition(".")[0] for key in values):
        given = {key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{section}.")}
        parsed = section_parser(section).parse_object(given).as_dict()
        result[section] = {name: parsed[name] for name in given}
    return result
