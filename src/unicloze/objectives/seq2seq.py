"""Sequence-to-sequence rows: the source sees itself, the target sees the source and its own past.

A single stack reads such a row by its visibility alone (UniLM v1, Section 2.3; T5, Section 3.2, "prefix LM"); an
encoder-decoder reads the source with its encoder and the rest with its decoder. A row is

    [SOS] source [EOS] target [EOS]

with a mode token after [SOS] if `settings.mode_token` is given, without [SOS] if `settings.source_start` is false, and with
`settings.target_start` before the target. `lm` is predicted: the slot before the target predicts its first token, each token
of the target the next one, the last one the closing [EOS], which no slot sees. Source and target have different segments.
Positions continue from source to target unless an objective or `settings.restart_positions` overrides them.

The text of a window is its tokens in order, without any [EOS] between segments or documents. [UNK] is visible, masked and
moved like any other token, but never predicted.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from unicloze import keyed, visibility
from unicloze.arrays import Flags, Int64s
from unicloze.errors import UsageError
from unicloze.example import Examples, Kind, Target
from unicloze.objectives.generation_format import GenerationFormat, layout
from unicloze.objectives.groups import MaskRate, Segments
from unicloze.objectives.masking import Rates, per_row, rates_of, within
from unicloze.objectives.objective import Ability, Objective
from unicloze.objectives.row_builder import target_of, unknown_words, without_unknown
from unicloze.rules import Problem
from unicloze.settings import Bounds, Recipe
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows


@dataclass(frozen=True, kw_only=True)
class SourceTarget(MaskRate, Segments):
    """Common settings of all sequence-to-sequence objectives; subclasses define the size of their rows.

    Args:
        mode_token: Index of the extra token that names the task in front of the source (UL2); default: none. Sentinels are
            the extra tokens from index 0, so a mode token must come after all of them.
        source_start: Begin the source with [SOS]; T5 does not.
        target_start: Special tokens before the target, the last of which predicts its first token: a decoder's start slot
            (T5: `[pad]`, BART: `[eos, sos]`). Without any, the source's [EOS] predicts that token. Default: `[mask]` for
            `masked_span` (MASS), else none.
        restart_positions: Count the positions of the target from 0, as encoder-decoders with positions of their own do
            (Transformer, BART).
    """

    mode_token: int | None = None
    source_start: bool = True
    target_start: list[Literal["pad", "sos", "eos", "mask"]] | None = None
    restart_positions: bool = False

    known_targets: ClassVar = ("lm",)

    @property
    def forgets(self) -> str:
        """Why rows cannot use the memory of earlier rows."""
        return f"a row of objective {self.name} is a source and a target, which no other row continues"

    def bounds(self, window: int, rates: Collection[float] = ()) -> Bounds:
        """Upper bounds on the size of any row, see `ObjectiveSettings.bounds`."""
        text = max(0, window - 2)
        bounds = [self.bounds_at(text, rate) for rate in {*rates, *self._rates_on_the_way(text)}]
        return Bounds(*map(max, zip(*bounds, strict=True)))

    @abstractmethod
    def bounds_at(self, text: int, rate: float) -> Bounds:
        """Upper bounds on the size of a row with this many text tokens at a mask rate."""

    def _rates_on_the_way(self, text: int) -> set[float]:
        """Mask rates from the first to the final one, spaced by one token."""
        low, high = sorted(self.rates)
        return {low, high} | {i / text for i in range(text + 1) if low < i / text < high}

    def source_slots(self, source: int) -> int:
        """Slots of a source of this many tokens, special tokens included."""
        return self.before_source + source + 1

    @property
    def starts(self) -> Sequence[str]:
        """Roles of the tokens before the target."""
        return self.target_start or []

    @property
    def before_source(self) -> int:
        """Slots before the tokens of the source: [SOS] and the mode token."""
        return self.source_start + (self.mode_token is not None)

    def counted_on(self, source: int, target: int) -> Bounds:
        """Bounds for a source and a target whose positions continue from the source, or count from 0 again."""
        own, after = self.source_slots(source), len(self.starts) + target
        positions = max(own, after) if self.restart_positions else own + after
        return Bounds(slots=own + after, predictions=target, positions=positions)

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Reject segments, extra tokens and mode tokens that do not fit the rows."""
        yield from super().problems(recipe)
        segments = (0, 1) if self.segment_ids is None else tuple(self.segment_ids)
        if len(segments) != 2 or min(segments) < 0:
            yield "objective.segment_ids", "give two numbers of 0 or more, for source and target"
        elif max(segments) >= recipe.model.num_segments > 0:
            yield (
                "model.num_segments",
                f"source and target are segments {segments[0]} and {segments[1]}; it must exceed both",
            )
        sentinels, mode = self.bounds(recipe.data.window).sentinels, self.mode_token
        if mode is not None and mode < sentinels:
            yield (
                "objective.mode_token",
                f"the first {sentinels} extra tokens are sentinels; it must be {sentinels} or more",
            )
        extra = max(sentinels, 0 if mode is None else mode + 1)
        trained = recipe.tokenizer.path is None and recipe.data.prepared is None
        if trained and recipe.tokenizer.extra_tokens < extra:
            yield "tokenizer.extra_tokens", f"objective {self.name} needs {extra} in windows of {recipe.data.window}"


