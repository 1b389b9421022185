"""What a pre-trained model has to beat: counts of the training text, judged on what is held out.

RUN/baselines.json holds them, so that a run that resumes does not count again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unicloze.files import write_file
from unicloze.settings import Recipe
from unicloze.text.content_words import ContentWords, content_words
from unicloze.text.counts import Counts
from unicloze.text.prepare import Prepared
from unicloze.text.shards import TokenSource
from unicloze.training.content_words import ranks_by_counts, way_to_ask

SCHEMA = 1
FILE = "baselines.json"
MOST_WORDS = 400
"""Content words a model is asked for."""
FEWEST_WORDS = 50
"""With fewer none is: they would tell too little."""


@dataclass(frozen=True, kw_only=True)
class Baselines:
    """Counts of the training text, judged on what is held out.

    Args:
        unigram: Perplexity of the held-out text by how often each token stands in the training text.
        bigram: By how often each pair of tokens does, interpolated with that.
        counted: Tokens of the training text that were counted.
        tokens: Tokens it has.
        words: Held-out content words; none where there are too few, or the model cannot be asked for them.
        ranks: Rank of each among what the counts guess.
    """

    unigram: float
    bigram: float
    counted: int
    tokens: int
    words: ContentWords
    ranks: Sequence[int]

    @property
    def perplexities(self) -> dict[str, float]:
        """By what was counted."""
        return {"unigram": self.unigram, "bigram": self.bigram}

    def summary(self) -> dict[str, Any]:
        """What the ledger holds of them."""
        return {"perplexity": self.perplexities, "counted": self.counted, "tokens": self.tokens}


def trained_sources(recipe: Recipe, prepared: Prepared) -> list[TokenSource]:
    """The sources that a run reads: all but those of weight 0."""
    weights = recipe.data.weights or [1.0] * len(prepared.train)
    return [source for source, weight in zip(prepared.train, weights, strict=False) if weight > 0]


def open_baselines(recipe: Recipe, prepared: Prepared, folder: Path) -> Baselines | None:
    """The baselines of a run, counted once and kept in its directory; None if no token is held out.

    Args:
        recipe: As it is at the end of the run.
        prepared: Its text.
        folder: Its directory.

    Raises:
        UniclozeError: They cannot be written.
    """
    way, sources = way_to_ask(recipe.objective), trained_sources(recipe, prepared)
    made_from = {
        "schema": SCHEMA,
        "fingerprint": prepared.fingerprint,
        "sources": [source.name for source in sources],
        "asking": way[0] if way else None,
        "longest": recipe.data.window - 2,
    }
    known = _read(folder / FILE)
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
    write_file(folder / FILE, json.dumps(content) + "\n", "the baselines")
    return baselines


def _read(path: Path) -> dict[str, Any]:
    """What a file holds; nothing if it is missing or damaged, so that it is made again."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
