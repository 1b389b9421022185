"""Language models without masks: causal (GPT, GPT-2, GPT-3) and bidirectional (ELMo).

A row is the unchanged window. From left to right, the slot of [SOS] predicts the first token, the slot of each token the
next one, and the slot of the last token [EOS]; right to left is the mirror image, and [SOS] ends the text. `lm` is predicted
at these slots. [EOS] and [SOS] are predicted only where a document ends or begins, not where a window was cut out of one.
`Examples.local` holds the visibility of local layers (GPT-3).

A bidirectional model reads a text from left to right and, apart, from right to left. A row is the window twice: its first
half is that of a causal model from left to right, its second that of one from right to left, and neither half reads the
other. `lm` is predicted from the first, `lm_back` from the second; the losses are added (Peters et al. 2018, equation 1 of
Section 3.1).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from unicloze import visibility
from unicloze.arrays import Flags
from unicloze.errors import UsageError
from unicloze.example import Examples, Kind
from unicloze.objectives.generation_format import GenerationFormat, layout
from unicloze.objectives.groups import Directed, Segments
from unicloze.objectives.masking import Rates
from unicloze.objectives.objective import Ability, Objective
from unicloze.objectives.row_builder import Joined, MaskedTokens, RowBuilder, named_segments, target_of, unknown_words
from unicloze.rules import NOT_NEGATIVE, Needs, Problem, setting
from unicloze.settings import Bounds, Reading, Recipe
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows
from unicloze.visibility import Intervals

_DIRECTIONS: Mapping[str, tuple[Callable[..., Intervals], int]] = {
    "left_to_right": (visibility.left_to_right_rows, -1),
    "right_to_left": (visibility.right_to_left_rows, 1),
}
"""The visibility of each reading direction, and the offset from an answer to the slot that predicts it."""


@dataclass(frozen=True, kw_only=True)
class CausalSettings(Directed):
    """Settings of causal language models.

    Args:
        local_width: Number of slots to the left that a slot attends to in layers with `model.layer_visibility` `local`
            (GPT-3).
    """

    name: str = "causal"
    local_width: int | None = setting(
        None,
        NOT_NEGATIVE,
        Needs("'local' in model.layer_visibility", lambda recipe: "local" in recipe.model.layer_visibility),
    )

    known_targets = ("lm",)
    in_order = True

    @property
    def reading(self) -> Reading:
        """How the rows read a text, including the width of local layers."""
        return super().reading._replace(local_width=self.local_width)

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Reject directions in which a slot would see its answer."""
        yield from super().problems(recipe)
        if self.visibility not in _DIRECTIONS:
            yield "objective.visibility", f"objective causal needs {' or '.join(_DIRECTIONS)}"


def causal(windows: Windows, vocabulary: Vocabulary, settings: CausalSettings, rates: Rates | None = None) -> Examples:
    """Rows that predict each token from those before it, without random draws.

    [UNK] and special tokens at a cut are visible but never predicted.

    Args:
        windows: The text.
        vocabulary: Provides the id of [UNK].
        settings: Reading direction and width of local layers.
        rates: Not used: nothing is masked.
    """
    answers = np.arange(windows.token_ids.shape[1]) < windows.lengths[:, None]
    answers &= ~unknown_words(windows.token_ids, vocabulary)
    return lay_out(windows, vocabulary, settings, answers=answers if windows.cut is None else answers & ~windows.cut)


def chain(windows: Windows, vocabulary: Vocabulary, settings: CausalSettings) -> Examples:
    """Rows that predict every maskable token from those before it in the reading direction, by ascending position."""
    return lay_out(windows, vocabulary, settings, answers=windows.maskable)


