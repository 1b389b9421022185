"""An interpolated Kneser-Ney trigram of a text: the strongest simple rival of a model trained on it.

Chen and Goodman, "An empirical study of smoothing techniques for language modeling" (1999), Section 3, interpolated and with
three discounts ("modified"):

    p(w | u v) = (c(u v w) - D(c)) / c(u v) + freed(u v) p'(w | v)
    p'(w | v)  = (k(v w) - D(k)) / k(v) + freed(v) p'(w)
    p'(w)      = (k(w) - D(k)) / k + freed / V

c counts, k counts distinct tokens before (continuations; of pairs that begin a document, which nothing precedes, c), D is
the discount of counts of one, two, and three or more, freed what the discounts of a context free, V the number of ordinary
tokens.
Where fewer tokens are visible, the highest order that they allow has its true counts: p(w | v) counts pairs, p(w) tokens.

Only ordinary tokens are predicted. The first token of a document follows an [EOS]. Between visible tokens on both sides,
l2 l1 _ r1 r2, a token has a probability proportional to p(w | l2 l1) p(r1 | l1 w) p(r2 | w r1).

Content words of held-out sentences are a prediction test that is the same for every model. A word is a token that
neither continues the previous word nor is continued by the next token. It is a content word if it consists of letters only
(two or more; one where a character is a word, as in Chinese) and is not among the most frequent words of the training text,
which together make up two fifths of its running words. The limit is a share because inflected languages have more such words:
about 60 in English, 150 in Russian and 300 in Finnish.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from unicloze import keyed
from unicloze.arrays import Flags, Float64s, Int32s, Int64s
from unicloze.files import digest
from unicloze.text.prepare import Prepared
from unicloze.text.sampler import evenly_spaced
from unicloze.text.shards import TokenShard, TokenSource, kept_arrays
from unicloze.text.tokenizers import Tokenizer
from unicloze.text.vocabulary import Vocabulary

SCHEMA = 3
STRETCH = 2**18
"""Number of tokens read at once."""
MOST_COUNTED = 2**25
"""Of longer texts, evenly spread stretches of about this many tokens are counted."""
SMALL = 2**20
"""Counts of up to this many tokens are not kept on disk."""
KEPT = "tokens", "pairs", "times", "continued", "threes", "times_of_threes"
ABSENT = -1
"""In place of a neighbour that is not visible."""


def stretches(sources: Sequence[TokenSource], most: int) -> Iterator[tuple[Int64s, Flags]]:
    """The text of some sources, or evenly spread stretches of it."""
    shards = [shard for source in sources for shard in source.shards]
    bounds = np.cumsum([0, *(-(-shard.num_tokens // STRETCH) for shard in shards)])
    total = int(bounds[-1])
    tokens = sum(shard.num_tokens for shard in shards)
    count = total if tokens <= most else max(1, most * total // tokens)  # those of small shards are short
    for number in evenly_spaced(count, total).tolist() if total else []:
        place = int(np.searchsorted(bounds, number, side="right")) - 1
        yield _stretch(shards[place], (number - int(bounds[place])) * STRETCH)


def _stretch(shard: TokenShard, start: int) -> tuple[Int64s, Flags]:
    """One stretch of a shard's concatenated documents, from token `start` on."""
    stop = min(start + STRETCH, shard.num_tokens)
    (first, last), before, _ = shard.sums.find(np.array([start, stop - 1]))
    starts, ends = shard.bounds(np.arange(first, last + 1))
    sums = np.cumsum(ends - starts) + before[0]
    document = np.searchsorted(sums, np.arange(start, stop), side="right")
    places = np.arange(start, stop) + (ends - sums)[document]
    tokens: Int64s = shard.tokens[places].astype(np.int64)
    begins: Flags = np.diff(document, prepend=-1) != 0
    return tokens, begins


class Neighbours(NamedTuple):
    """The visible tokens around some blanks, `ABSENT` where none is. *Shape:* (blanks,) each."""

    left2: Int64s  # second token to the left; not used where the first is absent
    left1: Int64s  # first token to the left
    right1: Int64s  # first token to the right, ordinary or absent
    right2: Int64s  # second token to the right, ordinary or absent; not used where the first is absent


