"""Data of a pre-training run: its prepared corpus, the phrases to mask, and the samplers of its windows."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unicloze.errors import UniclozeError, UsageError
from unicloze.files import LINEAGE, TOKENIZER
from unicloze.interop.read import is_foreign, open_model
from unicloze.mixtures import parts, phases
from unicloze.recipes import validate
from unicloze.recipes.schema import KEYS, flatten
from unicloze.settings import TRAINED, DataSettings, Recipe
from unicloze.text.counts import stretches
from unicloze.text.lineage import LOADED_TOKENIZER, is_corpus, known_settings, read_lineage
from unicloze.text.phrases import PhraseTable, open_phrases
from unicloze.text.prepare import Prepared, open_or_prepare
from unicloze.text.sampler import RandomLengthSampler, WindowSampler
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.checkpoint import Checkpoint
from unicloze.training.distillation import Teacher
from unicloze.training.initial import inherited
from unicloze.training.loading import LoadedModel

OF_A_TRAINED_TOKENIZER = [key for key, known in KEYS.items() if TRAINED in known.rules]
"""Settings that have no effect on a loaded tokenizer."""


def check_beside_prepared(recipe: Recipe, given: Mapping[str, str]) -> None:
    """Reject data and tokenizer settings that contradict the prepared corpus in `data.prepared`."""
    if recipe.data.prepared is None:
        return
    lineage = read_lineage(Path(recipe.data.prepared))
    of_training = [key for key in given if key.startswith("tokenizer.") and key != "tokenizer.path"]
    if LOADED_TOKENIZER in lineage["settings"] and recipe.tokenizer.path is None and of_training:
        raise UsageError(
            f"{given[of_training[0]]}: {of_training[0]} applies to training a tokenizer, but data.prepared "
            f"{recipe.data.prepared} was made with a loaded one: leave it out, or prepare again (--data.prepared null)."
        )
    for key, made_with in known_settings(lineage).items():
        section, _, name = key.partition(".")
        value = getattr(getattr(recipe, section), name)
        loaded = section == "tokenizer" and recipe.tokenizer.path is not None
        agree = is_corpus(lineage, value) if key == "data.corpus" else value == made_with
        agree = agree or (key == "tokenizer.vocab_size" and value == lineage["tokenizer"]["vocab_size"])
        if key in given and not loaded and not agree:
            raise UsageError(
                f"{given[key]}: {key} is {value!r}, but data.prepared {recipe.data.prepared} was made with {made_with!r}: "
                f"leave out {key} to use the prepared corpus, or prepare again (--data.prepared null)."
            )


def as_prepared(recipe: Recipe, lineage: Mapping[str, Any]) -> Recipe:
    """The recipe with the data and tokenizer settings recorded in a lineage."""
    for key, value in known_settings(lineage).items():
        section, _, name = key.partition(".")
        recipe = recipe.changed(section, **{name: value})
    validate(recipe)
    return recipe


_KINDS = {"transformer": "a Transformer", "recurrent": "an LSTM"}


def inherited_settings(
    recipe: Recipe, start: LoadedModel, given: Mapping[str, Any], *, new_tokenizer: bool, warn: bool = True
) -> dict[str, Any]:
    """Settings a run inherits from the model it starts from, by dotted name; warns where the recipe's shape differs."""
    place = recipe.training.initialize_from or ""
    asked = flatten(given, lambda key: key)
    theirs, ours = start.recipe.model.kind, recipe.model.kind
    if theirs != ours and "model.kind" not in asked:
        raise UsageError(
            f"the model {place} is {_KINDS[theirs]}, and recipe {recipe.name} trains {_KINDS[ours]}: start from a model of "
            "the recipe's kind, or leave out --init"
        )
    if start.recipe.model.decoder_layers and not recipe.model.decoder_layers and "model.decoder_layers" not in asked:
        raise UsageError(
            f"the model {place} is an encoder-decoder, and recipe {recipe.name} trains a single stack: give a recipe of the "
            "model's kind (`unicloze recipes`), or leave out --init"
        )
    own = not (new_tokenizer or recipe.tokenizer.path or recipe.data.prepared)
    if own and (unread := [key for key in OF_A_TRAINED_TOKENIZER if key in asked]):
        raise UsageError(
            f"{unread[0]} applies to training a tokenizer, but the run uses that of {place}: give --new-tokenizer to "
            "train one, or leave it out"
        )
    changes, said = inherited(recipe, start, asked)
    if said and warn:
        warnings.warn(said, stacklevel=3)
    return changes | (_tokenizer(Path(place), start) if own else {})