@dataclass(frozen=True, kw_only=True)
class PrefixSettings(SourceTarget):
    """Settings of prefix language models."""

    name: str = "prefix"

    def bounds_at(self, text: int, rate: float) -> Bounds:
        """Upper bounds on a row's size; the target may be the whole text."""
        longest = predicted_suffix(text, rate)[1]
        return self.counted_on(0, text + 1)._replace(predictions=longest + 1)


def predicted_suffix(tokens: int, rate: float) -> tuple[int, int]:
    """Minimum and maximum target length of a prefix language model whose mean target is the share `rate` of a text."""
    shortest = min(tokens, max(1, round((2 * rate - 1) * tokens)))
    return shortest, max(shortest, min(tokens, round(2 * rate * tokens)))


@dataclass(frozen=True)
class Ragged:
    """Concatenated sequences of different lengths, one per row."""

    values: npt.NDArray[Any]  # *Shape:* (values of all rows,)
    counts: Int64s  # Length of each sequence. *Shape:* (rows,)

    @cached_property
    def ends(self) -> Int64s:
        """Index after the last value of each row. *Shape:* (rows,)"""
        ends: Int64s = np.cumsum(self.counts)
        return ends

    @cached_property
    def starts(self) -> Int64s:
        """Index of the first value of each row. *Shape:* (rows,)"""
        return self.ends - self.counts

    @property
    def row(self) -> Int64s:
        """Row of each value. *Shape:* (values of all rows,)"""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @property
    def rank(self) -> Int64s:
        """Index of each value within its row. *Shape:* (values of all rows,)"""
        return np.arange(len(self.values)) - np.repeat(self.starts, self.counts)

    def followed_by(self, value: int | npt.NDArray[Any]) -> Ragged:
        """Append a value to every sequence, the same one or one each."""
        return Ragged(np.insert(self.values, self.ends, value), self.counts + 1)


def text_of(windows: Windows, vocabulary: Vocabulary) -> Ragged:
    """The text of each window: its maskable tokens and its [UNK]s, in order."""
    is_text = windows.maskable | unknown_words(windows.token_ids, vocabulary)
    return Ragged(windows.token_ids[is_text], np.count_nonzero(is_text, axis=1))


