"""Forward and backward passes of a process in a step: their losses, read at once, and the agreement about them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unicloze.training.divergence import NonFiniteError
from unicloze.training.gradients import GradientSums
from unicloze.training.recurrence import Memories
from unicloze.training.signals import Interruption
from unicloze.training.world import StepReport, World


class Abandoned(Exception):
    """A step was abandoned before its update."""


@dataclass
class Passes:
    """Forward and backward passes of this process in a step.

    Args:
        world: The processes.
        report: What this process reports of them.
        gradients: The sums of gradients.
        leaves: Number of leaves of all processes.
        normalisers: Weight of each target in the step.
        memories: Memories for the next step.
        totals: Losses that are not read yet, by micro-batch and target.
        problem: Returns the message about a loss that is not finite.
    """

    world: World
    report: StepReport
    gradients: GradientSums
    leaves: int
    normalisers: Mapping[str, float]
    memories: Memories
    totals: dict[int, dict[str, Tensor]]
    problem: Callable[[int, str, float], str]

    def read(self, others: Sequence[Tensor] = ()) -> list[float]:
        """Read the losses and some other numbers; returns the others."""
        unread = [total for totals in self.totals.values() for total in totals.values()]
        numbers = numbers_of([*unread, *others], self.world)
        values = iter(numbers)
        for number, totals in self.totals.items():
            means = {name: next(values) / self.normalisers[name] for name in totals}
            self.report.means[number] = means
            bad = [name for name, value in means.items() if not math.isfinite(value)]
            if bad and self.report.problem is None:
                self.report.problem = number, self.problem(number, bad[0], means[bad[0]])
                self.report.left = False
        self.totals.clear()
        return numbers[len(unread) :]

    def agree(self, interruption: Interruption) -> dict[str, float]:
        """Agree with the other processes on the step; returns the mean loss of each target, of losses that were read.

        Raises:
            NonFiniteError: A loss is not finite.
            Abandoned: A process left the step.
        """
        sums: dict[str, float] = {}
        for of_micro_batch in _agreed(
            self.world.meet(self.report, lambda: interruption.signal), self.world, interruption
        ):
            for name, value in of_micro_batch.items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    def give_gradients(self) -> None:
        """Set the gradients of the weights to the sums over all processes, unless the backward passes did."""
        if self.world.sharded:
            return
        self.gradients.give(self.world.add(self.gradients.sums, self.leaves, self.gradients.weights))


def numbers_of(tensors: Sequence[Tensor], world: World) -> list[float]:
    """Read single numbers from a device at once."""
    return world.read(torch.stack([tensor.float() for tensor in tensors])) if tensors else []


def _agreed(reports: list[StepReport], world: World, interruption: Interruption) -> list[dict[str, float]]:
    """The mean losses of all micro-batches, in order, from the reports of all processes.

    Raises:
        NonFiniteError: A loss is not finite.
        Abandoned: A process left the step.
    """
    if world.size > 1:
        interruption.agreed = next((report.signal for report in reports if report.signal), 0)
    problems = [report.problem for report in reports if report.problem is not None]
    if problems:
        raise NonFiniteError(min(problems)[1])
    if any(report.left for report in reports):
        raise Abandoned
    means = {number: values for report in reports for number, values in report.means.items()}
    return [means[number] for number in sorted(means)]
