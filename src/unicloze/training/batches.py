"""Makes the micro-batches of each training step, as pure functions of (seed, position)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from unicloze.blocks import lay_end_to_end
from unicloze.example import Batch, Examples, collate, select_rows
from unicloze.mixtures import Part, Phase, parts, phases
from unicloze.objectives import defined, make_examples
from unicloze.settings import ObjectiveSettings, Recipe
from unicloze.text.sampler import WindowSampler, check_pairs
from unicloze.text.windows import Windows

WINDOWS_AT_ONCE = 512
CHECKED_WINDOWS = 512
"""Number of windows an objective may check before the first step."""


@dataclass(frozen=True)
class MicroBatch:
    """The rows of one forward pass, all for one objective.

    Args:
        examples: The rows.
        windows: Windows they were made from; None for labelled records.
        coefficients: Factor of each target's loss; default: 1.
        place: Origin of labelled records.
        blocks: Number of rows in each block of similar length, to be concatenated; empty if rows are padded to the longest.
        repeats: Whether it lays out the text of another micro-batch of the same step again.
    """

    examples: Examples
    windows: Windows | None
    coefficients: Mapping[str, float] = field(default_factory=dict)
    place: str = ""
    blocks: Sequence[int] = ()
    repeats: bool = False

    @property
    def text_tokens(self) -> int:
        """Number of text tokens it adds to a step."""
        return 0 if self.repeats else int(self.examples.text_tokens.sum())

    def batch(self, device: torch.device, *, fixed_shape: bool = False) -> Batch:
        """The rows as tensors; `fixed_shape` requires that there are no blocks."""
        ends = np.cumsum([0, *(self.blocks or [len(self.examples)])])
        return lay_end_to_end(
            [
                collate(self.examples[int(first) : int(last)], device=device, fixed_shape=fixed_shape)
                for first, last in itertools.pairwise(ends)
            ]
        )


def training_steps(
    recipe: Recipe, sampler_of: Callable[[Recipe], WindowSampler], first_step: int
) -> Iterator[list[MicroBatch]]:
    """The micro-batches of each step, from `first_step` to the last.

    Args:
        recipe: Recipe with its phases and mixtures.
        sampler_of: Returns the sampler of a phase.
        first_step: Number of steps already done.
    """
    for phase in phases(recipe):
        if phase.last_step > first_step:
            yield from _phase_steps(phase, sampler_of(phase.recipe), max(first_step, phase.first_step))


def _phase_steps(phase: Phase, sampler: WindowSampler, first_step: int) -> Iterator[list[MicroBatch]]:
    batch_size = phase.recipe.training.batch_size
    steps_at_once = max(1, WINDOWS_AT_ONCE // batch_size)
    # Blocks begin where they would in an uninterrupted run, so that results do not depend on where it was resumed.
    first = first_step - (first_step - phase.first_step) % steps_at_once
    for start in range(first, phase.last_step, steps_at_once):
        steps = np.arange(start, min(start + steps_at_once, phase.last_step))
        micro_batches: list[list[MicroBatch]] = [[] for _ in steps]
        for part, rows in zip(
            parts(phase.recipe.objective), rows_of_parts(phase, steps - phase.first_step), strict=True
        ):
            _add_part(micro_batches, part, rows, phase, sampler, steps)
        yield from micro_batches[max(0, first_step - start) :]


def rows_of_parts(phase: Phase, steps: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[list[range]]:
    """Windows of each step that go to each part, counted from the phase's first window.

    After every step each part's total is within one row of its share, so its rows in one step are within two.

    Args:
        phase: The phase, with the parts of its objective.
        steps: Consecutive steps of the phase, from 0.
    """
    batch_size = phase.recipe.training.batch_size
    bounds = np.cumsum([0.0, *(part.share for part in parts(phase.recipe.objective))])
    bounds[-1] = 1.0
    # Cumulative number of rows of the parts before each bound.
    after = np.floor(np.outer(np.append(steps, steps[-1] + 1), bounds * batch_size) + 0.5).astype(np.int64)
    counts = np.diff(np.diff(after, axis=0), axis=1)
    ends = np.cumsum(counts, axis=1) + (steps * batch_size)[:, None]
    return [
        [range(int(end - count), int(end)) for end, count in zip(part_ends, part_counts, strict=True)]
        for part_ends, part_counts in zip(ends.T, counts.T, strict=True)
    ]


def _add_part(
    micro_batches: list[list[MicroBatch]],
    part: Part,
    rows: list[range],
    phase: Phase,
    sampler: WindowSampler,
    steps: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> None:
    """Append the micro-batches of a part to each step."""
    start, stop = rows[0].start, rows[-1].stop
    lanes = phase.recipe.training.batch_size
    block = read_windows(sampler, part.settings, phase.first_window + start, stop - start, lanes=lanes)
    chosen = np.concatenate([np.arange(span.start, span.stop) for span in rows]) - start
    windows = block if len(chosen) == len(block) else select_rows(block, chosen)
    if not len(windows):
        return
    of_steps = mask_rates(part.settings, phase, steps)
    rates = None if of_steps is None else np.repeat(of_steps, [len(span) for span in rows])
    examples = make_examples(windows, sampler.vocabulary, part.settings, rates)
    most = phase.recipe.training.micro_batch_size or phase.recipe.training.batch_size
    first = 0
    for batches, span in zip(micro_batches, rows, strict=True):
        for at in range(first, first + len(span), most):
            cut = slice(at, min(at + most, first + len(span)))
            batches.append(MicroBatch(examples[cut], windows[cut], part.settings.coefficients))
        first += len(span)


def read_windows(
    sampler: WindowSampler, objective: ObjectiveSettings, start: int, count: int, *, lanes: int
) -> Windows:
    """The windows at some positions, paired and keyed as the objective requires."""
    needs = objective.windows
    return sampler.read(start, count, pairs=needs.pairs, static_copies=needs.static_copies, lanes=lanes)


def mask_rates(
    objective: ObjectiveSettings, phase: Phase, steps: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> np.ndarray[tuple[int], np.dtype[np.float64]] | None:
    """Mask rate at each step; None where nothing is masked by a rate."""
    if objective.rates is None:
        return None
    first, last = objective.rates
    done = (steps - phase.first_step) / max(1, phase.last_step - phase.first_step - 1)
    return first + (last - first) * done


def heldout_examples(
    sampler: WindowSampler, objective: ObjectiveSettings, count: int, *, lanes: int
) -> Mapping[str, Examples]:
    """The same held-out examples at every call, by label of the part. Every masked slot shows a mask."""
    found = {}
    for part in parts(objective):
        if part.evaluate:
            windows = sampler.sequential(count, pairs=part.settings.windows.pairs, lanes=lanes)
            found[part.label] = make_examples(windows, sampler.vocabulary, part.settings.without_noise())
    return found


def check_windows(recipe: Recipe, sampler_of: Callable[[Recipe], WindowSampler]) -> None:
    """Reject text that is unsuitable for the objective of some phase, or for a part of it.

    Raises:
        UsageError: Says what the text lacks, and the cure.
    """
    for phase in phases(recipe):
        for part in parts(phase.recipe.objective):
            check = defined(part.settings).check
            if check is not None:
                sampler = sampler_of(phase.recipe)
                check(sampler.sequential(CHECKED_WINDOWS), sampler.vocabulary, part.settings)
        for pairs in sorted({part.settings.windows.pairs for part in parts(phase.recipe.objective)} - {"contiguous"}):
            check_pairs(sampler_of(phase.recipe), pairs)
