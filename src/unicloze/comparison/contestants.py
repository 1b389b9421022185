"""Plans a comparison: aligns the settings of its recipes, and converts a budget into steps for each."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from unicloze.errors import UsageError, option_of
from unicloze.mixtures import parts, phases
from unicloze.objectives import OBJECTIVES
from unicloze.pretraining.budget import Budget, cost_of_a_step, with_steps
from unicloze.pretraining.data import build_sampler, check_beside_prepared, phrases_for
from unicloze.recipes import RecipeFiles, read_recipe
from unicloze.recipes.schema import foreign_key, keys_of
from unicloze.recipes.validation import refuse_not_of_pretraining, refuse_unread
from unicloze.settings import ObjectiveSettings, Recipe
from unicloze.text.prepare import Prepared
from unicloze.training.batches import check_windows

_OWN = "segments", "spans_field"
"""Settings of `data` that an objective depends on; `--like` takes all others from its recipe."""
_OF_STREAMS = "documents", "order", "overlap", "directions", "lengths"
"""Those that a memory depends on as well."""
_OF_OPTIMIZERS = (
    "optimizer", "learning_rate", "muon_learning_rate", "betas", "epsilon", "momentum", "weight_decay", "average_patience",
)  # fmt: skip
"""Settings of `training` that belong to an optimiser."""
_SIZES = (
    "hidden_size", "num_layers", "num_heads", "head_size", "intermediate_size", "max_positions", "dropout",
    "attention_dropout", "activation_dropout", "final_dropout", "initializer_range",
)  # fmt: skip
"""Settings of `model` that `--like` takes from its recipe; the kind of the network is each system's own."""
_SIZING = {"data.window", "model.hidden_size", "model.num_layers"}
"""Overrides from which other sizes follow: those of a memory, of a second stack, of LSTMs and of embeddings."""


