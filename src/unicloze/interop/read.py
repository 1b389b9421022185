"""Imports other libraries' checkpoints as models, in memory or as one of our checkpoints.

A folder with a `config.json` of a known family (`families`) is accepted, with the head of a task or without. Its tensors are
checked by name and shape against the family's key table before any memory is allocated, then copied one by one. Anything
changed on the way is reported.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import tempfile
import tomllib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from unicloze.errors import UniclozeError, UsageError, folder_meant
from unicloze.files import CHECKPOINTS, MANIFEST, RECIPE, is_utf8, read_bytes
from unicloze.interop.families import family_of
from unicloze.interop.family import TARGETS, Family, Head, class_of
from unicloze.interop.files import LARGEST, Config, Weights, inside, open_weights, read_json
from unicloze.interop.recipe import imported_recipe, imported_task
from unicloze.interop.tables import Table
from unicloze.interop.tokenizer_files import open_tokenizer, read_tokenizer
from unicloze.model.build import shapes_only
from unicloze.model.model import UnifiedModel
from unicloze.progress import counted
from unicloze.recipes import save_recipe
from unicloze.settings import ModelSettings, Precision, TaskSettings, TokenizerSettings, TrainingSettings
from unicloze.tasks import TASKS
from unicloze.text.tokenizers import Tokenizer
from unicloze.training import initial
from unicloze.training import precision as precisions
from unicloze.training.checkpoint import write_checkpoint
from unicloze.training.divergence import first_non_finite
from unicloze.training.loading import LoadedModel, load_model

SHOWN = 64
"""Most names shown in a message; names that differ only by layer count once."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def _fitting(place: Path, weights: Weights, table: Table, ours: Mapping[str, Tensor], allow: Sequence[str]) -> Table:
    """The table without entries whose tensors are missing or misshaped, where that is allowed; warns of what it skips."""
    wanted = {name: tuple(tensor.shape) for name, tensor in table.to_theirs(ours).items()}
    missing = [name for name in wanted if name not in weights]
    misshaped = [name for name in wanted if name in weights and weights.shapes[name] != wanted[name]]
    unread = [name for name in weights if not (name in wanted or name in table.copies or table.ignores(name))]
    notes = {name: f"{_size(weights.shapes[name])}, not {_size(wanted[name])}" for name in misshaped}
    refused = []
    for problem, names in (("missing", missing), ("of another shape", misshaped), ("unexpected", unread)):
        names = [name for name in names if not any(fnmatchcase(name, pattern) for pattern in allow)]
        refused += [f"{counted(len(names), 'tensor')} {problem}: {in_words(names, notes)}"] if names else []
    if refused:
        raise UniclozeError(
            f"{place} does not match its configuration: {'; '.join(refused)}; pass --allow PATTERN to accept this"
        )
    for copy, first in table.copies.items():
        if copy not in weights or first not in weights or torch.equal(weights[copy], weights[first]):
            continue
        if not any(fnmatchcase(copy, pattern) for pattern in allow):
            raise UniclozeError(
                f"{place}: {copy} differs from {first}, but unicloze ties them: pass --allow {copy} to leave it out"
            )
        unread.append(copy)
    held = [entry for entry in table.entries if {*missing, *misshaped}.isdisjoint(entry.theirs)]
    drawn = [name for entry in table.entries if entry not in held for name in entry.theirs]
    for names, sentence in (
        (drawn, "did not fit, as allowed, and are newly initialised"),
        (unread, "ignored, as allowed"),
    ):
        if names:
            warnings.warn(f"{counted(len(names), 'tensor')} of {place} {sentence}: {in_words(names)}", stacklevel=3)
    return dataclasses.replace(table, entries=tuple(held))


