"""Sequence-to-sequence denoising: T5's and UL2's span corruption, BART's noise, MASS's masked span.

The source is the noised text, the target is what to restore; `unicloze.objectives.seq2seq` lays out both.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze import keyed
from unicloze.arrays import Flags, Int64s
from unicloze.errors import UsageError
from unicloze.example import Examples
from unicloze.objectives.generation_format import GenerationFormat
from unicloze.objectives.groups import Shown
from unicloze.objectives.masking import Rates, partition, per_row, rates_of, subset, within
from unicloze.objectives.objective import Objective
from unicloze.objectives.seq2seq import Ragged, SourceTarget, generates, lay_out, text_of
from unicloze.rules import AT_LEAST_ONE, Needs, Problem, setting
from unicloze.settings import Bounds, Recipe
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows

_POISSON_TAIL = 6, 18
"""So many spans are drawn that their mean total is n + 6 sqrt(n) + 18 for n wanted tokens: it falls short of n in fewer than
1 in 10^7 rows."""


# Each kind of noise applies its share to the tokens left by the previous one. Sentences are those of the original
# text, so that they can be permuted whatever happened to their tokens.


def noised_tokens(tokens: int, rate: float) -> int:
    """Number of tokens that one kind of noise removes or masks: the share, rounded up."""
    return min(tokens, math.ceil(rate * tokens - 1e-9))


def infilled_spans(noised: int, mean_span: float) -> int:
    """Maximum number of spans, empty ones included, for `noised` tokens."""
    factor, more = _POISSON_TAIL
    return math.ceil((noised + factor * math.sqrt(noised) + more) / mean_span) if noised else 0


@dataclass(frozen=True, kw_only=True)
class Noised:
    """A block of partially noised texts."""

    tokens: Ragged  # token ids
    # Index in all texts of the token that each stands for; a span's is that of its first. *Shape:* (tokens of all
    # rows,)
    origin: Int64s
    # Index of the sentence of each token of the texts, ascending; used only to permute sentences. *Shape:* (tokens of
    # all texts,)
    sentence: Int64s
    keys: keyed.Bits  # Key of each row's draws. *Shape:* (rows,)
    rates: Rates  # Share of the tokens that each kind of noise affects. *Shape:* (rows,)
    mask: int  # id of [MASK]
    mean_span: float  # mean length of an infilled span

    def replaced(self, values: npt.NDArray[np.int32], origin: Int64s, counts: Int64s) -> Noised:
        """The same texts with other tokens."""
        return dataclasses.replace(self, tokens=Ragged(values, counts), origin=origin)

    def shows(self, texts: Ragged) -> Flags:
        """Which tokens of the texts are still there. *Shape:* (tokens of all texts,)"""
        shown = np.zeros(len(texts.values), dtype=bool)
        shown[self.origin[self.tokens.values != self.mask]] = True
        return shown

    def drawn(self, stream: keyed.Stream) -> Flags:
        """A uniformly random subset of each row's tokens, as large as its rate. *Shape:* (tokens of all rows,)"""
        counts = self.tokens.counts
        flags = subset(counts, per_row(noised_tokens, counts, self.rates), self.keys, stream)
        chosen: Flags = flags[within(counts, flags.shape[1])]
        return chosen


def apply_noise(
    text: Ragged, kinds: list[str], keys: keyed.Bits, rates: Rates, vocabulary: Vocabulary, *, mean_span: float
) -> Noised:
    """Apply the named kinds of noise to the texts, in the order of `NOISE`."""
    noised = Noised(
        tokens=text,
        origin=np.arange(len(text.values)),
        sentence=sentences(text, vocabulary) if "permute_sentences" in kinds else np.zeros(len(text.values), np.int64),
        keys=keys,
        rates=rates,
        mask=vocabulary.mask,
        mean_span=mean_span,
    )
    for name, function in NOISE.items():
        if name in kinds:
            noised = function(noised)
    return noised


def sentences(text: Ragged, vocabulary: Vocabulary) -> Int64s:
    """Index of each token's sentence, counted over all rows. A run of sentence ends closes one sentence.

    *Shape:* (tokens of all rows,)
    """
    ends = vocabulary.ends_sentence[text.values]
    begins = np.zeros(len(ends), dtype=bool)
    begins[1:] = ends[:-1] & ~ends[1:]
    begins[text.starts[text.counts > 0]] = True
    numbers: Int64s = np.cumsum(begins)
    return numbers


def mask(noised: Noised) -> Noised:
    """Token masking: replace random tokens by [MASK]."""
    values = np.where(noised.drawn(keyed.Stream.MASKED_BY_NOISE), np.int32(noised.mask), noised.tokens.values)
    return noised.replaced(values, noised.origin, noised.tokens.counts)