class _Order:
    """Discounted counts of sequences of one length; a code is (code of the context) x size + token.

    Args:
        codes: The sequences, sorted.
        times: Count of each.
        size: Number of ids.
    """

    def __init__(self, codes: Int64s, times: Int32s, size: int) -> None:
        self.codes, self.times, self.size = codes, times, size
        self.discounts = _discounts(times)
        contexts = codes // size
        starts = np.flatnonzero(np.diff(contexts, prepend=-1))
        self.contexts, self.starts = contexts[starts], np.append(starts, len(codes))
        self.total = np.add.reduceat(times, starts, dtype=np.int64) if len(codes) else starts
        taken = self.discounts[np.minimum(times, 3)]
        self.freed: Float64s = np.add.reduceat(taken, starts) / self.total if len(codes) else taken

    def of(self, contexts: Int64s, tokens: Int64s, lower: Float64s) -> Float64s:
        """Probability of tokens after contexts, from that after the shorter contexts. *Shape:* (tokens,) all"""
        place, known = _found(self.contexts, contexts)
        code, seen = _found(self.codes, contexts * self.size + tokens)
        result = lower.copy()
        result[known] *= self.freed[place[known]]
        result[seen] += self.shares(code[seen], place[seen])
        return result

    def after(self, context: int, lower: Float64s) -> Float64s:
        """Probability of every token after one context. *Shape:* (vocabulary,)"""
        result, (place, known) = lower.copy(), _found(self.contexts, np.array([context]))
        if known[0]:
            result *= self.freed[place[0]]
            codes = np.arange(self.starts[place[0]], self.starts[place[0] + 1])
            result[self.codes[codes] - context * self.size] += self.shares(codes, place[0])
        return result

    def shares(self, codes: Int64s, contexts: Int64s | np.int64) -> Float64s:
        """Discounted probability of some of the sequences, given the indices of their contexts."""
        times = self.times[codes]
        shares: Float64s = (times - self.discounts[np.minimum(times, 3)]) / self.total[contexts]
        return shares


