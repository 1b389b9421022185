"""What a pre-training run has from the model it starts from: shape and tokenizer before it begins, weights when it does."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unicloze.errors import UsageError
from unicloze.interop.read import is_foreign, load_any
from unicloze.recipes.schema import flatten
from unicloze.settings import Recipe
from unicloze.training.agreement import OF_A_TRAINED_TOKENIZER
from unicloze.training.initial import inherited
from unicloze.training.models import LoadedModel


class Start:
    """Opens the model of `training.initialize_from` once, though a run asks for it twice."""

    def __init__(self) -> None:
        self._opened: dict[str, LoadedModel] = {}

    def open(self, place: str) -> LoadedModel:
        """The model at a place, for its weights; it is not kept."""
        return self._opened.pop(place, None) or load_any(place)

    def settings(self, recipe: Recipe, given: Mapping[str, Any], *, new_tokenizer: bool) -> dict[str, Any]:
        """Settings the run has from the model, by dotted name; says where the model's shape is not the recipe's.

        Args:
            recipe: The run's; `training.initialize_from` names the model.
            given: Settings that are asked for, which stay as they are.
            new_tokenizer: Train a tokenizer, though the model has one.

        Raises:
            UsageError: Settings of a tokenizer to train are given, and none is to be trained.
            UniclozeError: The model cannot be opened.
        """
        place = recipe.training.initialize_from or ""
        asked = flatten(given, lambda key: key)
        own = not (new_tokenizer or recipe.tokenizer.path or recipe.data.prepared)
        if own and (unread := [key for key in OF_A_TRAINED_TOKENIZER if key in asked]):
            raise UsageError(
                f"{unread[0]} is for a tokenizer that is trained, and the run has that of {place}: give --new-tokenizer to "
                "train one, or leave it out"
            )
        loaded = self._opened[place] = load_any(place)
        changes, said = inherited(recipe, loaded, asked)
        if said:
            warnings.warn(said, stacklevel=3)
        return changes | (_tokenizer(Path(place), loaded) if own else {})


def _tokenizer(place: Path, loaded: LoadedModel) -> dict[str, Any]:
    """The settings that load a model's tokenizer: of a run its own file, which stays when checkpoints go."""
    if is_foreign(place):
        settings = loaded.recipe.tokenizer
        return {"tokenizer.path": settings.path, "tokenizer.lowercase": settings.lowercase}
    files = [folder / "tokenizer.json" for folder in (place, loaded.path)]
    return {"tokenizer.path": str(next(file for file in files if file.is_file()))}
