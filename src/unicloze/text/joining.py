"""Joins the words and punctuation of a WordPiece tokenizer, which does not record spaces, into text.

Spaces are omitted where English and Chinese spelling has none. Each decision depends only on the text to the left and on
the next word, so text that grows changes only at its end.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from tokenizers import Regex, decoders

from unicloze.characters import IDEOGRAPH

_OPENING = frozenset("([{\u00bf\u00a1\u201c\u2018\u00ab\u300c\u300e\uff08\u300a")
_CLOSING = frozenset(
    ".,;:!?)]}%\u2026\u201d\u2019\u00bb\u3002\uff0c\u3001\uff1b\uff1a\uff01\uff1f\u300d\u300f\uff09\u300b"
)
_QUOTES = frozenset("\"'`")
_JOINING = frozenset("/_")
_CONTRACTED = frozenset(("s", "t", "re", "ve", "ll", "d", "m"))
_ELIDED = frozenset(("o", "l", "d", "j", "c", "n", "qu"))
_WIDE = re.compile("[\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uff65\U00020000-\U0002fa1f]")

_PAIRS, _UP_TO_OPENING = r'(?:[^"]*"[^"]*")*?', r'[^"]*"'
_BEHIND_OPENING = rf'(?:\A|\G[^"]*"){_PAIRS}{_UP_TO_OPENING}\K '
_BEFORE_CLOSING = "|".join(rf'{begin}{_PAIRS}{_UP_TO_OPENING}[^"]*?\K (?=")' for begin in (r"\A", r'\G"'))
"""Spaces inside quotation marks, which open and close alternately, counted from the end of the last match."""

_SUBSTITUTIONS = (
    (r"(?<=\w) ' (?=(?i:s|t|re|ve|ll|d|m)\b)", "'"),
    (r"(?<=\b\d|\b\d\d|\b\d\d\d) \. (?=\d)", "."),
    (r"(?<=\b[^\W\d_]) \. (?=[^\W\d_]\b)", "."),
    (r"(?<=\d) , (?=\d{3}\b)", ","),
    (r"(?<=\d) : (?=\d{2}\b)", ":"),
    (r"(?<=\w) - (?=\w)", "-"),
    (r"(?<=\w) \( \)", "()"),
    (r"(?<=[$#]) (?=\d)", ""),
    (_BEHIND_OPENING, ""),
    (_BEFORE_CLOSING, ""),
    (rf"(?<={_WIDE.pattern}) (?={_WIDE.pattern})", ""),
    (r"(?<=@) (?=\w)", ""),
    (f" (?=[{re.escape(''.join(sorted(_CLOSING | _JOINING)))}])", ""),
    (f"(?<=[{re.escape(''.join(sorted(_OPENING | _JOINING)))}]) ", ""),
)
"""The part of `join_words` that stateless substitutions can express: single quotation marks are left unchanged."""


def join_words(text: str) -> str:
    """Remove spaces that only the tokenizer put around punctuation and ideographs."""
    words = text.split()
    joined = words[:1]
    open_quotes: set[str] = set()
    tight = _opens(words[0], open_quotes) if words else False
    for place in range(1, len(words)):
        before, word = words[place - 1], words[place]
        after = words[place + 1] if place + 1 < len(words) else ""
        earlier = words[place - 2] if place > 1 else ""
        alone = place == 1 or joined[-1].startswith(" ")
        if word == "'" and _is_apostrophe(before, alone, after, open_quotes):
            space, follows = False, not _possessive(before, after)
        elif word in _QUOTES and word == before:
            space, follows = False, tight
        elif word in _QUOTES:
            closes = word in open_quotes
            space, follows = not closes and not tight, _opens(word, open_quotes)
        elif word == "-" and (before == "-" or (before[-1:].isalnum() and after[:1].isalnum())):
            space, follows = False, after[:1].isalnum() and before != "-"
        else:
            space = not (tight or _touches(before, word, after) or _in_number(earlier, before, word))
            follows = word in _OPENING or word in _JOINING
        joined.append(f" {word}" if space else word)
        tight = follows
    return "".join(joined)


def joining_decoder(prefix: str) -> Any:
    """A decoder of the tokenizers library that spells word pieces nearly like `join_words`, for use in other libraries."""
    steps = [decoders.Replace(Regex(pattern), content) for pattern, content in _SUBSTITUTIONS]
    return decoders.Sequence([decoders.WordPiece(prefix=prefix, cleanup=False), decoders.Fuse(), *steps])


def _opens(word: str, open_quotes: set[str]) -> bool:
    """Whether the next word follows without a space; toggles the state of a quotation mark."""
    if word not in _QUOTES:
        return word in _OPENING or word in _JOINING
    open_quotes ^= {word}
    return word in open_quotes


def _is_apostrophe(before: str, alone: bool, after: str, open_quotes: set[str]) -> bool:
    """Whether a mark belongs to the word before it, as in it's, o'clock, the dogs' tails."""
    if not before[-1:].isalnum():
        return False
    if after.lower() in _CONTRACTED:
        return True
    elided = alone and before.lower() in _ELIDED and after[:1].isalpha()
    return "'" not in open_quotes and (elided or _possessive(before, after))


def _possessive(before: str, after: str) -> bool:
    return len(before) > 1 and before.endswith("s") and after.lower() not in _CONTRACTED


def _touches(before: str, word: str, after: str) -> bool:
    """Whether a word follows the previous word without a space."""
    if word in _CLOSING or word in _JOINING:
        return True
    if word == "(" and after == ")":
        return before[-1:].isalnum()
    if before in ("$", "#"):
        return word[:1].isdigit()
    if before == "@":
        return word[:1].isalnum()
    if IDEOGRAPH.match(before[-1:]) or IDEOGRAPH.match(word) or unicodedata.category(before[-1:]).startswith("P"):
        return bool(_WIDE.match(before[-1:]) and _WIDE.match(word))
    return False


def _in_number(earlier: str, before: str, word: str) -> bool:
    """Whether a word continues a number or initials after their point, comma or colon."""
    if before == "." and len(earlier) == len(word) == 1 and earlier.isalpha():
        return word.isalpha()
    if not (earlier.isdigit() and len(earlier) < 4 and word.isdigit()):
        return False
    return before == "." or (before == "," and len(word) == 3) or (before == ":" and len(word) == 2)
