"""Sums of gradients over micro-batches, sparse for large tables on a CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unicloze.training.tree import Node, PartialSums

LARGE = 2**22
"""Smallest table for which this is faster, in weights: 16 MB in fp32."""


@contextmanager
def by_rows(model: nn.Module) -> Iterator[None]:
    """Make look-ups in large tables return sparse gradients within this context."""
    tables = [each for each in model.modules() if isinstance(each, nn.Embedding) and each.weight.numel() >= LARGE]
    for table in tables:
        table.sparse = True
    try:
        yield
    finally:
        for table in tables:
            table.sparse = False


def fill_gradients(model: nn.Module, buffers: dict[nn.Parameter, Tensor]) -> None:
    """Convert sparse gradients to dense, as optimisers need; later micro-batches add to them in place."""
    for weight in model.parameters():
        gradient = weight.grad
        if gradient is not None and gradient.is_sparse:
            if weight not in buffers:
                buffers[weight] = torch.empty_like(weight, requires_grad=False)
            weight.grad = buffers[weight].zero_().add_(gradient)


BUCKET = 1 << 24
"""Weights whose gradients are exchanged at once: 64 MB in fp32."""

Gradients = list[Tensor | None]
"""Gradient of each weight; None if the weight was not used."""


class GradientSums:
    """Collects and sums the gradients that the leaves of a step leave in `weight.grad`.

    Args:
        weights: Weights of the model.
        leaves: Number of leaves in the step.
        buffers: Memory for the gradients of large tables, see `lookups`; reused once added to another gradient.
    """

    def __init__(self, weights: Sequence[nn.Parameter], leaves: int, buffers: dict[nn.Parameter, Tensor]) -> None:
        self.weights, self._buffers = weights, buffers
        self.sums: PartialSums[Gradients] = PartialSums(leaves, self._add)
        self._large: set[nn.Parameter] = set()

    def take(self, leaf: int) -> None:
        """Take the weights' gradients as those of a leaf, and clear them."""
        gradients: Gradients = []
        for weight in self.weights:
            gradients.append(weight.grad)
            if weight.grad is not None and weight.grad is self._buffers.get(weight):
                self._large.add(weight)
                del self._buffers[weight]
            weight.grad = None
        self.sums.push(Node(0, leaf), gradients)

    def give(self, total: Gradients) -> None:
        """Set the gradients of the weights, which then hold the only reference to them."""
        self.sums.nodes.clear()  # this object and `sums` refer to each other, so they outlive the step
        for weight, gradient in zip(self.weights, total, strict=True):
            weight.grad = gradient
            if weight in self._large and gradient is not None:
                self._buffers[weight] = gradient

    def _add(self, left: Gradients, right: Gradients) -> Gradients:
        """The sum of left and right, in the memory of left."""
        both = [(one, other) for one, other in zip(left, right, strict=True) if one is not None and other is not None]
        if both:
            torch._foreach_add_([one for one, _ in both], [other for _, other in both])
        for weight, one, other in zip(self.weights, left, right, strict=True):
            if weight in self._large and one is not None and other is not None:
                self._buffers[weight] = other
        return [other if one is None else one for one, other in zip(left, right, strict=True)]


def flatten(gradients: Gradients, bucket: list[int], weights: Sequence[nn.Parameter], into: Tensor) -> None:
    """Write gradients one after the other; a missing one as -0.0, which leaves unchanged whatever it is added to."""
    start = 0
    for number in bucket:
        gradient, size = gradients[number], weights[number].numel()
        if gradient is None:
            into[start : start + size].fill_(-0.0)
        else:
            into[start : start + size] = gradient.reshape(-1)
        start += size
    into[start:].zero_()


def buckets(sizes: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Indices of weights, in groups of at most `BUCKET` elements, or of one larger weight."""
    bucket: list[int] = []
    held = 0
    for number, size in sizes:
        if bucket and held + size > BUCKET:
            yield bucket
            bucket, held = [], 0
        bucket.append(number)
        held += size
    if bucket:
        yield bucket
