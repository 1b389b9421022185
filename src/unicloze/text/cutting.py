"""Cuts long texts where the cut does not change their tokens."""

from __future__ import annotations

import bisect
import re
import unicodedata
from collections.abc import Iterator

PIECE = 2**16
"""Smallest number of characters in a piece; texts longer than twice that are cut."""
_LONGEST = 16
_PLACES = (
    re.compile(r"() (?<=\w )(?=\w)"),
    re.compile(r"()[ \t\r\n](?<=\w.)[ \t\r\n]*(?=\w)", re.DOTALL),
    re.compile(r"()[ \t\r\n](?<=\S.)[ \t\r\n]*(?=\S)", re.DOTALL),
)
"""Places to cut, best first. Tokenizers disagree about others: BERT's drop a form feed, which joins the words around it;
some attach punctuation to the following line break; some keep a trailing space as a token."""
_PUNCTUATION = re.compile("[,;:.!?\u3001\u3002\uff0c\uff1b\uff1a\uff0e\uff01\uff1f]()(?=\\w)")
_JOINER = "\u200d"
_GAP = re.compile(r"\s\S")


def pieces_of(text: str) -> Iterator[str]:
    """Cut a text into pieces: 64 Ki characters up to the next place where a cut changes no token, at most 1 Mi characters.

    Without such a place it is cut after punctuation, else between two characters, never before a combining mark.
    """
    start = 0
    while len(text) - start > 2 * PIECE:
        first, last = start + PIECE, min(len(text), start + _LONGEST * PIECE)
        places = _PLACES if last == len(text) else (*_PLACES, _PUNCTUATION)
        found = (place.search(text, first, last) for place in places)
        end = next((match.start(1) for match in found if match), None) or _between_characters(text, first, last)
        yield text[start:end]
        start = end
    if start < len(text) or not text:
        yield text[start:]


def tail_start(text: str, size: int) -> int:
    """Approximate start of the last `size` bytes of a text, moved to the beginning of a word if possible."""
    at = len(text) - max(1, size * len(text) // len(text.encode()))
    gap = _GAP.search(text, at)
    return gap.start() + 1 if gap else _between_characters(text, 0, at)


def utf8_size(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def visible(text: str) -> int:
    """Number of characters that are not white space."""
    return len("".join(text.split()))


def last_visible(text: str, count: int) -> int:
    """Start of the last `count` characters of a text, not counting white space."""
    return bisect.bisect_right(range(len(text)), -count, key=lambda at: -visible(text[at:])) - 1


def _between_characters(text: str, first: int, last: int) -> int:
    """The last cut in (first, last] that separates no character from its marks; `last` if there is none."""
    place = last
    while first < place < len(text) and _belongs_together(text[place - 1], text[place]):
        place -= 1
    return place if place > first else last


def _belongs_together(left: str, right: str) -> bool:
    """Whether two characters form one visible character: a letter and its mark, parts of a Korean syllable, joined emoji."""
    joined = _JOINER in (left, right) or "\u1160" <= right <= "\u11ff"
    return joined or unicodedata.category(right).startswith("M")
