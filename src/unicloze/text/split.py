"""Decides which documents are held out, from their content and over all sources of a corpus at once.

A document is held out if the hash of its content is below the requested share. Three rules ensure that there is something to
train on and something to evaluate on, whatever the sources:

- The document with the largest hash in each source is used for training.
- If that leaves no held-out document, the one with the smallest hash that is not reserved for training is held out.
- If there is none, or it is more than four times the requested size, the end of one document is held out instead.

All rules depend on hashes, so all copies of a document are on the same side.
"""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import pre_tokenizers

from unicloze.text.cutting import pieces_of, utf8_size
from unicloze.text.tokenizers import Tokenizer

DROP, TRAIN, HELDOUT, CUT = range(4)
"""Dropped as a duplicate, used for training, held out, or cut in two with its end held out."""

_LEAST_HELDOUT = 2048
_CANDIDATES = 8

_SPACES = bytes.maketrans(b"\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f", b" " * 9)
_WIDE_SPACE = re.compile("[\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")

Hashes = npt.NDArray[np.uint64]
Ids = npt.NDArray[np.integer]


@dataclass(frozen=True)
class _Document:
    """Hash and size of a document, and whether every copy seen so far is text, which can be cut."""

    hash: int
    size: int
    is_text: bool


_NOTHING = _Document(0, 0, False)


