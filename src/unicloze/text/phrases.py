"""Phrase tables: multi-word phrases to mask as a unit (ERNIE), stored as token ids.

FOLDER/phrases.txt     the phrases as text, to read, edit and pass to --data.phrases
FOLDER/phrases.json    their token ids and their origin
"""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze import keyed
from unicloze.arrays import Flags, Float64s, Int32s, Int64s
from unicloze.errors import UniclozeError, UsageError
from unicloze.files import at_home, digest, parse_json, read_bytes, replace_file
from unicloze.progress import each
from unicloze.settings import DataSettings
from unicloze.text.lineage import file_hash
from unicloze.text.prepare import Prepared
from unicloze.text.shards import TokenShard, TokenSource, parts_of
from unicloze.text.tokenizers import Tokenizer
from unicloze.text.vocabulary import Vocabulary, has_letter

FACTS = "phrases.json"
SCHEMA = 2
"""Schema version of a phrase table."""

_PIECE_FACTOR, _WORD_FACTOR = int(keyed.GOLDEN), 0xD6E8FEB86659FD93
_SIEVE_BITS = 20
MOST_WORDS = 64
"""Largest number of words in a phrase."""

Ids = npt.NDArray[np.integer]


def _powers(factor: int, count: int) -> keyed.Bits:
    return np.array([pow(factor, exponent, 2**64) for exponent in range(count)], dtype=np.uint64)


_PIECE_POWERS = _powers(_PIECE_FACTOR, 64)
_WORD_POWERS = _powers(_WORD_FACTOR, MOST_WORDS)


@dataclass(frozen=True)
class Words:
    """Words of concatenated texts."""

    starts: Int64s  # First token of each word. *Shape:* (words,)
    of_token: Int64s  # Index of each token's word. *Shape:* (tokens,)
    hashes: keyed.Bits  # Hash of each word's tokens. *Shape:* (words,)
    row: Int64s  # Index of each word's text. *Shape:* (words,)
    is_text: Flags  # Whether a word is text rather than a special token. *Shape:* (words,)

    @classmethod
    def of(cls, token_ids: Ids, rows: Ids, maskable: Flags, vocabulary: Vocabulary) -> Words:
        """Split texts into words."""
        first = np.ones(len(token_ids), dtype=bool)
        first[1:] = (rows[1:] != rows[:-1]) | ~maskable[:-1]
        begins = ~(vocabulary.boundaries.follows(token_ids, first) & maskable)
        starts = np.flatnonzero(begins)
        of_token = np.cumsum(begins) - 1
        place = np.minimum(np.arange(len(token_ids)) - starts[of_token], len(_PIECE_POWERS) - 1)
        pieces = keyed.key(keyed.Purpose.PHRASE_WORD, np.arange(vocabulary.size))[token_ids] * _PIECE_POWERS[place]
        hashes = np.add.reduceat(pieces, starts) if len(starts) else pieces
        return cls(starts, of_token, hashes, np.asarray(rows)[starts].astype(np.int64), maskable[starts])

    def runs(self, words: int, fit: Flags | None = None) -> tuple[Int64s, keyed.Bits]:
        """Starts of all runs of `words` consecutive words within one text, and a hash of each run."""
        count = max(0, len(self.starts) - words + 1)
        usable = self.is_text if fit is None else fit
        whole = self.row[:count] == self.row[words - 1 :][:count]
        names = np.zeros(count, dtype=np.uint64)
        for place in range(words):
            whole &= usable[place : place + count]
            names += self.hashes[place : place + count] * _WORD_POWERS[place]
        first = np.flatnonzero(whole)
        return first, names[first]

    def tokens_of(self, first: int, words: int) -> slice:
        """The tokens of `words` words, starting with word `first`."""
        last = first + words
        return slice(int(self.starts[first]), int(self.starts[last]) if last < len(self.starts) else len(self.of_token))


