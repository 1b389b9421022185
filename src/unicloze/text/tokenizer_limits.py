"""Limits on a `tokenizer.json`, checked before the library loads it: ids, growth of text, slow regular expressions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

LARGEST_FILE = 2**28
"""Largest file in bytes; common ones have at most some ten million."""
LARGEST_ID = 2**22
"""Largest token id; embedding tables have a row for every id up to the largest."""
MOST_PARTS = 64
"""Most components of a normaliser, pre-tokeniser or decoder, nested ones included."""
MOST_GROWTH = 1000.0
"""Largest factor by which all replacements together may lengthen a text."""
LONGEST_PATTERN = 2_000
"""Longest regular expression, in characters."""
_NEED_UNKNOWN = {"WordPiece", "WordLevel"}
"""Models that cannot read an unknown word without a token for it."""
_REPEATED = re.compile(r"\((?:\?[a-z]*:)?(?:\\.|\[[^\]]*\]|[^()\[\]\\|])[+*](?:\|[^()]*)?\)[+*{]")
"""A repeated group that is itself a repetition, such as `(a+)+`: matching time may double with each character."""


def beyond_bounds(document: Any) -> str | None:
    """Describe the first limit that a `tokenizer.json` exceeds; None if it exceeds none.

    Malformed content is left for the library to reject.
    """
    if not isinstance(document, dict):
        return None
    for number in _ids(document):
        if not 0 <= number <= LARGEST_ID:
            return f"it has the id {number:,}, above {LARGEST_ID:,}"
    model = document.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict) and len({str(number) for number in vocabulary.values()}) < len(vocabulary):
        return "two of its tokens share an id"
    if isinstance(model, dict) and model.get("type") in _NEED_UNKNOWN and isinstance(vocabulary, dict):
        unknown = model.get("unk_token")
        if isinstance(unknown, str) and unknown not in vocabulary:
            return f"its vocabulary lacks its token of unknown words, {unknown!r}"
    for section in ("normalizer", "pre_tokenizer", "decoder"):
        parts = list(_parts(document.get(section), 0))
        if len(parts) > MOST_PARTS:
            return f"its {section} has {len(parts):,} parts or more (limit {MOST_PARTS})"
        growth = 1.0
        for part in parts:
            pattern = part.get("pattern")
            growth *= _growth(part, pattern)
            expression = pattern.get("Regex") if isinstance(pattern, dict) else None
            if isinstance(expression, str) and len(expression) > LONGEST_PATTERN:
                return f"its {section} has a pattern of {len(expression):,} characters (limit {LONGEST_PATTERN:,})"
            if isinstance(expression, str) and _REPEATED.search(expression):
                return f"its {section} has a nested repetition in the pattern {expression[:60]!r}, which may hang"
        if growth > MOST_GROWTH:
            return f"its {section} may make a text {growth:,.0f} times longer (limit {MOST_GROWTH:.0f})"
    return None


def _ids(document: dict[str, Any]) -> Iterator[int]:
    model, added = document.get("model"), document.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        yield from (number for number in vocabulary.values() if isinstance(number, int))
    for token in added if isinstance(added, list) else ():
        number = token.get("id") if isinstance(token, dict) else None
        if isinstance(number, int):
            yield number


def _parts(value: Any, depth: int) -> Iterator[dict[str, Any]]:
    """All components of a section, nested ones included, down to depth `MOST_PARTS`."""
    if isinstance(value, dict) and depth <= MOST_PARTS:
        if "type" in value:
            yield value
        for inner in value.values():
            yield from _parts(inner, depth + 1) if isinstance(inner, dict | list) else ()
    elif isinstance(value, list):
        for inner in value:
            yield from _parts(inner, depth)


def _growth(part: dict[str, Any], pattern: Any) -> float:
    """Largest factor by which a replacement may lengthen a text."""
    content = part.get("content")
    if part.get("type") != "Replace" or not isinstance(content, str):
        return 1.0
    plain = pattern.get("String") if isinstance(pattern, dict) else None
    return max(1.0, len(content) / len(plain)) if isinstance(plain, str) and plain else 1.0 + len(content)