COMPARISON_FILE = "comparison.json"
RESERVED_NAMES = {"data", "phrases", "job.lock", COMPARISON_FILE, "table.md", "index.html"}
"""Other names in the folder of a comparison."""


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A planned row of the table."""

    recipe: Recipe  # the recipe, with the `training.steps` that the budget allows
    flops_per_step: float  # average floating-point operations per step


def contestants(
    names: Sequence[str], *, like: str | None, overrides: Mapping[str, Any], noted: Sequence[str] = ()
) -> list[Recipe]:
    """The recipes to compare, on the same backbone if `like` is given.

    `noted` are the names in the plan of a comparison that resumes.
    """
    for key in ("training.steps", "training.decay_steps", "training.seed", "data.prepared"):
        if overrides.get(key) is not None:
            raise UsageError(f"option --{key}: the comparison sets this, from its budget, its seeds and its text.")
    if any(key.startswith("distillation.") for key in overrides):
        raise UsageError("options --distillation.teacher and others: no budget counts a teacher's computation.")
    if overrides.get("training.copy_to") is not None:
        raise UsageError("option --training.copy_to: each run needs a URL of its own, so a comparison copies none.")
    if "name" in overrides:
        raise UsageError("option --name: each recipe keeps its own name, which also names its row and folder.")
    refuse_not_of_pretraining("compare", overrides, "probe.")
    opened = [_opened(name) for name in names]
    folders = [files.run for files in opened]
    own = _named([files.recipe() for files in opened], folders, noted)
    for recipe in own:
        if recipe.name in RESERVED_NAMES:
            raise UsageError(
                f"a recipe is named {recipe.name}, which the comparison uses itself: give it another name."
            )
        if recipe.distillation.teacher is not None:
            raise UsageError(
                f"recipe {recipe.name} sets distillation.teacher, a model that no budget trains: compare it without."
            )
        same = [folders[number] or name for number, name in enumerate(names) if own[number].name == recipe.name]
        if len(same) > 1:
            raise UsageError(
                f"{same[0]} and {same[1]} are both named {recipe.name}: leave one out, or set another `name` in its file."
            )
    extra = max(recipe.tokenizer.extra_tokens for recipe in own)
    of_all: dict[str, Any] = {"tokenizer.extra_tokens": extra, "training.copy_to": None}
    if "data.corpus" in overrides:
        of_all["data.prepared"] = None  # of another text
    sizing = {key: value for key, value in overrides.items() if key in _SIZING}
    model = None if like is None else _opened(like).recipe(sizing)
    found = []
    for files, recipe in zip(opened, own, strict=True):
        shared = {} if model is None else _shared_settings(model, recipe)
        shared |= {**of_all, **_those_of(recipe, overrides)}
        try:
            found.append(dataclasses.replace(files.recipe(shared), name=recipe.name))
        except UsageError as error:
            if model is None:
                raise
            raise UsageError(f"recipe {recipe.name} with the sizes of --like {like}: {error}") from error
    _refuse_foreign(own, overrides)
    for recipe in found:
        check_beside_prepared(recipe, {key: f"option {option_of(key)}" for key in overrides})
    for key in overrides:
        refuse_unread([recipe for recipe in found if key in _those_of(recipe, overrides)], [key])
    return found


def _opened(name: str) -> RecipeFiles:
    """The files of a recipe for pre-training."""
    files = read_recipe(name)
    recipe = files.recipe()
    if recipe.task.kind:
        what = f"recipe {recipe.name} is of a task" if files.run is None else f"{files.run} is a fine-tuning run"
        raise UsageError(
            f"{what}, but `compare` trains recipes for pre-training: leave it out, and give --probe TASK TRAIN DEV to "
            "fine-tune every model on a task."
        )
    return files


def _named(own: Sequence[Recipe], folders: Sequence[Path | None], noted: Sequence[str]) -> list[Recipe]:
    """Name each run by the shortest end of its path that no other contestant or file of the comparison is named.

    A comparison that earlier versions began with the names of the runs' recipes keeps them.
    """
    kept, former = [recipe.name for recipe in own], dict(enumerate(noted))
    paths = {
        number: Path(os.path.abspath(folder)).parts[1:]
        for number, folder in enumerate(folders)
        if folder is not None and former.get(number) != kept[number]
    }
    taken = {*RESERVED_NAMES, *(name for number, name in enumerate(kept) if number not in paths)}
    for number, path in paths.items():
        others = [other for another, other in paths.items() if another != number]
        ends = [path[-length:] for length in range(1, len(path) + 1)]
        distinct = [end for end in ends if all(other[-len(end) :] != end for other in others)]
        names = ["-".join(end).lstrip(".") for end in distinct or ends[-1:]]
        kept[number] = next((name for name in names if name not in taken), names[-1])
        taken.add(kept[number])
    return [dataclasses.replace(recipe, name=name) for recipe, name in zip(own, kept, strict=True)]


def _those_of(recipe: Recipe, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides that apply to a recipe: all except those of other objectives."""
    name = overrides.get("objective.name", recipe.objective.name)
    kind = OBJECTIVES[name].settings if name in OBJECTIVES else ObjectiveSettings
    own = keys_of("objective", kind)
    return {key: value for key, value in overrides.items() if key in own or not key.startswith("objective.")}


def _refuse_foreign(recipes: Sequence[Recipe], overrides: Mapping[str, Any]) -> None:
    """Reject a setting of an objective that no recipe has."""
    for key in overrides:
        if not any(key in _those_of(recipe, overrides) for recipe in recipes):
            names = " or ".join(dict.fromkeys(recipe.objective.name for recipe in recipes))
            raise UsageError(f"option --{key}: {foreign_key(key, names)}.")


def _shared_settings(like: Recipe, own: Recipe) -> dict[str, Any]:
    """Settings, by dotted name, that give a recipe the text, tokenizer, sizes and schedule of `like`."""
    settings = like.flat("data", "tokenizer", "training")
    streams = _OF_STREAMS if own.model.memory or like.model.memory else ()
    settings |= {f"data.{name}": getattr(own.data, name) for name in (*_OWN, *streams)}
    settings |= {f"model.{name}": value for name, value in _sizes(like, own).items()}
    if own.model.kind == "recurrent" and like.training.optimizer == "muon":  # which takes no gates of LSTMs
        settings |= {f"training.{name}": getattr(own.training, name) for name in _OF_OPTIMIZERS}
    changing = any("objective" in phase for phase in own.training.phases)
    settings["training.phases"] = [
        {"share": 1, **{key: phase[key] for key in ("share", "objective") if key in phase}}
        for phase in own.training.phases
        if changing
    ]
    if own.data.segments == 1:
        settings["data.overlap"] = 0.0
    elif own.objective.windows.pairs == "next_sentence" and not {"nsp", "sop"} & {*own.objective.targets}:
        settings["objective.pairs"] = "next_sentence" if settings["data.overlap"] else "contiguous"
    if own.model.num_segments:
        every = [part.settings.reading for phase in phases(own) for part in parts(phase.recipe.objective)]
        needed = 1 + max(max(reading.segments) for reading in every)
        settings["model.num_segments"] = max(own.model.num_segments, needed)
    return settings