def _tokenizer(place: Path, loaded: LoadedModel) -> dict[str, Any]:
    """Settings that load a model's tokenizer; for a run, from the run's folder, which outlives its checkpoints."""
    if is_foreign(place):
        settings = loaded.recipe.tokenizer
        if Tokenizer.load(settings.path or place).fingerprint != loaded.tokenizer.fingerprint:
            raise UsageError(
                f"{place} has a vector for predicted slots that its tokenizer has no token for: run `unicloze import {place} "
                "--out DIR` first, and start from DIR"
            )
        return {"tokenizer.path": settings.path, "tokenizer.lowercase": settings.lowercase}
    files = [folder / TOKENIZER for folder in (place, loaded.path)]
    return {"tokenizer.path": str(next(file for file in files if file.is_file()))}


def open_data(recipe: Recipe, out: Path, checkpoint: Checkpoint | None, progress: bool, verify: bool) -> Prepared:
    """Open or prepare the data of a run; data newly prepared here that differ from the run's are removed again."""
    folder = out / "data"
    if checkpoint is None:
        return open_or_prepare(recipe.data, recipe.tokenizer, folder, progress=progress, verify=verify)
    trained_on = checkpoint.state.get("fingerprint", "")
    was_there = (folder / LINEAGE).is_file()
    cure = (
        f"give this corpus another --out; the run in {out} can only resume with its old one (--data.prepared {folder})"
    )
    if was_there and read_lineage(folder)["fingerprint"] != trained_on:
        cure = f"remove {folder}, which holds other data than the run in {out} was trained on, or give another --out"
    prepared = open_or_prepare(recipe.data, recipe.tokenizer, folder, progress=progress, cure=cure, verify=verify)
    if prepared.fingerprint == trained_on:
        return prepared
    if recipe.data.prepared is None and not was_there:
        shutil.rmtree(folder)
    if recipe.data.prepared is not None:
        cure = f"give the --data.prepared it was trained on, or another --out than {out}"
    elif was_there:
        cure = f"remove {folder} and give the run its old corpus, or give another --out"
    raise UniclozeError(
        f"{checkpoint.path} was trained on data with fingerprint {trained_on[:16]}, but this data has "
        f"{prepared.fingerprint[:16]}: {cure}."
    )


def phrases_for(recipe: Recipe, prepared: Prepared, folder: Path, *, progress: bool = True) -> PhraseTable | None:
    """Table of phrases to mask as a unit, stored in `FOLDER/phrases`; None if the recipe masks none."""
    settings = (part.settings for phase in phases(recipe) for part in parts(phase.recipe.objective))
    if not any(objective.windows.phrases for objective in settings):
        return None
    return open_phrases(recipe.data, prepared, folder / "phrases", progress=progress)


def cut_by(data: DataSettings) -> dict[str, Any]:
    """How a sampler cuts text into windows, as its arguments."""
    overlap = data.overlap if data.order == "streams" else 0.0
    kept = ("window", "segments", "documents", "order", "directions")
    return {**{name: getattr(data, name) for name in kept}, "overlap": overlap}


def build_sampler(
    recipe: Recipe, prepared: Prepared, *, heldout: bool = False, phrases: PhraseTable | None = None
) -> WindowSampler:
    """Sampler of a recipe's windows, from the training or the held-out text, with phrases marked if given."""
    kind = WindowSampler if recipe.data.lengths == "fixed" or heldout else RandomLengthSampler
    return kind(
        prepared.heldout if heldout else prepared.train,
        **cut_by(recipe.data),
        vocabulary=prepared.tokenizer.vocabulary,
        seed=recipe.training.seed,
        weights=None if heldout else recipe.data.weights,
        phrases=phrases,
        spans=any(part.settings.windows.spans for part in parts(recipe.objective)),
    )


MOST_UNKNOWN, MOST_SEEN = 1e-3, 2**20
"""Share of [UNK] among this many tokens from which on bits per byte would mislead."""


def teacher_of(recipe: Recipe, tokenizer: Tokenizer | None = None) -> Teacher | None:
    """The teacher of a run with this tokenizer, or with the teacher's own; None if the recipe names none."""
    place = recipe.distillation.teacher
    if place is None:
        return None
    opened = open_model(place)
    return Teacher.of(opened, recipe, opened.tokenizer if tokenizer is None else tokenizer)


def tokens_per_byte(prepared: Prepared) -> float | None:
    """Text tokens per byte of the held-out text (or of the training text if nothing is held out), if known.

    None also if [UNK] is frequent: it is not predicted, so its bytes would cost no more than those of known words.
    """
    part = "heldout" if prepared.heldout else "train"
    seen = [tokens for tokens, _ in stretches(prepared.heldout or prepared.train, MOST_SEEN)]
    unknown = sum(int((tokens == prepared.tokenizer.vocabulary.unk).sum()) for tokens in seen)
    if unknown > MOST_UNKNOWN * sum(map(len, seen)):
        return None
    entries = [source[part] for source in prepared.lineage["sources"]]
    if any(entry["bytes"] is None for entry in entries):
        return None
    return float(sum(entry["tokens"] for entry in entries) / max(1, sum(entry["bytes"] for entry in entries)))
