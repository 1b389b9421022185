"""Evaluates a run of unicloze-small-en on text that chose nothing, and writes the figures of its card.

    python models/training/unicloze-small-en/evaluate.py RUN --prepared RUN/data --text build/small-en/report.jsonl \\
        --other wikitext-2-raw.valid.txt.gz --blimp BLIMP

Held-out text: perplexity and bits per byte of the books and textbooks in `report.jsonl`, and of other text, in windows of the
length trained with, beside a Kneser-Ney trigram of the training text on the same predictions; content words of the documents
that pre-training held out, by both. BLiMP: all sets, by the chain rule and by pseudo-log-likelihood; without it, the former
figures stay. All are written to `evaluation.json` beside this file. RUN may be the package that was made of the run.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from unicloze import keyed
from unicloze.arrays import Int32s
from unicloze.comparison.runs import counted, held_out
from unicloze.decoding.inputs import objective_of
from unicloze.evaluation.blimp import blimp
from unicloze.interop.read import open_model
from unicloze.pretraining.count_baselines import MOST_WORDS, ranks_by_counts, ranks_by_model, way_to_ask
from unicloze.text.counts import Counts, content_words, open_counts
from unicloze.text.prepare import Prepared
from unicloze.text.shards import ShardWriter, TokenShard, TokenSource
from unicloze.text.windows import windows_of
from unicloze.training.loading import LoadedModel
from unicloze.training.verdict import WordScore

HERE = Path(__file__).resolve().parent
EVALUATION = HERE / "evaluation.json"
SOURCES = {"textbooks": "OpenStax: "}
"""Prefix of the source of each kind of text; all other texts are books."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--prepared", type=Path, required=True, help="the training text, as prepared")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--other", type=Path, nargs="*", default=[], help="text files (.txt.gz) of another kind")
    parser.add_argument("--windows", type=int, default=1000, help="of each kind of text (default: %(default)s)")
    parser.add_argument("--blimp", type=Path)
    parser.add_argument("--limit", type=int, help="pairs of each set of BLiMP (default: all)")
    asked = parser.parse_args()
    loaded = open_model(asked.run)
    records = [json.loads(line) for line in asked.text.read_text(encoding="utf-8").splitlines()]
    kinds: dict[str, list[str]] = {"books": [], **{kind: [] for kind in SOURCES}}
    for record in records:
        kind = next((kind for kind, prefix in SOURCES.items() if record["source"].startswith(prefix)), "books")
        kinds[kind].append(record["text"])
    for file in asked.other:
        with gzip.open(file, "rt", encoding="utf-8") as stream:
            kinds[file.name.partition(".txt")[0]] = [stream.read()]
    prepared = Prepared.load(asked.prepared)
    counts = open_counts(prepared, prepared.train)
    found = json.loads(EVALUATION.read_text(encoding="utf-8")) if EVALUATION.is_file() else {}
    found |= {
        "step": loaded.step,
        "text": {kind: on_text(loaded, counts, texts, asked.windows) for kind, texts in kinds.items()},
        "words": on_words(loaded, counts, prepared.heldout),
    }
    if asked.blimp:
        result = blimp(loaded, asked.blimp, mode="both", limit=asked.limit)
        found["blimp"] = {
            "pairs of each set": asked.limit or "all",
            **{key: result.to_dict()[key] for key in ("accuracy", "fields", "terms", "pairs", "unknown", "ties")},
        }
    EVALUATION.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


def on_text(loaded: LoadedModel, counts: Counts, texts: Sequence[str], most: int) -> dict[str, object]:
    """Perplexity of each measure over evenly spread windows of some texts, by the model and by counts on the same
    predictions, bits per byte of the causal one, and content words."""
    length = loaded.recipe.data.window - 2
    pieces, density, encoded = [], [0, 0], loaded.tokenizer.encode_batch(list(texts))
    for ids, text in zip(encoded, texts, strict=True):
        pieces += [(ids, start) for start in range(0, len(ids) - length + 1, length)]
        density = [density[0] + len(ids), density[1] + len(text.encode())]
    chosen = [pieces[place] for place in np.linspace(0, len(pieces) - 1, min(most, len(pieces))).round().astype(int)]
    keys = keyed.key(0, np.arange(len(chosen)))
    rows = [[ids[start : start + length]] for ids, start in chosen]
    windows = windows_of(rows, loaded.tokenizer.vocabulary, keys=keys)
    cut = np.zeros(windows.token_ids.shape, dtype=bool)
    cut[:, 0] = [start > 0 for _, start in chosen]
    cut[:, -1] = [start + length < len(ids) for ids, start in chosen]
    windows = replace(windows, cut=cut)
    figures = held_out(loaded, windows, loaded.compute, rows=32)
    nats = {name: None if figure is None else figure.mean for name, figure in figures.items()}
    return {
        "windows": len(chosen),
        "perplexity": {name: None if mean is None else math.exp(mean) for name, mean in nats.items()},
        "counts": counted(counts, windows),
        "bits_per_byte": None if nats["causal"] is None else nats["causal"] / math.log(2) * density[0] / density[1],
        "words": on_words(loaded, counts, [source_of(encoded, loaded.tokenizer.vocabulary.size)]),
    }


def source_of(texts: Sequence[Int32s], vocab_size: int) -> TokenSource:
    """Encoded texts as a source."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.ds"
        with ShardWriter(path, vocab_size=vocab_size, tokenizer_name="") as writer:
            for ids in texts:
                writer.write(ids, 0)
        return TokenSource(name="text", shards=(TokenShard.open(path),))


def on_words(loaded: LoadedModel, counts: Counts, sources: Sequence[TokenSource]) -> dict[str, object]:
    """Content words among the first guesses of the model and of the trigram."""
    way = way_to_ask(objective_of(loaded.recipe))
    assert way is not None
    words = content_words(sources, counts, loaded.tokenizer, longest=loaded.recipe.data.window - 2, most=MOST_WORDS)
    ranks = ranks_by_model(loaded.model, loaded.recipe, words, loaded.tokenizer.vocabulary, way, loaded.compute)
    return WordScore.of(ranks, ranks_by_counts(counts, words, way), way).to_dict()


if __name__ == "__main__":
    main()
