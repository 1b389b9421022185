"""Unigram and bigram models of a text, the baselines a trained model has to beat.

Both subtract a discount D from every count and give the freed mass to the lower-order model (absolute discounting; Ney,
Essen and Kneser, "On structuring probabilistic dependences in stochastic language modelling", 1994):

    p(w)     = max(c(w) - D, 0) / N + D T / N * 1 / V
    p(w | v) = max(c(v, w) - D', 0) / c(v) + D' t(v) / c(v) * p(w)

T is the number of distinct tokens, t(v) of distinct tokens after v, V the size of the vocabulary. A discount is the
paper's leave-one-out estimate on the counted text, n1 / (n1 + 2 n2), where n1 and n2 are the numbers of tokens (or pairs)
counted once and twice; one is added to each, so that it lies between 0 and 1 for any text. Only ordinary tokens are
predicted; the first token of a document follows an [EOS].
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from unicloze.arrays import Flags, Float64s, Int64s
from unicloze.text.orders import evenly_spaced
from unicloze.text.shards import TokenShard, TokenSource
from unicloze.text.vocabulary import Vocabulary

STRETCH = 2**18
"""Number of tokens read at once."""
MOST_COUNTED = 2**23
"""Of longer texts, evenly spread stretches of about this many tokens are counted."""
MOST_MEASURED = 2**21
"""The same limit for held-out text."""


def stretches(sources: Sequence[TokenSource], most: int) -> Iterator[tuple[Int64s, Flags]]:
    """The text of some sources, or evenly spread stretches of it."""
    shards = [shard for source in sources for shard in source.shards]
    bounds = np.cumsum([0, *(-(-shard.num_tokens // STRETCH) for shard in shards)])
    total = int(bounds[-1])
    for number in evenly_spaced(min(total, max(1, most // STRETCH)), total).tolist() if total else []:
        place = int(np.searchsorted(bounds, number, side="right")) - 1
        yield _stretch(shards[place], (number - int(bounds[place])) * STRETCH)


def _stretch(shard: TokenShard, start: int) -> tuple[Int64s, Flags]:
    """One stretch of a shard's concatenated documents, from token `start` on."""
    stop = min(start + STRETCH, shard.num_tokens)
    first, last, before = shard.documents_at(start, stop - 1)
    starts, lengths = shard.starts[first : last + 1], shard.lengths(slice(first, last + 1))
    ends = np.cumsum(lengths) + before
    document = np.searchsorted(ends, np.arange(start, stop), side="right")
    shift = starts - (ends - lengths)
    places = np.arange(start, stop) + shift[document]
    tokens: Int64s = shard.read(places, places + 1)[places].astype(np.int64)
    begins: Flags = np.diff(document, prepend=-1) != 0
    return tokens, begins


