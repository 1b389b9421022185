"""Recognises steps whose gradient spikes, by the norms of earlier gradients (`training.on_spike`).

What is remembered for that is part of the training state and saved in checkpoints, so that a resumed run decides alike.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any, Self

from unicloze.errors import UniclozeError

RECENT = 64
"""Number of gradient norms remembered."""
FEWEST = 16
"""Number of norms needed to tell a spike."""
MOST = 10
"""Number of spikes in a row after which a run stops."""


@dataclass
class Spikes:
    """What a run remembers of its gradients and spikes.

    Args:
        norms: Gradient norms of the last steps whose update was made.
        in_a_row: Spikes since the last update, or, where a run goes back, since the checkpoint it goes back to.
        windows_ahead: Windows of text skipped by going back.
    """

    norms: list[float] = field(default_factory=list)
    in_a_row: int = 0
    windows_ahead: int = 0

    @classmethod
    def read(cls, saved: Any, place: object) -> Self:
        """From the state of a checkpoint; empty if it has none.

        Args:
            saved: Result of `to_dict`, or None.
            place: Name of the checkpoint in messages.

        Raises:
            UniclozeError: It is malformed.
        """
        if saved is None:
            return cls()
        spikes = cls(**saved) if isinstance(saved, dict) and saved.keys() == {*cls.__dataclass_fields__} else None
        if (
            spikes is None
            or not isinstance(spikes.norms, list)
            or not all(isinstance(norm, float) and 0 <= norm < math.inf for norm in spikes.norms)
            or not all(type(count) is int and 0 <= count < 2**53 for count in (spikes.in_a_row, spikes.windows_ahead))
        ):
            raise UniclozeError(f"{place} is damaged: its spikes are {str(saved)[:80]!r}")
        return spikes

    def to_dict(self) -> dict[str, Any]:
        """The fields as a JSON-serialisable dictionary."""
        return {"norms": self.norms, "in_a_row": self.in_a_row, "windows_ahead": self.windows_ahead}

    def reason(self, norm: float, factor: float) -> str | None:
        """Why a gradient of this norm is a spike; None if it is not one."""
        if len(self.norms) < FEWEST:
            return None
        median = statistics.median(self.norms)
        if norm <= factor * median:
            return None
        return (
            f"the norm of the gradient is {norm:.4g}, and the median of the last {len(self.norms)} steps {median:.4g}"
        )

    def add(self, norm: float) -> None:
        """Remember the gradient of an update."""
        self.norms = [*self.norms, norm][-RECENT:]
