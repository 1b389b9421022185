"""Derives from a recipe how a trained model encodes a text and generates a target."""

from __future__ import annotations

from unicloze.decoding.abilities import read_as
from unicloze.decoding.model_format import find_generation_format
from unicloze.errors import UsageError
from unicloze.model.from_attention_mask import EncoderInputs, StepInputs
from unicloze.settings import Recipe
from unicloze.text.vocabulary import Vocabulary


def encoder_inputs(recipe: Recipe) -> EncoderInputs:
    """How a model reads a text with nothing masked, as `embed` does; no segment lies beyond the end of its table.

    Raises:
        UsageError: It reads from right to left, or is recurrent.
    """
    reading, visibility = read_as(recipe), recipe.use.visibility
    if visibility not in ("bidirectional", "left_to_right") or recipe.model.kind != "transformer":
        raise UsageError(
            "only a Transformer that reads a text in both directions or from left to right can be exported "
            "(use.visibility, model.kind)"
        )
    last = max(0, recipe.model.num_segments - 1)
    first, second = (min(segment, last) for segment in reading.segments)
    return EncoderInputs(visibility=visibility, segment_ids=(first, second), local_width=reading.local_width)


def step_inputs(recipe: Recipe, vocabulary: Vocabulary) -> StepInputs | None:
    """How a model generates a target, see `unicloze.decoding.model_format`.

    None if it cannot, or if its rows hold more than source, target and the tokenizer's special tokens: a token that
    opens the target (MASS) or names the task (UL2).
    """
    layout = find_generation_format(recipe, vocabulary)
    if layout is None or layout.opening or len(layout.start) > 1:
        return None
    last = max(0, recipe.model.num_segments - 1)
    return StepInputs(
        predicts=layout.predicts,
        source="left_to_right" if layout.decoder_only else "bidirectional",
        segment_ids=(min(layout.source_segment, last), min(layout.target_segment, last)),
        pseudo=layout.pseudo,
        local_width=layout.local_width,
    )


def never_written(recipe: Recipe, vocabulary: Vocabulary) -> list[int]:
    """Tokens that a target never contains: all special ones except [EOS], and except sentinels if targets consist of them."""
    layout = find_generation_format(recipe, vocabulary)
    return sorted({*vocabulary.special.tolist()} - {vocabulary.eos} if layout is None else {*layout.never})
