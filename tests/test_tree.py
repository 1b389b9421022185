"""The tree in which gradients are added: one order of additions for any number of processes."""

from __future__ import annotations

import random

import pytest
import torch

import toys
from test_loop import CPU, gradient_of, micro_batches, state_of
from unicloze.errors import UsageError
from unicloze.recipes import load_recipe
from unicloze.settings import TrainingSettings
from unicloze.training.gradients import Node, PartialSums, leaves_of, nodes_of, rounds, share, traffic
from unicloze.training.loop import losses_and_norm


def together(left: str, right: str) -> str:
    return f"({left}+{right})"


def written_out(first: int, count: int, size: int = 64) -> str:
    """The tree by definition: the left half is a power of two."""
    if size == 1:
        return str(first) if first < count else ""
    left, right = written_out(first, count, size // 2), written_out(first + size // 2, count, size // 2)
    return together(left, right) if right else left


@pytest.mark.parametrize("leaves", [*range(1, 34), 63, 64])
def test_any_number_of_processes_adds_in_the_same_order(leaves: int) -> None:
    for processes in range(1, 12):
        partial: dict[Node, str] = {}
        for process in range(processes):
            sums: PartialSums[str] = PartialSums(leaves, together)
            owned = share(process, processes, leaves)
            for leaf in owned:
                sums.push(Node(0, leaf), str(leaf))
            assert [node for node, _ in sums.nodes] == nodes_of(owned, leaves)
            partial |= dict(sums.nodes)
        whole: PartialSums[str] = PartialSums(leaves, together)
        for node in sorted(partial, key=lambda node: node.first):
            whole.push(node, partial[node])
        assert whole.total() == written_out(0, leaves), (leaves, processes)


def test_every_node_is_exchanged_once() -> None:
    for leaves in range(1, 20):
        for processes in range(1, 9):
            sent = [one for turn in rounds(leaves, processes) for one in turn]
            owned = [(p, node) for p in range(processes) for node in nodes_of(share(p, processes, leaves), leaves)]
            assert sorted(sent, key=str) == sorted(owned, key=str)


def test_traffic_is_that_of_a_ring_where_the_processes_divide_the_leaves() -> None:
    assert [traffic(64, processes) for processes in (1, 2, 4, 8, 64)] == [1.0] * 5
    assert traffic(64, 3) > 1.0
    assert traffic(2, 8) == 1.0


def test_parts_of_a_mixture_are_spread_over_the_leaves() -> None:
    assert leaves_of([0] * 6, 64) == [[0], [1], [2], [3], [4], [5]]
    assert leaves_of([0] * 6, 4) == [[0], [1, 2], [3], [4, 5]]
    assert leaves_of([0, 1, 2, 3], 64) == [[0], [1], [2], [3]]
    halves = leaves_of([0, 0, 0, 0, 1, 1, 1, 1], 2)
    assert [sorted(number // 4 for number in leaf) for leaf in halves] == [[0, 0, 1, 1]] * 2
    parts = random.Random(0).choices(range(3), k=240)
    assert sorted(number for leaf in leaves_of(parts, 64) for number in leaf) == list(range(240))


def test_gradients_are_added_leaf_by_leaf_and_in_the_tree() -> None:
    settings = TrainingSettings(leaves=4)
    batches = micro_batches(6, rows=1)
    weights = {"ae": 0.0, "par": 0.0}
    for batch in batches:
        for name, target in batch.examples.targets.items():
            weights[name] += target.normaliser
    alone = []
    for batch in batches:
        model = toys.model()
        losses = model.train()(batch.batch(torch.device("cpu")))
        torch.stack([loss.total / weights[name] for name, loss in losses.items()]).sum().backward()
        alone.append(gradient_of(model))
    state = state_of(settings)
    losses_and_norm(state, batches, settings, CPU, str)
    found = gradient_of(state.model)
    for name, gradient in found.items():
        g = [one[name] for one in alone]
        assert torch.equal(gradient, (g[0] + (g[1] + g[2])) + (g[3] + (g[4] + g[5]))), name
    assert found.keys() == alone[0].keys()


@pytest.mark.parametrize("leaves", [0, 3, -2, 48])
def test_leaves_are_a_power_of_two(leaves: int) -> None:
    with pytest.raises(UsageError, match="power of 2"):
        load_recipe("quickstart", {"training.leaves": leaves})
