"""What the trigram of a verdict would gain if it also read past hidden words.

    python benchmarks/hidden_neighbours.py --prepared DATA --recipe RECIPE [--windows 512] [--blanks 4000]

The trigram reads the two nearest tokens on each side, and stops where one of them is hidden. The other one goes on to the
nearest two that the prediction sees, and sums over the hidden tokens between, a pair of tokens at a time. RECIPE is a run's
recipe.yaml, DATA its prepared text. Both predict the same blanks of held-out windows, masked as `compare` masks them: up to
so many of AE, which sees no masked token, and of PAR, which sees those of former steps.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from unicloze.arrays import Flags, Float64s, Int64s
from unicloze.comparison.runs import masked_steps
from unicloze.mixtures import phases
from unicloze.pretraining.data import build_sampler
from unicloze.recipes import load_recipe
from unicloze.text.counts import ABSENT, Counts, Neighbours, open_counts
from unicloze.text.prepare import Prepared
from unicloze.text.sampler import evenly_spaced
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows
from unicloze.training.batches import heldout_examples

HIDDEN = -2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepared", type=Path, required=True)
    parser.add_argument("--recipe", type=Path, required=True)
    parser.add_argument("--windows", type=int, default=512)
    parser.add_argument("--blanks", type=int, default=4000)
    asked = parser.parse_args()
    recipe, prepared = phases(load_recipe(asked.recipe))[-1].recipe, Prepared.load(asked.prepared)
    vocabulary, counts = prepared.tokenizer.vocabulary, open_counts(prepared, prepared.train)
    assert recipe.data.documents == "separate", "an [EOS] within a window is one between its two segments"
    sampler = build_sampler(recipe, prepared, heldout=True)
    (block, *_) = heldout_examples(sampler, recipe.objective, asked.windows, lanes=recipe.training.batch_size).values()
    windows = block.windows
    assert windows is not None
    steps = masked_steps(windows, vocabulary)
    after = pairs_of(counts)
    for measure in ("ae", "par"):
        chosen = np.argwhere(steps >= 0)
        chosen = chosen[evenly_spaced(min(asked.blanks, len(chosen)), len(chosen))]
        found = []
        for row, place in chosen.tolist():
            hidden = steps[row, : windows.lengths[row]] >= (0 if measure == "ae" else steps[row, place])
            found.append(neighbours(*line(windows, row, hidden, place, vocabulary), vocabulary))
        around, hops = (np.array(column, dtype=np.int64).T for column in zip(*found, strict=True))
        answers = windows.token_ids[chosen[:, 0], chosen[:, 1]]
        stopped = np.where(np.repeat(hops, 2, axis=0) > 0, ABSENT, around)
        as_judged = [
            scores[answer] for scores, answer in zip(counts.blanks(Neighbours(*stopped)), answers, strict=True)
        ]
        absent = np.full(len(answers), ABSENT)
        left = counts.blanks(Neighbours(around[0], around[1], absent, absent))
        beyond = [
            summed(counts, after, scores, around[2:, number], hops[:, number])[answers[number]]
            if hops[:, number].any()
            else as_judged[number]
            for number, scores in enumerate(left)
        ]
        near, far = (math.exp(-float(np.log(each).mean())) for each in (as_judged, beyond))
        print(f"{measure}: {near:.1f} as in verdicts, {far:.1f} past hidden words ({len(answers):,} blanks)")


def line(windows: Windows, row: int, hidden: Flags, place: int, vocabulary: Vocabulary) -> tuple[Int64s, int]:
    """The text of a window without the [EOS] between its segments, and where a place of the window is in it."""
    ids = windows.token_ids[row, : len(hidden)].astype(np.int64)
    cut = np.zeros(len(ids), dtype=bool) if windows.cut is None else windows.cut[row, : len(ids)]
    ends = np.isin(ids, (vocabulary.sos, vocabulary.eos))
    text = np.where(np.isin(ids, vocabulary.ordinary), ids, np.where(ends & ~cut, vocabulary.eos, ABSENT))
    text[hidden] = HIDDEN
    inside = np.flatnonzero(~ends | (np.arange(len(ids)) % (len(ids) - 1) == 0))
    return text[inside], int(np.searchsorted(inside, place))


def neighbours(text: Int64s, place: int, vocabulary: Vocabulary) -> tuple[tuple[int, int, int, int], tuple[int, int]]:
    """The nearest two visible tokens on each side, and the numbers of hidden ones before them."""
    found, hops = list[int](), list[int]()
    for side in (text[:place][::-1], text[place + 1 :]):
        shown = np.flatnonzero(side != HIDDEN)
        first = int(shown[0]) if len(shown) else len(side)
        one, two = (int(side[n]) if n < len(side) and side[n] != HIDDEN else ABSENT for n in (first, first + 1))
        if len(found) == 2 and one not in vocabulary.ordinary:
            one = ABSENT
        if one in (ABSENT, vocabulary.eos) or (len(found) == 2 and two not in vocabulary.ordinary):
            two = ABSENT
        found += [one, two]
        hops.append(first if one != ABSENT else 0)
    left1, left2, right1, right2 = found
    return (left2, left1, right1, right2), (hops[0], hops[1])


def pairs_of(counts: Counts) -> npt.NDArray[np.float32]:
    """p(w | v) of every id w after every ordinary id v. *Shape:* (vocabulary, vocabulary)"""
    ordinary, size = counts.vocabulary.ordinary, counts.vocabulary.size
    absent = np.full(len(ordinary), ABSENT)
    found = np.zeros((size, size), np.float32)
    around = Neighbours(absent, ordinary.astype(np.int64), absent, absent)
    for token, scores in zip(ordinary.tolist(), counts.blanks(around), strict=True):
        found[token] = scores
    return found


def summed(
    counts: Counts, after: npt.NDArray[np.float32], scores: Float64s, right: Int64s, hops: Int64s
) -> npt.NDArray[np.floating]:
    """p(w) of each id w, from those after the neighbours on the left, so many hidden tokens away. *Shape:* (vocabulary,)"""
    shares: npt.NDArray[np.floating] = scores.astype(np.float32)
    for _ in range(hops[0]):
        shares = shares @ after
    if right[0] >= 0:
        every = np.arange(counts.vocabulary.size)
        behind: npt.NDArray[np.floating] = after[:, right[0]]
        if right[1] >= 0:
            first, second = (np.full(len(every), token) for token in right)
            behind = (behind * counts.following(every, first, second)).astype(np.float32)
        for _ in range(hops[1]):
            behind = after @ behind
        shares = shares.astype(np.float64) * behind
    shares /= shares[counts.vocabulary.ordinary].sum()
    return shares


if __name__ == "__main__":
    main()
