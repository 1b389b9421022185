"""Phrase tables: multi-word phrases to mask as a unit (ERNIE), stored as token ids.

FOLDER/phrases.npy         token ids of all phrases, concatenated, int32
FOLDER/phrases.ends.npy    end of each phrase, int64
FOLDER/phrases.txt         the phrases as text, to read, edit and pass to --data.phrases
FOLDER/phrases.json        their origin; written last
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze import keyed
from unicloze.arrays import Flags
from unicloze.bounded import read_bytes
from unicloze.errors import UniclozeError, UsageError
from unicloze.files import replace_file
from unicloze.text.tokenizers import Tokenizer
from unicloze.text.vocabulary import Vocabulary

FACTS = "phrases.json"
SCHEMA = 1
"""Schema version of a phrase table."""

_ARRAYS = "phrases.npy", "phrases.ends.npy"
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

    starts: npt.NDArray[np.int64]  # First token of each word. *Shape:* (words,)
    of_token: npt.NDArray[np.int64]  # Index of each token's word. *Shape:* (tokens,)
    hashes: keyed.Bits  # Hash of each word's tokens. *Shape:* (words,)
    row: npt.NDArray[np.int64]  # Index of each word's text. *Shape:* (words,)
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

    def runs(self, words: int, fit: Flags | None = None) -> tuple[npt.NDArray[np.int64], keyed.Bits]:
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
        for count in sorted(set(counts[kept].tolist()), reverse=True):
            first, names = words.runs(count)
            self._names[count] = np.unique(names[counts[words.row[first]] == count])
        self._sieves = {count: _sieve(names) for count, names in self._names.items()}

    def __len__(self) -> int:
        return len(self.phrases)

    def joined(self, token_ids: npt.NDArray[np.int32], maskable: Flags) -> Flags:
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
            found = first[seen[_contains(known, names[seen])]]
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
        flat = [token for phrase in self.phrases for token in phrase]
        np.save(folder / "phrases.npy", np.array(flat, dtype=np.int32), allow_pickle=False)
        ends = np.cumsum([len(phrase) for phrase in self.phrases], dtype=np.int64)
        np.save(folder / "phrases.ends.npy", ends, allow_pickle=False)
        texts = "".join(f"{tokenizer.decode(phrase).strip()}\n" for phrase in self.phrases)
        (folder / "phrases.txt").write_text(texts, encoding="utf-8")
        sums = {name: _sha256(folder / name) for name in _ARRAYS}
        content = {
            "schema": SCHEMA,
            "origin": dict(origin),
            "phrases": len(self.phrases),
            "tokens": len(flat),
            "sha256": sums,
        }
        replace_file(folder / FACTS, json.dumps(content, indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path, vocabulary: Vocabulary, origin: Mapping[str, Any]) -> PhraseTable:
        """Load a saved table."""
        cure = f"remove {folder} to make it again, or start another --out."
        try:
            content = json.loads((folder / FACTS).read_text(encoding="utf-8"))
            flat = np.load(folder / "phrases.npy", allow_pickle=False)
            ends = np.load(folder / "phrases.ends.npy", allow_pickle=False)
        except (ValueError, OSError) as error:
            raise UniclozeError(f"the phrase table in {folder} is damaged ({error}): {cure}") from error
        if content.get("schema") != SCHEMA or [len(ends), len(flat)] != [content["phrases"], content["tokens"]]:
            raise UniclozeError(f"the phrase table in {folder} is damaged or does not have schema {SCHEMA}: {cure}")
        for name, expected in content.get("sha256", {}).items():  # older versions wrote none
            if name not in _ARRAYS or _sha256(folder / name) != expected:
                raise UniclozeError(f"{folder / name} is damaged (its SHA-256 is not the one in phrases.json): {cure}")
        if content["origin"] != dict(origin):
            raise UniclozeError(
                f"the phrase table in {folder} is from {content['origin']}, but the run needs {dict(origin)}: {cure}"
            )
        return cls(np.split(flat, ends[:-1]) if len(ends) else [], vocabulary)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


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


def _sieve(names: keyed.Bits) -> Flags:
    """A table indexed by leading hash bits, which excludes most hashes that are not in `names`."""
    sieve = np.zeros(2**_SIEVE_BITS, dtype=bool)
    sieve[names >> np.uint64(64 - _SIEVE_BITS)] = True
    return sieve


def _contains(known: keyed.Bits, names: keyed.Bits) -> Flags:
    """Whether each name is in `known`, which is sorted and not empty."""
    found: Flags = known[np.minimum(np.searchsorted(known, names), len(known) - 1)] == names
    return found


def _leftmost(first: npt.NDArray[np.int64], words: int) -> npt.NDArray[np.int64]:
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
