"""Notices what is not finite and what spikes, before it spoils a run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn

from unicloze.errors import UniclozeError
from unicloze.training.batches import MicroBatch
from unicloze.training.parallel import own_share, whole


def norm_of_all(tensors: Mapping[str, Tensor]) -> Tensor:
    """The norm over all tensors of floating point numbers. *Shape:* ()"""
    floats = [tensor.detach() for tensor in tensors.values() if tensor.is_floating_point()]
    return whole(torch.nn.utils.get_total_norm(floats))


def sizes_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Largest absolute number of each tensor of floating point numbers; NaN if it holds NaN. *Shape:* () each

    Unlike a norm it never overflows; on a CPU it takes ten times as long.
    """
    floats = {name: t.detach() for name, t in tensors.items() if t.is_floating_point() and t.numel()}
    return dict(zip(floats, torch._foreach_norm(list(floats.values()), math.inf), strict=True))


def largest_of(sizes: Mapping[str, Tensor]) -> Tensor:
    """The largest of `sizes_of`; NaN if one is. *Shape:* ()"""
    return whole(torch.linalg.vector_norm(torch.stack([size.float() for size in sizes.values()]), math.inf))


def first_non_finite(tensors: Mapping[str, Tensor], norm: float | None = None) -> str | None:
    """Name of the first tensor with NaN or infinite values; None if there is none.

    One norm over all tensors is computed first. Only if it is not finite, which large values can also cause, is each tensor
    checked.
    """
    if math.isfinite(float(norm_of_all(tensors)) if norm is None else norm):
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
    in_a_row: int = 0  # spikes since the last update, or, where a run goes back, since the checkpoint it goes back to
    windows_ahead: int = 0  # windows of text skipped by going back

    @classmethod
    def read(cls, saved: Any, place: object) -> Self:
        """From the state of a checkpoint; empty if it has none."""
        if saved is None:
            return cls()
        spikes = cls(**saved) if isinstance(saved, dict) and saved.keys() == {*cls.__dataclass_fields__} else None
        if (
            spikes is None
            or not isinstance(spikes.norms, list)
            or not all(isinstance(norm, float) and 0 <= norm < math.inf for norm in spikes.norms)
            or not all(type(count) is int and 0 <= count < 2**53 for count in (spikes.in_a_row, spikes.windows_ahead))
        ):
            raise UniclozeError(f"{place} is damaged: its spikes are {str(saved)[:80]!r}")
        return spikes

    def to_dict(self) -> dict[str, Any]:
        """The fields as a JSON-serialisable dictionary."""
        return {"norms": self.norms, "in_a_row": self.in_a_row, "windows_ahead": self.windows_ahead}

    def reason(self, norm: float, factor: float) -> str | None:
        """Why a gradient of this norm is a spike; None if it is not one."""
        if len(self.norms) < FEWEST:
            return None
        median = statistics.median(self.norms)
        if norm <= factor * median:
            return None
        return (
            f"the norm of the gradient is {norm:.4g}, and the median of the last {len(self.norms)} steps {median:.4g}"
        )

    def add(self, norm: float) -> None:
        """Remember the gradient of an update."""
        self.norms = [*self.norms, norm][-RECENT:]


class NonFiniteError(UniclozeError):
    """The loss, the gradient or a weight is NaN or infinite."""


def cure(*, skip: bool) -> str:
    """What the user can change after a divergence."""
    changes = [
        "a lower --training.learning_rate",
        "--training.clip_norm 1.0",
        *(["--training.on_spike skip"] if skip else []),
    ]
    return (
        f"run the same command with {', '.join(changes[:-1])} or {changes[-1]}, or start in another --out with a longer "
        "warm-up"
    )


def non_finite(what: str, micro_batches: list[MicroBatch], describe: Callable[[MicroBatch], str]) -> NonFiniteError:
    """The error for a non-finite loss, gradient or weight, naming the rows of its step."""
    there = [micro_batch for micro_batch in micro_batches if len(micro_batch.examples)]
    places = "; ".join(describe(micro_batch) for micro_batch in there[:2])
    return NonFiniteError(f"{what}; its rows are from {places}")


class Kept:
    """The weights and moments that an update changes, as they were before it.

    Args:
        optimizers: The optimisers, after the backward passes.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        now = dict(self._tensors())
        copies = torch._foreach_mul(list(now.values()), 1.0) if now else []  # one launch for all
        self._before = dict(zip(now, copies, strict=True))

    def _tensors(self) -> Iterator[tuple[tuple[int, str], Tensor]]:
        """This process's share of each weight with a gradient and of each moment, by weight and name."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for weight in group["params"]:
                    if weight.grad is not None:
                        yield (id(weight), ""), own_share(weight.detach())
            for weight, moments in optimizer.state.items():
                yield from (((id(weight), name), own_share(m)) for name, m in moments.items() if isinstance(m, Tensor))

    @torch.no_grad()
    def undo_unless(self, finite: Tensor) -> None:
        """Undo the update where a flag is false, without reading it, and drop the copies on its device.

        Moments that the update has made become zero.
        """
        for key, tensor in self._tensors():
            if tensor.device == finite.device:
                before = self._before.pop(key) if key in self._before else torch.zeros_like(tensor)
                torch.where(finite, tensor, before, out=tensor)


class Updates:
    """Checks the weights after each update: immediately, or on a GPU together with the numbers of the next step.

    Args:
        model: The weights.
        optimizers: What updates them.
        late: Whether the check is read late. The device itself then undoes an update that is not finite, so that no later
            step reads it.
        undo: Whether an update that is not finite is undone. This takes copies of weights and moments while it is made.
    """

    def __init__(
        self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], *, late: bool, undo: bool
    ) -> None:
        self._model, self._optimizers = model, optimizers
        self._late, self.undo = late, undo or late
        self._forget()

    def _forget(self) -> None:
        self._pending = False
        self._kept: Kept | None = None
        self._sizes: dict[str, Tensor] = {}
        self._finite: Tensor | None = None
        self._known: float | None = None

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Make the update of a step within this context."""
        self._forget()
        self._kept = Kept(self._optimizers) if self.undo else None
        yield
        self._pending = True
        if self._late and self._kept is not None:
            self._sizes = sizes_of(self._model.state_dict())
            self._finite = largest_of(self._sizes).isfinite()
            self._kept.undo_unless(self._finite)

    @property
    def unread(self) -> list[Tensor]:
        """Whether the weights are finite, if it is on the device and has not been read yet."""
        return [] if self._finite is None else [self._finite]

    def read(self, numbers: Sequence[float]) -> None:
        """Take the numbers of `unread`."""
        self._known = next(iter(numbers), None)

    def spoiled(self) -> str | None:
        """Name of a weight that the last update made NaN or infinite; None if there is none, or if it was asked before.

        If updates are undone, this one is now.
        """
        if not self._pending:
            return None
        name = first_non_finite(self._model.state_dict()) if self._finite is None else self._first()
        if name is not None and self._kept is not None and (self._finite is None or self._finite.device.type != "cpu"):
            self._kept.undo_unless(torch.tensor(False))  # all on a CPU, and the counts that optimisers keep there
        self._forget()
        return name

    def _first(self) -> str | None:
        """`spoiled`, if the check is on the device."""
        if bool(self._finite) if self._known is None else bool(self._known):
            return None
        return next(name for name, size in self._sizes.items() if not bool(whole(size).isfinite()))