def delete(noised: Noised) -> Noised:
    """Token deletion: remove random tokens."""
    kept = ~noised.drawn(keyed.Stream.DELETED)
    counts = noised.tokens.counts
    left = counts - per_row(noised_tokens, counts, noised.rates)
    return noised.replaced(noised.tokens.values[kept], noised.origin[kept], left)


def infill(noised: Noised) -> Noised:
    """Text infilling: replace spans of Poisson-distributed length by one [MASK] each; an empty span inserts a [MASK].

    Lengths are drawn until the share of the tokens is reached; the last one is cut to reach it exactly. Every arrangement of
    the spans among the remaining tokens is equally likely.
    """
    counts = noised.tokens.counts
    lengths, drawn = span_lengths(per_row(noised_tokens, counts, noised.rates), noised.keys, mean_span=noised.mean_span)
    spans = drawn.sum(axis=1)
    items = counts - (lengths * drawn).sum(axis=1) + spans
    arrangement = subset(items, spans, noised.keys, keyed.Stream.ARRANGEMENT)
    is_span = arrangement[within(items, arrangement.shape[1])]
    size = np.ones(len(is_span), dtype=np.int64)
    size[is_span] = lengths[drawn]
    first = np.cumsum(size) - size
    # A [MASK] inserted at a row's end stands for the last token.
    first = np.minimum(first, np.repeat(noised.tokens.ends - 1, items))
    values = np.where(is_span, np.int32(noised.mask), noised.tokens.values[first])
    return noised.replaced(values, noised.origin[first], items)


def span_lengths(wanted: Int64s, keys: keyed.Bits, *, mean_span: float) -> tuple[Int64s, Flags]:
    """Poisson lengths with the given sum in each row.

    The cut length, drawn last, swaps places with a random one, so that all orders of the lengths are equally likely. At most
    `infilled_spans` lengths are drawn, which is nearly always enough; the last of them takes the whole remainder.

    Args:
        wanted: Sum of each row's lengths. *Shape:* (rows,)
        keys: Key of each row's draws. *Shape:* (rows,)
        mean_span: Mean of the lengths before the cut.

    Returns:
        The lengths, and which of them are valid (the leading ones of each row). *Shape:* (rows, most spans) each
    """
    # The bound is computed per row, since a row must not depend on the rows it is made with.
    most = np.array([infilled_spans(count, mean_span) for count in range(int(wanted.max(initial=0)) + 1)])[wanted]
    turn = np.arange(int(most.max(initial=0)))
    draws = keyed.uniform(keyed.bits(keys[:, None], keyed.Stream.SPAN_LENGTHS, turn))
    lengths = np.searchsorted(_poisson(mean_span), draws, side="right")
    left = wanted[:, None] - (np.cumsum(lengths, axis=1) - lengths)
    drawn = (left > 0) & (turn < most[:, None])
    lengths = np.where(turn == most[:, None] - 1, left, np.minimum(lengths, left))
    spans = drawn.sum(axis=1)
    row = np.flatnonzero(spans)
    last = spans[row] - 1
    other = keyed.below(keyed.bits(keys[row], keyed.Stream.LAST_SPAN, np.zeros(1, np.int64)), last + 1)
    lengths[row, last], lengths[row, other] = lengths[row, other], lengths[row, last]
    return lengths, drawn


@functools.cache
def _poisson(mean: float) -> npt.NDArray[np.float64]:
    """Cumulative distribution function of the Poisson distribution, up to where a float rounds it to 1."""
    farthest = math.ceil(mean + 12 * math.sqrt(mean) + 20)
    logs = [count * math.log(mean) - mean - math.lgamma(count + 1) for count in range(farthest)]
    return np.cumsum(np.exp(logs))


def permute_sentences(noised: Noised) -> Noised:
    """Sentence permutation: shuffle the sentences of a text."""
    tokens, sentence = noised.tokens, noised.sentence[noised.origin]
    first = np.flatnonzero(np.diff(sentence, prepend=-1))
    size = np.diff(first, append=len(sentence))
    row = tokens.row[first]
    number = Ragged(first, np.bincount(row, minlength=len(tokens.counts))).rank
    draw = keyed.bits(noised.keys[row], keyed.Stream.SENTENCES, number)
    order = np.lexsort((draw, row))
    moved = Ragged(np.repeat(first[order], size[order]), size[order])
    index = moved.values + moved.rank
    return noised.replaced(tokens.values[index], noised.origin[index], tokens.counts)


