"""A text with masks: where they are, and how tokens replace them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from unicloze.errors import UsageError
from unicloze.text.special_tokens import MASK
from unicloze.text.tokenizers import Tokenizer

_SIGNS_OF_LINES = str.maketrans({"\n": "\u23ce", "\r": "\u240d", "\t": "\u21e5"})
_OTHER_MASK = re.compile(r"[\[<({]\W?mask\W?[\])}>]|(?-i:\bMASK\b)|_{2,}|<extra_id_0>", re.IGNORECASE)
"""How other models and people write a mask."""
_SIGNS = _SIGNS_OF_LINES | str.maketrans({" ": "\u2423", "\xa0": "\u2423"})


@dataclass(frozen=True)
class Cloze:
    """A text with masks.

    Args:
        text: The text.
        spans: First character of each mask and first character after it.
        tokens: Token ids of the whole text. *Shape:* (tokens,)
        places: Index of each mask's token.
        spaced: Whether tokens include the preceding space, so that a mask covers the space before it as well.
    """

    text: str
    spans: list[tuple[int, int]]
    tokens: npt.NDArray[np.int32]
    places: list[int]
    spaced: bool

    @classmethod
    def read(cls, text: str, tokenizer: Tokenizer) -> Cloze:
        """Find the masks of a text.

        Raises:
            UsageError: It has none.
        """
        masks = "|".join(re.escape(mask) for mask in tokenizer.masks)
        spans = [match.span() for match in re.finditer(masks, text)]
        if not spans:
            other = _OTHER_MASK.search(text)
            meant = "" if other is None else f"; did you mean {MASK} by '{other[0]}'?"
            raise UsageError(
                f'the text has no mask: put {MASK} in place of a word, as in "The {MASK} of a list."{meant}'
            )
        tokens = tokenizer.encode(text)
        places = np.flatnonzero(tokens == tokenizer.vocabulary.mask).tolist()
        return cls(text, spans, tokens, places, tokenizer.spaced)

    def readable(self, token: int, start: int, tokenizer: Tokenizer) -> str:
        """A token formatted for display, as it would appear in place of the mask at character `start`."""
        if not self.spaced:
            return tokenizer.tokens([token])[0]
        surface = _surface(tokenizer, [token])
        word = surface.removeprefix(" ")
        if not word.strip():
            return surface.translate(_SIGNS)
        before = self.text[:start].removesuffix(" ")
        touches = _spells(before[-1:]) or any(end == len(before) for _, end in self.spans)
        is_piece = word == surface and touches and _spells(word[0])
        return ("##" if is_piece else "") + word.translate(_SIGNS_OF_LINES)

    def runs(self) -> list[list[int]]:
        """Indices of the masks, grouped into runs of adjacent masks."""
        runs = [[0]]
        for i, (left, right) in enumerate(pairwise(self.places), start=1):
            if right == left + 1:
                runs[-1].append(i)
            else:
                runs.append([i])
        return runs

    def splice(self, fills: Sequence[int], tokenizer: Tokenizer) -> str:
        """The text with each mask replaced by a token; of the rest, only white space changes.

        A word piece is joined to the text on its left.
        """
        filled, last = "", 0
        for run in self.runs():
            # The bytes of one character may be spread over several tokens, so a run is decoded as a whole.
            for part in [run] if self.spaced else [[i] for i in run]:
                between = self.text[last : self.spans[part[0]][0]]
                surface = _surface(tokenizer, [fills[i] for i in part])
                if self.spaced:
                    kept = between.removesuffix(" ")
                    at_start = not filled and not between
                    filled += kept + (surface.removeprefix(" ") if at_start else surface)
                elif not surface.startswith(" "):
                    filled = (filled + between).rstrip() + surface
                else:
                    word = surface[1:]
                    touches = not between and part[0] > run[0] and _spells(filled[-1:]) and _spells(word[:1])
                    filled += between + (" " if touches else "") + word
                last = self.spans[part[-1]][1]
        return filled + self.text[last:]


def _surface(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Text that tokens add after a word: with a leading space if they begin a new word."""
    anchor = tokenizer.encode("x").tolist()[-1:]
    return tokenizer.decode([*anchor, *ids]).removeprefix(tokenizer.decode(anchor))


def _spells(character: str) -> bool:
    """Whether a character belongs to a script that separates words with spaces."""
    return character.isalnum() and unicodedata.east_asian_width(character) not in ("W", "F")
