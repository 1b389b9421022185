"""Views: what the heads of cross-view training see of a text (Clark et al. 2018, Sections 3.2 and 4.1).

The primary head and one auxiliary head have the `full` view: the outputs of all layers. The other auxiliary heads read one
direction of the first layer, at a slot from which a part of the text is hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unicloze.model.recurrent.backbone import layer_widths
from unicloze.model.recurrent.runs import BACKWARD, FORWARD, Direction
from unicloze.settings import ModelSettings, ViewName


@dataclass(frozen=True)
class View:
    """The input of a head for a unit, such as a word."""

    # the direction of the first layer that it reads; None for both directions of all layers
    direction: Direction | None
    edge: Literal["first", "last"] = "first"  # the slot of the unit to which `shift` is added
    shift: int = 0  # distance from that slot to the one it reads

    def slot(self, first: int, end: int) -> int:
        """The slot it reads for a unit whose slots are [first, end)."""
        return (first if self.edge == "first" else end - 1) + self.shift

    def visible(self, first: int, end: int, length: int) -> range:
        """The slots of a text of this length that its prediction for the unit depends on."""
        if self.direction is None:
            return range(length)
        slot = self.slot(first, end)
        return range(slot + 1) if self.direction == FORWARD else range(slot, length)


VIEWS: Mapping[ViewName, View] = {
    "full": View(None),
    "forward": View(FORWARD, "last"),
    "backward": View(BACKWARD, "first"),
    "future": View(FORWARD, "first", -1),
    "past": View(BACKWARD, "last", 1),
}
"""`forward` and `backward` see the unit and the text on one side of it; `future` and `past` only that text."""


def view_width(settings: ModelSettings, name: ViewName) -> int:
    """Width of what a view reads."""
    outputs = [outputs for _, _, outputs in layer_widths(settings)]
    return 2 * sum(outputs) if VIEWS[name].direction is None else outputs[0]


def viewed(shown: Sequence[Tensor], name: ViewName) -> Tensor:
    """What a view reads of each slot.

    Args:
        shown: The outputs of each layer, see `Reading`. *Shape:* (rows, slots, width) each
        name: The view.

    Returns:
        *Shape:* (rows, slots, width of the view)
    """
    direction = VIEWS[name].direction
    if direction is None:
        return torch.cat(list(shown), dim=-1)
    forward, backward = shown[0].chunk(2, dim=-1)
    return forward if direction == FORWARD else backward