class PhraseTable:
    """Known phrases of two or more words.

    Args:
        phrases: Token ids of each. Phrases of one word, of more than MOST_WORDS words, or with a special token are dropped.
        vocabulary: Vocabulary of the ids.
    """

    def __init__(self, phrases: Sequence[Ids], vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        special = set(vocabulary.special.tolist())
        distinct = {tuple(phrase.tolist()) for phrase in phrases}
        usable = sorted(phrase for phrase in distinct if phrase and not special & set(phrase))
        rows = np.repeat(np.arange(len(usable)), np.array([len(phrase) for phrase in usable], dtype=np.int64))
        ids = np.array([token for phrase in usable for token in phrase], dtype=np.int32)
        words = Words.of(ids, rows, np.ones(len(ids), dtype=bool), vocabulary)
        counts = np.bincount(words.row, minlength=len(usable))
        kept = (counts > 1) & (counts <= MOST_WORDS)
        self.phrases = [phrase for phrase, keep in zip(usable, kept.tolist(), strict=True) if keep]
        self._names: dict[int, keyed.Bits] = {}
        # by leading bits of a hash, which exclude most that are not among the names
        self._sieves: dict[int, Flags] = {}
        for count in sorted(set(counts[kept].tolist()), reverse=True):
            first, names = words.runs(count)
            self._names[count] = names = np.unique(names[counts[words.row[first]] == count])
            self._sieves[count] = np.zeros(2**_SIEVE_BITS, dtype=bool)
            self._sieves[count][names >> np.uint64(64 - _SIEVE_BITS)] = True

    def __len__(self) -> int:
        return len(self.phrases)

    def joined(self, token_ids: Int32s, maskable: Flags) -> Flags:
        """Whether a token belongs to the same phrase as the token before it.

        Where phrases overlap, the one with more words wins, then the leftmost; none spans a special token.

        Args:
            token_ids: *Shape:* (rows, window)
            maskable: Tokens that are text. *Shape:* (rows, window)
        """
        rows, window = token_ids.shape
        row = np.repeat(np.arange(rows), window)
        words = Words.of(token_ids.ravel(), row, maskable.ravel(), self._vocabulary)
        taken = np.zeros(len(words.starts), dtype=bool)
        goes_on = np.zeros(len(words.starts), dtype=bool)
        for count, known in self._names.items():
            first, names = words.runs(count)
            seen = np.flatnonzero(self._sieves[count][names >> np.uint64(64 - _SIEVE_BITS)])
            place = np.minimum(np.searchsorted(known, names[seen]), len(known) - 1)
            found = first[seen[known[place] == names[seen]]]
            covered = found[:, None] + np.arange(count)
            covered = _leftmost(found[~taken[covered].any(axis=1)], count)[:, None] + np.arange(count)
            taken[covered] = True
            goes_on[covered[:, 1:]] = True
        joined = taken[words.of_token]
        joined[words.starts] = goes_on
        return joined.reshape(rows, window)

    def save(self, folder: Path, tokenizer: Tokenizer, origin: Mapping[str, Any]) -> None:
        """Write the table and its origin, see the top of this module."""
        folder.mkdir(parents=True, exist_ok=True)
        texts = "".join(f"{tokenizer.decode(phrase).strip()}\n" for phrase in self.phrases)
        (folder / "phrases.txt").write_text(texts, encoding="utf-8")
        content = {"schema": SCHEMA, "origin": dict(origin), "phrases": self.phrases}
        replace_file(folder / FACTS, json.dumps(content | {"sha256": digest(content)}) + "\n")

    @classmethod
    def load(cls, folder: Path, vocabulary: Vocabulary, origin: Mapping[str, Any]) -> PhraseTable:
        """Load a saved table."""
        cure = f"remove {folder} to make it again, or start another --out."
        try:
            content = parse_json(read_bytes(folder / FACTS))
            whole = content.pop("sha256") == digest(content) and content["schema"] == SCHEMA
        except (ValueError, OSError, AttributeError, KeyError, TypeError) as error:
            raise UniclozeError(f"the phrase table in {folder} is damaged ({error}): {cure}") from error
        if not whole:
            raise UniclozeError(
                f"{folder / FACTS} is damaged (its SHA-256 is not the one in it) or does not have schema {SCHEMA}: {cure}"
            )
        if content["origin"] != dict(origin):
            raise UniclozeError(
                f"the phrase table in {folder} is from {content['origin']}, but the run needs {dict(origin)}: {cure}"
            )
        return cls([np.array(phrase, dtype=np.int32) for phrase in content["phrases"]], vocabulary)


def given_phrases(path: Path, tokenizer: Tokenizer) -> PhraseTable:
    """Read phrases from a text file, one per line; warns about lines that are not usable."""
    try:
        content = read_bytes(path).decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"data.phrases: {path} cannot be read ({error.strerror}): give a text file.") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"data.phrases: {path} is not valid UTF-8 at byte {error.start}: give a UTF-8 text file."
        ) from error
    texts = [line.strip() for line in content.splitlines() if line.strip()]
    # Byte-level tokens of a word depend on the preceding space, which only the first word of a text lacks.
    spelled = tokenizer.encode_batch([*texts, *(f" {text}" for text in texts)])
    table = PhraseTable(spelled, tokenizer.vocabulary)
    known = set(table.phrases)
    lines = zip(texts, spelled[: len(texts)], spelled[len(texts) :], strict=True)
    left_out = [text for text, *both in lines if known.isdisjoint(tuple(ids.tolist()) for ids in both)]
    if len(table) and left_out:
        warnings.warn(
            f"data.phrases: {len(left_out):,} of the {len(texts):,} lines of {path} are ignored, such as {left_out[0]!r}: a "
            f"phrase has 2 to {MOST_WORDS} words that the tokenizer can spell",
            stacklevel=2,
        )
    if not len(table):
        raise UsageError(
            f"data.phrases: {path} has no phrase of two or more words that the tokenizer can spell: give one per line."
        )
    return table


