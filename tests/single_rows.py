"""Rows of `unicloze.visibility` one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unicloze import visibility
from unicloze.visibility import Intervals


def bidirectional(length: int) -> Intervals:
    return visibility.bidirectional_rows(np.array([length]), capacity=length)[0]


def left_to_right(length: int) -> Intervals:
    return visibility.left_to_right_rows(np.array([length]), capacity=length)[0]


def right_to_left(length: int) -> Intervals:
    return visibility.right_to_left_rows(np.array([length]), capacity=length)[0]


def prefix(source: int, target: int) -> Intervals:
    return visibility.prefix_rows(np.array([source]), np.array([source + target]), capacity=source + target)[0]


def pseudo_masked(context: int, steps: Sequence[int]) -> Intervals:
    return visibility.pseudo_masked_rows(*_by_step(context, steps), capacity=context + 2 * sum(steps))[0]


def permuted(memory: int, context: int, steps: Sequence[int]) -> Intervals:
    """The keys are the memory, C (without the masked tokens), O, P; the queries are C, O, P."""
    rows = visibility.permuted_rows(*_by_step(context, steps), capacity=context + 2 * sum(steps))
    row: Intervals = visibility.with_memory(rows, memory, np.array([memory]))[0]
    return row


def packed(rows: Sequence[Intervals]) -> Intervals:
    """Concatenate self-contained rows; none reads another. Each must have as many keys as queries."""
    firsts = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    return np.concatenate([row + first for row, first in zip(rows, firsts, strict=False)])


def _by_step(context: int, steps: Sequence[int]) -> tuple[Intervals, Intervals, Intervals, Intervals]:
    """Arguments of rows with factorization steps."""
    sizes = np.asarray(steps)
    ends = np.cumsum(sizes)
    return np.array([context]), np.zeros(sum(steps), int), np.repeat(ends - sizes, sizes), np.repeat(ends, sizes)
