"""The verbs `recipes` and `doctor`: what is available here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicloze.files import PlainList

if TYPE_CHECKING:
    from unicloze.doctor import Examination
    from unicloze.settings import Recipe


@dataclass(frozen=True, kw_only=True)
class RecipeSummary:
    """One row of `unicloze recipes`.

    Args:
        name: Name of the recipe.
        objective: Objective and targets, such as `unilmv2 ae+par`, of each distinct part of a mixture; for a task its kind
            and metrics.
        parameters: Number of model weights at the requested vocabulary size; None for a task, which takes any model.
        paper: Title of the paper that the values are from.
        place: Location of the values in the paper.
    """

    name: str
    objective: str
    parameters: int | None
    paper: str
    place: str


class RecipeTable(PlainList[RecipeSummary]):
    """All recipes; `str` renders two tables, one for `pretrain` and one for `finetune`."""

    def __str__(self) -> str:
        pretraining = [row for row in self if row.parameters is not None]
        tasks = [row for row in self if row.parameters is None]
        tables = []
        for rows, head in ((pretraining, ("objective", "parameters")), (tasks, ("task", ""))):
            table = [("recipe", *head, "values from")]
            for row in rows:
                size = "" if row.parameters is None else f"{row.parameters:,}"
                source = f"{row.paper.partition(':')[0]}: {row.place}" if row.paper else row.place
                table.append((row.name, row.objective, size, source))
            first, second, third, _ = (max(map(len, column)) for column in zip(*table, strict=True))
            tables.append("\n".join(f"{a:<{first}}  {b:<{second}}  {c:>{third}}  {d}" for a, b, c, d in table))
        return "\n\n".join(tables)


def recipes() -> RecipeTable:
    """List the recipes: what they train and where in the paper their values come from.

    Pre-training recipes come first, then task recipes.

    Examples:
        unicloze recipes
        unicloze recipes --json
    """
    from unicloze.recipes import kept_summaries

    kept = kept_summaries()
    return summarised() if kept is None else RecipeTable(RecipeSummary(**row) for row in kept)


def summarised() -> RecipeTable:
    """Summarise the recipes by reading and building each, which takes seconds."""
    from unicloze.mixtures import describe
    from unicloze.recipes import load_recipe, recipe_names, task_names

    table = RecipeTable()
    for recipe in map(load_recipe, [*recipe_names(), *task_names()]):
        source, task = {"paper": recipe.provenance.paper, "place": recipe.provenance.place}, recipe.task
        objective = f"{task.kind}: {', '.join(task.metrics)}" if task.kind else describe(recipe.objective)
        parameters = None if task.kind else count_parameters(recipe)
        table.append(RecipeSummary(name=recipe.name, objective=objective, parameters=parameters, **source))
    return table


def keep_summaries() -> None:
    """Update this checkout's stored summaries for `unicloze recipes`; run it after changing a recipe."""
    from unicloze.progress import say
    from unicloze.recipes import KEPT, keep_summaries

    keep_summaries(found := summarised().to_dict())
    say(f"{KEPT}: {len(found)} recipes")


def count_parameters(recipe: Recipe) -> int:
    """Number of weights of a recipe's model at the requested vocabulary size; tied weights count once."""
    from unicloze.model.build import shapes_only
    from unicloze.training.loading import shape_model

    with shapes_only():
        return shape_model(recipe, recipe.tokenizer.vocab_size).num_parameters()


def doctor() -> Examination:
    """Check this machine: what a run would use, and how to fix what is missing.

    Examples:
        unicloze doctor
        unicloze doctor --json
    """
    from unicloze.doctor import examine

    return examine()
