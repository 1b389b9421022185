"""Word boundaries of a vocabulary. Where tokens include no space (WordPiece), each token says whether it continues a word.

Where they include the preceding space (byte-level, SentencePiece), a word is a run of letters and digits; every other
character, including each ideograph, is a word of its own. The space before a word belongs to it. A token alone does not tell
whether it begins a word: "Hello" does after a quotation mark but not after "Well", and some tokens are less than a character.
So the rule combines how a token begins with how the previous token ends.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from unicloze.characters import IDEOGRAPH

BYTE_LEVEL, SENTENCEPIECE = "\u0120", "\u2581"
"""How byte-level and SentencePiece vocabularies write a leading space."""

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_PLAIN_BYTES = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHER_BYTES = [byte for byte in range(0x100) if byte not in _PLAIN_BYTES]
_BYTES = {chr(byte): byte for byte in _PLAIN_BYTES} | {chr(0x100 + i): byte for i, byte in enumerate(_OTHER_BYTES)}
"""Byte of each character in byte-level vocabularies."""
_LEADS_OF_LETTERS = frozenset([*range(0xC3, 0xE2), *range(0xEA, 0xEE)])
"""First bytes of UTF-8 characters that are mostly letters; the others begin signs and ideographs."""
_LEADS_OF_IDEOGRAPHS = range(0xE3, 0xEA)
"""First bytes of UTF-8 characters that are mostly ideographs and kana."""
_JOINERS = frozenset("\u200c\u200d")

_APART, _LETTER, _SIGN, _INSIDE = range(4)
"""How a token begins: with white space; with a letter; with anything else; inside a character or with a combining mark."""
_CLOSED, _OPEN, _SPACE, _AS_BEFORE = range(4)
"""How a token ends: with anything a letter does not join; with a letter; it is one space; with an incomplete character."""
_JOINS = np.zeros((4, 4), dtype=bool)
_JOINS[:, _INSIDE] = _JOINS[_OPEN, _LETTER] = _JOINS[_SPACE, [_LETTER, _SIGN]] = True
"""Whether a token belongs to the word of the token before it, by that token's end and its own beginning."""


@dataclass(frozen=True, eq=False)
class Boundaries:
    """How each token of a vocabulary begins and ends."""

    starts: npt.NDArray[np.int8]  # How each token begins. *Shape:* (vocabulary,)
    ends: npt.NDArray[np.int8]  # How each token ends. *Shape:* (vocabulary,)

    @classmethod
    def of(cls, texts: Sequence[bytes | None]) -> Boundaries:
        """Classify the tokens of a vocabulary."""
        both = np.array([_edges(text) for text in texts], dtype=np.int8).reshape(-1, 2)
        return cls(both[:, 0], both[:, 1])

    @classmethod
    def marked(cls, continues: npt.NDArray[np.bool_]) -> Boundaries:
        """For a vocabulary whose tokens say whether they continue a word, whatever is before it."""
        starts = np.where(continues, _INSIDE, _APART).astype(np.int8)
        return cls(starts, np.full_like(starts, _CLOSED))

    @cached_property
    def continues(self) -> npt.NDArray[np.bool_]:
        """Whether an id continues a word before it. *Shape:* (vocabulary,)"""
        return np.isin(self.starts, (_LETTER, _INSIDE))

    def follows(
        self, token_ids: npt.NDArray[np.integer], first: npt.NDArray[np.bool_] | None = None
    ) -> npt.NDArray[np.bool_]:
        """Whether each token belongs to the word of the token before it, which must not be a special token."""
        found = np.zeros(token_ids.shape, dtype=bool)
        ends = self.ends[token_ids]
        partial = ends == _AS_BEFORE
        if partial.any():
            known = ~partial if first is None else ~partial | first
            place = np.where(known, np.arange(token_ids.shape[-1]), 0)
            ends = np.take_along_axis(ends, np.maximum.accumulate(place, axis=-1), axis=-1)
        found[..., 1:] = _JOINS[ends[..., :-1], self.starts[token_ids[..., 1:]]]
        return found if first is None else found & ~first


def text_of(token: str, mark: str | None) -> bytes:
    """UTF-8 text of a token, including its leading space."""
    if mark == BYTE_LEVEL and all(character in _BYTES for character in token):
        return bytes(_BYTES[character] for character in token)
    if mark == SENTENCEPIECE:
        if match := _BYTE.fullmatch(token):
            return bytes([int(match[1], 16)])
        return token.replace(SENTENCEPIECE, " ").encode()
    return token.encode()


def has_letter(text: bytes) -> bool:
    """Whether a token's text contains a letter, as far as its bytes tell."""
    if any(map(str.isalpha, text.decode("utf-8", errors="ignore"))):
        return True
    lead = _rest(text)[:1]
    return lead != b"" and (lead[0] in _LEADS_OF_LETTERS or lead[0] in _LEADS_OF_IDEOGRAPHS)


def _rest(text: bytes) -> bytes:
    """The bytes of an incomplete character at the end."""
    for size in range(1, min(4, len(text)) + 1):
        lead = text[-size]
        if lead >= 0xC0:
            return text[-size:] if size < 2 + (lead >= 0xE0) + (lead >= 0xF0) else b""
    return b""


def _edges(text: bytes | None) -> tuple[int, int]:
    if not text:
        return _APART, _CLOSED
    if text == b" ":
        return _APART, _SPACE
    inside = 0x80 <= text[0] < 0xC0
    rest = _rest(text)
    letter_begun = rest[:1] != b"" and rest[0] in _LEADS_OF_LETTERS
    characters = text[: len(text) - len(rest)].decode("utf-8", errors="ignore")
    bare = characters.rstrip("".join(filter(_is_mark, set(characters))))
    if inside or (characters and _is_mark(characters[0])):
        start = _INSIDE
    elif not characters:
        start = _LETTER if letter_begun else _SIGN
    elif characters[0].isspace():
        start = _APART
    else:
        start = _LETTER if _is_letter(characters[0]) else _SIGN
    if rest:
        return start, _OPEN if letter_begun else _CLOSED
    if not bare:
        return start, _AS_BEFORE
    return start, _OPEN if _is_letter(bare[-1]) else _CLOSED


def _is_letter(character: str) -> bool:
    """Whether it is a letter or digit, except ideographs, which tokenizers treat as separate words."""
    return character.isalnum() and not IDEOGRAPH.match(character)


def _is_mark(character: str) -> bool:
    """Whether it belongs to the character before it."""
    return character in _JOINERS or unicodedata.category(character).startswith("M")
