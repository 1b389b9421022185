"""Joins the parts of a source and cuts them to a maximum length."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import numpy as np

from unicloze.arrays import Int32s

Keep = Literal["beginning", "end", "chunk"]


def join_texts(parts: Sequence[Int32s], separator: int) -> Int32s:
    """Concatenate the parts with a separator between them. *Shape:* (tokens,)"""
    joined = [token for part in parts for token in (np.array([separator], dtype=np.int32), part)]
    return np.concatenate(joined[1:]).astype(np.int32)


def cut_texts(
    parts: Sequence[Int32s],
    room: int,
    keep: Keep | Sequence[Keep],
    chunk_by: Collection[int] | None = None,
    anchors: Mapping[int, tuple[int, int]] | None = None,
) -> list[Int32s]:
    """Shorten the longest parts, to equal length if necessary, until all fit with separators between them."""
    lengths = np.array([len(part) for part in parts])
    left = max(0, room - (len(parts) - 1))
    if lengths.sum() <= left:
        return list(parts)
    allowed = np.zeros_like(lengths)
    for done, number in enumerate(np.argsort(lengths, kind="stable")):  # longer parts share what shorter ones leave
        allowed[number] = min(int(lengths[number]), left // (len(parts) - done))
        left -= int(allowed[number])
    choosing = range(len(parts)) if chunk_by is None else chunk_by
    return [
        _kept(
            part,
            [parts[other] for other in choosing if other != number],
            int(allowed[number]),
            keep if isinstance(keep, str) else keep[number],
            (anchors or {}).get(number),
        )
        for number, part in enumerate(parts)
    ]


def _kept(part: Int32s, others: Sequence[Int32s], size: int, keep: Keep, anchor: tuple[int, int] | None) -> Int32s:
    if keep == "chunk":
        return chunk(part, others, size, anchor)
    return part[:size] if keep == "beginning" else part[len(part) - size :]


def chunk(part: Int32s, others: Sequence[Int32s], size: int, anchor: tuple[int, int] | None = None) -> Int32s:
    """The chunk of `size` consecutive tokens that contains another part as a whole, or else the most tokens of the others.

    Of equal chunks, the first is taken (UniLM v1, Sections 3.2 and 3.3).
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
    if anchor is not None:
        earliest = min(max(0, anchor[1] + 1 - size), anchor[0], starts - 1)
        score[:earliest], score[min(anchor[0], starts - 1) + 1 :] = -1, -1
    first = int(score.argmax())
    return part[first : first + size]
