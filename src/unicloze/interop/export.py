"""Exports a model as a folder for other libraries: writes it, loads it back, compares it, then moves it into place."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import importlib.util
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from unicloze.decoding.inputs import fills_masks, objective_of
from unicloze.errors import UniclozeError, UsageError
from unicloze.files import Plain, as_umask_says
from unicloze.interop.card import CARD, Export, model_card, template, without_places
from unicloze.interop.check import LARGEST_DIFFERENCE, check_stock, transformers_library
from unicloze.interop.families import FAMILIES
from unicloze.interop.files import read_json
from unicloze.interop.read import GROUP, installed_models, write_weights
from unicloze.interop.stock import PACKAGE, check_format, layout_of, stock_export
from unicloze.mixtures import all_targets
from unicloze.objectives.masked import UntrainedSettings
from unicloze.settings import FinetuningSettings, Recipe
from unicloze.training.loading import LoadedModel, load_model
from unicloze.version import __version__

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_TAGS = dict(fill="fill-mask", generate="text-generation", predict="feature-extraction", embed="feature-extraction")
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
    packed, verb = dataclasses.replace(loaded, recipe=_recipe(loaded, name)), _verb(loaded)
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
    """The recipe without local folders, of what is packed: low-rank updates are in the weights, and no generator is."""
    unset = vars(FinetuningSettings())
    merged = {key: value for key, value in unset.items() if key.startswith("lora_")}
    recipe = loaded.recipe.changed("finetuning", **merged)
    if recipe.model.generator_size and not recipe.task.kind:
        kept = [target for target in all_targets(recipe) if target != "ae"]
        untrained = UntrainedSettings(targets=kept, pairs=recipe.objective.windows.pairs)
        recipe = recipe.changed("model", generator_size=0.0).changed("training", phases=[])
        recipe = dataclasses.replace(recipe, objective=untrained)
    return without_places(dataclasses.replace(recipe, name=name))


def _write(loaded: LoadedModel, name: str, folder: Path, licence: str) -> None:
    module = folder / _module(name)
    write_weights(loaded, module, torch.bfloat16)
    (module / "__init__.py").write_text(f'"""The model {name} for unicloze."""\n', encoding="utf-8")
    project = template("project.toml").render(
        name=name,
        module=_module(name),
        day=datetime.datetime.now(datetime.UTC).date(),  # of the export
        licence=json.dumps(licence) if licence else "",
        version=__version__,
        group=GROUP,
    )
    (folder / "pyproject.toml").write_text(project, encoding="utf-8")


def _check(loaded: LoadedModel, module: Path) -> Mapping[str, float]:
    """Largest difference of the weights read back from the rounded ones."""
    found = load_model(module).model.state_dict()
    weights = loaded.model.state_dict().items()
    differences = [(found[name] - weight.bfloat16()).abs().max().item() for name, weight in weights]
    return {"weights from those in bf16": max(differences)}


def _verb(loaded: LoadedModel) -> str:
    """The verb that shows what a model does."""
    recipe = loaded.recipe
    if recipe.task.kind:
        return "generate" if recipe.task.kind == "generation" else "predict"
    if not recipe.objective.trains:
        return "embed"
    if fills_masks(objective_of(recipe)):
        return "fill"
    return "generate" if layout_of(loaded) is not None else "embed"


def _use(verb: str, name: str) -> str:
    text = "A text with a [MASK]." if verb == "fill" else "TEXT"
    install = f"pip install ./{name}     # in an environment with unicloze"
    return f'```sh\n{install}\nunicloze {verb} --model {name} --text "{text}"\n```'


MARK = "unicloze_export.json"
"""File that identifies an export, which a new export may replace."""
SCHEMA = 1


@dataclass(frozen=True)
class ExportResult(Plain):
    """A finished export.

    Args:
        out: The folder.
        to: The format.
        architecture: The class of Transformers that loads it.
        differences: Largest difference of hidden states and outputs from our model, by kind of input.
        said: What is changed or missing in the export.
    """

    out: Path
    to: str
    architecture: str
    differences: Mapping[str, float]
    said: tuple[str, ...] = ()

    def __str__(self) -> str:
        checked = ", ".join(f"{kind} {value:.1e}" for kind, value in self.differences.items())
        lines = [
            f"{self.out}: {self.architecture or self.to}",
            f"loaded back, it differs from the model by at most: {checked}",
        ]
        return "\n".join(lines + [f"  {each}" for each in self.said])


def stock_format(loaded: LoadedModel, to: str) -> Export:
    """Export to a stock class of Transformers."""
    check_format(to, loaded)
    plan = stock_export(FAMILIES[to], loaded)
    check = functools.partial(check_stock, plan)
    return Export(to=to, architecture=plan.architecture, write=plan.write, check=check, said=plan.said)


def write_export(loaded: LoadedModel, export: Export, out: str | os.PathLike[str]) -> ExportResult:
    """Write an export, load it back and compare it."""
    folder = Path(out)
    folder = folder.resolve() if folder.is_symlink() else folder
    _check_place(folder)
    if export.architecture:
        transformers_library()
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = folder.parent / f".building-{folder.name}"
    shutil.rmtree(building, ignore_errors=True)
    try:
        building.mkdir()
        export.write(building)
        differences = _checked(export, building, folder)
        (building / CARD).write_text(model_card(loaded, export, differences), encoding="utf-8")
        for file in building.glob("*.safetensors"):
            as_umask_says(file)
        content = {"schema": SCHEMA, "version": __version__, "to": export.to, "architecture": export.architecture,
                   "step": loaded.step, "differences": differences, "said": export.said,
                   "files": sorted({MARK, *_files(building)})}  # fmt: skip
        (building / MARK).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        _put_in_place(building, folder)
    except OSError as error:
        raise UniclozeError(f"cannot write the export {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return ExportResult(folder, export.to, export.architecture, differences, export.said)


def _check_place(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file: give another --out")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not (folder / MARK).is_file():
        raise UsageError(f"{folder} holds files that are not an export: give another --out")
    strange = sorted(_files(folder) - set(read_json(folder / MARK).get("files", [])))
    if strange:
        raise UsageError(f"{folder} holds {strange[0]} besides an export, which would be lost: give another --out")


def _files(folder: Path) -> set[str]:
    """Relative paths of all files below a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()}


_REPORT = "please report it with the model's recipe and what `pip list` prints"


def _checked(export: Export, building: Path, folder: Path) -> dict[str, float]:
    """Differences between an export and its model; large ones are an error."""
    try:
        differences = dict(export.check(building))
    except UniclozeError as error:
        raise UniclozeError(f"{error}: {folder} was not written; {_REPORT}") from error
    kind = max(differences, key=differences.__getitem__)
    if differences[kind] > LARGEST_DIFFERENCE:
        raise UniclozeError(
            f"loaded back, the {export.architecture} differs from the model by {differences[kind]:.1e} on {kind}, more than "
            f"{LARGEST_DIFFERENCE:.0e}: it was deleted and {folder} was not written; {_REPORT}"
        )
    return differences


def _put_in_place(building: Path, folder: Path) -> None:
    """Move a finished folder into place, replacing the previous one."""
    former = folder.parent / f".former-{folder.name}"
    shutil.rmtree(former, ignore_errors=True)
    if folder.exists():
        folder.rename(former)
    try:
        building.rename(folder)
    except OSError:
        if former.exists():
            former.rename(folder)
        raise
    shutil.rmtree(former, ignore_errors=True)
