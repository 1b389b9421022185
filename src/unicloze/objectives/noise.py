"""BART's noise functions, which corrupt a text that the model must restore (Lewis et al. 2020, Section 2.2).

Each kind of noise applies its share to the tokens left by the previous one. Sentences are those of the original text, so
that they can be permuted whatever happened to their tokens.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unicloze import keyed
from unicloze.arrays import Flags, Int64s
from unicloze.objectives.masking import Rates
from unicloze.objectives.seq2seq import Ragged
from unicloze.objectives.spans import per_row, subset, within
from unicloze.text.vocabulary import Vocabulary

_POISSON_TAIL = 6, 18
"""So many spans are drawn that their mean total is n + 6 sqrt(n) + 18 for n wanted tokens: it falls short of n in fewer than
1 in 10^7 rows."""


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