class HeldoutSplit:
    """Sees all documents once, then returns the side of each. Memory use does not grow with the corpus.

    Args:
        share: Share of the documents to hold out.
        sources: Number of sources.
    """

    def __init__(self, share: float, *, sources: int) -> None:
        self._share, self._limit = share, int(share * 2**64)
        self._largest: dict[str, _Document] = {}
        self._smallest: dict[int, _Document] = {}
        self._most = sources + _CANDIDATES  # enough to include one not reserved for training, if there is any
        self._total = 0
        self._sides: dict[int, int] = {0: DROP}
        self.cut_size = 0

    def add(self, source: str, values: Hashes, sizes: npt.NDArray[np.int64], *, is_text: bool) -> None:
        """Add documents of one source, none of them a duplicate that is dropped."""
        if not len(values):
            return
        self._total += int(sizes.sum())
        last = int(np.flatnonzero(values == values.max())[-1])
        if int(values[last]) >= self._largest.get(source, _NOTHING).hash:
            self._largest[source] = _Document(int(values[last]), int(sizes[last]), is_text)
        full = len(self._smallest) >= self._most
        limit = np.uint64(max(self._smallest)) if full else np.unique(values)[: self._most][-1]
        for place in np.flatnonzero(values <= limit).tolist():
            self._add_small(_Document(int(values[place]), int(sizes[place]), is_text))

    def _add_small(self, document: _Document) -> None:
        """Keep a document if its hash is among the smallest."""
        value = document.hash
        if value in self._smallest:
            both = document.is_text and self._smallest[value].is_text
            self._smallest[value] = _Document(value, document.size, both)
        elif len(self._smallest) < self._most or value < max(self._smallest):
            self._smallest[value] = document
            if len(self._smallest) > self._most:
                del self._smallest[max(self._smallest)]

    def decide(self) -> None:
        """Apply the three rules, once every document has been added."""
        trained = {document.hash for document in self._largest.values()}
        self._sides |= dict.fromkeys(trained, TRAIN)
        free = [self._smallest[value] for value in sorted(self._smallest) if value not in trained]
        if not self._share or (free and free[0].hash < self._limit):
            return
        want = max(int(self._share * self._total), _LEAST_HELDOUT)
        small = next((document for document in free if document.is_text or document.size <= 4 * want), None)
        chosen = small or next(iter(free), None)
        if chosen and (chosen.size <= 4 * want or not chosen.is_text):
            self._sides[chosen.hash] = HELDOUT
            return
        if chosen is None:
            tokens = {document.hash for document in self._largest.values() if not document.is_text}
            texts = [document for document in self._largest.values() if document.hash not in tokens]
            texts.sort(key=lambda document: (min(0, document.size - 2 * want), -document.hash))
            chosen = texts[-1] if texts else None
        if chosen is not None:
            self._sides[chosen.hash] = CUT
            self.cut_size = min(want, chosen.size // 2)

    def side(self, value: int) -> int:
        """The side of a document, by its hash."""
        return self._sides.get(value, HELDOUT if value < self._limit else TRAIN)

    def sides(self, values: Hashes) -> npt.NDArray[np.uint8]:
        """The sides of many documents. *Shape:* that of the hashes"""
        sides = np.where(values < np.uint64(self._limit), HELDOUT, TRAIN).astype(np.uint8)
        for value, side in self._sides.items():
            sides[values == np.uint64(value)] = side
        return sides


def text_hash(text: str, seed: int) -> tuple[int, int]:
    """A 64-bit hash that ignores case and white space, and the size of the text in bytes."""
    digest, size, gap, begun = _hash(seed), 0, False, False
    for piece in pieces_of(text):
        size += utf8_size(piece)
        gap |= piece[:1].isspace()
        if words := _words(piece.lower()):
            digest.update(b" " + words if gap and begun else words)
            gap, begun = piece[-1:].isspace(), True
    digest.update(b" ")
    return int.from_bytes(digest.digest(), "little"), size


def _words(text: str) -> bytes:
    """`" ".join(text.split())` in UTF-8, several times faster."""
    if not text.isascii() and _WIDE_SPACE.search(text):
        return " ".join(text.split()).encode()
    found = text.encode().translate(_SPACES)
    while b"  " in found:
        found = found.replace(b"  ", b" ")
    return found.strip(b" ")


def tokens_hash(tokens: Ids, seed: int, vocab_size: int) -> int:
    """A 64-bit hash of tokens that does not depend on their integer width."""
    digest = _hash(seed)
    digest.update(tokens.astype("<u2" if vocab_size <= 2**16 else "<u4").tobytes())
    return int.from_bytes(digest.digest(), "little")


class Spelling:
    """Hashes the text that tokens spell, ignoring case, white space and special tokens, to match texts with token shards.

    Args:
        tokenizer: The tokenizer of the tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        vocabulary = tokenizer.vocabulary
        tokens = tokenizer.tokens(range(vocabulary.size))
        silent = set(vocabulary.special.tolist()) - {vocabulary.unk}
        spell = _spelled_by_bytes() if _is_byte_level(tokens) else _spelled
        self._table = [b"" if number in silent else spell(token) for number, token in enumerate(tokens)]

    def hash(self, parts: Iterable[Ids], seed: int) -> tuple[int, int]:
        """A 64-bit hash of the text a document spells, and its size in bytes."""
        decoder, digest, size = codecs.getincrementaldecoder("utf-8")("replace"), _hash(seed), 0
        for part in parts:
            text = decoder.decode(b"".join(map(self._table.__getitem__, part.tolist())))
            spelled = "".join(text.casefold().split()).encode()
            digest.update(spelled)
            size += len(spelled)
        return int.from_bytes(digest.digest(), "little"), size


def _hash(seed: int) -> Any:
    return hashlib.blake2b(digest_size=8, salt=seed.to_bytes(8, "little", signed=True))


def _is_byte_level(tokens: Iterable[str]) -> bool:
    return set(pre_tokenizers.ByteLevel.alphabet()) <= set(tokens)


def _spelled(token: str) -> bytes:
    return token.removeprefix("##").replace("\u2581", "").encode()


def _spelled_by_bytes() -> Callable[[str], bytes]:
    """Decoder of the byte-level alphabet; a token with other characters is encoded as written."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    byte_of = {chr(byte): byte for byte in plain} | {chr(256 + number): byte for number, byte in enumerate(others)}

    def spell(token: str) -> bytes:
        known = [byte_of.get(character) for character in token]
        return token.encode() if None in known else bytes(byte for byte in known if byte is not None)

    return spell