def lay_out(windows: Windows, vocabulary: Vocabulary, settings: CausalSettings, *, answers: Flags) -> Examples:
    """Rows that predict the given tokens, except those without a slot before them.

    Args:
        windows: The text.
        vocabulary: Provides the id of padding.
        settings: Reading direction and width of local layers.
        answers: The tokens to predict. *Shape:* (rows, window)
    """
    if settings.visibility not in _DIRECTIONS:
        raise UsageError(
            f"objective.visibility is {settings.visibility}, which lets a slot see its own answer: set "
            f"--objective.visibility {' or '.join(_DIRECTIONS)}."
        )
    reads, shift = _DIRECTIONS[settings.visibility]
    window, lengths = windows.token_ids.shape[1], windows.lengths
    rows = RowBuilder(named_segments(windows, settings.reading), MaskedTokens.none(len(windows)), vocabulary, window)
    rows.put_windows()
    slot = np.arange(window) + shift
    row, position = np.nonzero(answers & (slot >= 0) & (slot < lengths[:, None]))
    labels = windows.token_ids[row, position]
    intervals = reads(lengths, capacity=window)
    return rows.examples(
        intervals,
        local=None if settings.local_width is None else visibility.nearby(intervals, settings.local_width),
        lengths=lengths,
        mutual=np.zeros_like(lengths),
        targets={"lm": target_of(row, position + shift, labels, rows=len(windows), width=window - 1)},
    )


def _generates(settings: CausalSettings, vocabulary: Vocabulary) -> GenerationFormat | None:
    return layout(settings, vocabulary, predicts="next", decoder_only=True) if _to_the_right(settings) else None


def _defines(settings: CausalSettings) -> set[Ability]:
    return {"causal"} if _to_the_right(settings) else set()


def _to_the_right(settings: CausalSettings) -> bool:
    return settings.visibility == "left_to_right"


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
    windows: Windows, vocabulary: Vocabulary, settings: BidirectionalSettings, rates: Rates | None = None
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
    lengths, window = windows.lengths, windows.token_ids.shape[1]
    joined = Joined(lengths, 2, window)
    slot = np.arange(joined.width, dtype=np.int32)
    first = halves["lm"]
    intervals = np.zeros((len(windows), joined.width, 4), dtype=np.int32)
    reads = np.stack(
        [half.intervals + number * lengths[:, None, None] for number, half in enumerate(halves.values())], 1
    )
    for column in range(2):
        intervals[:, :, column] = joined(reads[..., column], slot + column)
    targets = {name: half.targets["lm"] for name, half in halves.items() if name in settings.targets}
    if "lm_back" in targets:
        back = targets["lm_back"]
        moved = np.where(back.weights > 0, back.slots + lengths[:, None], 0).astype(np.int32)
        targets["lm_back"] = dataclasses.replace(back, slots=moved)
    return Examples(
        input_ids=joined(first.input_ids[:, None], vocabulary.pad),
        position_ids=joined(first.position_ids[:, None], 0),
        segment_ids=joined(first.segment_ids[:, None], 0),
        kinds=joined(first.kinds[:, None], Kind.PADDING),
        steps=np.full((len(windows), joined.width), -1, dtype=np.int32),
        intervals=intervals,
        lengths=(2 * lengths).astype(np.int32),
        mutual=np.zeros_like(lengths),
        text_tokens=lengths,
        targets=targets,
    )


def chain_forward(windows: Windows, vocabulary: Vocabulary, settings: BidirectionalSettings) -> Examples:
    """Rows that predict every maskable token from those left of it, by ascending position."""
    return lay_out(windows, vocabulary, _of(settings, "left_to_right"), answers=windows.maskable)


def _of(settings: BidirectionalSettings, visibility: Any) -> CausalSettings:
    return CausalSettings(targets=["lm"], visibility=visibility, segment_ids=settings.segment_ids)


OBJECTIVES: Mapping[str, Objective[Any]] = {
    "causal": Objective(settings=CausalSettings, make=causal, causal=chain, defines=_defines, generates=_generates),
    "bidirectional_lm": Objective(
        settings=BidirectionalSettings,
        make=bidirectional_lm,
        causal=chain_forward,
        defines=lambda settings: {"causal"} if "lm" in settings.targets else set(),
    ),
}
