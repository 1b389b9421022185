"""Schema of recipes: the dotted keys of the sections, their types, and a parser for each section.

The settings of `objective` depend on its name. Common settings are known here without importing any objective; `find_key`
finds those of every objective.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from jsonargparse import ArgumentParser

from unicloze import docstrings
from unicloze.errors import UsageError, did_you_mean
from unicloze.objectives import OBJECTIVES
from unicloze.registry import Registry
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
    """Type, default and description of a key."""

    type: Any
    default: Any
    description: str

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
        return any(get_origin(member) in (list, tuple) for member in _members(self.type))


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _schema() -> tuple[dict[str, Any], dict[str, Key]]:
    defaults = Recipe()
    sections: dict[str, Any] = {}
    keys: dict[str, Key] = {}
    for name, hint in typing.get_type_hints(Recipe).items():
        if not dataclasses.is_dataclass(hint):
            keys[name] = Key(hint, getattr(defaults, name), "Name of the run.")
            continue
        sections[name] = hint
        keys |= keys_of(name, hint)
    return sections, keys


def keys_of(section: str, kind: Any) -> Mapping[str, Key]:
    """The dotted keys of a section, given the dataclass of its settings."""
    return _keys_of(section, kind)


@functools.cache
def _keys_of(section: str, kind: Any) -> Mapping[str, Key]:
    hints, described = typing.get_type_hints(kind), docstrings.arguments(kind)
    found = {}
    for field in dataclasses.fields(kind):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        found[f"{section}.{field.name}"] = Key(hints[field.name], default, described.get(field.name, ""))
    return found


SECTIONS, KEYS = _schema()
"""The dataclass of each section, and all dotted keys; for `objective` and `task`, only the common ones."""


def every_key() -> Mapping[str, Key]:
    """Every dotted key, including those of single objectives or tasks."""
    found: dict[str, Key] = {key: known for key, known in KEYS.items() if "." not in key}
    for section, kind in SECTIONS.items():
        found |= keys_of(section, kind)
        for one in _classes(section):
            found |= {key: known for key, known in keys_of(section, one).items() if key not in found}
    return found


def find_key(key: str) -> Key | None:
    """Look up a dotted key; None if unknown. Imports objectives or tasks only if the key is not common to all."""
    if key in KEYS:
        return KEYS[key]
    section = key.partition(".")[0]
    return next((keys_of(section, kind)[key] for kind in _classes(section) if key in keys_of(section, kind)), None)


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
    names_of_choices = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    return f"{key.partition('.')[2]} is not a setting of {owner}; {names_of_choices} {have} it"


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
            overrides[given] = [*(overrides[given] if isinstance(overrides.get(given), list) else []), *values]
        elif len(values) > 1:
            raise UsageError(f"option --{name}: it takes one value; what is '{values[1]}'?")
        else:
            overrides[given] = values[0]
    return overrides


def flatten(values: Mapping[str, Any], origin: Callable[[str], str]) -> dict[str, Setting]:
    """Convert nested or dotted values to settings by dotted key; a single value is accepted for a list of one."""
    settings: dict[str, Setting] = {}
    for key, value in values.items():
        if find_key(key) is not None:
            settings[key] = Setting(names_of_choices(key, value), origin(key))
        elif key not in SECTIONS:
            raise unknown_key(str(key), origin(key))
        elif isinstance(value, Mapping):
            settings |= flatten({f"{key}.{inner}": inner_value for inner, inner_value in value.items()}, origin)
        else:
            sample = next(known for known in KEYS if known.startswith(f"{key}."))
            raise UsageError(f"{origin(key)}: {key} is {value!r}; expected settings such as {sample}.")
    return settings


def names_of_choices(key: str, value: Any) -> Any:
    """The value of a key, wrapped in a list if the key expects a list."""
    known = find_key(key)
    takes_list = known is not None and any(get_origin(member) is list for member in _members(known.type))
    spells_list = isinstance(value, str) and SPELLED_LIST.fullmatch(value) is not None
    return value if not takes_list or value is None or spells_list or isinstance(value, list | tuple) else [value]


def nested(settings: Mapping[str, Setting]) -> dict[str, Any]:
    """Settings by dotted key as nested values."""
    result: dict[str, Any] = {}
    for key, setting in settings.items():
        section, _, name = key.rpartition(".")
        (result.setdefault(section, {}) if section else result)[name] = setting.value
    return result


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
