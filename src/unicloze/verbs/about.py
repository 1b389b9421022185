"""Telling what there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

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


class RecipeTable(list[RecipeSummary]):
    """The recipes; as `str` two tables, of those for `pretrain` and of those for `finetune`."""

    def to_dict(self) -> list[dict[str, Any]]:
        """The fields of each, fit for JSON."""
        return [asdict(row) for row in self]

    def __str__(self) -> str:
        of_tasks = [row for row in self if row.parameters is None]
        tables = [row for row in self if row.parameters is not None], of_tasks
        return "\n\n".join(_table(part, what) for part, what in zip(tables, ("objective", "task"), strict=True) if part)


def _table(rows: Sequence[RecipeSummary], what: str) -> str:
    table = [("recipe", what, "parameters" if what == "objective" else "", "values from")]
    table += [
        (
            row.name,
            row.objective,
            "" if row.parameters is None else f"{row.parameters:,}",
            f"{row.paper.partition(':')[0]}: {row.place}" if row.paper else row.place,
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        f"{name:<{widths[0]}}  {objective:<{widths[1]}}  {parameters:>{widths[2]}}  {place}"
        for name, objective, parameters, place in table
    )


def recipes() -> RecipeTable:
    """List the recipes: what they train and where in the paper their values stand.

    Those for pre-training come first, then those of tasks.

    Examples:
        unicloze recipes
        unicloze recipes --json
    """
    from unicloze.recipes.summaries import kept_summaries

    kept = kept_summaries()
    return summarised() if kept is None else RecipeTable(RecipeSummary(**row) for row in kept)


def summarised() -> RecipeTable:
    """The recipes as they are read and built now, which takes seconds."""
    from unicloze.mixtures import describe
    from unicloze.recipes import load_recipe, recipe_names, task_names

    return RecipeTable(
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
    )


def keep_summaries() -> None:
    """Write what `unicloze recipes` prints beside the recipes of this checkout: for whoever changed one."""
    from unicloze.recipes.summaries import keep_summaries

    keep_summaries(summarised().to_dict())


def count_parameters(recipe: Recipe) -> int:
    """Weights of the model a recipe describes, if its vocabulary is as large as it asks for; tied ones are counted once."""
    from unicloze.model.build import shapes_only
    from unicloze.training.models import shape_model

    with shapes_only():
        return shape_model(recipe, recipe.tokenizer.vocab_size).num_parameters()


def doctor() -> Examination:
    """Look at this machine: what a run would use of it, and the cure for what is missing.

    Examples:
        unicloze doctor
        unicloze doctor --json
    """
    from unicloze.doctor import examine

    return examine()