def rotate(noised: Noised) -> Noised:
    """Document rotation: start a text at a random token and move what precedes it to the end."""
    tokens = noised.tokens
    turn = keyed.below(
        keyed.bits(noised.keys, keyed.Stream.ROTATION, np.zeros(1, np.int64)), np.maximum(tokens.counts, 1)
    )
    rank, size = tokens.rank + np.repeat(turn, tokens.counts), np.repeat(tokens.counts, tokens.counts)
    index = np.where(rank < size, rank, rank - size) + np.repeat(tokens.starts, tokens.counts)
    return noised.replaced(tokens.values[index], noised.origin[index], tokens.counts)


NOISE: Mapping[str, Callable[[Noised], Noised]] = {
    "mask": mask,
    "delete": delete,
    "infill": infill,
    "permute_sentences": permute_sentences,
    "rotate": rotate,
}
"""Kinds of noise, in the order of application."""


@dataclass(frozen=True, kw_only=True)
class SpanCorruptionSettings(SourceTarget):
    """Settings of T5's span corruption.

    Args:
        mean_span: Mean length of a corrupted span.
    """

    name: str = "span_corruption"
    mean_span: float = setting(3.0, AT_LEAST_ONE)

    def bounds_at(self, text: int, rate: float) -> Bounds:
        """Upper bounds on a row's size; source and target both contain sentinels."""
        noise, spans = corrupted_spans(text, rate, self.mean_span)
        return self.counted_on(text - noise + spans, noise + spans + 2)._replace(sentinels=spans + 1)


@dataclass(frozen=True, kw_only=True)
class DenoisingSettings(SourceTarget):
    """Settings of BART's denoising.

    Args:
        mean_span: Mean length of an infilled span (Poisson).
        noise: Kinds of noise in the source: `mask`, `delete`, `infill`, `permute_sentences`, `rotate`; applied in this order.
    """

    name: str = "denoising"
    mean_span: float = setting(
        3.0, AT_LEAST_ONE, Needs("'infill' in objective.noise", lambda recipe: "infill" in recipe.objective.noise)
    )
    noise: list[str] = setting(["infill"])

    def bounds_at(self, text: int, rate: float) -> Bounds:
        """Upper bounds on a row's size; inserted spans lengthen the source."""
        source = text
        if "delete" in self.noise:
            source -= noised_tokens(source, rate)
        if "infill" in self.noise:
            noised = noised_tokens(source, rate)
            source += infilled_spans(noised, self.mean_span) - noised
        return self.counted_on(source, text + 1)

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Reject unknown kinds of noise."""
        yield from super().problems(recipe)
        if not self.noise or not set(self.noise) <= set(NOISE):
            yield "objective.noise", f"name at least one of {', '.join(map(repr, NOISE))}"


@dataclass(frozen=True, kw_only=True)
class MaskedSpanSettings(SourceTarget, Shown):
    """Settings of MASS."""

    name: str = "masked_span"

    @property
    def starts(self) -> Sequence[str]:
        """Roles of the tokens before the target: [MASK], unless the settings say otherwise."""
        return ["mask"] if self.target_start is None else self.target_start

    def bounds_at(self, text: int, rate: float) -> Bounds:
        """Upper bounds on a row's size; the target has the positions of the span."""
        fragment, source = masked_fragment(text, rate), self.source_slots(text)
        after = len(self.starts) + fragment
        return Bounds(slots=source + after, predictions=fragment, positions=source)

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Reject start slots that would stand before the first position."""
        yield from super().problems(recipe)
        if not 1 <= len(self.starts) <= self.before_source:
            yield (
                "objective.target_start",
                "the span keeps its positions, so that as many tokens must stand before it as before the source: give "
                f"1 to {self.before_source}",
            )
        if self.restart_positions:
            yield "objective.restart_positions", "the span keeps the positions it has in the source; it must be false"


def corrupted_spans(tokens: int, rate: float, mean_span: float) -> tuple[int, int]:
    """Number of noise tokens and spans of T5's span corruption: both rounded, at least one, never the whole text.

    A text of fewer than two tokens is left unchanged.
    """
    if tokens < 2:
        return 0, 0
    noise = min(max(round(tokens * rate), 1), tokens - 1)
    return noise, min(max(round(noise / mean_span), 1), tokens - noise)


def masked_fragment(tokens: int, rate: float) -> int:
    """Length of MASS's masked span in tokens: the share, rounded, at least one."""
    return min(tokens, max(1, round(tokens * rate)))


