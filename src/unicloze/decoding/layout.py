"""Chooses how a model generates, from its task or a part of its objective."""

from __future__ import annotations

from unicloze.decoding.abilities import objective_of
from unicloze.errors import UsageError
from unicloze.mixtures import parts
from unicloze.objectives import OBJECTIVES
from unicloze.objectives.generation_layout import GenerationLayout
from unicloze.settings import ObjectiveSettings, Recipe
from unicloze.tasks import generation
from unicloze.text.tokenizers import Vocabulary

__all__ = ["GenerationLayout", "find_layout", "layout_of"]


def layout_of(recipe: Recipe, vocabulary: Vocabulary) -> GenerationLayout:
    """The generation layout of a model trained by a recipe, from the first part of its objective that can generate.

    A model fine-tuned to generate uses the layout of its task. For other models, sequence-to-sequence objectives take
    precedence over those that continue a text.

    Raises:
        UsageError: No part of the objective can generate, or the model is fine-tuned for another task.
    """
    found = find_layout(recipe, vocabulary)
    if found is not None:
        return found
    if recipe.task.kind:
        raise UsageError(
            f"a model fine-tuned for {recipe.task.kind} cannot generate text: use one of a task that generates"
        )
    names = ", ".join(dict.fromkeys(part.settings.name for part in parts(objective_of(recipe))))
    what = "an encoder without heads" if not objective_of(recipe).trains else f"a model trained by {names}"
    raise UsageError(
        f"{what} cannot generate text: use one of another objective, such as unilmv2 with the target "
        "par, prefix or causal"
    )


def find_layout(recipe: Recipe, vocabulary: Vocabulary) -> GenerationLayout | None:
    """As `layout_of`, but None if the model cannot generate."""
    if recipe.task.kind:
        return _of_task(recipe, vocabulary) if recipe.task.kind == "generation" else None
    options = (_of_part(part.settings, vocabulary) for part in parts(objective_of(recipe)))
    return min((layout for layout in options if layout is not None), key=lambda each: each.decoder_only, default=None)


def _of_part(settings: ObjectiveSettings, vocabulary: Vocabulary) -> GenerationLayout | None:
    generates = OBJECTIVES[settings.name].generates
    return None if generates is None else generates(settings, vocabulary)


def _of_task(recipe: Recipe, vocabulary: Vocabulary) -> GenerationLayout:
    """Layout of a fine-tuned model, as `unicloze.tasks.generation` lays out its rows."""
    by_next = generation.learning_of(recipe) == "next"
    own = generation.pseudo_token(recipe, vocabulary) == "own"
    source, target = generation.segments_of(recipe)
    return GenerationLayout(
        predicts="next" if by_next else "pseudo",
        start=(vocabulary.sos,),
        stop=vocabulary.eos,
        source_segment=source,
        target_segment=target,
        pseudo=None if by_next else vocabulary.pseudo if own else vocabulary.mask,
        decoder_only=generation.reads_left_to_right(recipe),
        delimited=True,
        local_width=recipe.objective.reading.local_width,
        never=tuple(int(i) for i in vocabulary.special if i != vocabulary.eos),
    )
