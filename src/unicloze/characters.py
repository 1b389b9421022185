"""Characters: the classes that text processing and metrics share, and the symbols that make up words for ELMo."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

IDEOGRAPH = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]")
"""Characters that tokenizers isolate even without spaces; others, such as kana, are not split."""
_JOINERS = frozenset("\u200c\u200d")

BEGIN_TEXT, END_TEXT, BEGIN_WORD, END_WORD, PADDING = range(256, 261)
"""Symbols that are not bytes. The first two are the only symbols of the words that begin and end a text."""
SYMBOLS = 261
"""Number of symbols."""
LONGEST = 50
"""Symbols of a word, its marks included; longer words are cut."""


def spell(words: Sequence[Sequence[int]], begins: Sequence[bool]) -> npt.NDArray[np.int64]:
    """The symbols of words, padded to one length: UTF-8 bytes between marks, as ELMo's released code reads them."""
    import numpy as np

    table = np.full((len(words), LONGEST), PADDING, dtype=np.int64)
    for row, word, whole in zip(table, words, begins, strict=True):
        marked = [*([BEGIN_WORD] if whole else []), *word[: LONGEST - 2], END_WORD]
        row[: len(marked)] = marked
    return table


def is_mark(character: str) -> bool:
    """Whether it belongs to the character before it."""
    return character in _JOINERS or unicodedata.category(character).startswith("M")


def last_of(text: str) -> str:
    """The last character of a text without the marks that belong to it; empty if there is none."""
    return next((character for character in reversed(text) if not is_mark(character)), "")
