"""The symbols of words: their UTF-8 bytes between marks, as the character convolutions of ELMo's released code read them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unicloze.arrays import Int64s

BEGIN_TEXT, END_TEXT, BEGIN_WORD, END_WORD, PADDING = range(256, 261)
"""Symbols that are not bytes. The first two are the only symbols of the words that begin and end a text."""
SYMBOLS = 261
"""Number of symbols."""
LONGEST = 50
"""Symbols of a word, its marks included; longer words are cut."""


def spell(words: Sequence[Sequence[int]], begins: Sequence[bool]) -> Int64s:
    """The symbols of words, padded to one length."""
    table = np.full((len(words), LONGEST), PADDING, dtype=np.int64)
    for row, word, whole in zip(table, words, begins, strict=True):
        marked = [*([BEGIN_WORD] if whole else []), *word[: LONGEST - 2], END_WORD]
        row[: len(marked)] = marked
    return table
