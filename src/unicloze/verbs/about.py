"""Telling what there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unicloze.doctor import Examination
    from unicloze.settings import Recipe


@dataclass(frozen=True, kw_only=True)
class RecipeSummary:
    """What `unicloze recipes` says of a recipe.

    Args:
        name: Its name.
        objective: What is predicted, such as `unilmv2 ae+par`, for each part of a mixture that differs in it; of a task what
            it is and its metrics.
        parameters: Weights of its model, with a vocabulary as large as it asks for; None of a task, which takes any model.
        paper: Title of the paper its values are from.
        place: Where in the paper they stand.
    """

    name: str
    objective: str
    parameters: int | None
    paper: str
    place: str


def recipes() -> list[RecipeSummary]:
    """The recipes that come with the package: those for pre-training, then those of tasks."""
    from unicloze.mixtures import describe
    from unicloze.recipes import load_recipe, recipe_names, task_names

    return [
        RecipeSummary(
            name=recipe.name,
            objective=f"{recipe.task.kind}: {', '.join(recipe.task.metrics)}"
            if recipe.task.kind
            else describe(recipe.objective),
            parameters=None if recipe.task.kind else count_parameters(recipe),
            paper=recipe.provenance.paper,
            place=recipe.provenance.place,
        )
        for recipe in map(load_recipe, [*recipe_names(), *task_names()])
    ]


def count_parameters(recipe: Recipe) -> int:
    """Weights of the model a recipe describes, if its vocabulary is as large as it asks for; tied ones are counted once."""
    from unicloze.model.build import shapes_only
    from unicloze.training.models import shape_model

    with shapes_only():
        return shape_model(recipe, recipe.tokenizer.vocab_size).num_parameters()


def doctor() -> Examination:
    """Look at what this machine offers and what a run would use of it."""
    from unicloze.doctor import examine

    return examine()
