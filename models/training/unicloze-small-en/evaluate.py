"""Evaluates a run of unicloze-small-en on text that chose nothing, and writes the figures of its card.

    python models/training/unicloze-small-en/evaluate.py RUN --text build/small-en/report.jsonl --blimp BLIMP

Held-out text: perplexity and bits per byte of the books and textbooks in `report.jsonl`, in windows of the length trained
with. BLiMP: all sets, by the chain rule and by pseudo-log-likelihood. The figures are written to `evaluation.json` beside
this file.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from unicloze import keyed
from unicloze.comparison.measures import MEASURES, bits_per_byte, held_out
from unicloze.evaluation.blimp import blimp
from unicloze.interop.opening import open_model
from unicloze.text.windows import windows_of
from unicloze.training.loading import LoadedModel

HERE = Path(__file__).resolve().parent
EVALUATION = HERE / "evaluation.json"
SOURCES = {"textbooks": "OpenStax: "}
"""Prefix of the source of each kind of text; all other texts are books."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--windows", type=int, default=1000, help="of each kind of text (default: %(default)s)")
    parser.add_argument("--blimp", type=Path, required=True)
    parser.add_argument("--limit", type=int, help="pairs of each set of BLiMP (default: all)")
    asked = parser.parse_args()
    loaded = open_model(asked.run)
    records = [json.loads(line) for line in asked.text.read_text(encoding="utf-8").splitlines()]
    kinds: dict[str, list[str]] = {"books": [], **{kind: [] for kind in SOURCES}}
    for record in records:
        kind = next((kind for kind, prefix in SOURCES.items() if record["source"].startswith(prefix)), "books")
        kinds[kind].append(record["text"])
    found = {
        "step": loaded.step,
        "text": {kind: on_text(loaded, texts, asked.windows) for kind, texts in kinds.items()},
    }
    result = blimp(loaded, asked.blimp, mode="both", limit=asked.limit)
    found["blimp"] = {
        "pairs of each set": asked.limit or "all",
        **{key: result.to_dict()[key] for key in ("accuracy", "fields", "terms", "pairs", "unknown", "ties")},
    }
    EVALUATION.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


def on_text(loaded: LoadedModel, texts: Sequence[str], most: int) -> dict[str, object]:
    """Perplexity of each measure over evenly spread windows of some texts, and bits per byte of the causal one."""
    length = loaded.recipe.data.window - 2
    pieces, density = [], [0, 0]
    for ids, text in zip(loaded.tokenizer.encode_batch(list(texts)), texts, strict=True):
        pieces += [ids[start : start + length] for start in range(0, len(ids) - length + 1, length)]
        density = [density[0] + len(ids), density[1] + len(text.encode())]
    chosen = [pieces[place] for place in np.linspace(0, len(pieces) - 1, min(most, len(pieces))).round().astype(int)]
    keys = keyed.key(0, np.arange(len(chosen)))
    windows = windows_of([[piece] for piece in chosen], loaded.tokenizer.vocabulary, keys=keys)
    nats = held_out(loaded, windows, loaded.compute, rows=32)
    return {
        "windows": len(chosen),
        "perplexity": {name: None if nats[name] is None else math.exp(nats[name]) for name in MEASURES},
        "bits_per_byte": bits_per_byte(nats["causal"], density[0] / density[1]),
    }


if __name__ == "__main__":
    main()
