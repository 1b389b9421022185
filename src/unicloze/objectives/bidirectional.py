"""Bidirectional language models: a text is read from left to right and, apart, from right to left (ELMo).

A row is the window twice: its first half is that of a causal model from left to right, its second that of one from right to
left, and neither half reads the other. `lm` predicts from the first, `lm_back` from the second; the losses are added
(Peters et al. 2018, equation 1 of Section 3.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze.example import Examples, Kind, Target
from unicloze.objectives.causal import CausalSettings, causal, lay_out
from unicloze.objectives.groups import Segments
from unicloze.objectives.objective import Objective
from unicloze.settings import Bounds, Reading
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows

BOTH = "both_directions"
"""The visibility of such rows."""


@dataclass(frozen=True, kw_only=True)
class BidirectionalSettings(Segments):
    """Settings of bidirectional language models."""

    name: str = "bidirectional_lm"

    known_targets = "lm", "lm_back"

    @property
    def reading(self) -> Reading:
        """How the rows read a text: in both directions, one apart from the other."""
        return super().reading._replace(visibility=BOTH)

    @property
    def forgets(self) -> str | None:
        """Why rows cannot use the memory of earlier rows."""
        return "the two halves of a row go on in different directions"

    def bounds(self, window: int, rates: Any = ()) -> Bounds:
        """Upper bounds on the size of any row: twice the window."""
        return Bounds(slots=2 * window, predictions=2 * window, positions=window)


def bidirectional_lm(
    windows: Windows,
    vocabulary: Vocabulary,
    settings: BidirectionalSettings,
    rates: npt.NDArray[np.float64] | None = None,
) -> Examples:
    """Rows that predict each token from those before it and from those behind it, without random draws.

    Args:
        windows: The text.
        vocabulary: Provides the id of [UNK], which is visible but never predicted.
        settings: Targets and segments.
        rates: Not used: nothing is masked.
    """
    halves = {
        name: causal(windows, vocabulary, _of(settings, visibility))
        for name, visibility in (("lm", "left_to_right"), ("lm_back", "right_to_left"))
    }
    return _joined(halves, windows, vocabulary, settings)


def chain(windows: Windows, vocabulary: Vocabulary, settings: BidirectionalSettings) -> Examples:
    """Rows that predict every maskable token from those left of it, by ascending position."""
    return lay_out(windows, _of(settings, "left_to_right"), answers=windows.maskable)


def _of(settings: BidirectionalSettings, visibility: Any) -> CausalSettings:
    return CausalSettings(targets=["lm"], visibility=visibility, segment_ids=settings.segment_ids)


def _joined(
    halves: Mapping[str, Examples], windows: Windows, vocabulary: Vocabulary, settings: BidirectionalSettings
) -> Examples:
    """One row of both halves, without the padding between them."""
    first = halves["lm"]
    rows, lengths = len(windows), windows.lengths
    width = 2 * windows.token_ids.shape[1]
    slot = np.arange(width, dtype=np.int32)
    half = np.where(slot < lengths[:, None], 0, np.where(slot < 2 * lengths[:, None], 1, 2))
    place = np.where(half == 1, slot - lengths[:, None], np.where(half == 0, slot, 0)).astype(np.int32)
    row = np.arange(rows)[:, None]
    real = half < 2

    def doubled(column: npt.NDArray[np.int32], padding: int) -> npt.NDArray[np.int32]:
        return np.where(real, column[row, place], padding).astype(np.int32)

    intervals = np.zeros((rows, width, 4), dtype=np.int32)
    intervals[:, :, 0], intervals[:, :, 1] = slot, slot + 1
    for number, examples in enumerate(halves.values()):
        own = examples.intervals[row, place]
        for column in range(2):
            np.copyto(intervals[:, :, column], own[:, :, column] + number * lengths[:, None], where=half == number)
    targets = {
        name: target if name == "lm" else replace(target, slots=_moved(target, lengths))
        for name, examples in halves.items()
        for target in (examples.targets["lm"],)
        if name in settings.targets
    }
    return Examples(
        input_ids=doubled(first.input_ids, vocabulary.pad),
        position_ids=place,
        segment_ids=doubled(first.segment_ids, 0),
        kinds=np.where(real, Kind.CONTEXT, Kind.PADDING).astype(np.uint8),
        steps=np.full((rows, width), -1, dtype=np.int32),
        intervals=intervals,
        lengths=(2 * lengths).astype(np.int32),
        mutual=np.zeros(rows, dtype=np.int32),
        text_tokens=lengths,
        targets=targets,
    )


def _moved(target: Target, lengths: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Slots of the second half."""
    return np.where(target.weights > 0, target.slots + lengths[:, None], 0).astype(np.int32)


OBJECTIVES: Mapping[str, Objective[Any]] = {
    "bidirectional_lm": Objective(
        settings=BidirectionalSettings,
        make=bidirectional_lm,
        causal=chain,
        defines=lambda settings: {"causal"} if "lm" in settings.targets else set(),
    )
}
