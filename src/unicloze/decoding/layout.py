"""How a model generates: the row its source and its target stand in, and which slot predicts the next token.

A row is "[SOS] source [EOS] target [EOS]"; the source reads itself, a slot of the target the source and the target up to
itself. Either the last token's own slot predicts the next one, or a pseudo mask does that stands at the next position and
reads source, target and itself (UniLMv2, Section 3.4). A model without sources reads "[SOS] text" from left to right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from unicloze.decoding.abilities import objective_of
from unicloze.decoding.uses import use_of
from unicloze.errors import UsageError
from unicloze.mixtures import parts
from unicloze.settings import ObjectiveSettings, Recipe
from unicloze.tasks import generation
from unicloze.text.tokenizers import Vocabulary

Ints = npt.NDArray[np.int32]

NEXT_AFTER_SOURCE = "prefix", "span_corruption", "denoising", "masked_span"
"""Objectives whose target predicts its next token, as `unicloze.objectives.seq2seq` lays it out."""


@dataclass(frozen=True, kw_only=True)
class GenerationLayout:
    """Where source and target stand, and what predicts.

    Args:
        predicts: `next`, the last token's own slot, or `pseudo`, a mask at the next position.
        start: What every row starts with: [SOS], and a mode token if the objective has one.
        stop: Ends a source and is predicted at the end of a text: [EOS].
        source_segment: Segment of the source, its [SOS] and [EOS] included.
        target_segment: Segment of the target and of its pseudo masks.
        pseudo: The pseudo mask; None if none predicts.
        opening: A token between source and target that predicts the target's first token (MASS); None if there is none.
        decoder_only: There is no source: what is given is the beginning of the text, read from left to right.
        delimited: An [EOS] parts the source from the target, also in a decoder-only model, whose source is then read from
            left to right.
        local_width: How many positions back layers read that read nearby slots only.
        never: Tokens that are never predicted.
        may_repeat: Tokens with which a sequence may repeat whatever `DecodingSettings.no_repeat_ngram` says.
    """

    predicts: Literal["pseudo", "next"]
    start: tuple[int, ...]
    stop: int
    source_segment: int = 0
    target_segment: int = 1
    pseudo: int | None = None
    opening: int | None = None
    decoder_only: bool = False
    delimited: bool | None = None
    local_width: int | None = None
    never: tuple[int, ...] = ()
    may_repeat: tuple[int, ...] = ()

    @property
    def specials(self) -> int:
        """Slots of a row that hold neither source nor target: those before the target."""
        return len(self.start) + self.ends_source + (self.opening is not None)

    @property
    def ends_source(self) -> bool:
        """Whether an [EOS] stands behind the source."""
        return not self.decoder_only if self.delimited is None else self.delimited

    def row(self, source: Sequence[int] | npt.NDArray[np.integer]) -> Ints:
        """The slots before the target that read each other. *Shape:* (slots,)"""
        end = [self.stop] if self.ends_source else []
        return np.array([*self.start, *source, *end], dtype=np.int32)


def layout_of(recipe: Recipe, vocabulary: Vocabulary, place: str = "DIR") -> GenerationLayout:
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
    found = find_layout(recipe, vocabulary)
    if found is not None:
        return found
    if recipe.task.kind:
        raise UsageError(f"a model fine-tuned for {recipe.task.kind} cannot generate text; {use_of(recipe, place)}")
    names = ", ".join(dict.fromkeys(part.settings.name for part in parts(objective_of(recipe))))
    what = "an encoder without heads" if names == "none" else f"a model trained by {names}"
    raise UsageError(
        f"{what} cannot generate text: use one of another objective, such as unilmv2 with the target par, prefix or causal; "
        f"{use_of(recipe, place, predicts_tokens=names != 'none')}"
    )


def find_layout(recipe: Recipe, vocabulary: Vocabulary) -> GenerationLayout | None:
    """As `layout_of`, None if the model cannot generate."""
    if recipe.task.kind:
        return _of_task(recipe, vocabulary) if recipe.task.kind == "generation" else None
    options = (_of_part(part.settings, vocabulary) for part in parts(objective_of(recipe)))
    return min((layout for layout in options if layout is not None), key=lambda each: each.decoder_only, default=None)


def _of_part(settings: ObjectiveSettings, vocabulary: Vocabulary) -> GenerationLayout | None:
    name, reads, predicted = settings.name, settings.visibility, set(settings.targets)
    segments = settings.segment_ids or [0, 1]
    mode = () if settings.mode_token is None else (int(vocabulary.extra[settings.mode_token]),)
    spelled = vocabulary.extra.tolist() if name == "span_corruption" else []
    never = tuple(int(i) for i in vocabulary.special if i != vocabulary.eos and i not in spelled)
    mask = vocabulary.mask

    def layout(predicts: Literal["pseudo", "next"], **more: object) -> GenerationLayout:
        common = dict(start=(vocabulary.sos, *mode), stop=vocabulary.eos, never=never, source_segment=segments[0])
        common["target_segment"] = segments[-1]
        return GenerationLayout(predicts=predicts, **(common | more))  # type: ignore[arg-type]

    if name == "unilmv2" and "par" in predicted:
        own = settings.pseudo_token == "own" and vocabulary.pseudo is not None
        return layout("pseudo", pseudo=vocabulary.pseudo if own else mask)
    if name == "masked" and "ae" in predicted and "rtd" not in predicted:
        if reads == "prefix":
            return layout("pseudo", pseudo=mask)
        if reads == "left_to_right":
            return layout("pseudo", pseudo=mask, decoder_only=True, target_segment=segments[0])
    if name == "causal" and reads == "left_to_right":
        return layout("next", decoder_only=True, target_segment=segments[0], local_width=settings.local_width)
    if name in NEXT_AFTER_SOURCE:
        return layout("next", opening=mask if name == "masked_span" else None)
    return None


def _of_task(recipe: Recipe, vocabulary: Vocabulary) -> GenerationLayout:
    """How a fine-tuned model generates: as `unicloze.tasks.generation` lays out its rows."""
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
        local_width=recipe.objective.local_width,
        never=tuple(int(i) for i in vocabulary.special if i != vocabulary.eos),
    )
