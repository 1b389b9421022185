"""Exports a model as a Python package: once it is installed, `--model NAME` finds it."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.util
import json
import re
from collections.abc import Mapping
from pathlib import Path

import torch

from unicloze.decoding.abilities import objective_of, part_with
from unicloze.errors import UsageError
from unicloze.interop.card import without_places
from unicloze.interop.limits import PACKAGE, Export
from unicloze.interop.opening import GROUP, installed_models
from unicloze.interop.read import write_weights
from unicloze.settings import FinetuningSettings, Recipe
from unicloze.training.loading import LoadedModel, load_model
from unicloze.version import __version__

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_TAGS = {
    "fill": "fill-mask",
    "generate": "text-generation",
    "predict": "feature-extraction",
    "embed": "feature-extraction",
}
"""Pipeline tag by the verb a card shows."""


def package_format(
    loaded: LoadedModel, name: str, *, licence: str = "", sections: Mapping[str, str] | None = None
) -> Export:
    """Export as a package that holds one checkpoint with weights in bf16, without the state of optimisers."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"a package cannot be named {name!r}: name the folder in lower-case letters, digits and single hyphens"
        )
    spec = importlib.util.find_spec(_module(name))
    if spec is not None and spec.origin is not None and name not in installed_models():
        raise UsageError(
            f"another package named {name!r} is installed here, which this one would replace: name the folder differently"
        )
    packed, verb = dataclasses.replace(loaded, recipe=_recipe(loaded, name)), _verb(loaded.recipe)
    return Export(
        to=PACKAGE,
        architecture="",
        write=lambda folder: _write(packed, name, folder, licence),
        check=lambda folder: _check(packed, folder / _module(name)),
        said=("its weights are rounded to bf16",),
        tag=_TAGS[verb],
        use=_use(verb, name),
        name=name,
        licence=licence.lower(),
        sections=sections or {},
    )


def _module(name: str) -> str:
    return name.replace("-", "_")


def _recipe(loaded: LoadedModel, name: str) -> Recipe:
    """The recipe without local folders; low-rank updates are in the weights."""
    unset = FinetuningSettings()
    merged = {
        field.name: getattr(unset, field.name) for field in dataclasses.fields(unset) if field.name.startswith("lora_")
    }
    finetuning = dataclasses.replace(loaded.recipe.finetuning, **merged)
    return without_places(dataclasses.replace(loaded.recipe, name=name, finetuning=finetuning))


def _write(loaded: LoadedModel, name: str, folder: Path, licence: str) -> None:
    module = folder / _module(name)
    write_weights(loaded, module, torch.bfloat16)
    (module / "__init__.py").write_text(f'"""The model {name} for unicloze."""\n', encoding="utf-8")
    (folder / "pyproject.toml").write_text(_project(name, licence), encoding="utf-8")


def _project(name: str, licence: str) -> str:
    """The package's `pyproject.toml`; its version is the day of the export."""
    today = datetime.datetime.now(datetime.UTC).date()
    lines = [
        "[project]",
        f"name = {json.dumps(name)}",
        f'version = "{today.year}.{today.month}.{today.day}"',
        'description = "A language model for unicloze"',
        'readme = "README.md"',
        *([f"license = {json.dumps(licence)}"] if licence else []),
        'requires-python = ">=3.11"',
        f'dependencies = ["unicloze>={__version__}"]',
        "",
        f'[project.entry-points."{GROUP}"]',
        f"{name} = {json.dumps(_module(name))}",
        "",
        "[build-system]",
        'requires = ["hatchling"]',
        'build-backend = "hatchling.build"',
        "",
        "[tool.hatch.build]",
        "ignore-vcs = true  # .gitignore often names weights",
        "",
        "[tool.hatch.build.targets.wheel]",
        f"packages = [{json.dumps(_module(name))}]",
    ]
    return "\n".join(lines) + "\n"


def _check(loaded: LoadedModel, module: Path) -> Mapping[str, float]:
    """Largest difference of the weights read back from the rounded ones."""
    found = load_model(module).model.state_dict()
    weights = loaded.model.state_dict().items()
    differences = [(found[name] - weight.bfloat16()).abs().max().item() for name, weight in weights]
    return {"weights from those in bf16": max(differences)}


def _verb(recipe: Recipe) -> str:
    """The verb that shows what a model does."""
    if recipe.task.kind:
        return "generate" if recipe.task.kind == "generation" else "predict"
    if not recipe.objective.trains:
        return "embed"
    objective = objective_of(recipe)
    if part_with(objective, "cloze") is not None:
        return "fill"
    return "generate" if part_with(objective, "causal") is not None else "embed"


def _use(verb: str, name: str) -> str:
    text = "A text with a [MASK]." if verb == "fill" else "TEXT"
    return "\n".join(
        [
            "```sh",
            f"pip install ./{name}     # this folder, beside unicloze",
            f'unicloze {verb} --model {name} --text "{text}"',
            "```",
        ]
    )
