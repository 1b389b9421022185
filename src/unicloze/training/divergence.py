"""Errors about losses, gradients and weights that are not finite, and the check of each update, which can be undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unicloze.errors import UniclozeError
from unicloze.training.batches import MicroBatch
from unicloze.training.finite import first_non_finite, largest_of, sizes_of
from unicloze.training.sharding import own_share, whole


class NonFiniteError(UniclozeError):
    """The loss, the gradient or a weight is NaN or infinite."""


def cure(*, skip: bool) -> str:
    """What the user can change after a divergence.

    Args:
        skip: Whether `training.on_spike skip` is possible and not set yet.
    """
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
