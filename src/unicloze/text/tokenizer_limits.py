"""Bounds of a `tokenizer.json`, looked at before the library builds what it says: ids, growth of text, slow patterns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

LARGEST_FILE = 2**28
"""Bytes of a file; those in use have up to some ten million."""
LARGEST_ID = 2**22
"""Tables have a row for each id up to the largest."""
MOST_PARTS = 64
"""Normalisers, pre-tokenisers and decoders, each counted within the others."""
MOST_GROWTH = 1000.0
"""How many times longer all replacements together may make a text."""
LONGEST_PATTERN = 2_000
"""Characters of a regular expression."""
_REPEATED = re.compile(r"\((?:\?[a-z]*:)?(?:\\.|\[[^\]]*\]|[^()\[\]\\|])[+*](?:\|[^()]*)?\)[+*{]")
"""A repeated group of nothing but a repetition, whose time may double with each character."""


def beyond_bounds(document: Any) -> str | None:
    """What of a `tokenizer.json` is beyond all bounds, in words; None if nothing is.

    What is of no known form is left for the library to refuse.
    """
    if not isinstance(document, dict):
        return None
    for number in _ids(document):
        if not 0 <= number <= LARGEST_ID:
            return f"it has the id {number:,}, beyond {LARGEST_ID:,}"
    model = document.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict) and len({str(number) for number in vocabulary.values()}) < len(vocabulary):
        return "two of its tokens have one id"
    for section in ("normalizer", "pre_tokenizer", "decoder"):
        parts = list(_parts(document.get(section), 0))
        if len(parts) > MOST_PARTS:
            return f"its {section} has {len(parts):,} parts or more, beyond {MOST_PARTS}"
        growth = 1.0
        for part in parts:
            pattern = part.get("pattern")
            growth *= _growth(part, pattern)
            expression = pattern.get("Regex") if isinstance(pattern, dict) else None
            if isinstance(expression, str) and len(expression) > LONGEST_PATTERN:
                return f"its {section} has a pattern of {len(expression):,} characters, beyond {LONGEST_PATTERN:,}"
            if isinstance(expression, str) and _REPEATED.search(expression):
                return f"its {section} repeats what repeats in the pattern {expression[:60]!r}, which may take for ever"
        if growth > MOST_GROWTH:
            return f"its {section} may make a text {growth:,.0f} times longer, beyond {MOST_GROWTH:.0f}"
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
    """The parts of a section, those within others too, as far as they count."""
    if isinstance(value, dict) and depth <= MOST_PARTS:
        if "type" in value:
            yield value
        for inner in value.values():
            yield from _parts(inner, depth + 1) if isinstance(inner, dict | list) else ()
    elif isinstance(value, list):
        for inner in value:
            yield from _parts(inner, depth)


def _growth(part: dict[str, Any], pattern: Any) -> float:
    """How many times longer a replacement may make a text."""
    content = part.get("content")
    if part.get("type") != "Replace" or not isinstance(content, str):
        return 1.0
    plain = pattern.get("String") if isinstance(pattern, dict) else None
    return max(1.0, len(content) / len(plain)) if isinstance(plain, str) and plain else 1.0 + len(content)
