"""Where a long text may be cut so that its tokens stay the same."""

from __future__ import annotations

import bisect
import re
import unicodedata
from collections.abc import Iterator

PIECE = 2**16
"""Characters of a piece at least; twice as many and more are cut."""
_LONGEST = 16
_PLACES = (
    re.compile(r"() (?<=\w )(?=\w)"),
    re.compile(r"()[ \t\r\n](?<=\w.)[ \t\r\n]*(?=\w)", re.DOTALL),
    re.compile(r"()[ \t\r\n](?<=\S.)[ \t\r\n]*(?=\S)", re.DOTALL),
)
"""Places to cut, the best first. Tokenizers disagree about the others: BERT's drop a form feed, so that the words beside it
become one; some join punctuation to the line's end after it; some keep a space at the end of a text as a token."""
_PUNCTUATION = re.compile("[,;:.!?\u3001\u3002\uff0c\uff1b\uff1a\uff0e\uff01\uff1f]()(?=\\w)")
_JOINER = "\u200d"
_GAP = re.compile(r"\s\S")


def pieces_of(text: str) -> Iterator[str]:
    """Pieces of a text: 64 Ki characters and up to the next place where a cut changes no token, at most 1 Mi characters.

    A longer text without such a place is cut behind punctuation, else between two characters, never before a combining mark.
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
    """Where the last `size` bytes of a text begin, about: at the beginning of a word if there is one."""
    at = len(text) - max(1, size * len(text) // len(text.encode()))
    gap = _GAP.search(text, at)
    return gap.start() + 1 if gap else _between_characters(text, 0, at)


def visible(text: str) -> int:
    """How many characters of a text are no white space."""
    return len("".join(text.split()))


def last_visible(text: str, count: int) -> int:
    """Where the last so many characters of a text begin, not counting white space."""
    return bisect.bisect_right(range(len(text)), -count, key=lambda at: -visible(text[at:])) - 1


def _between_characters(text: str, first: int, last: int) -> int:
    """The last place behind `first` and up to `last` that parts no character from its marks; `last` if there is none."""
    place = last
    while first < place < len(text) and _belongs_together(text[place - 1], text[place]):
        place -= 1
    return place if place > first else last


def _belongs_together(left: str, right: str) -> bool:
    """Whether two characters are seen as one: a letter and its mark, the parts of a Korean syllable, joined emoji."""
    joined = _JOINER in (left, right) or "\u1160" <= right <= "\u11ff"
    return joined or unicodedata.category(right).startswith("M")