def span_corruption(
    windows: Windows, vocabulary: Vocabulary, settings: SpanCorruptionSettings, rates: Rates | None = None
) -> Examples:
    """T5's span corruption (Raffel et al. 2020, Section 3.1.4): sentinels replace spans, and the target restores them.

    `mask_rate` and `mean_span` determine the number of noise tokens and spans. Noise tokens and kept tokens are each cut into
    that many parts, uniformly over all ways to do so; the parts alternate, starting with a kept one. So a text ends in noise.

    Args:
        windows: The text.
        vocabulary: Ids of the special tokens; its extra tokens, counted from the first, are the sentinels.
        settings: Share of noise, mean span length, and layout.
        rates: Mask rate of each row; default: `settings.mask_rate`. *Shape:* (rows,)
    """
    rates, text = rates_of(windows, settings, rates), text_of(windows, vocabulary)
    window = windows.token_ids.shape[1]
    needed = settings.bounds(window, rates.tolist()).sentinels
    _check_sentinels(needed, vocabulary, settings)
    return corrupt_spans(windows, text, draw_noise(text, windows.keys, settings, rates), vocabulary, settings, rates)


def draw_noise(text: Ragged, keys: keyed.Bits, settings: SpanCorruptionSettings, rates: Rates) -> Flags:
    """Which tokens of the texts are noise. *Shape:* (tokens of all rows,)"""
    noise, spans = per_row(functools.partial(corrupted_spans, mean_span=settings.mean_span), text.counts, rates)
    parts = np.maximum(spans, 1)
    kept_sizes = partition(text.counts - noise, parts, keys, keyed.Stream.KEPT_SPANS)
    noise_sizes = partition(noise, parts, keys, keyed.Stream.NOISE_SPANS)
    sizes = np.stack([kept_sizes, noise_sizes], axis=1).ravel()
    return np.repeat(np.arange(len(sizes)) % 2 == 1, sizes)


def corrupt_spans(
    windows: Windows, text: Ragged, noise: Flags, vocabulary: Vocabulary, settings: SpanCorruptionSettings, rates: Rates
) -> Examples:
    """Rows for given noise: each run of noise tokens is a span.

    The source shows the k-th sentinel in place of the k-th span. The target lists the spans, each after its sentinel, then
    one more sentinel. (The released T5 has no final sentinel: its texts end in noise.)

    Args:
        windows: The text.
        text: Its tokens.
        noise: Which tokens are noise. *Shape:* (tokens of all rows,)
        vocabulary: Ids of the special tokens.
        settings: Layout.
        rates: Mask rate of each row, which determines the row width. *Shape:* (rows,)
    """
    before = np.zeros(len(noise), dtype=bool)
    before[1:] = noise[:-1]
    before[text.starts[text.counts > 0]] = False
    begins = noise & ~before
    noise_at, span_at = np.flatnonzero(noise), np.flatnonzero(begins)
    row = text.row
    noise_counts = np.bincount(row[noise_at], minlength=len(windows))
    spans = Ragged(span_at, np.bincount(row[span_at], minlength=len(windows)))
    sentinels = vocabulary.extra[spans.rank]

    shown = text.values.copy()
    shown[span_at] = sentinels
    in_source = np.flatnonzero(~noise | begins)
    source = Ragged(shown[in_source], text.counts - noise_counts + spans.counts)

    opened = np.insert(text.values[noise_at], np.flatnonzero(begins[noise_at]), sentinels)
    target = Ragged(opened, noise_counts + spans.counts).followed_by(vocabulary.extra[spans.counts])
    target = target.followed_by(vocabulary.eos)
    return lay_out(windows, source, target, vocabulary, settings, rates=rates, noised=noise[in_source])


def _check_sentinels(needed: int, vocabulary: Vocabulary, settings: SpanCorruptionSettings) -> None:
    mode, extra = settings.mode_token, len(vocabulary.extra)
    if extra < needed:
        raise UsageError(
            f"span_corruption needs {needed} sentinels for a window of this length, but the tokenizer has {extra} extra "
            f"tokens: train one with --tokenizer.extra_tokens {needed + (mode is not None)} or more."
        )
    if mode is not None and mode < needed:
        raise UsageError(
            f"objective.mode_token is {mode}, but the first {needed} extra tokens are sentinels: "
            f"set --objective.mode_token to {needed} or more."
        )