def in_words(names: Iterable[str], notes: Mapping[str, str] | None = None) -> str:
    """Tensor names with those of several layers merged to a pattern for `--allow`: `encoder.layer.*.output.bias (x12)`."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in names:
        groups.setdefault((_NUMBER.sub("*", name), (notes or {}).get(name, "")), []).append(name)
    said = []
    for (pattern, note), group in list(groups.items())[:SHOWN]:
        inside = ", ".join(part for part in (note, f"x{len(group)}" if len(group) > 1 else "") if part)
        said.append((pattern if len(group) > 1 else group[0])[:200] + (f" ({inside})" if inside else ""))
    return ", ".join(said) + (f" and {len(groups) - SHOWN} more" if len(groups) > SHOWN else "")


def _size(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "a scalar"


def is_foreign(place: Path) -> bool:
    """Whether a folder is another library's checkpoint: it has a configuration and none of our files."""
    ours = (place / MANIFEST).is_file() or (place / CHECKPOINTS).is_dir()
    return place.is_dir() and not ours and _config_file(place) is not None


def import_checkpoint(
    path: str | os.PathLike[str],
    *,
    allow: Sequence[str] = (),
    pickle: bool = False,
    positions: int | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
) -> LoadedModel:
    """Import a model of another library into memory.

    Args:
        path: Folder with its configuration, weights and tokenizer.
        allow: Patterns of tensor names, such as `classifier.*`: missing or misshaped tensors are newly initialised,
            unexpected ones ignored.
        pickle: Read tensors from a `.bin` file if there are no safetensors.
        positions: Rows of the position table; rows beyond the checkpoint's repeat it.
        tokenizer: A `vocab.txt` or `tokenizer.json` of another vocabulary: shared tokens keep their rows, others start at
            the mean.

    Raises:
        UsageError: An argument is invalid, or the weights are a pickle and `pickle` is False.
        UniclozeError: The checkpoint's family is unknown, it is damaged, or its tensors do not match its configuration.
    """
    place, allow = Path(path), [allow] if isinstance(allow, str) else list(allow)
    config_file = _config_file(place) if place.is_dir() else None
    if config_file is None:
        raise UniclozeError(f"there is no checkpoint at {place}: give a folder with a config.json and its weights")
    config = Config.read(config_file)
    weights = open_weights(place, pickle=pickle)
    family = family_of(config, weights.keys())
    task = _task(config, family, allow)
    kind = class_of(config) if task is not None else None
    layout = family.read(config, weights.keys(), kind)
    heads = family.heads_among(weights.keys())
    if "token" in heads and family.gelu_head and layout.settings.activation != "gelu":
        key = "hidden_act" if "hidden_act" in config.values else "activation"
        raise config.refused(key, f"the {family.name} head that predicts tokens always uses gelu")
    stored = config.whole("vocab_size", kind="vocab_size")
    own, new, settings = _tokenizers(place, tokenizer, stored)
    if family.queries:
        own, new = own.with_pseudo(), new.with_pseudo()
        layout = dataclasses.replace(layout, query=own.vocabulary.pseudo)
        stored += layout.query_is_new
    with shapes_only():
        asked = _model(layout.settings, stored, heads, task).state_dict()
    bare = not any(name.startswith(family.prefix) for name in weights)
    table = family.table(layout, asked, bare=bare)
    weights = weights.under_first_names(table.copies)
    held = _fitting(place, weights, table, asked, allow)
    rows = _token_rows(place, own, new, stored)
    known = layout.settings.max_positions or 0
    wanted = known if positions is None else positions
    if not known <= wanted <= LARGEST["size"]:
        raise UsageError(
            f"positions is {wanted}: give a number from {known}, the number in {place}, to {LARGEST['size']}"
        )
    shape = dataclasses.replace(layout.settings, max_positions=wanted)
    with shapes_only():
        model = _model(shape, len(new), heads, task)
    model.to_empty(device="cpu")
    if len(held.entries) < len(table.entries):
        model.initialize(0)
    state = model.state_dict()
    for name, tensor in held.ours(weights):
        if name in initial.TOKEN_ROWS:
            tensor = rows(tensor)
        elif name in initial.POSITION_ROWS and wanted > known:
            tensor = initial.repeated(tensor, wanted)
        state[name].copy_(tensor)
    if (bad := first_non_finite(state)) is not None:
        raise UniclozeError(f"{place} holds NaN or infinite values ({bad}): use another checkpoint")
    if wanted > known:
        warnings.warn(initial.said_of_positions(known, wanted, place), stacklevel=2)
    recipe = imported_recipe(place, config, own.vocabulary, family, shape, heads, task, new, settings, positions, allow)
    return LoadedModel(model.eval(), new, recipe, place, 0)


