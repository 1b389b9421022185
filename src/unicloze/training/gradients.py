"""Sums of gradients over micro-batches, sparse for large tables on a CPU.

Their rounding does not depend on the number of processes. The micro-batches of a step are grouped into leaves. A leaf is the
sequential sum of its micro-batches; leaves are summed in a binary tree whose shape depends only on their number. A process
computes a contiguous range of leaves and adds up the subtrees that lie entirely within it; the remaining nodes are added in
tree order, whichever process computed them. Nothing here communicates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")


@dataclass(frozen=True)
class Node:
    """A node of the tree: leaf `index` at level 0, otherwise the sum of nodes 2 `index` and 2 `index` + 1 one level down.

    A node without a right sibling moves up one level unchanged.
    """

    level: int
    index: int

    @property
    def first(self) -> int:
        """Index of its first leaf."""
        return self.index << self.level


class PartialSums(Generic[T]):
    """Sums of consecutive leaves, merged into as few nodes as the tree allows.

    Args:
        leaves: Number of leaves in the whole tree.
        add: The sum of a left and a right value; may change and return either.
    """

    def __init__(self, leaves: int, add: Callable[[T, T], T]) -> None:
        self._leaves, self._add = leaves, add
        self.nodes: list[tuple[Node, T]] = []

    def push(self, node: Node, value: T) -> None:
        """Append the node that starts where the last one ended."""
        self.nodes.append((node, value))
        while self._merge():
            pass

    def _merge(self) -> bool:
        """Move the last node one level up if its sibling is here; returns whether it moved."""
        node, value = self.nodes[-1]
        up = Node(node.level + 1, node.index // 2)
        if node.index % 2:
            if len(self.nodes) < 2 or self.nodes[-2][0] != Node(node.level, node.index - 1):
                return False
            self.nodes[-2:] = [(up, self._add(self.nodes[-2][1], value))]
            return True
        if node.index == 0 or (node.index + 1) << node.level < self._leaves:
            return False
        self.nodes[-1] = (up, value)
        return True

    def total(self) -> T:
        """The sum of all leaves, once all have been pushed."""
        ((_, value),) = self.nodes
        return value


def share(number: int, of: int, count: int) -> range:
    """Share `number` of `of` nearly equal contiguous ranges that divide `count` items; it may be empty."""
    return range(count * number // of, count * (number + 1) // of)


def nodes_of(owned: range, leaves: int) -> list[Node]:
    """The nodes that remain of a range of leaves after everything within it has been summed."""
    sums: PartialSums[None] = PartialSums(leaves, lambda left, right: None)
    for leaf in owned:
        sums.push(Node(0, leaf), None)
    return [node for node, _ in sums.nodes]


def leaves_of(parts: Sequence[int], most: int) -> list[list[int]]:
    """The indices of a step's micro-batches by leaf.

    The parts of a mixture are spread evenly over the leaves, because micro-batches of different parts take different
    amounts of work.
    """
    counts = {part: parts.count(part) for part in set(parts)}
    seen = dict.fromkeys(counts, 0)
    places = []
    for part in parts:
        places.append(Fraction(2 * seen[part] + 1, 2 * counts[part]))
        seen[part] += 1
    order = sorted(range(len(parts)), key=places.__getitem__)
    leaves = min(most, len(parts))
    return [[order[place] for place in share(leaf, leaves, len(parts))] for leaf in range(leaves)]


def rounds(leaves: int, processes: int) -> Iterator[list[tuple[int, Node]]]:
    """The rounds of an exchange: in each, every process with a node left sends one; pairs of process and node."""
    owned = [nodes_of(share(process, processes, leaves), leaves) for process in range(processes)]
    for turn in range(max(map(len, owned), default=0)):
        yield [(process, nodes[turn]) for process, nodes in enumerate(owned) if turn < len(nodes)]


def traffic(leaves: int, processes: int) -> float:
    """Bytes sent by the busiest process in a step, as a multiple of those of a ring all-reduce.

    It is 1 if the number of processes divides the number of leaves and both are powers of two.
    """
    most = sum(1 for _ in rounds(leaves, processes))
    return (most + 1) / 2


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
        buffers: Memory for the gradients of large tables, see `Compute.lookups`; reused once added to another gradient.
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
