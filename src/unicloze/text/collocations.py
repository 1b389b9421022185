"""Finds phrases in a corpus: words that occur together far more often than by chance.

The measure is the normalised pointwise mutual information of n words (Bouma, "Normalized (pointwise) mutual information in
collocation extraction", 2009, for n = 2),

    npmi(w1 .. wn) = (ln p(w1 .. wn) - ln p(w1) - .. - ln p(wn)) / (-(n - 1) ln p(w1 .. wn)),

where p(..) is the number of occurrences divided by the number of words. It is 0 for independent words and 1 for words that
occur only together. Words without a letter are neither counted nor part of a phrase.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from unicloze import keyed
from unicloze.arrays import Flags
from unicloze.errors import UsageError
from unicloze.progress import each
from unicloze.settings import DataSettings
from unicloze.text.boundaries import has_letter
from unicloze.text.lineage import file_hash
from unicloze.text.phrases import FACTS, Ids, PhraseTable, Words, given_phrases
from unicloze.text.prepare import Prepared
from unicloze.text.shards import TokenShard, TokenSource, parts_of
from unicloze.text.tokenizers import Tokenizer

TOKENS_AT_ONCE = 2**20


def open_phrases(data: DataSettings, prepared: Prepared, folder: Path, *, progress: bool = True) -> PhraseTable:
    """Phrases from `data.phrases`, or found in the training text; saved in the folder and reused."""
    tokenizer = prepared.tokenizer
    given = None if data.phrases is None else Path(data.phrases).expanduser()
    if given is not None and not given.is_file():
        raise UsageError(f"data.phrases: there is no file {given}: give a text file with one phrase per line.")
    made_from = "collocations" if given is None else file_hash(given)
    origin = {"fingerprint": prepared.fingerprint, "phrases": made_from}
    if (folder / FACTS).is_file():
        return PhraseTable.load(folder, tokenizer.vocabulary, origin)
    table = given_phrases(given, tokenizer) if given else find_phrases(prepared.train, tokenizer, progress=progress)
    table.save(folder, tokenizer, origin)
    return table


def find_phrases(
    sources: Sequence[TokenSource],
    tokenizer: Tokenizer,
    *,
    most_words: int = 3,
    least_count: int = 20,
    least_npmi: float = 0.5,
    most_phrases: int = 100_000,
    most_tokens: int = 200_000_000,
    most_counted: int = 8_000_000,
    progress: bool = False,
) -> PhraseTable:
    """Find collocations in two streaming passes over the text, in bounded memory."""
    lengths = range(2, most_words + 1)
    counts = {words: _Counts(most_counted) for words in range(1, most_words + 1)}
    text = _Text(sources, tokenizer, most_tokens)
    for _, words, fit in each(text, "count words", "parts", show=progress):
        for length, counted in counts.items():
            counted.add(words.runs(length, fit)[1])
    total = max(1, counts[1].added)
    unseen = {length: counts[length].at_least(least_count) for length in lengths}
    found: list[tuple[int, Ids]] = []
    for token_ids, words, fit in each(text, "find phrases", "parts", show=progress):
        for length in lengths:
            first, names = words.runs(length, fit)
            names, index = np.unique(names, return_index=True)
            new = np.isin(names, unseen[length], assume_unique=True)
            unseen[length] = np.setdiff1d(unseen[length], names[new], assume_unique=True)
            first, times = first[index[new]], counts[length].of(names[new])
            alone = np.stack([counts[1].of(words.hashes[first + place]) for place in range(length)])
            good = npmi(times, alone, total) >= least_npmi
            for start, count in zip(first[good].tolist(), times[good].tolist(), strict=True):
                found.append((count, token_ids[words.tokens_of(start, length)]))
        if not any(map(len, unseen.values())):
            break
    if not found:
        raise UsageError(
            f"the corpus has no phrase of up to {most_words} words that occurs at least {least_count} times with an "
            f"NPMI of at least {least_npmi}: give phrases with --data.phrases FILE, or set --objective.mask_unit word."
        )
    found.sort(key=lambda entry: (-entry[0], entry[1].tolist()))
    return PhraseTable([phrase for _, phrase in found[:most_phrases]], tokenizer.vocabulary)


def npmi(together: npt.NDArray[np.int64], alone: npt.NDArray[np.int64], total: int) -> npt.NDArray[np.float64]:
    """Normalised pointwise mutual information, defined at the top of this module."""
    # A word occurs at least as often as its phrase, even if its own count was dropped.
    joint = np.log(together / total)
    information = joint - np.log(np.maximum(alone, together) / total).sum(axis=0)
    measure: npt.NDArray[np.float64] = information / np.maximum(-(len(alone) - 1) * joint, 1e-12)
    return measure


class _Text:
    """The training text in parts of about TOKENS_AT_ONCE tokens: token ids, words, and which words may be in a phrase."""

    def __init__(self, sources: Sequence[TokenSource], tokenizer: Tokenizer, most_tokens: int) -> None:
        self._shards = [shard for source in sources for shard in source.shards]
        self._every = max(1, -(-sum(source.num_tokens for source in sources) // most_tokens))
        vocabulary = tokenizer.vocabulary
        self._vocabulary = vocabulary
        self._is_text = np.ones(vocabulary.size, dtype=bool)
        self._is_text[vocabulary.special] = False
        self._has_letter = np.array([has_letter(text) for text in tokenizer.texts()])

    def __iter__(self) -> Iterator[tuple[Ids, Words, Flags]]:
        part = 0
        for shard in self._shards:
            for starts, ends in _parts(shard):
                part += 1
                if (part - 1) % self._every:
                    continue
                bounds = zip(starts.tolist(), ends.tolist(), strict=True)
                tokens = shard.read(starts, ends)
                token_ids = np.concatenate([tokens[start:end] for start, end in bounds])
                rows = np.repeat(np.arange(len(starts)), ends - starts)
                words = Words.of(token_ids, rows, self._is_text[token_ids], self._vocabulary)
                letters = np.logical_or.reduceat(self._has_letter[token_ids], words.starts)
                yield token_ids, words, words.is_text & letters


def _parts(shard: TokenShard) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Starts and ends of documents, or of pieces of long ones, in parts of about TOKENS_AT_ONCE tokens."""
    held: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
    total, current = 0, -1
    for span in parts_of(len(shard.ends)):
        first, lengths = shard.starts[span], shard.lengths(span)
        pieces = -(-lengths // TOKENS_AT_ONCE)
        place = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        starts = np.repeat(first, pieces) + place * TOKENS_AT_ONCE
        ends = np.minimum(np.repeat(first + lengths, pieces), starts + TOKENS_AT_ONCE)
        sums = np.cumsum(ends - starts) + total
        numbers = sums // TOKENS_AT_ONCE
        total = int(sums[-1]) if len(sums) else total
        for chosen in np.split(np.arange(len(starts)), np.flatnonzero(np.diff(numbers)) + 1):
            if not len(chosen):
                continue
            if held and int(numbers[chosen[0]]) != current:
                yield _merged(held)
                held = []
            current = int(numbers[chosen[0]])
            held.append((starts[chosen], ends[chosen]))
    if held:
        yield _merged(held)


def _merged(
    held: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    starts, ends = zip(*held, strict=True)
    return np.concatenate(starts), np.concatenate(ends)


class _Counts:
    """Counts names in bounded memory: if there are too many, the rarer half is dropped."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._names = np.zeros(0, dtype=np.uint64)
        self._counts = np.zeros(0, dtype=np.int64)
        self.added = 0

    def add(self, names: keyed.Bits) -> None:
        """Add one to the count of each name."""
        self.added += len(names)
        new, times = np.unique(names, return_counts=True)
        self._names, place = np.unique(np.concatenate([self._names, new]), return_inverse=True)
        counts = np.concatenate([self._counts, times])
        self._counts = np.zeros(len(self._names), dtype=np.int64)
        np.add.at(self._counts, place, counts)
        if len(self._names) > self._most:
            rank = len(self._names) - self._most // 2
            kept = self._counts > np.partition(self._counts, rank)[rank]
            self._names, self._counts = self._names[kept], self._counts[kept]

    def at_least(self, count: int) -> keyed.Bits:
        """The names with at least this count, sorted."""
        return self._names[self._counts >= count]

    def of(self, names: keyed.Bits) -> npt.NDArray[np.int64]:
        """Count of each name, 0 if dropped. *Shape:* that of `names`"""
        if not len(self._names):
            return np.zeros(names.shape, dtype=np.int64)
        place = np.minimum(np.searchsorted(self._names, names), len(self._names) - 1)
        return np.where(self._names[place] == names, self._counts[place], 0)
