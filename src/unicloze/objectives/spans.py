"""Random subsets and partitions for the denoising objectives, for many rows at once, keyed by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze import keyed
from unicloze.arrays import Flags, Int64s


def per_row(function: Callable[[int, float], Any], tokens: Int64s, rates: npt.NDArray[np.float64]) -> Any:
    """Apply a function of tokens and rate to each row, computing it once per distinct pair.

    Args:
        function: Maps tokens and rate to a count or a tuple of counts.
        tokens: *Shape:* (rows,)
        rates: *Shape:* (rows,)

    Returns:
        *Shape:* (rows,), or (counts, rows) for a tuple.
    """
    pairs, row = np.unique(np.stack([tokens, rates], axis=1), axis=0, return_inverse=True)
    results = [function(int(count), rate) for count, rate in pairs.tolist()] or [function(0, 0.0)]
    return np.array(results, dtype=np.int64).T[..., row.reshape(-1)]


def subset(items: Int64s, chosen: Int64s, keys: keyed.Bits, stream: int) -> Flags:
    """A uniformly random subset of each row's items, by Floyd's algorithm, which takes one turn per chosen item.

    Args:
        items: Items of each row. *Shape:* (rows,)
        chosen: Number of items to choose, at most all. *Shape:* (rows,)
        keys: Key of each row's draws. *Shape:* (rows,)
        stream: Stream of the draws.

    Returns:
        Whether each item is chosen. *Shape:* (rows, most items)
    """
    width, turns = max(0, int(items.max(initial=0))), np.arange(int(chosen.max(initial=0)))[:, None]
    flags = np.zeros((len(items), width + 1), dtype=bool)  # rows without a turn write to the extra column
    row = np.arange(len(items)) * (width + 1)
    last = items - chosen + turns
    drawn = keyed.below(keyed.bits(keys, stream, turns), last + 1)
    idle = turns >= chosen
    last[idle] = drawn[idle] = width
    last += row
    drawn += row
    flat = flags.reshape(-1)
    for latest, candidate in zip(last, drawn, strict=True):
        flat[np.where(flat[candidate], latest, candidate)] = True
    return flags[:, :width]


def partition(items: Int64s, parts: Int64s, keys: keyed.Bits, stream: int) -> Int64s:
    """Sizes of the parts of a uniformly random partition of each row's items into non-empty parts (T5's segmentation).

    Args:
        items: Items of each row. *Shape:* (rows,)
        parts: Parts of each row, from 1 to its items; a row without items has one empty part. *Shape:* (rows,)
        keys: Key of each row's draws. *Shape:* (rows,)
        stream: Stream of the draws.

    Returns:
        The sizes, row by row. *Shape:* (all parts,)
    """
    cuts = subset(np.maximum(items - 1, 0), parts - 1, keys, stream)
    first = np.ones((len(items), cuts.shape[1] + 1), dtype=bool)
    first[:, 1:] = cuts
    row, start = np.divmod(np.flatnonzero(first), first.shape[1])
    end = items[row]
    end[:-1] = np.where(row[1:] == row[:-1], start[1:], end[:-1])
    sizes: Int64s = end - start
    return sizes


def within(counts: Int64s, width: int) -> Flags:
    """Which columns of a padded array hold items of the row. *Shape:* (rows, width)"""
    return np.arange(width) < counts[:, None]
