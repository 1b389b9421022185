"""Schema of recipes: the dotted keys of the sections, their types, and a parser for each section.

The settings of `objective` depend on its name. Common settings are known here without importing any objective; `find_key`
finds those of every objective.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import os
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from jsonargparse import ArgumentError, ArgumentParser

from unicloze import docstrings
from unicloze.errors import UsageError, did_you_mean, option_of
from unicloze.mixtures import PART_KEYS, PHASE_SETTINGS
from unicloze.objectives import OBJECTIVES
from unicloze.registry import Registry
from unicloze.rules import Rule, listed, rules_of
from unicloze.settings import Recipe
from unicloze.tasks import TASKS

VARIED: Mapping[str, tuple[Registry[Any], str]] = {"objective": (OBJECTIVES, "name"), "task": (TASKS, "kind")}
"""Sections whose settings depend on one of them: the registry of their classes, and that setting."""
SPELLED_LIST = re.compile(r"\[.*\]|null", re.DOTALL)
"""A word that spells a whole list or null, not an item of a list."""


class Setting(NamedTuple):
    """A value for one key and its origin: file and line, or option."""

    value: Any
    origin: str


class Key(NamedTuple):
    """Type, default, description and rules of a key."""

    type: Any
    default: Any
    description: str
    rules: tuple[Rule, ...] = ()

    @property
    def optional(self) -> bool:
        """Whether null is allowed."""
        return type(None) in _members(self.type)

    @property
    def switch(self) -> bool:
        """Whether it is true or false, so that its name alone means true."""
        return bool in _members(self.type)

    @property
    def several(self) -> bool:
        """Whether it takes a list."""
        return self.grows or any(get_origin(member) is tuple for member in _members(self.type))

    @property
    def grows(self) -> bool:
        """Whether it takes a list of any length, to which an option that is repeated adds."""
        return any(get_origin(member) is list for member in _members(self.type))


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


@functools.cache
def _keys_of(section: str, kind: Any) -> Mapping[str, Key]:
    hints, described = typing.get_type_hints(kind), docstrings.arguments(kind)
    keys = {}
    for field in dataclasses.fields(kind):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        rules = rules_of(kind, field.name)
        keys[f"{section}.{field.name}"] = Key(hints[field.name], default, described.get(field.name, ""), rules)
    return keys


def keys_of(section: str, kind: Any) -> Mapping[str, Key]:
    """The dotted keys of a section, given the dataclass of its settings."""
    return _keys_of(section, kind)


SECTIONS: Mapping[str, Any] = {
    name: hint for name, hint in typing.get_type_hints(Recipe).items() if dataclasses.is_dataclass(hint)
}
"""The dataclass of each section; for `objective` and `task`, that of their common settings."""
KEYS = {"name": Key(str, Recipe().name, "Name of the run.")} | {
    key: known for section, kind in SECTIONS.items() for key, known in keys_of(section, kind).items()
}
"""All dotted keys of these."""


def every_key() -> Mapping[str, Key]:
    """Every dotted key, including those of single objectives or tasks."""
    keys = {"name": KEYS["name"]}
    for section, kind in SECTIONS.items():
        for one in (kind, *_classes(section)):
            keys = {**keys, **{key: known for key, known in keys_of(section, one).items() if key not in keys}}
    return keys


def find_key(key: str) -> Key | None:
    """Look up a dotted key; None if unknown. Imports objectives or tasks only if the key is not common to all."""
    section = key.partition(".")[0]
    return KEYS.get(key) or next(
        (keys_of(section, kind)[key] for kind in _classes(section) if key in keys_of(section, kind)), None
    )


def _classes(section: str) -> list[type]:
    if section not in VARIED:
        return []
    registry, _ = VARIED[section]
    return [registry[name].settings for name in registry]


def having(key: str) -> list[str]:
    """The objectives or tasks that have a setting."""
    section = key.partition(".")[0]
    registry, _ = VARIED[section]
    return [name for name in registry if key in keys_of(section, registry[name].settings)]


def foreign_key(key: str, owner: str) -> str:
    """Message text: the objective or task lacks this setting, and which ones have it."""
    names = having(key)
    have = "has" if len(names) == 1 else "have"
    return f"{key.partition('.')[2]} is not a setting of {owner}; {listed(names, 'and')} {have} it"


@functools.cache
def parser_of(kind: type) -> ArgumentParser:
    """The parser for all values of a section, from files and from the command line.

    It raises `jsonargparse.ArgumentError` instead of exiting. It is cached: do not add arguments to it.
    """
    parser = ArgumentParser(exit_on_error=False)
    if dataclasses.is_dataclass(kind):
        parser.add_class_arguments(kind)
    else:
        parser.add_argument("--name", type=kind)
    return parser


def parse_options(arguments: Sequence[str], *, prefix: str = "") -> dict[str, Any]:
    """Parse command-line options into overrides for `load_recipe`, which checks the values."""
    overrides: dict[str, Any] = {}
    words: list[list[str]] = []
    for argument in arguments:
        if argument.startswith("--"):
            words.append(argument[2:].split("=", 1))
        elif words:
            words[-1].append(argument)
        else:
            raise UsageError(f"'{argument}' follows no option; give settings as --section.name VALUE.")
    for name, *values in words:
        given = name.replace("-", "_")
        key = given.removeprefix(prefix)
        known = find_key(key)
        if known is None:
            raise unknown_key(key, f"option --{name}")
        if not values and known.switch:
            overrides[given] = True
        elif not values:
            raise UsageError(f"option --{name}: it needs a value, {expected(known.type)}.")
        elif known.several and not (len(values) == 1 and SPELLED_LIST.fullmatch(values[0])):
            before = overrides.get(given) if known.grows else None
            overrides[given] = [*(before if isinstance(before, list) else []), *values]
        elif len(values) > 1:
            raise UsageError(f"option --{name}: it takes one value; what is '{values[1]}'?")
        else:
            overrides[given] = None if values[0] == "null" and known.optional else values[0]
    return overrides


def flatten(values: Mapping[str, Any], origin: Callable[[str], str]) -> dict[str, Setting]:
    """Convert nested or dotted values to settings by dotted key; a single value is accepted for a list of one."""
    settings: dict[str, Setting] = {}
    for key, value in values.items():
        known = find_key(key)
        if known is not None:
            spells_list = isinstance(value, str) and SPELLED_LIST.fullmatch(value)
            whole = not known.grows or spells_list or value is None or isinstance(value, list | tuple)
            settings[key] = Setting(value if whole else [value], origin(key))
        elif key not in SECTIONS:
            raise unknown_key(str(key), origin(key))
        elif isinstance(value, Mapping):
            settings |= flatten({f"{key}.{inner}": inner_value for inner, inner_value in value.items()}, origin)
        else:
            sample = next(each for each in KEYS if each.startswith(f"{key}."))
            raise UsageError(f"{origin(key)}: {key} is {value!r}; expected settings such as {sample}.")
    return settings


def options(overrides: Mapping[str, Any]) -> dict[str, Setting]:
    """Settings given by a caller; in Python also paths and NumPy's numbers, texts and arrays."""
    return flatten(_plain(overrides), lambda key: f"option {option_of(key)}")


