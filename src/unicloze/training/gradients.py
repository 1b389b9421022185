"""The gradients of a step's leaves, summed in the order of their tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from unicloze.training.tree import Node, PartialSums

BUCKET = 1 << 24
"""Weights whose gradients are exchanged at once: 64 MB in fp32."""

Gradients = list[Tensor | None]
"""The gradient of each weight; None where a weight was not used."""


class GradientSums:
    """Adds up what leaves leave at the weights.

    Args:
        weights: Those of the model.
        leaves: Of the step.
        buffers: Memory for the gradients of large tables, see `lookups`: that of what was added to another is free again.
    """

    def __init__(self, weights: Sequence[nn.Parameter], leaves: int, buffers: dict[nn.Parameter, Tensor]) -> None:
        self.weights, self._buffers = weights, buffers
        self.sums: PartialSums[Gradients] = PartialSums(leaves, self._add)
        self._large: set[nn.Parameter] = set()

    def take(self, leaf: int) -> None:
        """Take the gradients at the weights as those of a leaf; the weights then have none."""
        gradients: Gradients = []
        for weight in self.weights:
            gradients.append(weight.grad)
            if weight.grad is not None and weight.grad is self._buffers.get(weight):
                self._large.add(weight)
                del self._buffers[weight]
            weight.grad = None
        self.sums.push(Node(0, leaf), gradients)

    def give(self, total: Gradients) -> None:
        """Put gradients at the weights."""
        for weight, gradient in zip(self.weights, total, strict=True):
            weight.grad = gradient
            if weight in self._large and gradient is not None:
                self._buffers[weight] = gradient

    def _add(self, left: Gradients, right: Gradients) -> Gradients:
        """Left and right, in the memory of the left."""
        both = [(one, other) for one, other in zip(left, right, strict=True) if one is not None and other is not None]
        if both:
            torch._foreach_add_([one for one, _ in both], [other for _, other in both])
        for weight, one, other in zip(self.weights, left, right, strict=True):
            if weight in self._large and one is not None and other is not None:
                self._buffers[weight] = other
        return [other if one is None else one for one, other in zip(left, right, strict=True)]


def flatten(gradients: Gradients, bucket: list[int], weights: Sequence[nn.Parameter], into: Tensor) -> None:
    """Gradients one after the other; where there is none, -0.0, which changes nothing that it is added to."""
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
    """Numbers of weights, in groups of at most `BUCKET` elements where none is larger alone.

    Args:
        sizes: The number of each weight and its elements.
    """
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