def _leftmost(first: Int64s, words: int) -> Int64s:
    """Choose non-overlapping runs greedily from the left.

    Each round takes the runs that overlap no earlier run and removes those that overlap a taken one.
    """
    chosen = []
    while len(first):
        taken = first[np.diff(first, prepend=-words) >= words]
        chosen.append(taken)
        before = taken[np.searchsorted(taken, first, side="right") - 1]
        first = first[first - before >= words]
    return np.concatenate(chosen) if chosen else first


TOKENS_AT_ONCE = 2**20


# The measure is the normalised pointwise mutual information of n words (Bouma, "Normalized (pointwise) mutual
# information in collocation extraction", 2009, for n = 2),
#
#     npmi(w1 .. wn) = (ln p(w1 .. wn) - ln p(w1) - .. - ln p(wn)) / (-(n - 1) ln p(w1 .. wn)),
#
# where p(..) is the number of occurrences divided by the number of words. It is 0 for independent words and 1 for
# words that occur only together. Words without a letter are neither counted nor part of a phrase.


def open_phrases(data: DataSettings, prepared: Prepared, folder: Path, *, progress: bool = True) -> PhraseTable:
    """Phrases from `data.phrases`, or found in the training text; saved in the folder and reused."""
    tokenizer = prepared.tokenizer
    given = None if data.phrases is None else at_home(data.phrases)
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


def npmi(together: Int64s, alone: Int64s, total: int) -> Float64s:
    """Normalised pointwise mutual information, defined at the top of this module."""
    # A word occurs at least as often as its phrase, even if its own count was dropped.
    joint = np.log(together / total)
    information = joint - np.log(np.maximum(alone, together) / total).sum(axis=0)
    measure: Float64s = information / np.maximum(-(len(alone) - 1) * joint, 1e-12)
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
        parts = ((shard, *part) for shard in self._shards for part in _parts(shard))
        for shard, starts, ends in itertools.islice(parts, None, None, self._every):
            bounds = zip(starts.tolist(), ends.tolist(), strict=True)
            tokens = shard.tokens.ranges(starts, ends)
            token_ids = np.concatenate([tokens[start:end] for start, end in bounds])
            rows = np.repeat(np.arange(len(starts)), ends - starts)
            words = Words.of(token_ids, rows, self._is_text[token_ids], self._vocabulary)
            letters = np.logical_or.reduceat(self._has_letter[token_ids], words.starts)
            yield token_ids, words, words.is_text & letters


def _parts(shard: TokenShard) -> Iterator[tuple[Int64s, Int64s]]:
    """Starts and ends of documents, or of pieces of long ones, in parts of about TOKENS_AT_ONCE tokens."""
    starts = ends = np.zeros(0, dtype=np.int64)
    before = 0  # tokens before these pieces
    for documents in parts_of(len(shard)):
        first, last = shard.bounds(documents)
        pieces = -(-(last - first) // TOKENS_AT_ONCE)
        place = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        begins = np.repeat(first, pieces) + place * TOKENS_AT_ONCE
        starts = np.append(starts, begins)
        ends = np.append(ends, np.minimum(np.repeat(last, pieces), begins + TOKENS_AT_ONCE))
        numbers = (np.cumsum(ends - starts) + before) // TOKENS_AT_ONCE
        *whole, rest = np.split(np.arange(len(starts)), np.flatnonzero(np.diff(numbers)) + 1)
        yield from ((starts[part], ends[part]) for part in whole)
        before += int((ends - starts)[: len(starts) - len(rest)].sum())
        starts, ends = starts[rest], ends[rest]
    if len(starts):
        yield starts, ends


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

    def of(self, names: keyed.Bits) -> Int64s:
        """Count of each name, 0 if dropped. *Shape:* that of `names`"""
        if not len(self._names):
            return np.zeros(names.shape, dtype=np.int64)
        place = np.minimum(np.searchsorted(self._names, names), len(self._names) - 1)
        return np.where(self._names[place] == names, self._counts[place], 0)
