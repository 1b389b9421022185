"""How a trained model writes a text: the row its source and its target stand in, and which slot predicts the next token.

A row is "[SOS] source [EOS] target [EOS]"; the source reads itself, a slot of the target the source and the target up to
itself. Either the last token's own slot predicts the next one, or a pseudo mask does that stands at the next position and
reads source, target and itself (UniLMv2, Section 3.4). A model without sources reads "[SOS] text" from left to right.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from unicloze.settings import ObjectiveSettings
from unicloze.text.tokenizers import Vocabulary

Ints = npt.NDArray[np.int32]


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


def layout(
    settings: ObjectiveSettings,
    vocabulary: Vocabulary,
    *,
    predicts: Literal["pseudo", "next"],
    pseudo: int | None = None,
    opening: int | None = None,
    mode: int | None = None,
    decoder_only: bool = False,
    written: Collection[int] = (),
) -> GenerationLayout:
    """How a model of an objective writes, with the segments its rows have.

    Args:
        settings: Of the objective.
        vocabulary: Ids of the special tokens, of which a text holds none but [EOS].
        predicts: As of `GenerationLayout`.
        pseudo: The same.
        opening: The same.
        mode: A token that names the task in front of the source; none if None.
        decoder_only: As of `GenerationLayout`.
        written: Special tokens that a text may hold all the same.
    """
    reading = settings.reading
    source, target = reading.segments
    return GenerationLayout(
        predicts=predicts,
        start=(vocabulary.sos,) if mode is None else (vocabulary.sos, mode),
        stop=vocabulary.eos,
        source_segment=source,
        target_segment=source if decoder_only else target,
        pseudo=pseudo,
        opening=opening,
        decoder_only=decoder_only,
        local_width=reading.local_width,
        never=tuple(int(i) for i in vocabulary.special if i != vocabulary.eos and i not in written),
    )