@dataclass(frozen=True, kw_only=True, eq=False)
class Counts:
    """Counts of tokens and of token pairs in a text."""

    vocabulary: Vocabulary  # the vocabulary of the tokens
    tokens: Int64s  # Count of each id; 0 for special ids. *Shape:* (vocabulary,)
    pairs: Int64s  # Codes of the pairs that occur, first id x vocabulary size + second id, sorted. *Shape:* (pairs,)
    times: Int64s  # Count of each pair. *Shape:* (pairs,)

    @classmethod
    def of(cls, sources: Sequence[TokenSource], vocabulary: Vocabulary, most: int = MOST_COUNTED) -> Counts:
        """Count the text of some sources; above `most` tokens, evenly spread stretches of it."""
        found = [before * vocabulary.size + tokens for before, tokens in _pairs(sources, vocabulary, most)]
        pairs, times = np.unique(np.concatenate([np.zeros(0, np.int64), *found]), return_counts=True)
        tokens = np.bincount(pairs % vocabulary.size, times, minlength=vocabulary.size).astype(np.int64)
        return cls(vocabulary=vocabulary, tokens=tokens, pairs=pairs, times=times.astype(np.int64))

    @property
    def total(self) -> int:
        """Number of tokens counted."""
        return int(self.tokens.sum())

    @cached_property
    def unigram(self) -> Float64s:
        """p(w) of each id. *Shape:* (vocabulary,)"""
        ordinary, counts = self.vocabulary.ordinary, self.tokens
        result, discount = np.zeros(self.vocabulary.size), _discount(counts)
        freed = discount * np.count_nonzero(counts) / self.total if self.total else 1.0
        result[ordinary] = np.maximum(counts[ordinary] - discount, 0) / max(1, self.total) + freed / len(ordinary)
        return result

    def bigram(self, before: Int64s, tokens: Int64s) -> Float64s:
        """p(w | v) of each token given the previous one. *Shape:* (tokens,) both"""
        wanted = before * self.vocabulary.size + tokens
        place = np.minimum(np.searchsorted(self.pairs, wanted), max(0, len(self.pairs) - 1))
        seen = self.pairs[place] == wanted if len(self.pairs) else np.zeros(len(wanted), dtype=bool)
        shares = np.zeros(len(wanted))
        shares[seen] = self._shares[place[seen]]
        result: Float64s = shares + self._freed[before] * self.unigram[tokens]
        return result

    def after(self, token: int) -> Float64s:
        """p(w | `token`) of each id w. *Shape:* (vocabulary,)"""
        size = self.vocabulary.size
        found = slice(*np.searchsorted(self.pairs, [token * size, (token + 1) * size]))
        result: Float64s = self._freed[token] * self.unigram
        result[self.pairs[found] - token * size] += self._shares[found]
        return result

    def before(self, token: int) -> Float64s:
        """p(`token` | w) of each id w. *Shape:* (vocabulary,)"""
        order, seconds = self._by_second
        found = order[slice(*np.searchsorted(seconds, [token, token + 1]))]
        result: Float64s = self._freed * self.unigram[token]
        result[self.pairs[found] // self.vocabulary.size] += self._shares[found]
        return result

    def perplexities(self, sources: Sequence[TokenSource], most: int = MOST_MEASURED) -> tuple[float, float] | None:
        """Perplexities of the ordinary tokens of another text under p(w) and p(w | v); None if there are no such tokens."""
        nats, tokens = np.zeros(2), 0
        for before, following in _pairs(sources, self.vocabulary, most):
            for place, each in enumerate((self.unigram[following], self.bigram(before, following))):
                nats[place] -= np.log(each).sum()
            tokens += len(following)
        return (math.exp(nats[0] / tokens), math.exp(nats[1] / tokens)) if tokens else None

    @cached_property
    def _totals(self) -> Int64s:
        """c(v), the number of pairs that begin with each id. *Shape:* (vocabulary,)"""
        first = self.pairs // self.vocabulary.size
        return np.bincount(first, self.times, minlength=self.vocabulary.size).astype(np.int64)

    @cached_property
    def _shares(self) -> Float64s:
        """Discounted probability of each pair. *Shape:* (pairs,)"""
        shares: Float64s = (self.times - _discount(self.times)) / self._totals[self.pairs // self.vocabulary.size]
        return shares

    @cached_property
    def _freed(self) -> Float64s:
        """Mass left for p(w) after each id. *Shape:* (vocabulary,)"""
        kinds = np.bincount(self.pairs // self.vocabulary.size, minlength=self.vocabulary.size)
        freed = _discount(self.times) * kinds / np.maximum(1, self._totals)
        return np.where(self._totals > 0, freed, 1.0)

    @cached_property
    def _by_second(self) -> tuple[Int64s, Int64s]:
        """Order of the pairs by second token, and these tokens. *Shape:* (pairs,) each"""
        second = self.pairs % self.vocabulary.size
        order = np.argsort(second, kind="stable")
        return order, second[order]


def _pairs(sources: Sequence[TokenSource], vocabulary: Vocabulary, most: int) -> Iterator[tuple[Int64s, Int64s]]:
    """Ordinary tokens, each with the token before it; [EOS] before the first token of a document."""
    is_ordinary = np.zeros(vocabulary.size, dtype=bool)
    is_ordinary[vocabulary.ordinary] = True
    for tokens, begins in stretches(sources, most):
        before = np.where(begins, vocabulary.eos, np.roll(tokens, 1))
        ordinary = is_ordinary[tokens]
        yield before[ordinary], tokens[ordinary]


def _discount(counts: Int64s) -> float:
    once, twice = np.count_nonzero(counts == 1), np.count_nonzero(counts == 2)
    return (once + 1) / (once + 2 * twice + 3)
