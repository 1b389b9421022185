"""Notices numbers that are not finite and gradients that spike, before an update."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from unicloze.errors import UniclozeError
from unicloze.files import misfit
from unicloze.rules import listed
from unicloze.training.batches import MicroBatch
from unicloze.training.parallel import whole


def norm_of_all(tensors: Mapping[str, Tensor]) -> Tensor:
    """The norm over all tensors of floating point numbers. *Shape:* ()"""
    floats = [tensor.detach() for tensor in tensors.values() if tensor.is_floating_point()]
    return whole(torch.nn.utils.get_total_norm(floats))


def first_non_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Name of the first tensor with NaN or infinite values; None if there is none.

    One norm over all tensors is computed first. Only if it is not finite, which large values can also cause, is each tensor
    checked.
    """
    if math.isfinite(float(norm_of_all(tensors))):
        return None
    floats = {name: tensor.detach() for name, tensor in tensors.items() if tensor.is_floating_point()}
    return next((name for name, tensor in floats.items() if not bool(whole(tensor).isfinite().all())), None)


RECENT = 64
"""Number of gradient norms remembered."""
FEWEST = 16
"""Number of norms needed to tell a spike."""
MOST = 10
"""Number of spikes in a row after which a run stops."""


@dataclass
class Spikes:
    """What a run remembers of its gradients and spikes."""

    norms: list[float] = field(default_factory=list)  # gradient norms of the last steps whose update was made
    in_a_row: int = 0  # spikes since the last update

    @classmethod
    def read(cls, saved: Any, place: object) -> Self:
        """From the state of a checkpoint; empty if it has none."""
        if saved is None:
            return cls()
        fits = misfit(saved, {"norms": [float], "in_a_row": int}) is None and len(saved) == 2
        if not fits or not all(0 <= norm < math.inf for norm in saved["norms"]):
            raise UniclozeError(f"{place} is damaged: its spikes are {str(saved)[:80]!r}")
        return cls(**saved)

    def reason(self, norm: float, factor: float) -> str | None:
        """Why a gradient of this norm is a spike; None if it is not one."""
        if len(self.norms) < FEWEST:
            return None
        median = statistics.median(self.norms)
        if norm <= factor * median:
            return None
        recent = f"the median of the last {len(self.norms)} steps {median:.4g}"
        return f"the norm of the gradient is {norm:.4g}, and {recent}"

    def add(self, norm: float) -> None:
        """Remember the gradient of an update, which ends a row of spikes."""
        self.norms, self.in_a_row = [*self.norms, norm][-RECENT:], 0


class NonFiniteError(UniclozeError):
    """The loss, the gradient or a weight is NaN or infinite."""


def cure(*, skip: bool) -> str:
    """What the user can change after a divergence."""
    changes = ["a lower --training.learning_rate", "--training.clip_norm 1.0"] + ["--training.on_spike skip"] * skip
    return f"run the same command with {listed(changes)}, or start in another --out with a longer warm-up"


def non_finite(what: str, micro_batches: list[MicroBatch], describe: Callable[[MicroBatch], str]) -> NonFiniteError:
    """The error for a non-finite loss, gradient or weight, naming the rows of its step."""
    there = [micro_batch for micro_batch in micro_batches if len(micro_batch.examples)]
    places = "; ".join(describe(micro_batch) for micro_batch in there[:2])
    return NonFiniteError(f"{what}; its rows are from {places}")
