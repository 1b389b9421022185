"""Derives from a recipe how a trained model encodes a text and generates a target."""

from __future__ import annotations

from unicloze.decoding.abilities import objective_of
from unicloze.decoding.layout import find_layout
from unicloze.mixtures import parts
from unicloze.model.from_attention_mask import EncodingRule, StepRule
from unicloze.settings import ObjectiveSettings, Recipe
from unicloze.text.tokenizers import Vocabulary


def encoding_rule(recipe: Recipe) -> EncodingRule:
    """How a model encodes a text with nothing masked, as in `embed`.

    Segment ids are those of the objective's part with the same visibility, or of its first part.
    """
    visibility, options = recipe.use.visibility, [part.settings for part in parts(objective_of(recipe))]
    settings = next((each for each in options if each.visibility == visibility), options[0])
    width = settings.local_width if visibility == "left_to_right" else None
    return EncodingRule(visibility=visibility, segment_ids=_segments(recipe, settings), local_width=width)


def step_rule(recipe: Recipe, vocabulary: Vocabulary) -> StepRule | None:
    """How a model generates a target, see `unicloze.decoding.layout`.

    None if it cannot, or if its rows hold more than source, target and the tokenizer's special tokens: a token that
    opens the target (MASS) or names the task (UL2).
    """
    layout = find_layout(recipe, vocabulary)
    if layout is None or layout.opening is not None or len(layout.start) > 1:
        return None
    last = max(0, recipe.model.num_segments - 1)
    return StepRule(
        predicts=layout.predicts,
        source="left_to_right" if layout.decoder_only else "bidirectional",
        segment_ids=(min(layout.source_segment, last), min(layout.target_segment, last)),
        pseudo=layout.pseudo,
        local_width=layout.local_width,
    )


def never_written(recipe: Recipe, vocabulary: Vocabulary) -> list[int]:
    """Tokens that a target never contains: all special ones except [EOS], and except sentinels if targets consist of them."""
    sentinels = not recipe.task.kind and any(
        part.settings.name == "span_corruption" for part in parts(objective_of(recipe))
    )
    written = {vocabulary.eos, *(vocabulary.extra.tolist() if sentinels else [])}
    return sorted({*vocabulary.special.tolist()} - written)


def _segments(recipe: Recipe, settings: ObjectiveSettings) -> tuple[int, int]:
    """Segment ids of the two parts of a window, limited to the segment table."""
    named = settings.segment_ids or [0, 1]
    last = max(0, recipe.model.num_segments - 1)
    return min(named[0], last), min(named[-1], last)