@dataclass(frozen=True, kw_only=True, eq=False)
class Counts:
    """Counts of tokens, pairs and threes of tokens in a text, and the Kneser-Ney trigram they make."""

    vocabulary: Vocabulary  # the vocabulary of the tokens
    tokens: Int64s  # Count of each id; 0 for special ids. *Shape:* (vocabulary,)
    pairs: Int64s  # Codes of the pairs that occur, first id x vocabulary size + second id, sorted. *Shape:* (pairs,)
    times: Int32s  # Count of each pair. *Shape:* (pairs,)
    # Number of distinct tokens before each pair; its count if it begins a document. *Shape:* (pairs,)
    continued: Int32s
    # Codes of the threes that occur, code of a pair x vocabulary size + third id, sorted. *Shape:* (threes,)
    threes: Int64s
    times_of_threes: Int32s  # Count of each. *Shape:* (threes,)

    @classmethod
    def of(cls, sources: Sequence[TokenSource], vocabulary: Vocabulary, most: int = MOST_COUNTED) -> Counts:
        """Count the text of some sources; above `most` tokens, evenly spread stretches of it."""
        size = vocabulary.size
        is_ordinary = np.zeros(size, dtype=bool)
        is_ordinary[vocabulary.ordinary] = True
        pairs, threes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for tokens, begins in stretches(sources, most):
            pair = np.where(begins, vocabulary.eos, np.roll(tokens, 1)) * size + tokens
            ordinary = is_ordinary[tokens]
            pairs.append(pair[ordinary])
            threes.append((np.roll(pair, 1) * size + tokens)[ordinary & ~begins])
        codes, times = counted(pairs)
        codes_of_threes, times_of_threes = counted(threes)
        continued, before = times.copy(), counted([codes_of_threes % size**2])
        place, known = _found(codes, before[0])
        continued[place[known]] = before[1][known]
        return cls(
            vocabulary=vocabulary,
            tokens=np.bincount(codes % size, times, minlength=size).astype(np.int64),
            pairs=codes,
            times=times,
            continued=continued,
            threes=codes_of_threes,
            times_of_threes=times_of_threes,
        )

    @property
    def total(self) -> int:
        """Number of tokens counted."""
        return int(self.tokens.sum())

    @cached_property
    def unigram(self) -> Float64s:
        """p(w) of each id. *Shape:* (vocabulary,)"""
        return self._of_single(self.tokens)

    def following(self, left2: Int64s, left1: Int64s, tokens: Int64s) -> Float64s:
        """p(w | u v) of each token given the two before it, of which either may be `ABSENT`. *Shape:* (tokens,) all"""
        result = self.unigram[tokens]
        one, two = (left1 >= 0) & (left2 < 0), (left1 >= 0) & (left2 >= 0)
        result[one] = self._alone.of(left1[one], tokens[one], self._lowest[tokens[one]])
        pair, left, right = (left2 * self.vocabulary.size + left1)[two], left1[two], tokens[two]
        result[two] = self._three.of(pair, right, self._two.of(left, right, self._lowest[right]))
        return result

    def blanks(self, around: Neighbours) -> Iterator[Float64s]:
        """p(w | l2 l1 _ r1 r2) of each id w, for one blank after the other. *Shape:* (vocabulary,) each"""
        size, ordinary = self.vocabulary.size, self.vocabulary.ordinary
        sides, right = (around.left1 >= 0) & (around.right1 >= 0), (around.right1 >= 0) & (around.right2 >= 0)
        by_sides = _Groups.of(
            (around.left1 * size + around.right1)[sides],
            self.threes,
            lambda codes: codes // size**2 * size + codes % size,
        )
        by_right = _Groups.of((around.right1 * size + around.right2)[right], self.threes, lambda codes: codes % size**2)
        for left2, left1, right1, right2 in zip(*(column.tolist() for column in around), strict=True):
            scores = self._after(left2, left1)
            if right1 >= 0:
                scores *= self._before(right1, left1, by_sides)
                if right2 >= 0:
                    scores *= self._second_before(right1, right2, by_right)
            scores /= scores[ordinary].sum()
            yield scores

    @cached_property
    def _lowest(self) -> Float64s:
        """p'(w) of each id. *Shape:* (vocabulary,)"""
        return self._of_single(np.bincount(self.pairs % self.vocabulary.size, minlength=self.vocabulary.size))

    @cached_property
    def _alone(self) -> _Order:
        """The pairs as the highest order."""
        return _Order(self.pairs, self.times, self.vocabulary.size)

    @cached_property
    def _two(self) -> _Order:
        """The pairs below the threes."""
        return _Order(self.pairs, self.continued, self.vocabulary.size)

    @cached_property
    def _three(self) -> _Order:
        return _Order(self.threes, self.times_of_threes, self.vocabulary.size)

    @cached_property
    def _by_second(self) -> tuple[Int64s, Int64s]:
        """Order of the pairs by second token, and the first of each token in it. *Shape:* (pairs,), (vocabulary + 1,)"""
        seconds = self.pairs % self.vocabulary.size
        order = np.argsort(seconds, kind="stable")
        return order, np.searchsorted(seconds[order], np.arange(self.vocabulary.size + 1))

    @cached_property
    def _freed_after(self) -> Float64s:
        """What each pair leaves to the shorter context. *Shape:* (pairs,)"""
        place, known = _found(self._three.contexts, self.pairs)
        freed = np.ones(len(self.pairs))
        freed[known] = self._three.freed[place[known]]
        return freed

    def _of_single(self, counts: Int64s) -> Float64s:
        """Discounted counts of each ordinary token, with what they free spread evenly. *Shape:* (vocabulary,)"""
        ordinary, result, total = self.vocabulary.ordinary, np.zeros(self.vocabulary.size), int(counts.sum())
        taken = _discounts(counts)[np.minimum(counts, 3)]
        freed = taken.sum() / total if total else 1.0
        result[ordinary] = (counts - taken)[ordinary] / max(1, total) + freed / len(ordinary)
        return result

    def _after(self, left2: int, left1: int) -> Float64s:
        """p(w | l2 l1) of each id w. *Shape:* (vocabulary,)"""
        if left1 < 0:
            return self.unigram.copy()
        if left2 < 0:
            return self._alone.after(left1, self._lowest)
        return self._three.after(left2 * self.vocabulary.size + left1, self._two.after(left1, self._lowest))

    def _before(self, right1: int, left1: int, by_sides: _Groups) -> Float64s:
        """p(r1 | l1 w) of each id w. *Shape:* (vocabulary,)"""
        size, (order, first) = self.vocabulary.size, self._by_second
        two = self._alone if left1 < 0 else self._two
        codes = order[first[right1] : first[right1 + 1]]
        result = np.full(size, self._lowest[right1])
        result[two.contexts] *= two.freed
        before = self.pairs[codes] // size
        result[before] += two.shares(codes, np.searchsorted(two.contexts, before))
        if left1 >= 0:
            span = slice(*np.searchsorted(self.pairs, [left1 * size, (left1 + 1) * size]))
            result[self.pairs[span] - left1 * size] *= self._freed_after[span]
            codes, shares = self._threes_in(by_sides, left1 * size + right1)
            result[codes // size % size] += shares
        return result

    def _second_before(self, right1: int, right2: int, by_right: _Groups) -> Float64s:
        """p(r2 | w r1) of each id w. *Shape:* (vocabulary,)"""
        size, (order, first) = self.vocabulary.size, self._by_second
        lower = self._two.of(np.array([right1]), np.array([right2]), self._lowest[[right2]])[0]
        result = np.full(size, lower)
        codes = order[first[right1] : first[right1 + 1]]
        result[self.pairs[codes] // size] *= self._freed_after[codes]
        codes, shares = self._threes_in(by_right, right1 * size + right2)
        result[codes // size**2] += shares
        return result

    def _threes_in(self, groups: _Groups, key: int) -> tuple[Int64s, Float64s]:
        """The threes of a group, and the discounted probability of their last token."""
        found = groups.numbers[slice(*np.searchsorted(groups.keys, [key, key + 1]))]
        codes = self.threes[found]
        return codes, self._three.shares(found, np.searchsorted(self._three.contexts, codes // self.vocabulary.size))


class _Groups(NamedTuple):
    """Threes that share two tokens, for some pairs of such tokens."""

    keys: Int64s  # Code of the two tokens, sorted. *Shape:* (threes of all groups,)
    numbers: Int64s  # Number of the three. *Shape:* (threes of all groups,)

    @classmethod
    def of(cls, wanted: Int64s, threes: Int64s, key_of: Callable[[Int64s], Int64s]) -> _Groups:
        """Find the threes of the wanted keys."""
        wanted = np.unique(wanted)
        keys, numbers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for start in range(0, len(threes), STRETCH):
            key = key_of(threes[start : start + STRETCH])
            hits = np.flatnonzero(_found(wanted, key)[1])
            keys.append(key[hits])
            numbers.append(hits + start)
        key = np.concatenate(keys)
        order = np.argsort(key, kind="stable")
        return cls(key[order], np.concatenate(numbers)[order])


def open_counts(prepared: Prepared, sources: Sequence[TokenSource], most: int = MOST_COUNTED) -> Counts:
    """The counts of some training sources of prepared text; those of a large text are kept in its folder."""
    vocabulary = prepared.tokenizer.vocabulary
    if sum(source.num_tokens for source in sources) < SMALL:
        return Counts.of(sources, vocabulary, most)
    made_from = digest([SCHEMA, prepared.fingerprint, [source.name for source in sources], most])
    kept = kept_arrays(
        prepared.folder / "index" / f"counts-{made_from[:16]}.npz",
        lambda: {name: getattr(counts, name) for counts in [Counts.of(sources, vocabulary, most)] for name in KEPT},
    )
    return Counts(vocabulary=vocabulary, **kept)


def counted(codes: list[Int64s]) -> tuple[Int64s, Int32s]:
    """Distinct values, sorted, and the count of each; empties the list."""
    values = np.concatenate(codes)
    codes.clear()
    values.sort()
    begins = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=begins[1:])
    first = np.flatnonzero(begins)
    return values[first], np.diff(first, append=len(values)).astype(np.int32)


def _found(codes: Int64s, wanted: Int64s) -> tuple[Int64s, Flags]:
    """Place of each wanted code among sorted ones, and whether it is there."""
    if not len(codes):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), dtype=bool)
    place = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
    return place, codes[place] == wanted


def _discounts(times: Int64s | Int32s) -> Float64s:
    """Discounts of counts of 0, 1, 2 and of 3 or more (Chen and Goodman 1999, equation 26).

    A text with too few counts of 1 to 4 for them has one discount for all counts, n1 / (n1 + 2 n2), with 1 added to each.
    """
    _, one, two, three, four = np.bincount(np.minimum(times, 5), minlength=6)[:5].tolist()
    if min(one, two, three, four) > 0:
        share = one / (one + 2 * two)
        by_count = [1 - 2 * share * two / one, 2 - 3 * share * three / two, 3 - 4 * share * four / three]
        if all(0 < discount < count for count, discount in enumerate(by_count, 1)):
            return np.array([0.0, *by_count])
    single = (one + 1) / (one + 2 * two + 3)
    return np.array([0.0, single, single, single])


FREQUENT_SHARE = 0.4
"""Share of the running words too frequent to be content words."""
SHORTEST, LONGEST = 8, 40
"""Length of a sentence in tokens; longer sentences are cut."""
LETTERS_SHARE = 0.75
"""Smallest share of letter tokens in a sentence; headings, formulas and code have fewer."""
MOST_READ = 2**20
"""Number of held-out tokens searched."""


@dataclass(frozen=True, kw_only=True)
class ContentWords:
    """Sentences with one content word each."""

    sentences: Sequence[Sequence[int]]  # token ids of each sentence
    places: Sequence[int]  # index of the word's token in each sentence; it has a text token on either side

    def __len__(self) -> int:
        return len(self.places)

    @property
    def answers(self) -> list[int]:
        """Token of each content word."""
        return [sentence[place] for sentence, place in zip(self.sentences, self.places, strict=True)]


def content_words(
    sources: Sequence[TokenSource], counts: Counts, tokenizer: Tokenizer, *, longest: int, most: int
) -> ContentWords:
    """Draw one content word from each of some sentences, by keyed random numbers."""
    letters, could_be_word = letters_of(tokenizer)
    is_word = could_be_word & ~frequent_tokens(counts, letters)
    read = [*stretches(sources, MOST_READ)]
    if not read:
        return ContentWords(sentences=[], places=[])
    tokens, begins = (np.concatenate(column) for column in zip(*read, strict=True))
    begins[1:] |= tokenizer.vocabulary.ends_sentence[tokens[:-1]]
    starts, ends = _sentences(begins, letters[tokens], min(longest, LONGEST))
    whole = is_word[tokens] & ~np.append(tokenizer.vocabulary.continues[tokens[1:]], False)
    sentences: dict[tuple[int, ...], int] = {}
    for number in np.argsort(keyed.key(keyed.Purpose.CONTENT_SENTENCE, np.arange(len(starts))), kind="stable").tolist():
        if len(sentences) == most:
            break
        start, end = int(starts[number]), int(ends[number])
        places = np.flatnonzero(whole[start + 1 : end - 1]) + 1
        if len(places):
            key = keyed.key(keyed.Purpose.CONTENT_SENTENCE, number)
            draw = keyed.bits(key, keyed.Stream.CONTENT_WORD, np.zeros(1, np.int64))
            sentences.setdefault(tuple(tokens[start:end].tolist()), int(places[keyed.below(draw, len(places))[0]]))
    return ContentWords(sentences=[*map(list, sentences)], places=[*sentences.values()])


def frequent_tokens(counts: Counts, letters: Flags) -> Flags:
    """The most frequent single-token words, up to `FREQUENT_SHARE` of all running words."""
    size, continues = counts.vocabulary.size, counts.vocabulary.continues
    goes_on = continues[counts.pairs % size]
    continued = np.bincount(counts.pairs[goes_on] // size, counts.times[goes_on], minlength=size)
    begins = letters & ~continues
    whole = np.where(begins, counts.tokens - continued, 0)
    order = np.argsort(-whole, kind="stable")
    up_to = np.cumsum(whole[order]) - whole[order]
    found = np.zeros(size, dtype=bool)
    found[order] = (up_to < FREQUENT_SHARE * counts.tokens[begins].sum()) & (whole[order] > 0)
    return found


def letters_of(tokenizer: Tokenizer) -> tuple[Flags, Flags]:
    """Tokens consisting of letters only, and those that can be a content word. *Shape:* (vocabulary,) each"""
    vocabulary = tokenizer.vocabulary
    texts = [tokenizer.decode([number]).strip() for number in range(vocabulary.size)]
    letters = np.array([text != "" and all(unicodedata.category(sign)[0] in "LM" for sign in text) for text in texts])
    letters[vocabulary.special] = False
    long = [len(text) > 1 or unicodedata.east_asian_width(text or " ") in ("W", "F") for text in texts]
    return letters, letters & np.array(long) & ~vocabulary.continues


def _sentences(begins: Flags, letters: Flags, longest: int) -> tuple[Int64s, Int64s]:
    """Start and end of each sentence of a text, without those that are short or have few letters."""
    first = np.flatnonzero(begins)
    parts = -(-np.diff(first, append=len(begins)) // longest)
    part = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    starts = np.repeat(first, parts) + part * longest
    ends = np.append(starts[1:], len(begins))
    up_to = np.append(0, np.cumsum(letters))
    fit = (ends - starts >= SHORTEST) & (up_to[ends] - up_to[starts] >= LETTERS_SHARE * (ends - starts))
    return starts[fit], ends[fit]
