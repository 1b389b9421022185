"""Visibility of one row by the definitions of the papers, as a reference for the functions that make many rows at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from unicloze.visibility import Intervals, _intervals, pseudo_masked_rows


def bidirectional(length: int) -> Intervals:
    """Every slot reads every slot (BERT, autoencoding)."""
    return _intervals(np.zeros(length), length)


def left_to_right(length: int) -> Intervals:
    """A slot reads itself and all slots to its left (GPT)."""
    return _intervals(0, np.arange(length) + 1)


def right_to_left(length: int) -> Intervals:
    """A slot reads itself and all slots to its right (UniLM v1)."""
    return _intervals(np.arange(length), length)


def prefix(source: int, target: int) -> Intervals:
    """The source reads itself in both directions; a target slot reads the source and the target up to itself (UniLM v1)."""
    return _intervals(0, np.maximum(source, np.arange(source + target) + 1))


def pseudo_masked(context: int, steps: Sequence[int]) -> Intervals:
    """UniLMv2's pseudo-masked row: context C, originals O by step, pseudo masks P by step (paper Section 3.2, Figure 5).

    C reads C. O of step t reads C and O of steps <= t. P of step t reads C, O of steps < t and P of step t.
    With the source as context and steps of one token (or one block) this is also the row for fine-tuning a generator
    (paper Section 3.4).

    Args:
        context: Number of slots in C.
        steps: Number of tokens predicted in each factorization step.
    """
    starts, ends = step_bounds(steps)
    masked = len(starts)
    row = np.zeros(masked, dtype=np.int64)
    alone: Intervals = pseudo_masked_rows(np.array([context]), row, starts, ends, capacity=context + 2 * masked)[0]
    return alone


def permuted(memory: int, context: int, steps: Sequence[int]) -> Intervals:
    """XLNet's two streams: keys are memory, C (without the masked tokens), O, P; queries are C, O, P.

    C reads memory and C; O of step t reads those and O of steps <= t; P of step t reads memory, C and O of steps < t.
    P is never a key, not even for itself.
    """
    starts, ends = step_bounds(steps)
    first = memory + context
    return np.concatenate(
        [_intervals(np.zeros(context), first), _intervals(0, first + ends), _intervals(0, first + starts)]
    )


def packed(rows: Sequence[Intervals]) -> Intervals:
    """Concatenate self-contained rows; none reads another. Each must have as many keys as queries."""
    shifted, first = [], 0
    for row in rows:
        shifted.append(row + np.int32(first))
        first += len(row)
    return np.concatenate(shifted)


def step_bounds(steps: Sequence[int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    sizes = np.asarray(steps, dtype=np.int64)
    ends = np.cumsum(sizes)
    return np.repeat(ends - sizes, sizes), np.repeat(ends, sizes)
