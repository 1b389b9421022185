"""Recipes: complete runs as YAML files that mirror `unicloze.settings`.

A recipe file holds the sections of `unicloze.settings.Recipe`; omitted settings keep their defaults. A top-level
`base: NAME` starts from another recipe (or a file next to this one) and changes single values. Overrides by the caller or
the command line come last.
"""

from __future__ import annotations

import copy
import functools
import glob
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from unicloze.errors import UsageError, folder_meant
from unicloze.files import RECIPE, read_bytes, write_file
from unicloze.recipes import schema
from unicloze.recipes.schema import parse_options
from unicloze.recipes.validation import validate
from unicloze.settings import Recipe
from unicloze.yaml_loader import LARGEST_FILE, Loader

__all__ = [
    "keep_summaries", "kept_summaries", "load_recipe", "parse_options", "read_recipe", "recipe_names", "recipes_of",
    "save_recipe", "task_names", "toy_overrides", "validate", "with_overrides",
]  # fmt: skip

SCHEMA = 2
"""Schema version of written recipes, which hold the settings of their own objective and task."""
SHELF = Path(__file__).parent
"""Folder of the package's recipes; those for fine-tuning are in a subfolder."""
KEPT = SHELF / "summaries.json"


def recipe_names() -> list[str]:
    """Names of the recipes for pre-training that come with the package, sorted."""
    return _names(SHELF)


def task_names() -> list[str]:
    """Names of the recipes for fine-tuning that come with the package, sorted."""
    return _names(SHELF / "tasks")


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
    return read_recipe(name_or_file).recipe(overrides)


def read_recipe(name_or_file: str | os.PathLike[str]) -> RecipeFiles:
    """Read a recipe's files, from which a command builds the recipe with any overrides."""
    path = _find(name_or_file)
    return RecipeFiles(path, tuple(_files(path, ())))


@dataclass(frozen=True)
class _File:
    """A recipe file."""

    settings: dict[str, schema.Setting]  # its settings by dotted key
    of_a_run: bool  # whether a run wrote it


@dataclass(frozen=True)
class RecipeFiles:
    """A recipe as it is written."""

    path: Path  # its own file
    files: tuple[_File, ...]  # those of its bases, then its own

    @property
    def run(self) -> Path | None:
        """The folder of the run that wrote it, if one did."""
        return self.path.parent if self.path.name == RECIPE and self.files[-1].of_a_run else None

    def recipe(self, overrides: Mapping[str, Any] | None = None) -> Recipe:
        """The recipe with overrides; arguments and errors as for `load_recipe`."""
        return _built([*(file.settings for file in self.files), schema.options(overrides or {})])

    def given_beside(self, key: str, overrides: Mapping[str, Any]) -> dict[str, str]:
        """Settings given together with another one or later: in the same file, in a file based on it, or by the caller."""
        layers = [*(file.settings for file in self.files), schema.options(overrides)]
        first = max((number for number, layer in enumerate(layers) if key in layer), default=len(layers))
        return {name: setting.origin for layer in layers[first:] for name, setting in layer.items() if name != key}

    def given_for_a_task(self) -> dict[str, str]:
        """Settings of a task that were written by hand, in the file itself or in a task it is based on.

        A recipe for pre-training, or one that a run wrote, also sets the shape of a model; but that is the model it trained,
        not a wish for another one. Such a file contributes nothing.
        """
        origins: dict[str, str] = {}
        kind: Any = ""
        for file in self.files:
            kind = file.settings["task.kind"].value if "task.kind" in file.settings else kind
            if kind and not file.of_a_run:
                origins |= {key: setting.origin for key, setting in file.settings.items()}
        return origins


def with_overrides(recipe: Recipe, overrides: Mapping[str, Any]) -> Recipe:
    """A recipe with single values changed, with types and values checked; arguments and errors as for `load_recipe`."""
    return _built([schema.flatten(recipe.to_dict(), lambda key: f"recipe {recipe.name}"), schema.options(overrides)])


def _built(layers: Sequence[Mapping[str, schema.Setting]]) -> Recipe:
    """Build a recipe from layers of settings, each overriding the ones before.

    A layer may only contain settings of the objective and task in force there. If a later layer names another objective or
    task, settings that the new one lacks are dropped: a recipe may be based on one with another objective.
    """
    settings: dict[str, schema.Setting] = {}
    kinds = {section: schema.KEYS[f"{section}.{key}"].default for section, (_, key) in schema.VARIED.items()}
    for layer in layers:
        for section, (_, key) in schema.VARIED.items():
            if f"{section}.{key}" in layer:
                kinds[section] = layer[f"{section}.{key}"].value
            for name, setting in layer.items():
                if name.startswith(f"{section}."):
                    schema.kind_of(kinds[section], setting.origin, (name,), section)
        settings |= layer
    classes: dict[str, Any] = {name: schema.kind_of(kind, "the recipe", (), name) for name, kind in kinds.items()}
    own = {key for section, kind in classes.items() for key in schema.keys_of(section, kind)}
    settings = {key: one for key, one in settings.items() if key in own or key.partition(".")[0] not in classes}
    values = schema.parsed(settings, classes)
    for key, typed in (("objective.mixture", schema.typed_mixture), ("training.phases", schema.typed_phases)):
        section, _, name = key.partition(".")
        if key in settings:
            values[section][name] = typed(values[section][name], settings[key].origin, kinds["objective"])
    classes = {**schema.SECTIONS, **classes}
    for section, (_, key) in schema.VARIED.items():
        values.setdefault(section, {}).setdefault(key, kinds[section])
    recipe = Recipe(**{key: classes[key](**value) if key in classes else value for key, value in values.items()})
    validate(recipe, {key: setting.origin for key, setting in settings.items()})
    return recipe


