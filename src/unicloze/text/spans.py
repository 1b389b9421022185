"""Spans of a document that its record marks as phrases or entities (ERNIE, Section 3.2)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from unicloze.errors import UniclozeError

SpanKind = Literal["phrase", "entity"]
Span = tuple[int, int, str]
"""First character, end and kind."""

KINDS: tuple[SpanKind, ...] = ("phrase", "entity")


@dataclass(frozen=True, kw_only=True, slots=True)
class Spans:
    """The spans of a document or of a part of it."""

    # Spans in order; those of one kind do not overlap. In a part, a span may begin before the part or end after it.
    found: tuple[Span, ...] = ()
    gives: frozenset[str] = frozenset()  # kinds of the spans of the whole document

    def part(self, start: int, end: int) -> Spans:
        """The spans of the characters from `start` to `end`, counted from `start`."""
        inside = (span for span in self.found if span[0] < end and span[1] > start)
        return Spans(found=tuple((first - start, stop - start, kind) for first, stop, kind in inside), gives=self.gives)

    def without(self, text: str, character: str) -> Spans:
        """The spans after each occurrence of a character is removed from the text."""
        moved = ((a - text.count(character, 0, a), b - text.count(character, 0, b), kind) for a, b, kind in self.found)
        return Spans(found=tuple(span for span in moved if span[0] < span[1]), gives=self.gives)


NO_SPANS = Spans()


def read_spans(value: Any, text: str, place: str, field: str) -> Spans:
    """The spans that a record gives for its text."""
    if value is None:
        return NO_SPANS
    if not isinstance(value, list):
        raise UniclozeError(
            f'{place}: the field "{field}" is not a list of spans such as [[0, 5], [9, 14, "phrase"]]: fix the line, or name '
            "another field with --data.spans_field."
        )
    found = sorted(_span(entry, text, place, field) for entry in value)
    for kind in KINDS:
        _refuse_overlaps([span for span in found if span[2] == kind], place, field)
    return Spans(found=tuple(found), gives=frozenset(span[2] for span in found))


def _span(entry: Any, text: str, place: str, field: str) -> Span:
    """One span without the white space at its ends."""
    kind = entry[2] if isinstance(entry, list) and len(entry) == 3 else "entity"
    if not isinstance(entry, list) or len(entry) not in (2, 3) or any(type(at) is not int for at in entry[:2]):
        problem = "is not a list of two whole numbers and optionally a kind"
    elif kind not in KINDS:
        problem = f"has a kind other than {' and '.join(KINDS)}"
    elif not 0 <= entry[0] < entry[1] <= len(text):
        problem = f"is not within the {len(text):,} characters of the text, first character before the end"
    elif not (covered := text[entry[0] : entry[1]]).strip():
        problem = "covers only white space"
    else:
        first = entry[0] + len(covered) - len(covered.lstrip())
        return first, first + len(covered.strip()), kind
    raise UniclozeError(f'{place}: {str(entry)[:60]} in the field "{field}" {problem}: fix or remove it.')


def _refuse_overlaps(spans: Sequence[Span], place: str, field: str) -> None:
    """Refuse spans of one kind that overlap."""
    for one, other in itertools.pairwise(spans):
        if other[0] < one[1]:
            raise UniclozeError(
                f'{place}: {list(one[:2])} and {list(other[:2])} in the field "{field}" overlap and are both of kind '
                f"{one[2]}: keep one of them."
            )
