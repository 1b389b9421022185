"""Converts and checks parts of a mixture and phases of a run: lists of mappings that change single settings."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from jsonargparse import ArgumentError

from unicloze.errors import UsageError
from unicloze.mixtures import PART_KEYS, PHASE_SETTINGS
from unicloze.recipes.schema import (
    KEYS,
    SECTIONS,
    VARIED,
    Key,
    Setting,
    expected,
    find_key,
    flatten,
    foreign_key,
    guess,
    keys_of,
    names_of_choices,
    parser_of,
    unknown_key,
)
from unicloze.settings import ObjectiveSettings

NOTES = {"task.fields": ": the name of a field, as in the header of a .tsv or .csv, not the number of a column"}
"""Additions to type errors: what the type alone does not state."""


def typed_mixture(entries: list[Any], origin: str, objective: str) -> list[dict[str, Any]]:
    """The parts of a mixture, with every value converted to its setting's type."""
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
            raise UsageError(f"{place}: a part cannot be a mixture; list its parts directly.")
        name = entry.get("name", objective)
        kind_of(name, place, ())
        for key in changes:
            if find_key(key) is None:
                raise unknown_key(key, place)
        kind = kind_of(name, place, changes)
        given = {key: names_of_choices(key, value) for key, value in changes.items()}
        values = typed(given, place, objective=kind).get("objective", {})
        label = beside.get("label", values.get("name", f"part-{number}"))
        if not isinstance(label, str) or not label.strip():
            raise UsageError(f"{place}: label is {label!r}; expected text.")
        if label in labels:
            raise UsageError(f"{place}: label {label!r} is used twice; give each part its own label.")
        labels.add(label)
        found.append({**beside, "label": label, **values})
    return found


def kind_of(name: Any, place: str, given: Collection[str], section: str = "objective") -> type:
    """The settings class of an objective or task."""
    registry, key = VARIED[section]
    if name == "" and section == "task":
        kind: type = SECTIONS[section]
    elif not isinstance(name, str) or name not in registry:
        raise UsageError(f"{place}: {section}.{key} is {name!r}; {registry.unknown()}.")
    else:
        kind = registry[name].settings
    for one in given:
        if one.startswith(f"{section}.") and one not in keys_of(section, kind):
            raise UsageError(f"{place}: {foreign_key(one, name or 'a recipe without task.kind')}.")
    return kind


def named(values: Mapping[str, Any], section: str = "objective", key: str = "name") -> Any:
    """The objective, or the kind of a task, named by nested or dotted settings, or None."""
    held = values.get(section)
    return held.get(key) if isinstance(held, Mapping) else values.get(f"{section}.{key}")


def typed_phases(entries: list[Any], origin: str, objective: str) -> list[dict[str, Any]]:
    """The phases of a run as nested mappings, with every value converted to its setting's type."""
    found = []
    for number, entry in enumerate(entries, 1):
        place = f"{origin}, phase {number} of training.phases"
        _check_mapping(entry, place)
        _check_share(entry, place)
        kind_of(named(entry) or objective, place, ())
        flat = flatten({key: value for key, value in entry.items() if key != "share"}, partial(_same, place))
        for key in flat:
            if not key.startswith("objective.") and key not in PHASE_SETTINGS:
                raise UsageError(
                    f"{place}: {key} cannot change during a run; settings of objective can, and {', '.join(PHASE_SETTINGS)}."
                )
        given = {key: setting.value for key, setting in flat.items()}
        name = given.get("objective.name", objective)
        values = typed(given, place, objective=kind_of(name, place, given))
        if values.get("objective", {}).get("mixture"):
            values["objective"]["mixture"] = typed_mixture(values["objective"]["mixture"], place, name)
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


def typed(values: Mapping[str, Any], place: str, *, objective: type = ObjectiveSettings) -> dict[str, Any]:
    """Convert values by dotted key to nested values of their settings' types."""
    settings = {key: Setting(value, place) for key, value in values.items()}
    found = parsed(settings, {"objective": objective})
    return {section: found[section] for section in dict.fromkeys(key.partition(".")[0] for key in values)}


def parsed(settings: Mapping[str, Setting], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings by dotted key to nested values of their types."""
    kinds = {"": str, **SECTIONS, **kinds}
    result: dict[str, Any] = {}
    for section in dict.fromkeys(key.rpartition(".")[0] for key in settings):
        given = {key: setting for key, setting in settings.items() if key.rpartition(".")[0] == section}
        for key, setting in given.items():
            if setting.value is None and not _key(key, kinds).optional:
                raise _wrong_type(key, setting, kinds)
        values = _values(given, kinds)
        result |= {section: values} if section else values
    return result


def _values(given: Mapping[str, Setting], kinds: Mapping[str, Any]) -> dict[str, Any]:
    kind = kinds[next(iter(given)).rpartition(".")[0]]
    try:
        return _parse(given, kind)
    except ArgumentError as error:
        for key, setting in given.items():
            try:
                _parse({key: setting}, kind)
            except ArgumentError:
                raise _wrong_type(key, setting, kinds) from error
        raise UsageError(f"{next(iter(given.values())).origin}: {error}") from error


def _parse(given: Mapping[str, Setting], kind: Any) -> dict[str, Any]:
    values = {key.rpartition(".")[2]: setting.value for key, setting in given.items()}
    found: dict[str, Any] = parser_of(kind).parse_object(values, defaults=False).as_dict()
    return found


def _key(key: str, kinds: Mapping[str, Any]) -> Key:
    section = key.rpartition(".")[0]
    return keys_of(section, kinds[section])[key] if section else KEYS[key]


def _wrong_type(key: str, setting: Setting, kinds: Mapping[str, Any]) -> UsageError:
    kind = _key(key, kinds).type
    end = NOTES.get(key, "") + guess(kind, setting.value)
    return UsageError(f"{setting.origin}: {key} is {setting.value!r}; expected {expected(kind)}{end}")