def _plain(value: Any) -> Any:
    """A value of a caller made of Python's own types, as recipes store it."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.tolist() if type(value).__module__ == "numpy" and hasattr(value, "tolist") else value


def unknown_key(key: str, origin: str) -> UsageError:
    """The error for an unknown key, with the closest known key."""
    if key == "plugin":
        return UsageError(f"{origin}: a recipe cannot name a plugin: give --plugin FILE on the command line.")
    if key in SECTIONS:
        return UsageError(f"{origin}: {key} is a section of settings: give {key}.NAME with the name of one of them.")
    near = _nearest(key)
    cure = f"did you mean '{near}'?" if near else f"a recipe has name, {', '.join(SECTIONS)}."
    return UsageError(f"{origin}: there is no setting '{key}'; {cure}")


_SHORT = {
    "lr": "training.learning_rate", "bs": "training.batch_size", "wd": "training.weight_decay",
    "max_steps": "training.steps", "max_length": "data.window", "hidden": "model.hidden_size", "layers": "model.num_layers",
}  # fmt: skip
"""What others call settings."""


def _nearest(key: str) -> str | None:
    section, _, name = key.rpartition(".")
    if name in _SHORT and section in ("", _SHORT[name].partition(".")[0]):
        return _SHORT[name]
    keys = [*every_key()]
    candidates = keys if section else [*keys, *SECTIONS]
    whole = difflib.get_close_matches(key, candidates, n=1, cutoff=0.75)
    if whole and section:  # a common section alone makes short names alike
        whole = difflib.get_close_matches(name, [whole[0].rpartition(".")[2]], cutoff=0.65) and whole
    if whole and whole[0].rpartition(".")[0] == section:
        return whole[0]
    by_name = {known.rpartition(".")[2]: known for known in reversed(keys)}
    elsewhere = [by_name[near] for near in difflib.get_close_matches(name, by_name, n=1, cutoff=0.75)]
    return next(iter([*elsewhere, *whole]), None)


def guess(hint: Any, value: Any) -> str:
    """The value of a type that is most likely meant, as the end of a sentence; a full stop if none is."""
    known = [name for name in _choices(hint) if isinstance(name, str)]
    for part in value if isinstance(value, list | tuple) else [value]:
        if isinstance(part, str) and part not in known and (said := did_you_mean(part.lower(), known)) != ".":
            return said
    return "."


def _choices(hint: Any) -> list[Any]:
    arguments = get_args(hint)
    if get_origin(hint) is Literal:
        return list(arguments)
    return [choice for argument in arguments for choice in _choices(argument)]


def expected(hint: Any) -> str:
    """A type in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin in (Union, types.UnionType):
        return ", or ".join("null" if argument is type(None) else expected(argument) for argument in arguments)
    if origin is list:
        return f"a list, each item {expected(arguments[0])}"
    if origin is tuple:
        return f"a list of {len(arguments)}, each item {expected(arguments[0])}"
    if origin is dict:
        return f"a mapping, each value {expected(arguments[1])}"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text", Any: "a setting"}[hint]


