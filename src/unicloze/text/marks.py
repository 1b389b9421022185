"""Marks: one byte per token that records the phrases and entities of a document (ERNIE, Section 3.2)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from unicloze.arrays import Flags
from unicloze.text.spans import KINDS, SpanKind, Spans

Marks = npt.NDArray[np.uint8]

_JOINS = {"phrase": 1, "entity": 2}
_GIVES = {"phrase": 4, "entity": 8}


def marks_of(spans: Spans, offsets: npt.NDArray[np.integer]) -> Marks:
    """The byte of each token of a text.

    A token belongs to the first span of a kind that it shares a character with.

    Args:
        spans: The spans of the text.
        offsets: First character and end of each token. *Shape:* (tokens, 2)
    """
    marks = np.full(len(offsets), sum(_GIVES[kind] for kind in spans.gives), dtype=np.uint8)
    for kind in KINDS if len(offsets) else ():
        bounds = np.array([span[:2] for span in spans.found if span[2] == kind], dtype=np.int64).reshape(-1, 2)
        if not len(bounds):
            continue
        span = np.minimum(np.searchsorted(bounds[:, 1], offsets[:, 0], side="right"), len(bounds) - 1)
        inside = (bounds[span, 0] < offsets[:, 1]) & (bounds[span, 1] > offsets[:, 0])
        joined = inside.copy()
        joined[1:] &= inside[:-1] & (span[1:] == span[:-1])
        joined[0] &= bounds[span[0], 0] < 0
        marks |= joined.astype(np.uint8) * np.uint8(_JOINS[kind])
    return marks


def joined_by(marks: Marks, kind: SpanKind) -> tuple[Flags, Flags]:
    """Whether tokens belong to the same span as the token before, and whether their documents give spans of the kind.

    Args:
        marks: *Shape:* (rows, window)
        kind: The kind of the spans.

    Returns:
        *Shape:* (rows, window) each.
    """
    return (marks & _JOINS[kind]) > 0, (marks & _GIVES[kind]) > 0