def lay_out(
    windows: Windows,
    source: Ragged,
    target: Ragged,
    vocabulary: Vocabulary,
    settings: SourceTarget,
    *,
    rates: Rates,
    noised: Flags | None = None,
    first_position: Int64s | None = None,
    counted: Flags | None = None,
) -> Examples:
    """Rows for given sources and targets.

    Args:
        windows: The windows they were made from.
        source: Token ids of each source, without special tokens.
        target: Token ids of each target as predicted, including any closing [EOS].
        vocabulary: Ids of the special tokens.
        settings: Segment ids, mode token, and bounds of the row width.
        rates: Mask rate of each row, which affects the row width. *Shape:* (rows,)
        noised: Which source tokens differ from the text or are masked; None for none. *Shape:* (source tokens,)
        first_position: Position of the first slot after the source; None to continue from the source, or to count from 0
            if the settings say so. *Shape:* (rows,)
        counted: Which target tokens the source does not show; None for all. *Shape:* (target tokens,)
    """
    rows, window = windows.token_ids.shape
    slots, predictions = settings.bounds(window, rates.tolist())[:2]
    mode = mode_id(vocabulary, settings)
    head, start = settings.before_source, start_ids(vocabulary, settings)
    sources = head + source.counts + 1
    targets = sources + len(start)
    lengths = targets + target.counts
    each, column = np.arange(rows), np.arange(slots, dtype=np.int32)
    real = column < lengths[:, None]
    in_source = (column >= head) & (column < sources[:, None] - 1)
    in_target = (column >= targets[:, None]) & real
    after_source = (column >= sources[:, None]) & real

    input_ids = np.full((rows, slots), vocabulary.pad, dtype=np.int32)
    if settings.source_start:
        input_ids[:, 0] = vocabulary.sos
    if mode is not None:
        input_ids[:, head - 1] = mode
    input_ids[each, sources - 1] = vocabulary.eos
    input_ids[in_source] = source.values
    input_ids[in_target] = target.values

    position_ids = column * real
    if first_position is None and settings.restart_positions:
        first_position = np.zeros(rows, dtype=np.int64)
    if first_position is not None:
        shift = (first_position - sources).astype(np.int32)
        position_ids += shift[:, None] * after_source
    segments = settings.reading.segments
    segment_ids = np.where(after_source, np.int32(segments[1]), np.int32(segments[0]) * real)

    kinds = np.where(real, np.uint8(Kind.CONTEXT), np.uint8(Kind.PADDING))
    if noised is not None:
        kinds[in_source] = np.where(noised, np.uint8(Kind.MASK), np.uint8(Kind.CONTEXT))
    kinds[in_target] = Kind.ORIGINAL
    steps = np.where(in_target, column - targets[:, None].astype(np.int32), np.int32(-1))
    for place, token in enumerate(start):
        input_ids[each, sources + place] = token
        if token == vocabulary.mask:
            kinds[each, sources + place], steps[each, sources + place] = Kind.PSEUDO, 0
    return Examples(
        input_ids=input_ids,
        position_ids=position_ids,
        segment_ids=segment_ids,
        kinds=kinds,
        steps=steps,
        intervals=visibility.prefix_rows(sources, lengths, capacity=slots),
        lengths=lengths.astype(np.int32),
        mutual=sources.astype(np.int32),
        text_tokens=windows.lengths,
        targets={"lm": without_unknown(_target(target, targets, predictions, counted), vocabulary)},
    )


def _target(target: Ragged, first: Int64s, width: int, counted: Flags | None) -> Target:
    """Predict every token of the target from the slot before it."""
    slots = first[target.row] - 1 + target.rank
    made = target_of(target.row, slots, target.values, rows=len(target.counts), width=width)
    if counted is None:
        return made
    of_rows = within(target.counts, width)
    of_rows[of_rows] = counted
    return dataclasses.replace(made, counted=of_rows)


def start_ids(vocabulary: Vocabulary, settings: SourceTarget) -> tuple[int, ...]:
    """Ids of the tokens between a source and its target."""
    return tuple(int(getattr(vocabulary, role)) for role in settings.starts)


def mode_id(vocabulary: Vocabulary, settings: SourceTarget) -> int | None:
    """Id of the mode token, which names the task before a source, or None."""
    if settings.mode_token is None:
        return None
    if settings.mode_token >= len(vocabulary.extra):
        raise UsageError(
            f"objective.mode_token is {settings.mode_token}, but the tokenizer has {len(vocabulary.extra)} extra tokens: "
            f"train one with --tokenizer.extra_tokens {settings.mode_token + 1} or more."
        )
    return int(vocabulary.extra[settings.mode_token])


