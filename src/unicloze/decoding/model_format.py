"""Chooses how a model generates, from its task or a part of its objective."""

from __future__ import annotations

from unicloze.decoding.abilities import objective_of
from unicloze.decoding.uses import use_of
from unicloze.errors import UsageError
from unicloze.mixtures import parts
from unicloze.objectives import OBJECTIVES
from unicloze.objectives.generation_format import GenerationFormat
from unicloze.objectives.seq2seq import start_ids
from unicloze.settings import ObjectiveSettings, Recipe
from unicloze.tasks import generation
from unicloze.text.vocabulary import Vocabulary

__all__ = ["GenerationFormat", "find_generation_format", "generation_format_of"]


def generation_format_of(recipe: Recipe, vocabulary: Vocabulary, place: str = "DIR") -> GenerationFormat:
    """How a model trained by a recipe generates, by the first part of its objective that can.

    A model fine-tuned to generate does as it learned. Of other models, those trained by sequence-to-sequence objectives come
    before those that go on with a text.

    Args:
        recipe: The recipe.
        vocabulary: Of its tokenizer.
        place: What names the model on the command line, for messages.

    Raises:
        UsageError: No part of its objective can generate, or it is fine-tuned for another task.
    """
    found = find_generation_format(recipe, vocabulary)
    if found is not None:
        return found
    if recipe.task.kind:
        raise UsageError(f"a model fine-tuned for {recipe.task.kind} cannot generate text; {use_of(recipe, place)}")
    names = ", ".join(dict.fromkeys(part.settings.name for part in parts(objective_of(recipe))))
    what = "an encoder without heads" if not objective_of(recipe).trains else f"a model of the objective {names}"
    gaps = [OBJECTIVES[part.settings.name].not_done for part in parts(objective_of(recipe))]
    absent = next((f" ({gap} is not done)" for gap in gaps if gap), "")
    raise UsageError(
        f"{what} cannot generate text{absent}: use one of another objective, such as unilmv2 with the target par, prefix or "
        f"causal; {use_of(recipe, place, predicts_tokens=names != 'none')}"
    )


def find_generation_format(recipe: Recipe, vocabulary: Vocabulary) -> GenerationFormat | None:
    """As `generation_format_of`, but None if the model cannot generate."""
    if recipe.task.kind:
        return _of_task(recipe, vocabulary) if recipe.task.kind == "generation" else None
    options = (_of_part(part.settings, vocabulary) for part in parts(objective_of(recipe)))
    return min((layout for layout in options if layout is not None), key=lambda each: each.decoder_only, default=None)


def _of_part(settings: ObjectiveSettings, vocabulary: Vocabulary) -> GenerationFormat | None:
    generates = OBJECTIVES[settings.name].generates
    return None if generates is None else generates(settings, vocabulary)


def _of_task(recipe: Recipe, vocabulary: Vocabulary) -> GenerationFormat:
    """Layout of a fine-tuned model, as `unicloze.tasks.generation` lays out its rows."""
    by_next = generation.learning_of(recipe) == "next"
    own = generation.pseudo_token(recipe, vocabulary) == "own"
    source, target = generation.segments_of(recipe)
    rows = generation.format_of(recipe)
    return GenerationFormat(
        predicts="next" if by_next else "pseudo",
        start=(vocabulary.sos,) if rows.source_start else (),
        opening=start_ids(vocabulary, rows),
        restarts=rows.restart_positions,
        stop=vocabulary.eos,
        source_segment=source,
        target_segment=target,
        pseudo=None if by_next else vocabulary.pseudo if own else vocabulary.mask,
        decoder_only=generation.reads_left_to_right(recipe),
        delimited=True,
        local_width=recipe.objective.reading.local_width,
        never=tuple(int(i) for i in vocabulary.special if i != vocabulary.eos),
    )
