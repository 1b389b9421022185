"""Sums over the micro-batches of a step whose rounding does not depend on how many processes compute them.

The micro-batches of a step are grouped into leaves. A leaf is the sum of its micro-batches one after the other; leaves are
summed in a binary tree whose shape depends on their number alone. A process computes a contiguous range of leaves and adds
up the subtrees that lie wholly within it; what is left is added in the tree's order, whoever computed it. Nothing here
communicates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Node:
    """A node of the tree: leaf `index` at level 0, else the sum of nodes 2 `index` and 2 `index` + 1 one level down.

    A node without a right sibling stands for itself one level up.
    """

    level: int
    index: int

    @property
    def first(self) -> int:
        """Number of its first leaf."""
        return self.index << self.level


class PartialSums(Generic[T]):
    """Sums of consecutive leaves, as few as the tree allows.

    Args:
        leaves: Leaves of the whole tree.
        add: The sum of a left and a right value; may change and return either.
    """

    def __init__(self, leaves: int, add: Callable[[T, T], T]) -> None:
        self._leaves, self._add = leaves, add
        self.nodes: list[tuple[Node, T]] = []

    def push(self, node: Node, value: T) -> None:
        """Add the node that begins where the last one ended."""
        self.nodes.append((node, value))
        while self._merge():
            pass

    def _merge(self) -> bool:
        """Bring the last node one level up, if that can be done without the nodes of others."""
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
        """The sum of all leaves, once all are there."""
        ((_, value),) = self.nodes
        return value


def share(number: int, of: int, count: int) -> range:
    """The contiguous range of `count` things that is share `number` of so many, as even as can be; empty if there are few."""
    return range(count * number // of, count * (number + 1) // of)


def nodes_of(owned: range, leaves: int) -> list[Node]:
    """The nodes that are left of a range of leaves when all that can be summed within it is."""
    sums: PartialSums[None] = PartialSums(leaves, lambda left, right: None)
    for leaf in owned:
        sums.push(Node(0, leaf), None)
    return [node for node, _ in sums.nodes]


def leaves_of(parts: Sequence[int], most: int) -> list[list[int]]:
    """The numbers of a step's micro-batches by leaf.

    The parts of a mixture are spread evenly over the leaves: equal numbers of micro-batches are unequal work where they are
    of different parts.

    Args:
        parts: For each micro-batch the part of the mixture that it is of.
        most: Leaves at most; there are no more than micro-batches.
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
    """What processes exchange, in turns: in each, every process with a node left sends it; with that process's number."""
    owned = [nodes_of(share(process, processes, leaves), leaves) for process in range(processes)]
    for turn in range(max(map(len, owned), default=0)):
        yield [(process, nodes[turn]) for process, nodes in enumerate(owned) if turn < len(nodes)]


def traffic(leaves: int, processes: int) -> float:
    """Bytes that the busiest process sends in a step, as a multiple of those of a ring all-reduce.

    It is 1 where the number of processes divides that of the leaves and both are powers of two.
    """
    most = sum(1 for _ in rounds(leaves, processes))
    return (most + 1) / 2
