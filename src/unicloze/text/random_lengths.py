"""Windows of random length: each step reads as many tokens of every stream as it draws (AWD-LSTM).

The windows of a step are sequences of windows of a single token each, so that the text at a step is a function of the step
alone: the streams go on where the lengths of all steps before it have brought them.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from unicloze import keyed
from unicloze.arrays import Int64s
from unicloze.example import select_rows
from unicloze.text.sampler import WindowSampler
from unicloze.text.segment_pairs import Pairs
from unicloze.text.windows import Windows

SHORTEST, DEVIATION, HALVED = 5, 5.0, 0.05
"""Fewest tokens of a step, standard deviation of their number, and share of the steps around half of the mean (Merity et al.
2018, Section 5; the released code)."""
LONGEST = 4
"""Deviations above the mean at which a length is cut."""
LENGTH = 2**20 + 11
"""Stream of the draws of lengths."""


def lengths_of(steps: Int64s, mean: int, seed: int) -> Int64s:
    """Tokens of each step: around `mean`, in a twentieth of the steps around half of it. *Shape:* (steps,)"""
    draws = keyed.uniform(keyed.bits(keyed.key(seed, LENGTH, steps)[:, None], keyed.Stream.ONLY, np.arange(3)))
    centre = np.where(draws[:, 0] < HALVED, mean / 2, mean)
    normal = np.sqrt(-2 * np.log1p(-draws[:, 1])) * np.cos(2 * np.pi * draws[:, 2])
    drawn = (centre + DEVIATION * normal.clip(-LONGEST, LONGEST)).astype(np.int64)
    lengths: Int64s = np.maximum(SHORTEST, drawn)
    return lengths


class RandomLengthSampler(WindowSampler):
    """The windows of streams as `WindowSampler` reads them, but of random length; for evaluation they have the full one."""

    _before: Int64s = np.zeros(1, dtype=np.int64)

    def read(
        self, start: int, count: int, *, pairs: Pairs = "contiguous", static_copies: int | None = None, lanes: int = 1
    ) -> Windows:
        """The windows at positions `start` to `start + count`; all lanes of a step have the same length."""
        steps, lane = np.divmod(np.arange(start, start + count, dtype=np.int64), lanes)
        before = self._starts(int(steps[-1]) + 1)
        first, last = before[steps[0]], before[steps[-1] + 1]
        tokens = self._of_single_tokens().read(int(first * lanes), int((last - first) * lanes), lanes=lanes)
        sizes = before[steps + 1] - before[steps]
        place = np.arange(int(sizes.max()))
        inside = place < sizes[:, None]
        begins = (before[steps] - first) * lanes + lane
        backward = None if tokens.backward is None else tokens.backward[begins]
        turned = place if backward is None else np.where(backward[:, None], sizes[:, None] - 1 - place, place)
        single = np.where(inside, begins[:, None] + turned * lanes, 0)
        text = tokens.token_ids[single, 1]
        vocabulary, rows = self.vocabulary, np.arange(count)
        token_ids = np.full((count, text.shape[1] + 2), vocabulary.pad, dtype=np.int32)
        token_ids[:, 0] = vocabulary.sos
        token_ids[:, 1:-1][inside] = text[inside]
        token_ids[rows, sizes + 1] = vocabulary.eos
        cut = np.zeros_like(token_ids, dtype=bool)
        if tokens.cut is not None:
            cut[:, 0], cut[rows, sizes + 1] = tokens.cut[single[:, 0], 0], tokens.cut[single[rows, sizes - 1], 2]
        chosen = select_rows(tokens, begins)
        return dataclasses.replace(
            chosen,
            index=np.minimum(chosen.index // self._piece, self.source_windows[chosen.source] - 1),
            token_ids=token_ids,
            segment_ids=np.zeros_like(token_ids),
            lengths=(sizes + 2).astype(np.int32),
            maskable=~self._special[token_ids],
            cut=cut,
        )

    def rate_at(self, position: int, lanes: int) -> float:
        """Factor of the learning rate at a position: the length of its step relative to the mean."""
        step = np.array([position // lanes])
        return float(lengths_of(step, self._piece, self.seed)[0]) / self._piece

    def _starts(self, steps: int) -> Int64s:
        """Tokens of each stream before each of the first steps and after the last. *Shape:* (steps + 1 or more,)"""
        if len(self._before) <= steps:
            every = lengths_of(np.arange(2 * steps), self._piece, self.seed)
            self._before = np.concatenate([[0], np.cumsum(every)])
        return self._before

    def _of_single_tokens(self) -> WindowSampler:
        return WindowSampler(
            self.sources,
            window=3,
            segments=1,
            vocabulary=self.vocabulary,
            seed=self.seed,
            documents=self.documents,
            order=self.order,
            directions=self.directions,
        )
