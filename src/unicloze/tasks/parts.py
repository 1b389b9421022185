"""Sources put together from parts, cut to the room there is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np

from unicloze.tasks.rows import Ints

Keep = Literal["beginning", "end", "chunk"]


def join_parts(parts: Sequence[Ints], separator: int) -> Ints:
    """All parts in a row, a separator between any two. *Shape:* (tokens,)"""
    joined = [token for part in parts for token in (np.array([separator], dtype=np.int32), part)]
    return np.concatenate(joined[1:]).astype(np.int32)


def cut_parts(parts: Sequence[Ints], room: int, keep: Keep, chunk_by: Collection[int] | None = None) -> list[Ints]:
    """Shorten the longest parts, to one length if need be, until all fit with separators between them.

    Args:
        parts: Token ids of each.
        room: Most tokens of all, separators included.
        keep: What stays of a part, see `GenerationSettings.keep`.
        chunk_by: Numbers of the parts that choose a chunk; all but the part itself if not given.
    """
    lengths = np.array([len(part) for part in parts])
    left = max(0, room - (len(parts) - 1))
    if lengths.sum() <= left:
        return list(parts)
    allowed = np.zeros_like(lengths)
    for done, number in enumerate(np.argsort(lengths, kind="stable")):  # what a short one leaves, the longer ones share
        allowed[number] = min(int(lengths[number]), left // (len(parts) - done))
        left -= int(allowed[number])
    choosing = range(len(parts)) if chunk_by is None else chunk_by
    return [
        _kept(part, [parts[other] for other in choosing if other != number], int(allowed[number]), keep)
        for number, part in enumerate(parts)
    ]


def _kept(part: Ints, others: Sequence[Ints], size: int, keep: Keep) -> Ints:
    if keep == "chunk":
        return chunk(part, others, size)
    return part[:size] if keep == "beginning" else part[len(part) - size :]


def chunk(part: Ints, others: Sequence[Ints], size: int) -> Ints:
    """So many tokens of a part in a row: those that hold the whole of another part, then most of the others' tokens.

    The first such chunk, if several are alike (UniLM v1, Sections 3.2 and 3.3).

    Args:
        part: *Shape:* (tokens,)
        others: The other parts.
        size: Tokens of the chunk.
    """
    starts = len(part) - size + 1
    if starts <= 1 or not size:
        return part[:size]
    score = np.zeros(starts)
    for token in np.unique(np.concatenate([*others, part[:0]])):
        seen = np.cumsum(np.concatenate([[0], part == token]))
        score += seen[size:] > seen[:starts]
    for other in others:
        if 0 < len(other) <= size:
            views = np.lib.stride_tricks.sliding_window_view(part, len(other))
            found = np.cumsum(np.concatenate([[0], (views == other).all(axis=1)]))
            last = size - len(other) + 1
            score += len(part) * (found[last : last + starts] > found[:starts])
    first = int(score.argmax())
    return part[first : first + size]
