"""BLiMP accuracy of a trigram model of prepared text: the floor for a model trained on it.

    python benchmarks/trigram_blimp.py PREPARED BLIMP [--tokens N] [--out FILE]

The model interpolates counts of three, two and one tokens with absolute discounts (Ney, Essen and Kneser 1994). Each
sentence follows a full stop. Ties count as wrong, and as half right.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unicloze.arrays import Float64s, Int64s
from unicloze.evaluation.blimp import TIE
from unicloze.evaluation.minimal_pairs import read_pairs
from unicloze.text.counts import stretches
from unicloze.text.prepare import Prepared

Codes = tuple[Int64s, Int64s]
"""Sorted codes of sequences, and the count of each."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """Counts of sequences of one length.

    Args:
        codes: The sequences: (context x size + token), sorted.
        times: How often each occurs.
        contexts: Their contexts, sorted.
        total: Number of sequences after each context.
        kinds: Number of distinct tokens after each context.
        discount: Taken from every count.
    """

    codes: Int64s
    times: Int64s
    contexts: Int64s
    total: Int64s
    kinds: Int64s
    discount: float

    @classmethod
    def of(cls, counted: Codes, size: int) -> Order:
        codes, times = counted
        contexts, first = np.unique(codes // size, return_index=True)
        once, twice = (times == 1).sum(), (times == 2).sum()
        return cls(
            codes=codes, times=times, contexts=contexts, total=np.add.reduceat(times, first),
            kinds=np.diff(np.append(first, len(codes))), discount=float((once + 1) / (once + 2 * twice + 3)),
        )  # fmt: skip

    def mixed(self, contexts: Int64s, tokens: Int64s, lower: Float64s, size: int) -> Float64s:
        """Probability of tokens after contexts, given that of the shorter context."""
        place, known = _found(self.contexts, contexts)
        code, seen = _found(self.codes, contexts * size + tokens)
        total = np.where(known, self.total[place], 1)
        times = np.where(seen, self.times[code] - self.discount, 0.0)
        mixed: Float64s = times / total + self.discount * self.kinds[place] / total * lower
        return np.where(known, mixed, lower)


def _found(codes: Int64s, wanted: Int64s) -> tuple[Int64s, np.ndarray[Any, np.dtype[np.bool_]]]:
    place = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
    return place, codes[place] == wanted


def counted(prepared: Prepared, size: int, most: int) -> tuple[Float64s, Order, Order]:
    """Probability of each token, counts of two and of three tokens in about `most` tokens of the training text."""
    single = np.zeros(size)
    pairs, triples = [], []
    for tokens, begins in stretches(prepared.train, most):
        single += np.bincount(tokens, minlength=size)
        pairs.append((tokens[:-1] * size + tokens[1:])[~begins[1:]])
        triples.append(((tokens[:-2] * size + tokens[1:-1]) * size + tokens[2:])[~(begins[1:-1] | begins[2:])])
    orders = [Order.of(np.unique(np.concatenate(codes), return_counts=True), size) for codes in (pairs, triples)]
    return (single + 0.5) / (single + 0.5).sum(), orders[0], orders[1]


def scores(texts: Sequence[Int64s], stop: int, size: int, model: tuple[Float64s, Order, Order]) -> Float64s:
    """Log-probability of each text after a full stop."""
    single, two, three = model
    tokens = np.concatenate(texts)
    owners = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    before = np.concatenate([np.append(stop, text[:-1]) for text in texts])
    earlier = np.concatenate([np.append([0, stop], text[:-2])[: len(text)] for text in texts])
    lower = two.mixed(before, tokens, single[tokens], size)
    logs = np.log(three.mixed(earlier * size + before, tokens, lower, size))
    return np.bincount(owners, logs, minlength=len(texts)).astype(np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("blimp", type=Path)
    parser.add_argument("--tokens", type=int, default=2**62, help="of the training text to count (default: all)")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    prepared = Prepared.load(asked.prepared)
    tokenizer, size = prepared.tokenizer, prepared.tokenizer.vocabulary.size
    model = counted(prepared, size, asked.tokens)
    strict, half = [], []
    for one in read_pairs(asked.blimp):
        texts = [ids.astype(np.int64) for ids in tokenizer.encode_batch([text for pair in one.pairs for text in pair])]
        found = scores(texts, int(tokenizer.encode(".")[0]), size, model).reshape(-1, 2)
        ahead = found[:, 0] - found[:, 1]
        strict.append(float((ahead > TIE).mean()))
        half.append(strict[-1] + float((np.abs(ahead) <= TIE).mean()) / 2)
    result = {
        "tokens": int(min(asked.tokens, model[1].times.sum())), "sets": len(strict),
        "accuracy": {"ties wrong": 100 * float(np.mean(strict)), "ties half": 100 * float(np.mean(half))},
    }  # fmt: skip
    print(json.dumps(result))
    if asked.out:
        asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