NOTES = {"task.fields": ": the name of a field, as in the header of a .tsv or .csv, not the number of a column"}
"""Additions to type errors: what the type alone does not state."""


def typed_mixture(entries: list[Any], origin: str, objective: str) -> list[dict[str, Any]]:
    """The parts of a mixture, with every value converted to its setting's type."""
    found, labels = [], set()
    for number, entry in enumerate(entries, 1):
        place = f"{origin}, part {number} of objective.mixture"
        _check_entry(entry, place)
        beside = {key: value for key, value in entry.items() if key in PART_KEYS}
        if not isinstance(beside.get("evaluate", True), bool):
            raise UsageError(f"{place}: evaluate is {beside['evaluate']!r}; expected true or false.")
        changes = {f"objective.{key}": value for key, value in entry.items() if key not in PART_KEYS}
        if "objective.mixture" in changes:
            raise UsageError(f"{place}: a part cannot be a mixture; list its parts directly.")
        name = entry.get("name", objective)
        kind_of(name, place, ())
        given = flatten(changes, partial(_same, place))
        values = parsed(given, {"objective": kind_of(name, place, given)}).get("objective", {})
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
        _check_entry(entry, place)
        kind_of(named(entry) or objective, place, ())
        given = flatten({key: value for key, value in entry.items() if key != "share"}, partial(_same, place))
        for key in given:
            if not key.startswith("objective.") and key not in PHASE_SETTINGS:
                raise UsageError(
                    f"{place}: {key} cannot change during a run; settings of objective can, and {', '.join(PHASE_SETTINGS)}."
                )
        name = given["objective.name"].value if "objective.name" in given else objective
        values = parsed(given, {"objective": kind_of(name, place, given)})
        if values.get("objective", {}).get("mixture"):
            values["objective"]["mixture"] = typed_mixture(values["objective"]["mixture"], place, name)
        found.append({"share": entry.get("share", 1), **values})
    return found


def _same(place: str, _: str) -> str:
    return place


def _check_entry(entry: Any, place: str) -> None:
    """Reject an entry that is not a mapping, or has an invalid share."""
    if not isinstance(entry, Mapping):
        raise UsageError(f"{place}: it is {entry!r}; expected settings, such as {{share: 0.5, mask_rate: 0.3}}.")
    share = entry.get("share", 1)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < math.inf:
        raise UsageError(f"{place}: share is {share!r}; it must be above 0 and finite.")


def parsed(settings: Mapping[str, Setting], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings by dotted key to nested values of their types; `kinds` has the classes of sections that vary."""
    result: dict[str, Any] = {}
    for section in dict.fromkeys(key.rpartition(".")[0] for key in settings):
        given = {key: setting for key, setting in settings.items() if key.rpartition(".")[0] == section}
        kind = {"": str, **SECTIONS, **kinds}[section]
        keys = keys_of(section, kind) if section else KEYS
        wrong = [key for key, setting in given.items() if setting.value is None and not keys[key].optional]
        if not wrong:
            try:
                values = _parse(given, kind)
                result |= {section: values} if section else values
                continue
            except ArgumentError:
                wrong = [key for key, setting in given.items() if not _fits(key, setting, kind)]
        (value, origin), hint = given[wrong[0]], keys[wrong[0]].type
        end = NOTES.get(wrong[0], "") + guess(hint, value)
        raise UsageError(f"{origin}: {wrong[0]} is {value!r}; expected {expected(hint)}{end}")
    return result


def _parse(given: Mapping[str, Setting], kind: Any) -> dict[str, Any]:
    values = {key.rpartition(".")[2]: setting.value for key, setting in given.items()}
    return dict(parser_of(kind).parse_object(values, defaults=False).as_dict())


def _fits(key: str, setting: Setting, kind: Any) -> bool:
    try:
        return bool(_parse({key: setting}, kind))
    except ArgumentError:
        return False
