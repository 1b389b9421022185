"""Averages the weights of a run's last checkpoints (Vaswani et al. 2017, Section 6.1)."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import torch

from unicloze.errors import UsageError
from unicloze.run_files import CHECKPOINTS
from unicloze.training.checkpoint import list_checkpoints
from unicloze.training.loading import LoadedModel, load_model


def average_checkpoints(run: str | os.PathLike[str], last: int) -> LoadedModel:
    """A model whose weights are the mean of those of a run's last checkpoints.

    The run must have kept as many: `training.keep_checkpoints`. `unicloze.interop.read.write_model` saves the model.

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
    models = [load_model(path) for path in found[-last:]]
    newest = models[-1]
    states = [each.model.state_dict() for each in models]
    mean = {
        name: torch.stack([state[name].double() for state in states]).mean(dim=0).to(weight.dtype)
        for name, weight in states[-1].items()
    }
    newest.model.load_state_dict(mean)
    return dataclasses.replace(newest, path=Path(run))
