"""Generates a small corpus of sentences."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from unicloze.recipes import toy_overrides

NOUNS = [
    "cat", "dog", "house", "tree", "river", "stone", "bird", "child", "window", "door", "road", "letter", "song", "cloud",
    "winter", "garden", "post office",
]  # fmt: skip
VERBS = ["sees", "finds", "follows", "leaves", "watches", "remembers", "paints", "crosses", "opens", "builds"]
ADJECTIVES = ["small", "old", "red", "quiet", "heavy", "bright", "cold", "green", "broken", "early"]


def write_corpus(folder: Path, *, documents: int = 80, seed: int = 0) -> Path:
    """Write `documents` text documents of a few sentences each into one .txt file of a folder."""
    draw = random.Random(seed)

    def sentence() -> str:
        first, second = draw.sample(NOUNS, 2)
        return f"the {draw.choice(ADJECTIVES)} {first} {draw.choice(VERBS)} the {draw.choice(ADJECTIVES)} {second} ."

    folder.mkdir(parents=True, exist_ok=True)
    texts = [" ".join(sentence() for _ in range(draw.randint(3, 12))) for _ in range(documents)]
    path = folder / "corpus.txt"
    path.write_text("\n\n".join(texts) + "\n")
    return path


def toy_corpus(folder: Path, settings: dict[str, Any] | None = None, *, documents: int = 80) -> dict[str, Any]:
    """Settings of a run at toy size on a corpus that is written into a folder."""
    corpus = write_corpus(folder / "corpus", documents=documents)
    return toy_overrides() | {"data.corpus": [str(corpus)]} | (settings or {})
