"""What an objective says of its rows and their windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from unicloze.settings.values import Pairing


class Reading(NamedTuple):
    """How rows of an objective read a text.

    Args:
        visibility: Which slots each slot attends to.
        segment_ids: Ids of the first and the second segment; 0 and 1 if None.
        local_width: Number of slots to the left that local layers attend to; None if the objective sets none.
    """

    visibility: str = "bidirectional"
    segment_ids: Sequence[int] | None = None
    local_width: int | None = None

    @property
    def segments(self) -> tuple[int, int]:
        """Ids of the first and the second segment; a single id applies to both."""
        ids = self.segment_ids or (0, 1)
        return ids[0], ids[-1]


class WindowNeeds(NamedTuple):
    """What an objective requires of its windows.

    Args:
        pairs: How the second segment relates to the first.
        static_copies: Passes over the corpus after which the random draws of a window repeat; never if None.
        phrases: Whether phrases must be marked.
        spans: Whether the spans that documents give must be marked.
    """

    pairs: Pairing = "contiguous"
    static_copies: int | None = None
    phrases: bool = False
    spans: bool = False


class Bounds(NamedTuple):
    """Upper bounds on the size of an objective's rows.

    Args:
        slots: Slots of the row.
        predictions: Predicted tokens.
        positions: Positions of its slots.
        sentinels: Distinct sentinels.
    """

    slots: int
    predictions: int
    positions: int
    sentinels: int = 0
