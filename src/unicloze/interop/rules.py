"""How a trained model is called by others: what its recipe says about reading a text and about writing a target."""

from __future__ import annotations

from unicloze.decoding.abilities import objective_of
from unicloze.decoding.layout import layout_of
from unicloze.mixtures import parts
from unicloze.model.padded import EncodingRule
from unicloze.model.steps import StepRule
from unicloze.objectives.unilmv2 import pseudo_id
from unicloze.settings import ObjectiveSettings, Recipe
from unicloze.text.tokenizers import Vocabulary


def encoding_rule(recipe: Recipe) -> EncodingRule:
    """How a model reads a text with nothing masked, as `embed` does.

    Segments have the ids of the objective's part that reads in that direction, of its first part if none does.
    """
    visibility, options = recipe.use.visibility, [part.settings for part in parts(objective_of(recipe))]
    settings = next((each for each in options if each.visibility == visibility), options[0])
    width = settings.local_width if visibility == "left_to_right" else None
    return EncodingRule(visibility=visibility, segment_ids=_segments(recipe, settings), local_width=width)


def step_rule(recipe: Recipe, vocabulary: Vocabulary) -> StepRule | None:
    """How a model writes a target: as the first part of its objective that trains to; None if no part does.

    Parts with a source of its own come before those that go on with a text. A fine-tuned model writes as it learned to, if
    its task is to write.
    """
    if recipe.task.kind:
        return _of_task(recipe, vocabulary)
    found = [_of_part(recipe, part.settings, vocabulary) for part in parts(objective_of(recipe))]
    rules = [rule for rule in found if rule is not None]
    return min(rules, key=lambda rule: rule.source == "left_to_right", default=None)


def never_written(recipe: Recipe, vocabulary: Vocabulary) -> list[int]:
    """Tokens that a target never holds: all special ones but [EOS], and but the sentinels where targets are made of them."""
    sentinels = not recipe.task.kind and any(
        part.settings.name == "span_corruption" for part in parts(objective_of(recipe))
    )
    written = {vocabulary.eos, *(vocabulary.extra.tolist() if sentinels else [])}
    return sorted({*vocabulary.special.tolist()} - written)


def _of_task(recipe: Recipe, vocabulary: Vocabulary) -> StepRule | None:
    if recipe.task.kind != "generation":
        return None
    layout = layout_of(recipe, vocabulary)
    return StepRule(
        predicts=layout.predicts,
        source="left_to_right" if layout.decoder_only else "bidirectional",
        segment_ids=(layout.source_segment, layout.target_segment),
        pseudo=layout.pseudo,
        local_width=layout.local_width,
    )


def _of_part(recipe: Recipe, settings: ObjectiveSettings, vocabulary: Vocabulary) -> StepRule | None:
    both = _segments(recipe, settings)
    if settings.name == "unilmv2" and "par" in settings.targets:
        return StepRule(predicts="pseudo", segment_ids=both, pseudo=pseudo_id(vocabulary, settings))
    if settings.name in ("prefix", "span_corruption", "denoising"):
        return StepRule(predicts="next", segment_ids=both)
    masked = settings.name == "masked" and "ae" in settings.targets and "rtd" not in settings.targets
    if masked and settings.visibility == "prefix":
        return StepRule(predicts="pseudo", segment_ids=both, pseudo=vocabulary.mask)
    one = (both[0], both[0])
    if masked and settings.visibility == "left_to_right":
        return StepRule(predicts="pseudo", source="left_to_right", segment_ids=one, pseudo=vocabulary.mask)
    if settings.name == "causal" and settings.visibility == "left_to_right":
        width = settings.local_width
        return StepRule(predicts="next", source="left_to_right", segment_ids=one, local_width=width)
    return None


def _segments(recipe: Recipe, settings: ObjectiveSettings) -> tuple[int, int]:
    """Rows of the segment table of the two parts of a window, none beyond its end."""
    named = settings.segment_ids or [0, 1]
    last = max(0, recipe.model.num_segments - 1)
    return min(named[0], last), min(named[-1], last)
