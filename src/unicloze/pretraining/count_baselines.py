"""Baselines of a pre-training run: n-gram counts of the training text, evaluated on held-out text.

Stored in RUN/baselines.json, so that a resumed run does not count again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unicloze.files import write_file
from unicloze.run_files import BASELINES
from unicloze.settings import Recipe
from unicloze.text.content_words import ContentWords, content_words
from unicloze.text.counts import Counts
from unicloze.text.prepare import Prepared
from unicloze.text.shards import TokenSource
from unicloze.training.word_guesses import ranks_by_counts, way_to_ask

SCHEMA = 1
MOST_WORDS = 400
"""Largest number of content words a model is tested on."""
FEWEST_WORDS = 50
"""With fewer content words the test is skipped as too imprecise."""


@dataclass(frozen=True, kw_only=True)
class Baselines:
    """Results of n-gram counts of the training text on held-out text."""

    unigram: float  # held-out perplexity of the unigram model
    bigram: float  # held-out perplexity of the interpolated bigram model
    counted: int  # number of training tokens counted
    tokens: int  # number of training tokens
    words: ContentWords  # held-out content words; empty if there are too few or the objective cannot predict them
    ranks: Sequence[int]  # rank of each word under the counts

    @property
    def perplexities(self) -> dict[str, float]:
        """Perplexity by kind of count."""
        return {"unigram": self.unigram, "bigram": self.bigram}

    def summary(self) -> dict[str, Any]:
        """The part stored in the ledger."""
        return {"perplexity": self.perplexities, "counted": self.counted, "tokens": self.tokens}


def trained_sources(recipe: Recipe, prepared: Prepared) -> list[TokenSource]:
    """The sources a run trains on: those of nonzero weight."""
    weights = recipe.data.weights or [1.0] * len(prepared.train)
    return [source for source, weight in zip(prepared.train, weights, strict=False) if weight > 0]


def open_baselines(recipe: Recipe, prepared: Prepared, folder: Path) -> Baselines | None:
    """The baselines of a run, computed once and stored in its directory; None if no token is held out."""
    way, sources = way_to_ask(recipe.objective), trained_sources(recipe, prepared)
    made_from = {
        "schema": SCHEMA,
        "fingerprint": prepared.fingerprint,
        "sources": [source.name for source in sources],
        "asking": way[0] if way else None,
        "longest": recipe.data.window - 2,
    }
    known = _read(folder / BASELINES)
    if known.get("made_from") == made_from:
        values = known["baselines"]
        return Baselines(**{**values, "words": ContentWords(**values["words"])})
    counts = Counts.of(sources, prepared.tokenizer.vocabulary)
    perplexities = counts.perplexities(prepared.heldout)
    if perplexities is None:
        return None
    words = ContentWords(sentences=[], places=[])
    if way is not None:
        found = content_words(
            prepared.heldout, counts, prepared.tokenizer, longest=recipe.data.window - 2, most=MOST_WORDS
        )
        words = found if len(found) >= FEWEST_WORDS else words
    baselines = Baselines(
        unigram=perplexities[0],
        bigram=perplexities[1],
        counted=counts.total,
        tokens=sum(source.num_tokens for source in sources),
        words=words,
        ranks=ranks_by_counts(counts, words, way[0]).tolist() if way else [],
    )
    content = {"made_from": made_from, "baselines": dataclasses.asdict(baselines)}
    write_file(folder / BASELINES, json.dumps(content) + "\n", "the baselines")
    return baselines


def _read(path: Path) -> dict[str, Any]:
    """Content of a file; empty if it is missing or damaged, so that it is made again."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
