"""The gradients of a step's leaves, summed in the order of their tree."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from unicloze.training.tree import Node, PartialSums

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
        self._weights, self._buffers = weights, buffers
        self.sums: PartialSums[Gradients] = PartialSums(leaves, self._add)
        self._large: set[nn.Parameter] = set()

    def take(self, leaf: int) -> None:
        """Take the gradients at the weights as those of a leaf; the weights then have none."""
        gradients: Gradients = []
        for weight in self._weights:
            gradients.append(weight.grad)
            if weight.grad is not None and weight.grad is self._buffers.get(weight):
                self._large.add(weight)
                del self._buffers[weight]
            weight.grad = None
        self.sums.push(Node(0, leaf), gradients)

    def give(self, total: Gradients) -> None:
        """Put gradients at the weights."""
        for weight, gradient in zip(self._weights, total, strict=True):
            weight.grad = gradient
            if weight in self._large and gradient is not None:
                self._buffers[weight] = gradient

    def _add(self, left: Gradients, right: Gradients) -> Gradients:
        """Left and right, in the memory of the left."""
        both = [(one, other) for one, other in zip(left, right, strict=True) if one is not None and other is not None]
        if both:
            torch._foreach_add_([one for one, _ in both], [other for _, other in both])
        for weight, one, other in zip(self._weights, left, right, strict=True):
            if weight in self._large and one is not None and other is not None:
                self._buffers[weight] = other
        return [other if one is None else one for one, other in zip(left, right, strict=True)]
