"""Describes what a trained model can do, for error messages when it is asked for something else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicloze.decoding.abilities import objective_of, part_with
from unicloze.errors import UsageError
from unicloze.run_files import BEST, CHECKPOINTS
from unicloze.tasks import TASKS

if TYPE_CHECKING:
    from unicloze.settings import Recipe
    from unicloze.training.loading import LoadedModel

MASKED = '"Some [MASK] text."'
ANY = '"Some text."'
WEIGHTS_TO_WRITE = 50_000_000
"""A pre-trained model with fewer weights is fluent for a few words, then repeats itself."""


def check_predicts_tokens(model: LoadedModel, what: str) -> None:
    """Reject a model without a head that predicts tokens, such as a classifier.

    Args:
        model: The model.
        what: What it was asked to do, such as "fill masks".

    Raises:
        UsageError: It has no such head; the message names what the model can do.
    """
    if not hasattr(model.model, "token_head"):
        recipe = model.recipe
        kind = f"a model fine-tuned for {recipe.task.kind}" if recipe.task.kind else "a model without a head for tokens"
        raise UsageError(f"{kind} cannot {what}; {instead(model)}")


def writes_briefly(model: LoadedModel) -> bool:
    """Whether a model that is not fine-tuned is too small to write more than a few words."""
    return not model.recipe.task.kind and model.model.num_parameters() < WEIGHTS_TO_WRITE


def instead(model: LoadedModel) -> str:
    """What a model can do, with the command, such as "it fills masks: `unicloze fill ...`"."""
    return use_of(model.recipe, place_of(model), predicts_tokens=hasattr(model.model, "token_head"))


def use_of(recipe: Recipe, place: str = "DIR", *, predicts_tokens: bool = True) -> str:
    """Like `instead`, from a model's recipe and path."""
    kind, objective = recipe.task.kind, objective_of(recipe)
    if kind == "generation":
        return f"it writes texts: `unicloze generate --model {place} --text {ANY}`"
    if kind:
        task, purpose = TASKS[kind], TASKS[kind].purpose
        given = f"--text {ANY}" if len(set(task.texts) - set(task.optional)) == 1 else "--file FILE"
        return f"it {purpose[0].lower()}{purpose[1:-1]}: `unicloze predict --model {place} {given}`"
    if predicts_tokens and (part_with(objective, "cloze") or part_with(objective, "stepwise")):
        return f"it fills masks: `unicloze fill --model {place} --text {MASKED}`"
    if predicts_tokens and part_with(objective, "causal"):
        return f"it scores texts: `unicloze score --model {place} --text {ANY}`"
    return f"it turns texts into vectors: `unicloze embed --model {place} --text {ANY}`"


def place_of(model: LoadedModel) -> str:
    """The path to name a model on the command line: its run rather than a checkpoint in it."""
    path = model.path
    return str(path.parent.parent if path.parent.name in (CHECKPOINTS, BEST) else path)