def write_model(loaded: LoadedModel, out: str | os.PathLike[str]) -> LoadedModel:
    """Write a model as one of our checkpoints, for `load_model` and `training.initialize_from`."""
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not empty: give another --out")
    recipe = loaded.recipe.changed("tokenizer", path=str(folder.resolve() / "tokenizer.json"))
    loaded = dataclasses.replace(loaded, recipe=recipe)
    write_weights(loaded, folder)
    return dataclasses.replace(loaded, path=folder)


def write_weights(loaded: LoadedModel, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write one of our checkpoints without optimisers."""
    weights = {
        name: weight.to(dtype) if weight.is_floating_point() else weight
        for name, weight in loaded.model.state_dict().items()
    }
    segments = segments_of(loaded)
    with tempfile.TemporaryDirectory() as scratch:
        beside = Path(scratch)
        loaded.tokenizer.save(beside)
        save_recipe(loaded.recipe, beside / RECIPE)
        write_checkpoint(
            folder,
            step=loaded.step,
            model=weights,
            optimizers=[],
            state={
                "text_tokens": 0,
                "fingerprint": "",
                "vocab_size": loaded.model.vocab_size,
                "max_positions": loaded.model.max_positions,
                **({} if segments is None else {"segments": segments}),
            },
            files=sorted(beside.iterdir()),
        )


def segments_of(loaded: LoadedModel) -> int | None:
    """Number of segments in the rows that a model was fine-tuned on; None if it does not say."""
    file = loaded.path / "state.json"
    known: int | None = read_json(file).get("segments") if file.is_file() else None
    return known


def _config_file(folder: Path) -> Path | None:
    """`config.json`, or the only `...-config.json`, as in UniLM's release."""
    if (file := inside(folder, "config.json")) is not None:
        return file
    found = sorted(folder.glob("*-config.json"))
    return inside(folder, found[0].name) if len(found) == 1 else None


def _tokenizers(
    place: Path, given: str | os.PathLike[str] | None, stored: int
) -> tuple[Tokenizer, Tokenizer, TokenizerSettings]:
    """The tokenizer of a checkpoint, the one to use for the model, and the latter's settings."""
    found = read_tokenizer(place)
    wanted = None if given is None else open_tokenizer(Path(given))
    own = found or wanted
    if own is None:
        raise UniclozeError(f"{place} holds no tokenizer.json or vocab.txt: give its tokenizer with --tokenizer")
    if len(own[0]) > stored:
        raise UniclozeError(
            f"{place} has {stored:,} token rows but its tokenizer {own[1].path} has {len(own[0]):,} tokens: they do not "
            "belong together"
        )
    return own[0], *(wanted or own)


def _token_rows(place: Path, own: Tokenizer, new: Tokenizer, stored: int) -> Callable[[Tensor], Tensor]:
    """Function that converts stored token rows to the new vocabulary; warns about what it does."""
    if own.fingerprint != new.fingerprint:
        shared = initial.shared_tokens(own, new)
        warnings.warn(initial.said_of_tokens(shared, place), stacklevel=3)
        return lambda table: initial.rows_of_tokens(table, shared, own.vocabulary.ordinary)
    size = len(own)
    if size < stored:
        warnings.warn(
            f"{place} has {stored:,} token rows but its tokenizer only {size:,} tokens: the other {stored - size:,} rows "
            "are ignored",
            stacklevel=3,
        )
    return lambda table: table[:size]


def _task(config: Config, family: Family, allow: Sequence[str]) -> TaskSettings | None:
    """The task whose head a checkpoint has; None without one, or if the head does not fit and its tensors are allowed to."""
    if (kind := class_of(config)) is None:
        return None
    try:
        return imported_task(config, kind, family)
    except UniclozeError:
        if allow:
            return None
        raise


def _model(settings: ModelSettings, vocab_size: int, heads: Sequence[Head], task: TaskSettings | None) -> UnifiedModel:
    return UnifiedModel(
        settings,
        vocab_size=vocab_size,
        max_positions=settings.max_positions or 1,
        targets=[TARGETS[head] for head in heads],
        heads={} if task is None else TASKS[task.kind].heads(task),
    )


GROUP = "unicloze.models"
"""Entry points by which packages declare models: each has the name of a model, and as its value that of the top-level package
whose folder holds the checkpoint. The package is located and never imported, so none of its code runs."""


def installed_models() -> dict[str, Path]:
    """Folder of each installed model, by name."""
    found = {point.name: _folder(point.value) for point in entry_points(group=GROUP)}
    return {name: folder for name, folder in sorted(found.items()) if folder is not None}


def installed_card(folder: Path) -> str:
    """The card of an installed model, which is the description of its package; empty for any other folder."""
    points = (point for point in entry_points(group=GROUP) if point.dist is not None and _folder(point.value) == folder)
    cards = (str(point.dist.metadata.json.get("description") or "") for point in points if point.dist is not None)
    return next(cards, "")


LARGEST_PROJECT = 2**20


def packaged_model(folder: Path) -> Path | None:
    """The checkpoint in the folder of a package that declares one model; None for any other folder."""
    try:
        project = tomllib.loads(read_bytes(folder / "pyproject.toml", LARGEST_PROJECT).decode())
        (package,) = project["project"]["entry-points"][GROUP].values()
        place = folder / package if package.isidentifier() else folder
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, UniclozeError):
        return None  # no package, or none that declares one model
    return place if (place / MANIFEST).is_file() else None


