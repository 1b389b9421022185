"""Picks a held-out sentence of a run for example commands."""

from __future__ import annotations

import json
import re
from pathlib import Path

from unicloze.errors import UniclozeError
from unicloze.files import BASELINES
from unicloze.report.history import mapping
from unicloze.text.tokenizers import Tokenizer

ANY = "She opened the [MASK] and looked out of the window.", "She opened the door and looked out of the window."
"""Used if a run has no held-out sentences."""

MOST_TOKENS = 20
"""Maximum length of a sentence to show."""
_PLAIN = re.compile(r"(?:[^\W\d_]|[\s,\u3001])+[.!?\u3002]?")


def example_texts(run: Path) -> tuple[str, str]:
    """A held-out sentence of a run, with a content word masked and unmasked; a default if the run has none."""
    try:
        words = mapping(mapping(json.loads((run / BASELINES).read_text(encoding="utf-8"))["baselines"])["words"])
        tokenizer = Tokenizer.load(run)
        asked = [*zip(words["sentences"], words["places"], strict=True)]
        known = [each for each in asked if tokenizer.vocabulary.unk not in each[0]]
        if not known:
            return ANY
        fine = [each for each in known if len(each[0]) <= MOST_TOKENS and _PLAIN.fullmatch(tokenizer.decode(each[0]))]
        sentence, place = max(fine or known[:1], key=lambda each: len(each[0]))
        masked = [*sentence[:place], tokenizer.vocabulary.mask, *sentence[place + 1 :]]
        return tokenizer.decode(masked).strip(), tokenizer.decode(sentence).strip()
    except (OSError, ValueError, KeyError, TypeError, UniclozeError):
        return ANY
