"""What counting gives: a unigram and an interpolated bigram model of a text, which a trained model has to beat.

Both take a discount D off every count and give what that frees to the model below (absolute discounting; Ney, Essen and
Kneser, "On structuring probabilistic dependences in stochastic language modelling", 1994):

    p(w)     = max(c(w) - D, 0) / N + D T / N * 1 / V
    p(w | v) = max(c(v, w) - D', 0) / c(v) + D' t(v) / c(v) * p(w)

T is the number of different tokens, t(v) of those that follow v, V that of the vocabulary. A discount is the paper's
leave-one-out estimate on the counted text, n1 / (n1 + 2 n2) with n1 and n2 the numbers of tokens (or pairs) that were
counted once and twice, with one more of each so that it lies between 0 and 1 for any text. Only ordinary tokens are
predicted; a document begins behind an [EOS].
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from unicloze.text.orders import spread
from unicloze.text.shards import TokenShard, TokenSource
from unicloze.text.tokenizers import Vocabulary

STRETCH = 2**18
"""Tokens read at once."""
MOST_COUNTED = 2**23
"""Of a longer text evenly spread stretches of about as many tokens are counted."""
MOST_MEASURED = 2**21
"""Of a longer held-out text likewise."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


def stretches(sources: Sequence[TokenSource], most: int) -> Iterator[tuple[Ints, Flags]]:
    """The text of some sources, or evenly spread stretches of it.

    Args:
        sources: The text.
        most: So many tokens, up to a stretch; all if there are no more.

    Yields:
        Tokens, and whether a document (or the stretch) begins there. *Shape:* (tokens,) each.
    """
    places = [
        (shard, start)
        for source in sources
        for shard in source.shards
        for start in range(0, int((shard.ends - shard.starts).sum()), STRETCH)
    ]
    for number in spread(min(len(places), max(1, most // STRETCH)), len(places)).tolist() if places else []:
        yield _stretch(*places[number])


def _stretch(shard: TokenShard, start: int) -> tuple[Ints, Flags]:
    """Tokens of a shard's documents, laid end to end, from one on."""
    ends = np.cumsum(shard.ends - shard.starts)
    stop = min(start + STRETCH, int(ends[-1]))
    document = np.searchsorted(ends, np.arange(start, stop), side="right")
    shift = shard.starts - (ends - (shard.ends - shard.starts))
    places = np.arange(start, stop) + shift[document]
    tokens: Ints = shard.read(places, places + 1)[places].astype(np.int64)
    begins: Flags = np.diff(document, prepend=-1) != 0
    return tokens, begins


@dataclass(frozen=True, kw_only=True, eq=False)
class Counts:
    """How often each token stands in a text, and each pair of tokens.

    Args:
        vocabulary: Of the tokens.
        tokens: How often each id stands there; 0 for special ones. *Shape:* (vocabulary,)
        pairs: Names of the pairs that stand there, (first token) x (ids of the vocabulary) + (second), sorted.
            *Shape:* (pairs,)
        times: How often each does. *Shape:* (pairs,)
    """

    vocabulary: Vocabulary
    tokens: Ints
    pairs: Ints
    times: Ints

    @classmethod
    def of(cls, sources: Sequence[TokenSource], vocabulary: Vocabulary, most: int = MOST_COUNTED) -> Counts:
        """Count the text of some sources, evenly spread stretches of it if it is longer than `most` tokens."""
        found = [before * vocabulary.size + tokens for before, tokens in _pairs(sources, vocabulary, most)]
        pairs, times = np.unique(np.concatenate([np.zeros(0, np.int64), *found]), return_counts=True)
        tokens = np.bincount(pairs % vocabulary.size, times, minlength=vocabulary.size).astype(np.int64)
        return cls(vocabulary=vocabulary, tokens=tokens, pairs=pairs, times=times.astype(np.int64))

    @property
    def total(self) -> int:
        """Tokens counted."""
        return int(self.tokens.sum())

    @cached_property
    def unigram(self) -> Floats:
        """p(w) of each id. *Shape:* (vocabulary,)"""
        ordinary, counts = self.vocabulary.ordinary, self.tokens
        result, discount = np.zeros(self.vocabulary.size), _discount(counts)
        freed = discount * np.count_nonzero(counts) / self.total if self.total else 1.0
        result[ordinary] = np.maximum(counts[ordinary] - discount, 0) / max(1, self.total) + freed / len(ordinary)
        return result

    def bigram(self, before: Ints, tokens: Ints) -> Floats:
        """p(w | v) of tokens, each with the one before it. *Shape:* (tokens,) both"""
        wanted = before * self.vocabulary.size + tokens
        place = np.minimum(np.searchsorted(self.pairs, wanted), max(0, len(self.pairs) - 1))
        seen = self.pairs[place] == wanted if len(self.pairs) else np.zeros(len(wanted), dtype=bool)
        shares = np.zeros(len(wanted))
        shares[seen] = self._shares[place[seen]]
        result: Floats = shares + self._freed[before] * self.unigram[tokens]
        return result

    def after(self, token: int) -> Floats:
        """p(w | `token`) of each id w. *Shape:* (vocabulary,)"""
        size = self.vocabulary.size
        found = slice(*np.searchsorted(self.pairs, [token * size, (token + 1) * size]))
        result: Floats = self._freed[token] * self.unigram
        result[self.pairs[found] - token * size] += self._shares[found]
        return result

    def before(self, token: int) -> Floats:
        """p(`token` | w) of each id w. *Shape:* (vocabulary,)"""
        order, seconds = self._by_second
        found = order[slice(*np.searchsorted(seconds, [token, token + 1]))]
        result: Floats = self._freed * self.unigram[token]
        result[self.pairs[found] // self.vocabulary.size] += self._shares[found]
        return result

    def perplexities(self, sources: Sequence[TokenSource], most: int = MOST_MEASURED) -> tuple[float, float] | None:
        """Perplexity of the ordinary tokens of another text by p(w), and by p(w | v); None if it has none."""
        nats, tokens = np.zeros(2), 0
        for before, following in _pairs(sources, self.vocabulary, most):
            for place, each in enumerate((self.unigram[following], self.bigram(before, following))):
                nats[place] -= np.log(each).sum()
            tokens += len(following)
        return (math.exp(nats[0] / tokens), math.exp(nats[1] / tokens)) if tokens else None

    @cached_property
    def _totals(self) -> Ints:
        """c(v), the pairs that begin with each id. *Shape:* (vocabulary,)"""
        first = self.pairs // self.vocabulary.size
        return np.bincount(first, self.times, minlength=self.vocabulary.size).astype(np.int64)

    @cached_property
    def _shares(self) -> Floats:
        """What the count of each pair gives, discounted. *Shape:* (pairs,)"""
        shares: Floats = (self.times - _discount(self.times)) / self._totals[self.pairs // self.vocabulary.size]
        return shares

    @cached_property
    def _freed(self) -> Floats:
        """What is left for p(w) behind each id. *Shape:* (vocabulary,)"""
        kinds = np.bincount(self.pairs // self.vocabulary.size, minlength=self.vocabulary.size)
        freed = _discount(self.times) * kinds / np.maximum(1, self._totals)
        return np.where(self._totals > 0, freed, 1.0)

    @cached_property
    def _by_second(self) -> tuple[Ints, Ints]:
        """The pairs in the order of their second token, and these tokens. *Shape:* (pairs,) each"""
        second = self.pairs % self.vocabulary.size
        order = np.argsort(second, kind="stable")
        return order, second[order]


def _pairs(sources: Sequence[TokenSource], vocabulary: Vocabulary, most: int) -> Iterator[tuple[Ints, Ints]]:
    """Ordinary tokens, each with the token before it, an [EOS] where a document begins."""
    is_ordinary = np.zeros(vocabulary.size, dtype=bool)
    is_ordinary[vocabulary.ordinary] = True
    for tokens, begins in stretches(sources, most):
        before = np.where(begins, vocabulary.eos, np.roll(tokens, 1))
        ordinary = is_ordinary[tokens]
        yield before[ordinary], tokens[ordinary]


def _discount(counts: Ints) -> float:
    once, twice = np.count_nonzero(counts == 1), np.count_nonzero(counts == 2)
    return (once + 1) / (once + 2 * twice + 3)
