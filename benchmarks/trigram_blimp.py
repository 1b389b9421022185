"""BLiMP accuracy of a Kneser-Ney trigram of prepared text: the floor for a model trained on it.

    python benchmarks/trigram_blimp.py PREPARED BLIMP [--tokens N] [--out FILE]

Each sentence follows a full stop. Ties count as wrong, and as half right.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from unicloze.arrays import Float64s, Int64s
from unicloze.evaluation.blimp import TIE, read_pairs
from unicloze.text.counts import ABSENT, MOST_COUNTED, Counts, open_counts
from unicloze.text.prepare import Prepared


def scores(counts: Counts, texts: Sequence[Int64s], stop: int) -> Float64s:
    """Log-probability of each text after a full stop."""
    tokens = np.concatenate(texts)
    owners = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    before = np.concatenate([np.append(stop, text[:-1]) for text in texts])
    earlier = np.concatenate([np.append([ABSENT, stop], text[:-2])[: len(text)] for text in texts])
    logs = np.log(counts.following(earlier, before, tokens))
    return np.bincount(owners, logs, minlength=len(texts)).astype(np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("blimp", type=Path)
    parser.add_argument(
        "--tokens", type=int, default=MOST_COUNTED, help="of the training text to count (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    prepared = Prepared.load(asked.prepared)
    tokenizer, counts = prepared.tokenizer, open_counts(prepared, prepared.train, asked.tokens)
    strict, half = [], []
    for one in read_pairs(asked.blimp):
        texts = [ids.astype(np.int64) for ids in tokenizer.encode_batch([text for pair in one.pairs for text in pair])]
        found = scores(counts, texts, int(tokenizer.encode(".")[0])).reshape(-1, 2)
        ahead = found[:, 0] - found[:, 1]
        strict.append(float((ahead > TIE).mean()))
        half.append(strict[-1] + float((np.abs(ahead) <= TIE).mean()) / 2)
    result = {
        "tokens": counts.total, "sets": len(strict),
        "accuracy": {"ties wrong": 100 * float(np.mean(strict)), "ties half": 100 * float(np.mean(half))},
    }  # fmt: skip
    print(json.dumps(result))
    if asked.out:
        asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
