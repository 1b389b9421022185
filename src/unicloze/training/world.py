"""The interface through which the processes of a run agree and exchange data, implemented for a single process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from unicloze.training.gradients import Gradients, PartialSums, leaves_of, share

T = TypeVar("T")


@dataclass
class StepReport:
    """A process's report on a step."""

    means: dict[int, dict[str, float]] = field(default_factory=dict)  # mean losses of its micro-batches, by index
    left: bool = False  # whether it left the step before its last micro-batch
    problem: tuple[int, str] | None = None  # index of a micro-batch with a non-finite loss, and the message
    signal: int = 0  # number of the signal it received; 0 if none
    seconds: float = 0.0  # its computing time in seconds


class World:
    """The processes of a run; this base class is a single process, which never waits."""

    rank, size = 0, 1
    sharded = False
    """Whether each process holds a share of the model; all then make equally many forward and backward passes."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        """Computing time of each process in the last step; empty for a single process."""

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def device(self, device: torch.device) -> torch.device:
        """The device of this process, given the requested one."""
        return device

    def leaves(self, parts: Sequence[int], most: int) -> dict[int, list[int]]:
        """The leaves of a step that this process computes, with the indices of their micro-batches; see `leaves_of`."""
        found = leaves_of(parts, most)
        return {leaf: found[leaf] for leaf in share(self.rank, self.size, len(found))}

    def passes(self) -> AbstractContextManager[None]:
        """Context in which processes with a share of the model exchange weights."""
        return nullcontext()

    def gather(self, value: Any) -> list[Any]:
        """Send a JSON-serialisable value to all processes; returns the values of all, in order."""
        return [value]

    def only_first(self, do: Callable[[], T]) -> T:
        """Run `do` on the first process only; the others wait and get its JSON-serialisable result."""
        return do()

    def in_turn(self, do: Callable[[], T]) -> T:
        """Run `do` on all processes, on the first one before the others, which then only read what it wrote."""
        return do()

    def same(self, what: str, fingerprint: str, cure: str) -> None:
        """Check that all processes have the same fingerprint."""

    def read(self, numbers: Tensor) -> list[float]:
        """Read numbers from a device. *Shape of* `numbers`: (numbers,)"""
        found: list[float] = numbers.tolist()
        return found

    def begin_step(self, step: int) -> None:
        """Mark the beginning of a step."""

    def leaving(self) -> bool:
        """Whether a process has left this step."""
        return False

    def meet(self, report: StepReport, received: Callable[[], int]) -> list[StepReport]:
        """Exchange the reports on a step so far; returns those of all processes, in order."""
        return [report]

    def add(self, sums: PartialSums[Gradients], leaves: int, weights: Sequence[nn.Parameter]) -> Gradients:
        """The gradients of all leaves."""
        return sums.total()

    def share_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Send named tensors to all processes; returns those of all. Each name is used by one process only."""
        return tensors