def prefix(windows: Windows, vocabulary: Vocabulary, settings: PrefixSettings, rates: Rates | None = None) -> Examples:
    """Prefix language modelling: split a text at a random point and predict its end from its beginning.

    The closing [EOS] is predicted only where the document ends, not where the window was cut out of it.
    The target length is uniform from 1 token to twice the share `mask_rate` of the text, which is therefore the mean. At 0.5
    the split point is uniform over the whole text (T5, Section 3.2; UniLM v1); 0.25 is UL2's S-denoiser (Tay et al.,
    Section 3.1.2). The source may be empty.

    Args:
        windows: The text.
        vocabulary: Ids of the special tokens.
        settings: Mean share of the target, and layout.
        rates: Mean share of each row; default: `settings.mask_rate`. *Shape:* (rows,)
    """
    rates, text = rates_of(windows, settings, rates), text_of(windows, vocabulary)
    shortest, longest = per_row(predicted_suffix, text.counts, rates)
    draws = keyed.bits(windows.keys, keyed.Stream.SOURCE_END, np.zeros(1, np.int64))
    predicted = shortest + keyed.below(draws, longest - shortest + 1)
    rows = _split(windows, text, predicted, vocabulary, settings, rates)
    return _without_closing(rows, windows.ends_cut)


def starts_from_nothing(settings: PrefixSettings) -> bool:
    """Whether training includes empty sources, so that the model can predict a text from its beginning."""
    return max(settings.rates) >= 0.5


def causal(windows: Windows, vocabulary: Vocabulary, settings: PrefixSettings) -> Examples:
    """Rows that predict every text token from those left of it: the source is empty and the closing [EOS] not predicted.

    Training includes such rows: one in n for n tokens at a mean share of 0.5.
    """
    if not starts_from_nothing(settings):
        raise UsageError(
            f"A model trained with objective.mask_rate {settings.mask_rate} never predicts a text from its beginning: only "
            "prefix language models with a rate of 0.5 or more do."
        )
    text = text_of(windows, vocabulary)
    rows = _split(windows, text, text.counts, vocabulary, settings, np.ones(len(windows)))
    return _without_closing(rows, np.ones(len(windows), dtype=bool))


def _split(
    windows: Windows, text: Ragged, predicted: Int64s, vocabulary: Vocabulary, settings: PrefixSettings, rates: Rates
) -> Examples:
    """Rows that predict the last `predicted` tokens of each text from the rest."""
    kept = text.counts - predicted
    in_source = text.rank < np.repeat(kept, text.counts)
    source = Ragged(text.values[in_source], kept)
    target = Ragged(text.values[~in_source], predicted).followed_by(vocabulary.eos)
    return lay_out(windows, source, target, vocabulary, settings, rates=rates)


def _without_closing(rows: Examples, chosen: Flags) -> Examples:
    """The rows without the prediction of the closing [EOS] in the chosen ones. *Shape:* (rows,)"""
    target = rows.targets["lm"]
    asked = within(np.count_nonzero(target.weights, axis=1) - chosen, target.weights.shape[1])
    for column in (target.weights, target.slots, target.labels):
        column[~asked] = 0
    return rows


def generates(settings: SourceTarget, vocabulary: Vocabulary, *, written: Collection[int] = ()) -> GenerationFormat:
    """Generation layout in which the last token's own slot predicts the next token.

    Args:
        settings: Layout of the rows.
        vocabulary: Ids of the special tokens.
        written: Further special tokens that may be predicted.
    """
    mode = mode_id(vocabulary, settings)
    found = layout(settings, vocabulary, predicts="next", mode=mode, written=written)
    return dataclasses.replace(
        found,
        start=found.start if settings.source_start else found.start[1:],
        opening=start_ids(vocabulary, settings),
        restarts=settings.restart_positions,
    )


def _defines(settings: PrefixSettings) -> set[Ability]:
    return {"causal"} if starts_from_nothing(settings) else set()


OBJECTIVES: Mapping[str, Objective[Any]] = {
    "prefix": Objective(settings=PrefixSettings, make=prefix, causal=causal, defines=_defines, generates=generates)
}
