"""Errors about losses, gradients and weights that are not finite, and the check of the weights after each update."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from unicloze.errors import UniclozeError
from unicloze.training.batches import MicroBatch
from unicloze.training.finite import first_non_finite, norm_of_all


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


class Updated:
    """Checks the weights after each update: immediately, or on a GPU together with the numbers of the next step.

    Args:
        model: The weights.
        describe: Returns where the rows of a micro-batch come from.
        cure: What the user can change.
    """

    def __init__(self, model: nn.Module, describe: Callable[[MicroBatch], str], cure: str) -> None:
        self._model, self._describe, self._cure = model, describe, cure
        self._step, self._micro_batches = 0, list[MicroBatch]()
        self._norm: Tensor | None = None
        self._known: float | None = None

    def note(self, step: int, micro_batches: list[MicroBatch]) -> None:
        """Measure the weights after the update of a step, made with these rows."""
        self._step, self._micro_batches = step, micro_batches
        self._norm, self._known = norm_of_all(self._model.state_dict()), None

    @property
    def unread(self) -> list[Tensor]:
        """The norm of the weights, if it has not been read yet."""
        return [] if self._norm is None else [self._norm]

    def read(self, norms: Sequence[float]) -> None:
        """Take the numbers of `unread`."""
        self._known = next(iter(norms), None)

    def check(self) -> None:
        """Check the weights of the last update, unless that was done; called before they are used for anything else.

        Raises:
            NonFiniteError: They are not finite. The update cannot be undone.
        """
        if self._norm is None:
            return
        norm, self._norm = float(self._norm) if self._known is None else self._known, None
        name = first_non_finite(self._model.state_dict(), norm)
        if name is not None:
            what = f"the update of step {self._step} made {name} NaN or infinite"
            error = non_finite(what, self._micro_batches, self._describe)
            raise NonFiniteError(f"{error}. That step was not saved; earlier checkpoints are kept: {self._cure}")
        self._micro_batches = []
