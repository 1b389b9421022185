"""Sums over the micro-batches of a step, with rounding that does not depend on the number of processes.

The micro-batches of a step are grouped into leaves. A leaf is the sequential sum of its micro-batches; leaves are summed in
a binary tree whose shape depends only on their number. A process computes a contiguous range of leaves and adds up the
subtrees that lie entirely within it; the remaining nodes are added in tree order, whichever process computed them. Nothing
here communicates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, TypeVar

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
