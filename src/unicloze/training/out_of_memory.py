"""What a run says when its device has no memory left: the number of rows at a time that fits, found by trying."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from unicloze.errors import UniclozeError, option_of
from unicloze.settings import TrainingSettings
from unicloze.training.batches import MicroBatch


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
    """The error of a pass that did not fit.

    Args:
        micro_batch: The rows of the pass.
        settings: Those of the run.
        step: Number of the step, from 1.
        attempt: Runs forward and backward pass of fewer of these rows; None if fewer rows cannot be tried.
        can_checkpoint: Whether the model supports `training.checkpoint_activations`.
    """
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
