"""Layout of rows for generation: where source and target are, and which slot predicts the next token.

A row is "[SOS] source [EOS] target [EOS]"; source slots see the source, target slots the source and the target up to
themselves. The next token is predicted by the last token's own slot, or by a pseudo mask at the next position that sees
source, target and itself (UniLMv2, Section 3.4). A model without sources reads "[SOS] text" from left to right, or the text
alone if its vocabulary has no [SOS] (GPT-2).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from unicloze.arrays import Int32s
from unicloze.settings import ObjectiveSettings
from unicloze.text.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class GenerationFormat:
    """Layout of generation rows, and what predicts the next token."""

    predicts: Literal["pseudo", "next"]  # `next`, the last token's own slot, or `pseudo`, a mask at the next position
    # tokens at the start of every row: [SOS], if the vocabulary has one besides [EOS], and a mode token if the
    # objective has one
    start: tuple[int, ...]
    stop: int  # the token that ends a source and is predicted at the end of a text: [EOS]
    source_segment: int = 0  # segment of the source, its [SOS] and [EOS] included
    target_segment: int = 1  # segment of the target and of its pseudo masks
    pseudo: int | None = None  # id of the pseudo mask; None if it is not used
    # tokens between source and target, the last of which predicts the target's first token (MASS, encoder-decoders)
    opening: tuple[int, ...] = ()
    restarts: bool = False  # whether positions count from 0 again after the source
    # whether there is no source: the prompt is the beginning of the text, read from left to right
    decoder_only: bool = False
    # whether an [EOS] ends the source; in a decoder-only model it is then a source, read from left to right
    ends_source: bool = True
    local_width: int | None = None  # number of positions back that local layers attend to
    never: tuple[int, ...] = ()  # tokens that are never predicted
    may_repeat: tuple[int, ...] = ()  # tokens whose sequences may repeat despite `DecodingSettings.no_repeat_ngram`

    def room(self, positions: int, max_length: int) -> int:
        """Most tokens of a source before a target of at most `max_length` tokens.

        Args:
            positions: Positions of the model.
            max_length: Tokens of the longest target.

        Returns:
            0 or less if there is no room for any source.
        """
        after = max_length + len(self.opening)
        if self.restarts:
            after = 0 if after <= positions else positions
        return positions - after - len(self.row([]))

    def row(self, source: Sequence[int] | npt.NDArray[np.integer]) -> Int32s:
        """Token ids before the target, without its opening. *Shape:* (slots,)"""
        end = [self.stop] if self.ends_source else []
        return np.array([*self.start, *source, *end], dtype=np.int32)


def layout(
    settings: ObjectiveSettings,
    vocabulary: Vocabulary,
    *,
    predicts: Literal["pseudo", "next"],
    pseudo: int | None = None,
    mode: int | None = None,
    decoder_only: bool = False,
    written: Collection[int] = (),
) -> GenerationFormat:
    """The generation layout of an objective, with the segments of its training rows.

    Args:
        settings: Settings of the objective.
        vocabulary: Ids of the special tokens; only [EOS] may be predicted.
        predicts: See `GenerationFormat`.
        pseudo: See `GenerationFormat`.
        mode: A token before the source that names the task; None for none.
        decoder_only: See `GenerationFormat`.
        written: Further special tokens that may be predicted.
    """
    reading = settings.reading
    source, target = reading.segments
    opened = not decoder_only or vocabulary.sos != vocabulary.eos
    return GenerationFormat(
        predicts=predicts,
        start=((vocabulary.sos,) if opened else ()) + (() if mode is None else (mode,)),
        stop=vocabulary.eos,
        source_segment=source,
        target_segment=source if decoder_only else target,
        pseudo=pseudo,
        decoder_only=decoder_only,
        ends_source=not decoder_only,
        local_width=reading.local_width,
        never=tuple(int(i) for i in vocabulary.special if i != vocabulary.eos and i not in written),
    )
