"""Averages the weights of a run's last checkpoints (Vaswani et al. 2017, Section 6.1)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor, nn

from unicloze.devices import widest_float
from unicloze.errors import UsageError
from unicloze.run_files import CHECKPOINTS
from unicloze.training.checkpoint import list_checkpoints, load_checkpoint
from unicloze.training.loading import LoadedModel, load_model


def average_checkpoints(run: str | os.PathLike[str], last: int) -> LoadedModel:
    """A model whose weights are the mean of those of a run's last checkpoints.

    The run must have kept as many: `training.keep_checkpoints`. `unicloze.interop.read.write_model` saves the model.
    Fine-tuning averages by itself with `finetuning.average_last`.

    Args:
        run: Directory of a pre-training run.
        last: Number of checkpoints.

    Raises:
        UsageError: The run has fewer checkpoints, or `last` is below 1.
        UniclozeError: A checkpoint is damaged.
    """
    found = list_checkpoints(Path(run) / CHECKPOINTS)
    if not 1 <= last <= len(found):
        raise UsageError(
            f"last is {last}, and {run} has {len(found)} checkpoints: give a number from 1 to that, or keep more with "
            "--training.keep_checkpoints"
        )
    newest = load_model(found[-1])
    newest.model.load_state_dict(_mean(load_model(path).model.state_dict() for path in found[-last:]))
    return dataclasses.replace(newest, path=Path(run))


@contextmanager
def mean_weights(model: nn.Module, checkpoints: Sequence[Path]) -> Iterator[None]:
    """Give a model the mean of the weights in some checkpoints within this context, and its own back afterwards.

    Weights that the checkpoints leave out stay as they are.

    Args:
        model: The model.
        checkpoints: Checkpoints of this model, at least one.

    Raises:
        UniclozeError: A checkpoint is missing or damaged.
    """
    mean = _mean(load_checkpoint(path, weights_only=True).model for path in checkpoints)
    own = {name: weight.detach().clone() for name, weight in model.state_dict().items() if name in mean}
    model.load_state_dict(mean, strict=False)
    try:
        yield
    finally:
        model.load_state_dict(own, strict=False)


def _mean(states: Iterator[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Mean of several sets of weights, computed in double precision."""
    sums: dict[str, Tensor] = {}
    count = 0
    for count, state in enumerate(states, 1):
        for name, weight in state.items():
            sums[name] = weight.to(widest_float(weight.device), copy=True) if count == 1 else sums[name].add_(weight)
        kinds = {name: weight.dtype for name, weight in state.items()}
    return {name: (total / count).to(kinds[name]) for name, total in sums.items()}
