"""Recipes: complete runs as YAML files that mirror `unicloze.settings`.

A recipe file holds the sections of `unicloze.settings.Recipe`; omitted settings keep their defaults. A top-level
`base: NAME` starts from another recipe (or a file next to this one) and changes single values. Overrides by the caller or
the command line come last.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from unicloze.errors import UsageError, did_you_mean, option_of
from unicloze.files import read_bytes, write_file
from unicloze.recipes.schema import (
    KEYS,
    SECTIONS,
    VARIED,
    Setting,
    flatten,
    keys_of,
    kind_of,
    named,
    parse_options,
    parsed,
    typed_mixture,
    typed_phases,
)
from unicloze.recipes.validation import validate
from unicloze.settings import Recipe
from unicloze.yaml_loader import LARGEST_FILE, Loader

__all__ = [
    "given_beside",
    "given_in_task_files",
    "load_recipe",
    "parse_options",
    "recipe_names",
    "save_recipe",
    "task_names",
    "toy_overrides",
    "validate",
    "with_overrides",
]

SCHEMA = 2
"""Schema version of written recipes, which hold the settings of their own objective and task."""
TASKS_SHELF = "tasks"
"""Subfolder of the recipes for fine-tuning."""


def recipe_names() -> list[str]:
    """Names of the recipes for pre-training that come with the package, sorted."""
    return _names(_shelf())


def task_names() -> list[str]:
    """Names of the recipes for fine-tuning that come with the package, sorted."""
    return _names(_shelf() / TASKS_SHELF)


def _names(shelf: Path) -> list[str]:
    return sorted(entry.stem for entry in shelf.iterdir() if entry.suffix == ".yaml")


def load_recipe(name_or_file: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Load a recipe by name or from a file, apply overrides, and check types and values.

    Args:
        name_or_file: A name from `recipe_names()` or `task_names()`, or a YAML file.
        overrides: Values by dotted key (`{"training.steps": 10}`) or nested (`{"training": {"steps": 10}}`). Strings are
            parsed as on the command line; a single value is accepted for a list of one.

    Raises:
        UsageError: No such recipe or file, broken YAML, an unknown key, a wrong type or an invalid value. The message
            names the file and line, or the option.
    """
    layers = _layers(_find(name_or_file), ())
    layers.append(flatten(overrides or {}, lambda key: f"option {option_of(key)}"))
    return _built(layers)


def given_beside(key: str, name_or_file: str | os.PathLike[str], overrides: Mapping[str, Any]) -> dict[str, str]:
    """Settings given together with another one or later: in the same file, in a file based on it, or by the caller."""
    layers = _layers(_find(name_or_file), ())
    layers.append(flatten(overrides, lambda name: f"option --{name}"))
    first = max((number for number, layer in enumerate(layers) if key in layer), default=len(layers))
    return {name: setting.origin for layer in layers[first:] for name, setting in layer.items() if name != key}


def given_in_task_files(name_or_file: str | os.PathLike[str]) -> dict[str, str]:
    """Settings of a task that were written by hand, in the file itself or in a task it is based on.

    A recipe for pre-training, or one that a run wrote, also sets the shape of a model; but that is the model it trained, not
    a wish for another one. Such a file contributes nothing.
    """
    found: dict[str, str] = {}
    kind: Any = ""
    for file in _files(_find(name_or_file), ()):
        kind = file.settings["task.kind"].value if "task.kind" in file.settings else kind
        if kind and not file.of_a_run:
            found |= {key: setting.origin for key, setting in file.settings.items()}
    return found


def with_overrides(recipe: Recipe, overrides: Mapping[str, Any]) -> Recipe:
    """A recipe with single values changed, with types and values checked; arguments and errors as for `load_recipe`."""
    own = flatten(_plain(recipe), lambda key: f"recipe {recipe.name}")
    return _built([own, flatten(overrides, lambda key: f"option --{key}")])


