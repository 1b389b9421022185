"""Content words of held-out sentences, for a prediction test that is the same for every model.

A word is a token that neither continues the previous word nor is continued by the next token. It is a content word if it
consists of letters only (two or more; one where a character is a word, as in Chinese) and is not among the most frequent
words of the training text, which together make up two fifths of its running words. The limit is a share because inflected
languages have more such words: about 60 in English, 150 in Russian and 300 in Finnish.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unicloze import keyed
from unicloze.arrays import Flags, Int64s
from unicloze.text.counts import Counts, stretches
from unicloze.text.shards import TokenSource
from unicloze.text.tokenizers import Tokenizer

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
            draw = keyed.bits(
                keyed.key(keyed.Purpose.CONTENT_SENTENCE, number), keyed.Stream.CONTENT_WORD, np.zeros(1, np.int64)
            )
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
