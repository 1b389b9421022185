"""Data of a pre-training run: its prepared corpus, the phrases to mask, and the samplers of its windows."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unicloze.errors import UniclozeError
from unicloze.files import LINEAGE
from unicloze.interop.opening import open_model
from unicloze.mixtures import parts, phases
from unicloze.settings import Recipe
from unicloze.text.lineage import CODE, is_corpus, read_lineage
from unicloze.text.phrases import PhraseTable, open_phrases
from unicloze.text.prepare import Prepared, open_or_prepare
from unicloze.text.sampler import RandomLengthSampler, WindowSampler
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.checkpoint import Checkpoint
from unicloze.training.distillation import Teacher


def open_data(recipe: Recipe, out: Path, checkpoint: Checkpoint | None, progress: bool, verify: bool) -> Prepared:
    """Open or prepare the data of a run; data newly prepared here that differ from the run's are removed again."""
    folder = out / "data"
    if checkpoint is None:
        return open_or_prepare(recipe.data, recipe.tokenizer, folder, progress=progress, verify=verify)
    trained_on = checkpoint.state.get("fingerprint", "")
    was_there = (folder / LINEAGE).is_file()
    if was_there and recipe.data.prepared is None and _of_older_code(read_lineage(folder), trained_on, recipe):
        return Prepared.load(folder, verify=verify)
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


def _of_older_code(lineage: Mapping[str, Any], trained_on: str, recipe: Recipe) -> bool:
    """Whether an older version prepared this run's data from the same corpus; its settings may differ from today's."""
    older = lineage["settings"]["code"] < CODE and lineage["fingerprint"] == trained_on
    return older and is_corpus(lineage, recipe.data.corpus)


def phrases_for(recipe: Recipe, prepared: Prepared, folder: Path, *, progress: bool = True) -> PhraseTable | None:
    """Table of phrases to mask as a unit, stored in `FOLDER/phrases`; None if the recipe masks none."""
    settings = (part.settings for phase in phases(recipe) for part in parts(phase.recipe.objective))
    if not any(objective.windows.phrases for objective in settings):
        return None
    return open_phrases(recipe.data, prepared, folder / "phrases", progress=progress)


def build_sampler(
    recipe: Recipe, prepared: Prepared, *, heldout: bool = False, phrases: PhraseTable | None = None
) -> WindowSampler:
    """Sampler of a recipe's windows, from the training or the held-out text, with phrases marked if given."""
    kind = WindowSampler if recipe.data.lengths == "fixed" or heldout else RandomLengthSampler
    return kind(
        prepared.heldout if heldout else prepared.train,
        window=recipe.data.window,
        segments=recipe.data.segments,
        vocabulary=prepared.tokenizer.vocabulary,
        seed=recipe.training.seed,
        weights=None if heldout else recipe.data.weights,
        documents=recipe.data.documents,
        order=recipe.data.order,
        directions=recipe.data.directions,
        phrases=phrases,
        spans=any(part.settings.windows.spans for part in parts(recipe.objective)),
        overlap=recipe.data.overlap if recipe.data.order == "streams" else 0.0,
    )


def teacher_of(recipe: Recipe, tokenizer: Tokenizer | None = None) -> Teacher | None:
    """The teacher of a run with this tokenizer, or with the teacher's own; None if the recipe names none."""
    place = recipe.distillation.teacher
    if place is None:
        return None
    opened = open_model(place)
    return Teacher.of(opened, recipe, opened.tokenizer if tokenizer is None else tokenizer)


def tokens_per_byte(prepared: Prepared) -> float | None:
    """Text tokens per byte of the held-out text (or of the training text if nothing is held out), if known."""
    part = "heldout" if prepared.heldout else "train"
    entries = [source[part] for source in prepared.lineage["sources"]]
    if any(entry["bytes"] is None for entry in entries):
        return None
    return float(sum(entry["tokens"] for entry in entries) / max(1, sum(entry["bytes"] for entry in entries)))