def _built(layers: Sequence[Mapping[str, Setting]]) -> Recipe:
    """Build a recipe from layers of settings, each overriding the ones before.

    A layer may only contain settings of the objective and task in force there. If a later layer names another objective or
    task, settings that the new one lacks are dropped: a recipe may be based on one with another objective.
    """
    settings: dict[str, Setting] = {}
    names = {section: KEYS[f"{section}.{key}"].default for section, (_, key) in VARIED.items()}
    for layer in layers:
        for section, (_, key) in VARIED.items():
            if f"{section}.{key}" in layer:
                names[section] = layer[f"{section}.{key}"].value
            for one, setting in layer.items():
                if one.startswith(f"{section}."):
                    kind_of(names[section], setting.origin, (one,), section)
        settings |= layer
    kinds = {section: kind_of(name, "the recipe", (), section) for section, name in names.items()}
    own = {key for section, kind in kinds.items() for key in keys_of(section, kind)}
    settings = {key: one for key, one in settings.items() if key in own or key.partition(".")[0] not in kinds}
    values, objective = parsed(settings, kinds), names["objective"]
    if "objective.mixture" in settings:
        mixture = typed_mixture(values["objective"]["mixture"], settings["objective.mixture"].origin, objective)
        values["objective"]["mixture"] = mixture
    if "training.phases" in settings:
        phases = typed_phases(values["training"]["phases"], settings["training.phases"].origin, objective)
        values["training"]["phases"] = phases
    for section, (_, key) in VARIED.items():
        values.setdefault(section, {}).setdefault(key, names[section])
    classes = {**SECTIONS, **kinds}
    recipe = Recipe(**{key: classes[key](**value) if key in classes else value for key, value in values.items()})
    validate(recipe, {key: setting.origin for key, setting in settings.items()})
    return recipe


def save_recipe(recipe: Recipe, path: str | os.PathLike[str]) -> None:
    """Write a recipe atomically as YAML that `load_recipe` reads back."""
    target = Path(path)
    values = {"schema": SCHEMA, **_plain(recipe)}
    dumper = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper  # the same text, four times as fast
    text = yaml.dump(values, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120)
    write_file(target, text, "the recipe")


def _plain(recipe: Recipe) -> dict[str, Any]:
    """A recipe as nested dictionaries for YAML."""
    values = recipe.to_dict()
    values["training"]["betas"] = list(values["training"]["betas"])
    return values


def toy_overrides() -> dict[str, Any]:
    """Overrides by dotted key with which any recipe, its objective unchanged, runs two steps on a laptop in seconds."""
    return {
        "data.window": 32,
        "tokenizer.path": None,
        "tokenizer.vocab_size": 512,
        "model.hidden_size": 32,
        "model.num_layers": 2,
        "model.num_heads": 2,
        "model.intermediate_size": 64,
        "model.max_positions": None,
        "model.character_filters": [8, 8, 16],
        "training.steps": 2,
        "training.batch_size": 8,
        "training.phases": [],
        "training.initialize_from": None,
        "training.word_vectors": None,
        "training.micro_batch_size": None,
        "training.warmup_steps": 1,
        "training.decay_steps": None,
        "training.device": "cpu",
        "training.compile": False,
        "training.evaluate_every": 0,
        "training.evaluate_windows": 4,
        "training.log_every": 1,
        "training.save_every": 0,
        "training.copy_to": None,
    }


def _shelf() -> Path:
    return Path(str(resources.files(__name__)))


def _find(name_or_file: str | os.PathLike[str]) -> Path:
    name = os.fspath(name_or_file)
    if name in recipe_names():
        return _shelf() / f"{name}.yaml"
    if name in task_names():
        return _shelf() / TASKS_SHELF / f"{name}.yaml"
    path = Path(name)
    if path.is_file():
        return path
    if path.suffix in {".yaml", ".yml"} or len(path.parts) > 1:
        cure = "this is a directory; name the recipe file in it" if path.is_dir() else "there is no such file"
        raise UsageError(f"{path}: {cure}; `unicloze recipes` lists the built-in recipes.")
    guess = did_you_mean(name, [*recipe_names(), *task_names()])
    raise UsageError(f"No recipe is named '{name}'{guess} `unicloze recipes` lists all.")


