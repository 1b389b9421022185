"""Settings that a pre-training run inherits from the model it starts from."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unicloze.errors import UsageError
from unicloze.files import TOKENIZER
from unicloze.interop.read import is_foreign
from unicloze.pretraining.agreement import OF_A_TRAINED_TOKENIZER
from unicloze.recipes.schema import flatten
from unicloze.settings import Recipe
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.initial import inherited
from unicloze.training.loading import LoadedModel

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
