"""What the processes of a run agree on and exchange, as a single process does it: it has nobody to wait for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from unicloze.training.gradients import Gradients
from unicloze.training.tree import PartialSums, leaves_of, share

T = TypeVar("T")


@dataclass
class StepReport:
    """What a process did of a step.

    Args:
        means: Mean losses of its micro-batches, by number.
        left: It left the step before its last micro-batch.
        problem: Number of a micro-batch with a loss that is not finite, and the message.
        signal: The signal it received; 0 if none.
        seconds: That it computed.
    """

    means: dict[int, dict[str, float]] = field(default_factory=dict)
    left: bool = False
    problem: tuple[int, str] | None = None
    signal: int = 0
    seconds: float = 0.0


class World:
    """The processes of a run: here a single one, which has nobody to wait for."""

    rank, size = 0, 1

    def __init__(self) -> None:
        self.seconds: list[float] = []
        """Seconds that each process computed in the last step; none in a single process."""

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def device(self, device: torch.device) -> torch.device:
        """The device of this process, given the one that is asked for."""
        return device

    def leaves(self, parts: Sequence[int], most: int) -> dict[int, list[int]]:
        """The leaves of a step that this process computes, with the numbers of their micro-batches; see `leaves_of`."""
        found = leaves_of(parts, most)
        return {leaf: found[leaf] for leaf in share(self.rank, self.size, len(found))}

    def gather(self, value: Any) -> list[Any]:
        """A value of every process, in their order, to all; it must be fit for JSON."""
        return [value]

    def only_first(self, do: Callable[[], T]) -> T:
        """What the first process alone does; the others wait and get its result, which must be fit for JSON."""
        return do()

    def in_turn(self, do: Callable[[], T]) -> T:
        """What all processes do, the others once the first has finished: it finds and writes what they only read."""
        return do()

    def same(self, what: str, fingerprint: str, cure: str) -> None:
        """Refuse to go on where processes differ.

        Raises:
            UniclozeError: They do; the message has two fingerprints.
        """

    def begin_step(self, step: int) -> None:
        """A step begins."""

    def leaving(self) -> bool:
        """Whether another process left this step."""
        return False

    def meet(self, report: StepReport, received: Callable[[], int]) -> list[StepReport]:
        """What every process did of the step, in their order.

        Args:
            report: Of this one.
            received: The signal it has received by now.
        """
        return [report]

    def add(self, sums: PartialSums[Gradients], leaves: int, weights: Sequence[nn.Parameter]) -> Gradients:
        """The gradients of all leaves.

        Args:
            sums: Those of this process's leaves.
            leaves: Of all processes.
            weights: What they are the gradients of.
        """
        return sums.total()

    def share_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Named tensors of all processes, to all; each name is known to one of them."""
        return tensors