def denoising(
    windows: Windows, vocabulary: Vocabulary, settings: DenoisingSettings, rates: Rates | None = None
) -> Examples:
    """BART's denoising (Lewis et al. 2020, Section 2.2): the source is the noised text, the target the whole text.

    Args:
        windows: The text.
        vocabulary: Ids of the special tokens, and which tokens end a sentence.
        settings: Kinds of noise, share of tokens each affects, mean length of an infilled span, and layout.
        rates: Mask rate of each row; default: `settings.mask_rate`. *Shape:* (rows,)
    """
    rates, text = rates_of(windows, settings, rates), text_of(windows, vocabulary)
    noised = apply_noise(text, settings.noise, windows.keys, rates, vocabulary, mean_span=settings.mean_span)
    source, target = noised.tokens, text.followed_by(vocabulary.eos)
    return lay_out(
        windows,
        source,
        target,
        vocabulary,
        settings,
        rates=rates,
        noised=source.values == vocabulary.mask,
        counted=Ragged(~noised.shows(text), text.counts).followed_by(0).values,
    )


def check_sentences(windows: Windows, vocabulary: Vocabulary, settings: DenoisingSettings) -> None:
    """Reject sentence permutation if no window contains two sentences."""
    if "permute_sentences" not in settings.noise:
        return
    text = text_of(windows, vocabulary)
    full = text.counts > 0
    numbers = sentences(text, vocabulary)
    if not (numbers[text.ends[full] - 1] > numbers[text.starts[full]]).any():
        raise UsageError(
            f"objective.noise includes permute_sentences, but none of {len(windows)} windows contains the end of a sentence "
            "followed by text: remove it from objective.noise, use text with punctuation, or a longer --data.window."
        )


def masked_span(
    windows: Windows, vocabulary: Vocabulary, settings: MaskedSpanSettings, rates: Rates | None = None
) -> Examples:
    """MASS (Song et al. 2019, Section 3.2): one span is masked in the source and is the target.

    Each position of the span shows a mask, a random token or the token itself. The target is the span alone, without
    [EOS]; a [MASK] in front of it predicts its first token, since MASS's decoder sees a mask for the token before the span.
    Every target slot has the position of its token in the source; that [MASK] has the position before.

    Args:
        windows: The text.
        vocabulary: Ids of the special tokens and candidates for random tokens.
        settings: Share of the span, what the source shows in its place, and layout.
        rates: Mask rate of each row; default: `settings.mask_rate`. *Shape:* (rows,)
    """
    rates, text = rates_of(windows, settings, rates), text_of(windows, vocabulary)
    size = per_row(masked_fragment, text.counts, rates)
    draws = keyed.bits(windows.keys, keyed.Stream.FRAGMENT, np.zeros(1, np.int64))
    first = keyed.below(draws, text.counts - size + 1)
    return mask_span(windows, text, first, size, vocabulary, settings, rates)


def mask_span(
    windows: Windows,
    text: Ragged,
    first: Int64s,
    size: Int64s,
    vocabulary: Vocabulary,
    settings: MaskedSpanSettings,
    rates: Rates,
) -> Examples:
    """Rows for given spans.

    Args:
        windows: The text.
        text: Its tokens.
        first: Index of the first token of each row's span. *Shape:* (rows,)
        size: Length of each span in tokens. *Shape:* (rows,)
        vocabulary: Ids of the special tokens and candidates for random tokens.
        settings: What the source shows in the span's place, and layout.
        rates: Mask rate of each row, which determines the row width. *Shape:* (rows,)
    """
    rank = text.rank
    inside = (rank >= np.repeat(first, text.counts)) & (rank < np.repeat(first + size, text.counts))
    target = Ragged(text.values[inside], size)
    keys, place = np.repeat(windows.keys, size), rank[inside]
    draw = keyed.uniform(keyed.bits(keys, keyed.Stream.CORRUPTION, place))
    which = keyed.below(keyed.bits(keys, keyed.Stream.RANDOM_TOKEN, place), len(vocabulary.ordinary))
    shown = np.where(draw < settings.mask_share + settings.random_share, vocabulary.ordinary[which], target.values)
    source = text.values.copy()
    source[inside] = np.where(draw < settings.mask_share, np.int32(vocabulary.mask), shown)
    head = settings.before_source - len(settings.starts)
    return lay_out(
        windows,
        Ragged(source, text.counts),
        target,
        vocabulary,
        settings,
        rates=rates,
        noised=inside,
        first_position=first + head,
    )


def _writes_sentinels(settings: SpanCorruptionSettings, vocabulary: Vocabulary) -> GenerationFormat:
    return generates(settings, vocabulary, written=vocabulary.extra.tolist())


OBJECTIVES: Mapping[str, Objective[Any]] = {
    "span_corruption": Objective(settings=SpanCorruptionSettings, make=span_corruption, generates=_writes_sentinels),
    "denoising": Objective(settings=DenoisingSettings, make=denoising, generates=generates, check=check_sentences),
    "masked_span": Objective(settings=MaskedSpanSettings, make=masked_span, generates=generates),
}
