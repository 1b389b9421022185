"""Loads plugins: objectives, tasks and metrics from outside the package, named by the caller.

A plugin is a Python file or module with one or more of the mappings `OBJECTIVES`, `TASKS` and `METRICS`, by name. Loading it
runs its code. Therefore no file (recipe, run, checkpoint or export) can name a plugin: a model that needs an unknown
objective or task is rejected.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from unicloze.errors import UsageError
from unicloze.evaluation.metrics.registry import METRICS
from unicloze.evaluation.metrics.result import Metric
from unicloze.files import digest
from unicloze.objectives import OBJECTIVES, Objective
from unicloze.recipes.schema import VARIED, find_key, keys_of
from unicloze.tasks import TASKS
from unicloze.tasks.task import Task

TABLES: Mapping[str, type] = {"OBJECTIVES": Objective, "TASKS": Task, "METRICS": Metric}
"""The mappings that a plugin may have, and the type of their values."""

_registered: set[str] = set()
"""Names of the plugins' modules."""


def register(plugin: str | os.PathLike[str]) -> None:
    """Add the objectives, tasks and metrics of a plugin for the rest of the process. This runs its code: trust it.

    Registering a plugin again has no effect.

    Args:
        plugin: A Python file, or the name of an importable module.

    Raises:
        UsageError: There is no such file or module, its code fails, or it adds nothing or something invalid.
    """
    said = os.fspath(plugin)
    is_file = said.endswith(".py") or len(Path(said).parts) > 1
    name = f"unicloze_plugin_{digest(str(Path(said).resolve()))}" if is_file else said
    if name in _registered:
        return
    tables = _tables(said, _from_file(Path(said), name) if is_file else _from_module(said))
    for section, table in (("objective", "OBJECTIVES"), ("task", "TASKS")):
        own: dict[str, Any] = {}
        for one, found in tables[table].items():
            _check_settings(said, one, found.settings, section, own)
    registries: dict[str, Any] = {"OBJECTIVES": OBJECTIVES, "TASKS": TASKS, "METRICS": METRICS}
    for table, registry in registries.items():
        taken = next((one for one in tables[table] if one in registry), None)
        if taken is not None:
            raise UsageError(f"--plugin {said}: {table} has {taken!r}, which already exists: give it another name.")
    for table, registry in registries.items():
        registry.update(tables[table])
    _registered.add(name)


def _from_file(file: Path, name: str) -> ModuleType:
    if not file.is_file():
        raise UsageError(f"--plugin {file}: there is no such file.")
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"--plugin {file}: give a Python file with a name ending in .py.")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look up their types here
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _failure(str(file), error) from error
    return module


def _from_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0] and error.name != name:
            raise _failure(name, error) from error
        raise UsageError(
            f"--plugin {name}: there is no such module; to load a file, include .py in its name."
        ) from error
    except Exception as error:
        raise _failure(name, error) from error


def _failure(plugin: str, error: Exception) -> UsageError:
    return UsageError(f"--plugin {plugin}: loading it fails with {type(error).__name__}: {error}; --debug shows where.")


def _tables(plugin: str, module: ModuleType) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for table, kind in TABLES.items():
        found[table] = held = getattr(module, table, {})
        if not isinstance(held, Mapping) or not all(
            isinstance(name, str) and isinstance(one, kind) for name, one in held.items()
        ):
            raise UsageError(f"--plugin {plugin}: {table} is not a mapping from names to {kind.__name__}.")
    if not any(found.values()):
        raise UsageError(f"--plugin {plugin}: it adds nothing: define at least one of {', '.join(TABLES)}.")
    return found


def _check_settings(plugin: str, name: str, kind: type, section: str, own: dict[str, Any]) -> None:
    """Check that settings of one name have one type: the command line is parsed before the objective or task is known.

    `own` collects those of the plugin.
    """
    _, key = VARIED[section]
    try:
        default = getattr(kind(), key)
    except TypeError as error:
        raise UsageError(f"--plugin {plugin}: {kind.__name__}: {error}: give every setting a default.") from error
    if default != name:
        raise UsageError(
            f"--plugin {plugin}: {kind.__name__} has the {key} {default!r}, but it is registered as {name!r}."
        )
    for one, known in keys_of(section, kind).items():
        other = find_key(one) or own.get(one)
        own[one] = known
        if other is not None and other.type != known.type:
            raise UsageError(f"--plugin {plugin}: {one} has another type in other {section}s: give it another name.")