def _folder(package: str) -> Path | None:
    """Folder of a top-level package that holds a checkpoint; None if there is none."""
    if not package.isidentifier():  # importlib would import the parent of a submodule to find it
        return None
    spec = importlib.util.find_spec(package)
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    return next((place for place in places if (place / MANIFEST).is_file()), None)


ModelLike = str | os.PathLike[str] | LoadedModel


def open_model(model: ModelLike, device: str | None = None, precision: Precision | None = None) -> LoadedModel:
    """Open a trained model, ready for use; with a precision, a view of it that shares its weights."""
    if precision is not None and precision not in get_args(Precision):
        raise UsageError(f"precision is {precision!r}: give one of {', '.join(get_args(Precision))}.")
    if isinstance(model, str | os.PathLike):
        chosen, place = precisions.named_device(device or "cpu"), _place(model)
        model = import_checkpoint(place) if is_foreign(place) else load_model(place, open_model)
        model.model.to(chosen)
    elif device not in (None, "auto"):  # moving a loaded model would affect other code that uses it
        asked, lies = precisions.named_device(device), model.compute.device
        if asked.type != lies.type or asked.index not in (None, lies.index):
            raise UsageError(
                f"the given model is on {lies}, not on {asked}: load it there with load_model(..., device={str(asked)!r})."
            )
    if precision is None:
        return model
    compute: Any = precisions.choose_precision(TrainingSettings(precision=precision), model.compute.device)
    return dataclasses.replace(model, precision=compute, recipe=model.recipe.changed("decoding", precision=compute))


def _place(model: str | os.PathLike[str]) -> Path:
    """The folder of a model: the given one, in a package the checkpoint; if there is none, that of the installed model."""
    folder = Path(model)
    if not is_utf8(str(folder)):
        raise UniclozeError(f"the name of the model, {str(folder)!r}, is not UTF-8: rename its folder")
    if folder.exists():
        return packaged_model(folder) or folder
    installed = installed_models() if folder.name == str(model) else {}
    if folder.name not in installed:
        raise UniclozeError(
            f"there is no model at {folder}: give the --out of a pretrain run, or the name of an installed model"
            + folder_meant(folder, installed).removesuffix(".")
        )
    return installed[folder.name]