def _sizes(like: Recipe, own: Recipe) -> dict[str, Any]:
    """The sizes of a system's own network that match those of `like`: width, depth and rates of dropout."""
    of, like_of = own.model, like.model
    wide = like_of.hidden_size / of.hidden_size
    sizes = {name: getattr(like_of, name) for name in _SIZES}
    if "recurrent" in (of.kind, like_of.kind):  # LSTMs have no heads, and their dropout is part of an AWD-LSTM
        sizes = {"hidden_size": like_of.hidden_size, "num_layers": like_of.num_layers}
        sizes["intermediate_size"] = round(wide * of.intermediate_size)
        if of.embeddings == "characters":
            sizes["character_filters"] = [max(1, round(wide * filters)) for filters in of.character_filters]
    if of.decoder_layers:
        sizes["decoder_layers"] = max(1, round(like_of.num_layers * of.decoder_layers / of.num_layers))
    if of.embedding_size is not None:
        sizes["embedding_size"] = max(2, 2 * round(wide * of.embedding_size / 2))
    if of.memory and of.kind == "transformer":
        sizes["memory"] = max(1, round(of.memory * like.data.window / own.data.window))
    return sizes


def network(recipe: Recipe) -> str:
    """A network in a few words: its size, what makes it another kind than BERT's, and where it starts."""
    model = recipe.model
    layers = f"{model.num_layers} + {model.decoder_layers}" if model.decoder_layers else f"{model.num_layers}"
    lstm = model.kind == "recurrent"
    features = {
        f"LSTM, {model.directions}": lstm,
        "from characters": model.embeddings == "characters",
        f"relative bias{' from the neighbours' * (model.relative_start == 'neighbours')}": model.relative_bias
        and not lstm,
        f"{model.positions.replace('_', '-')} positions": model.positions in ("sinusoidal", "transformer_xl"),
        f"memory {model.memory}": model.memory > 0 and not lstm,
        f"embeddings of {model.embedding_size}": model.embedding_size is not None,
        f"shares {model.share_layers.replace('_', '-')} of the layers": model.share_layers != "none",
        "local layers": "local" in model.layer_visibility,
        "pre-norm": model.norm == "pre" and not lstm,
        "RMS norm": model.norm_kind == "rms",
        f"generator of {model.generator_size:g}": model.generator_size > 0,
        "from counts of the text": recipe.training.start == "counts" and recipe.training.initialize_from is None,
    }
    return ", ".join([f"{layers} x {model.hidden_size}", *(name for name, holds in features.items() if holds)])


def check_same_text(recipe: Recipe, prepared: Prepared, folder: Path) -> None:
    """Reject text that the recipe's objective cannot use, before training starts."""
    phrases = phrases_for(recipe, prepared, folder, progress=False)
    try:
        for heldout in (False, True):
            check_windows(recipe, partial(build_sampler, prepared=prepared, heldout=heldout, phrases=phrases))
    except UsageError as error:
        raise UsageError(f"recipe {recipe.name}: {error}") from error


def contestants_at_budget(
    recipe: Recipe, prepared: Prepared, budget: Budget, folder: Path, given: Collection[str] = ()
) -> Contestant:
    """Plan the steps of a recipe that a budget allows; `given` settings are kept."""
    cost = cost_of_a_step(recipe, prepared, folder, timed=budget.kind == "time")
    recipe = with_steps(recipe, budget, cost, given)
    if "training.evaluate_every" not in given:
        recipe = recipe.changed("training", evaluate_every=max(1, recipe.training.steps // 8))
    return Contestant(recipe=recipe, flops_per_step=cost.flops)