@dataclass(frozen=True)
class _File:
    """A recipe file."""

    settings: dict[str, Setting]  # its settings by dotted key
    of_a_run: bool  # whether a run wrote it


def _layers(path: Path, seen: tuple[Path, ...]) -> list[dict[str, Setting]]:
    """The settings of a recipe file, preceded by those of its bases."""
    return [file.settings for file in _files(path, seen)]


def _files(path: Path, seen: tuple[Path, ...]) -> list[_File]:
    """A recipe file, preceded by its bases."""
    if path.resolve() in seen:
        raise UsageError(f"{path}: this recipe is its own base; remove one `base:` of {', '.join(map(str, seen))}.")
    values, lines = _parse_yaml(path)
    base, schema = values.pop("base", None), values.pop("schema", None)
    if schema not in (None, SCHEMA):
        raise UsageError(f"{path}, line {lines['schema']}: schema is {schema!r}; this version reads {SCHEMA}.")
    bases: list[_File] = []
    if base is not None:
        if not isinstance(base, str):
            raise UsageError(f"{path}, line {lines['base']}: base is {base!r}; expected the name of a recipe.")
        beside = path.parent / base
        try:
            parent = beside if beside.is_file() else _find(base)
        except UsageError as error:
            raise UsageError(f"{path}, line {lines['base']}: base: {error}") from error
        bases = _files(parent, (*seen, path.resolve()))
    _check_names(values, lambda key: f"{path}, line {lines[key]}" if key in lines else str(path))
    own = flatten(values, lambda key: f"{path}, line {lines[key]}" if key in lines else str(path))
    return [*bases, _File({"name": Setting(path.stem, str(path)), **own}, of_a_run=schema is not None)]


def _check_names(values: Mapping[str, Any], origin: Callable[[str], str]) -> None:
    """Reject an unknown objective or task first, since its settings would be unknown too."""
    for section, (_, key) in VARIED.items():
        name = named(values, section, key)
        if name is not None:
            kind_of(name, origin(f"{section}.{key}"), (), section)


def _parse_yaml(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The values of a YAML file, and the line number of each dotted key."""
    try:
        values, lines = _parsed_yaml(path, read_bytes(path, LARGEST_FILE).decode())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
        raise UsageError(f"{where}: this is not valid YAML: {problem}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: this is not UTF-8 text (byte {error.start}); a recipe is a YAML file.") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot read the recipe: {error.strerror}.") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path}: this is not a recipe, which is a mapping with the sections {', '.join(SECTIONS)}.")
    return copy.deepcopy(values), lines


@functools.lru_cache(maxsize=32)  # a command reads some files several times, and parsing takes most of the time
def _parsed_yaml(path: Path, text: str) -> tuple[Any, dict[str, int]]:
    """The values of a file's text, and the line number of each dotted key."""
    loader = Loader(text)
    root = loader.get_single_node()
    lines: dict[str, int] = {}
    if isinstance(root, yaml.MappingNode):
        _collect_lines(root, path, "", lines)  # before construct_document expands merge keys
    return loader.construct_document(root) if root else None, lines


def _collect_lines(node: yaml.MappingNode, path: Path, prefix: str, lines: dict[str, int]) -> None:
    for key_node, value_node in node.value:
        key, line = f"{prefix}{key_node.value}", key_node.start_mark.line + 1
        if key in lines:
            raise UsageError(f"{path}, line {line}: {key} is given twice (first on line {lines[key]}); keep one.")
        lines[key] = line
        if not prefix and isinstance(value_node, yaml.MappingNode):
            _collect_lines(value_node, path, f"{key}.", lines)