def save_recipe(recipe: Recipe, path: str | os.PathLike[str]) -> None:
    """Write a recipe atomically as YAML that `load_recipe` reads back."""
    target = Path(path)
    dumper = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper  # the same text, four times as fast
    values = {"schema": SCHEMA, **recipe.to_dict()}
    text = yaml.dump(values, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120)
    write_file(target, text, "the recipe")


def toy_overrides() -> dict[str, Any]:
    """Overrides by dotted key with which any recipe, its objective unchanged, runs two steps on a laptop in seconds."""
    overlay = yaml.safe_load((SHELF / "overlays" / "toy.yaml").read_text(encoding="utf-8"))
    return {f"{section}.{key}": value for section, values in overlay.items() for key, value in values.items()}


def _find(name_or_file: str | os.PathLike[str]) -> Path:
    name = os.fspath(name_or_file)
    if name in recipe_names():
        return SHELF / f"{name}.yaml"
    if name in task_names():
        return SHELF / "tasks" / f"{name}.yaml"
    path = Path(_file(name))
    if path.is_file():
        return path
    what = f"'{name}' is no run, since it has no {RECIPE}" if path.is_dir() else f"no recipe or run is named '{name}'"
    meant = "." if path.is_dir() else folder_meant(name, [*recipe_names(), *task_names()])
    raise UsageError(f"{what}: `unicloze recipes` lists the recipes, and `unicloze pretrain` writes runs{meant}")


def _files(path: Path, seen: tuple[Path, ...]) -> list[_File]:
    """A recipe file, preceded by its bases."""
    if path.resolve() in seen:
        raise UsageError(f"{path}: this recipe is its own base; remove one `base:` of {', '.join(map(str, seen))}.")
    values, lines = _parse_yaml(path)
    base, version = values.pop("base", None), values.pop("schema", None)
    if version not in (None, SCHEMA):
        raise UsageError(f"{path}, line {lines['schema']}: schema is {version!r}; this version reads {SCHEMA}.")
    bases: list[_File] = []
    if base is not None:
        if not isinstance(base, str):
            raise UsageError(f"{path}, line {lines['base']}: base is {base!r}; expected the name of a recipe.")
        shipped = base in (*recipe_names(), *task_names())
        beside = path.parent / base if shipped else Path(_file(str(path.parent / base)))
        try:
            parent = beside if beside.is_file() else _find(base)
        except UsageError as error:
            raise UsageError(f"{path}, line {lines['base']}: base: {error}") from error
        bases = _files(parent, (*seen, path.resolve()))

    def origin(key: str) -> str:
        return f"{path}, line {lines[key]}" if key in lines else str(path)

    for section, (_, key) in schema.VARIED.items():  # first, since the settings of an unknown one would be unknown too
        if (name := schema.named(values, section, key)) is not None:
            schema.kind_of(name, origin(f"{section}.{key}"), (), section)
    own = {"name": schema.Setting(path.stem, str(path)), **schema.flatten(values, origin)}
    return [*bases, _File(own, of_a_run=version is not None)]


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
        sections = ", ".join(schema.SECTIONS)
        raise UsageError(f"{path}: this is not a recipe, which is a mapping with the sections {sections}.")
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


TABLES: Mapping[str, Sequence[str]] = {
    "table-6": tuple(f"unilmv2-ablation-{row}" for row in ("ae-par-relpos", "ae-par", "ae-ar", "ae", "par", "ar")),
}
"""Recipes for the rows of tables in the UniLMv2 paper, in order."""


def recipes_of(words: Iterable[str | os.PathLike[str]] | str) -> list[str]:
    """Expand words to distinct recipes: a table, a pattern of names or files, a run, a name or a file."""
    words = [words] if isinstance(words, str) else words
    return list(dict.fromkeys(name for word in words for name in _expanded(os.fspath(word))))


def _expanded(word: str) -> list[str]:
    if word in TABLES:
        return list(TABLES[word])
    if not glob.has_magic(word):
        return [_file(word)]
    fitting = [name for name in recipe_names() if fnmatchcase(name, word)]
    files = [_file(path) for path in sorted(glob.glob(word))]
    fitting = fitting or [file for file in files if file.endswith((".yaml", ".yml"))]
    if not fitting:
        raise UsageError(f"no recipe or run matches '{word}': `unicloze recipes` lists the recipes.")
    return fitting


def _file(word: str) -> str:
    """The recipe file of a run; any other word unchanged."""
    path = Path(word)
    shipped = word in (*recipe_names(), *task_names())
    return str(path / RECIPE) if not shipped and (path / RECIPE).is_file() else word


def kept_summaries() -> list[dict[str, Any]] | None:
    """The fields of each stored summary; None if a recipe has changed since."""
    if not KEPT.is_file():
        return None
    kept: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8"))
    return kept["recipes"] if kept["of"] == _digest() else None


def keep_summaries(summaries: Sequence[Any]) -> None:
    """Store summaries of the current recipes."""
    kept = {"of": _digest(), "recipes": summaries}
    KEPT.write_text(json.dumps(kept, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _digest() -> str:
    """Digest of the names and contents of all recipes of the package."""
    content = hashlib.sha256()
    for file in sorted(KEPT.parent.rglob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        content.update(f"{file.relative_to(KEPT.parent).as_posix()}\0{len(text)}\0{text}".encode())
    return content.hexdigest()
