"""The passes of a step's micro-batches, which may be abandoned and for which memory may be too small."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from unicloze.errors import UniclozeError, option_of
from unicloze.settings import TrainingSettings
from unicloze.training.batches import Memories, MicroBatch
from unicloze.training.divergence import NonFiniteError
from unicloze.training.gradients import GradientSums
from unicloze.training.ledger import Figure
from unicloze.training.signals import Interruption
from unicloze.training.world import StepReport, World


class Abandoned(Exception):
    """A step was abandoned before its update."""


@dataclass
class Passes:
    """Forward and backward passes of this process in a step."""

    world: World  # the processes
    report: StepReport  # what this process reports of them
    gradients: GradientSums  # the sums of gradients
    leaves: int  # number of leaves of all processes
    normalisers: Mapping[str, float]  # weight of each target in the step
    memories: Memories  # memories for the next step
    totals: dict[int, dict[str, Tensor]]  # losses that are not read yet, by micro-batch and target
    problem: Callable[[int, str, float], str]  # returns the message about a loss that is not finite
    parts: Sequence[int]  # index of the mixture part of each micro-batch
    part_weights: Mapping[tuple[int, str], float]  # weight of each target in the step, by part and target
    labels: Literal["hard", "soft"]  # kind of the labels of all losses
    # losses of the step that all processes agreed on, by part
    figures: list[tuple[int, Figure]] = field(default_factory=list)

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
        """Agree with the other processes on the step; returns the mean loss of each target, of losses that were read."""
        sums: dict[str, float] = {}
        of_parts: dict[tuple[int, str], float] = {}
        reports = self.world.meet(self.report, lambda: interruption.signal)
        for number, of_micro_batch in _agreed(reports, self.world, interruption):
            for name, value in of_micro_batch.items():
                sums[name] = sums.get(name, 0.0) + value
                key = self.parts[number], name
                of_parts[key] = of_parts.get(key, 0.0) + value * self.normalisers[name]
        self.figures = [
            (part, Figure(target=name, labels=self.labels, nats=nats, weight=self.part_weights[part, name]))
            for (part, name), nats in of_parts.items()
        ]
        return sums

    def give_gradients(self) -> None:
        """Set the gradients of the weights to the sums over all processes, unless the backward passes did."""
        if self.world.sharded:
            return
        self.gradients.give(self.world.add(self.gradients.sums, self.leaves, self.gradients.weights))


def numbers_of(tensors: Sequence[Tensor], world: World) -> list[float]:
    """Read single numbers from a device at once."""
    return world.read(torch.stack([tensor.float() for tensor in tensors])) if tensors else []


def _agreed(reports: list[StepReport], world: World, interruption: Interruption) -> list[tuple[int, dict[str, float]]]:
    """Number and mean losses of all micro-batches, in order, from the reports of all processes."""
    if world.size > 1:
        interruption.agreed = next((report.signal for report in reports if report.signal), 0)
    problems = [report.problem for report in reports if report.problem is not None]
    if problems:
        raise NonFiniteError(min(problems)[1])
    if any(report.left for report in reports):
        raise Abandoned
    means = {number: values for report in reports for number, values in report.means.items()}
    return sorted(means.items())


class OutOfMemoryError(UniclozeError):
    """A forward or backward pass needs more memory than its device has."""


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch could not allocate memory on a GPU or a CPU."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def out_of_memory(
    micro_batch: MicroBatch,
    settings: TrainingSettings,
    step: int,
    attempt: Callable[[MicroBatch], object] | None,
    *,
    can_checkpoint: bool = True,
) -> OutOfMemoryError:
    """The error of a pass that did not fit."""
    rows = len(micro_batch.examples)
    fits = None if attempt is None else rows_that_fit(micro_batch, settings.batch_size, attempt)
    cures = [] if fits is None else [f"{option_of('training.micro_batch_size')} {fits} (tried: it fits)"]
    if can_checkpoint and not settings.checkpoint_activations:
        cures.append(f"{option_of('training.checkpoint_activations')} true")
    if fits is None and settings.leaves > 1:
        cures.append(f"{option_of('training.leaves')} 1 in another --out")
    cure = " or with ".join(cures) or "a smaller model in another --out"
    return OutOfMemoryError(
        f"step {step} ran out of memory with {rows:,} rows at a time: run the same command with {cure}"
    )


def rows_that_fit(micro_batch: MicroBatch, batch_size: int, attempt: Callable[[MicroBatch], object]) -> int | None:
    """The largest smaller number of rows that divides the batch and whose pass fits; None if none does."""
    rows = len(micro_batch.examples)
    for size in (size for size in range(rows - 1, 0, -1) if batch_size % size == 0):
        windows = None if micro_batch.windows is None else micro_batch.windows[:size]
        try:
            attempt(dataclasses.replace(micro_batch, examples=micro_batch.examples[:size], windows=windows, buckets=()))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            continue
        return size
    return None
