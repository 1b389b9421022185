"""Masks and rows that no objective makes against brute-force definitions, and the renderings against each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import brute_force
import single_rows
from brute_force import Slot, block_diffusion, by_step, group, matrix
from unicloze import visibility
from unicloze import visibility_masks as masks
from unicloze.errors import UniclozeError
from unicloze.visibility import _intervals


def random_steps(rng: np.random.Generator) -> list[int]:
    return [int(size) for size in rng.integers(1, 7, rng.integers(1, 8))]


def follows(row: Any, slots: list[Slot], reads: Callable[[Slot, Slot], bool]) -> bool:
    """Whether a row reads as it is defined, and its padding itself."""
    expected = np.eye(len(row), dtype=bool)
    expected[: len(slots), : len(slots)] = matrix(slots, slots, reads)
    return np.array_equal(visibility.bool_mask(row, len(row)), expected)


def test_copies_of_block_diffusion_do_not_read_each_other() -> None:
    lengths = np.array([8, 3, 1])
    rows = visibility.block_diffusion_rows(lengths, 3, copies=3, capacity=33)
    for length, row in zip(lengths.tolist(), rows, strict=True):
        blocks = [min(3, length - start) for start in range(0, length, 3)]
        copies = [replace(slot, place=copy) for copy in range(3) for slot in by_step("noised", blocks)]

        def reads(q: Slot, k: Slot) -> bool:
            return block_diffusion(q, k) and (k.group == "clean" or q.place == k.place)

        assert follows(row, by_step("clean", blocks) + copies, reads)


@pytest.mark.parametrize("reads", ["bidirectional", "left_to_right", "right_to_left"])
def test_packed_texts_do_not_read_each_other(reads: visibility.TextVisibility) -> None:
    sizes, rule = [[3, 1, 4], [5], [2, 2], [9]], brute_force.text(reads)
    for inner, row in zip(sizes, visibility.packed_rows(sizes, reads=reads, capacity=9), strict=True):
        slots = [slot for number, size in enumerate(inner) for slot in group(str(number), size)]
        assert follows(row, slots, lambda q, k: q.group == k.group and rule(q, k))


@pytest.mark.parametrize("name", ["pseudo_masked", "permuted", "compensated"])
def test_a_last_row_without_masked_tokens_is_only_its_context(name: str) -> None:
    rows, none = getattr(visibility, f"{name}_rows"), np.zeros(1, dtype=int)
    found = rows(np.array([2, 3]), none, none, none + 1, capacity=5)
    assert follows(found[1], group("x", 3), lambda q, k: True)


LENGTHS = [(0, 6), (2, 6), (0, 3), (1, 5), (5, 6), (6, 6)]
"""First real slot of a row of 6 and the one after the last."""


def real_slots(spans: list[tuple[int, int]], slots: int) -> torch.Tensor:
    return torch.tensor([[first <= slot < last for slot in range(slots)] for first, last in spans])


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize("width", [None, 0, 2])
def test_rows_padded_at_either_end_follow_the_definition(both_ways: bool, width: int | None) -> None:
    slots = group("x", 6)
    rows = masks.real_rows(real_slots(LENGTHS, 6), both_ways=both_ways, width=width)
    assert rows.dtype == torch.int32
    found = visibility.bool_mask(rows, 6)
    for mask, (first, last) in zip(found, LENGTHS, strict=True):

        def reads(q: Slot, k: Slot, first: int = first, last: int = last) -> bool:
            if not first <= q.place < last:
                return q == k
            near = width is None or abs(q.place - k.place) <= width
            return near and first <= k.place < last and (both_ways or k.place <= q.place)

        assert np.array_equal(mask.numpy(), matrix(slots, slots, reads))


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize("earlier", [0, 3])
def test_continuations_follow_the_definition(both_ways: bool, earlier: int) -> None:
    rng = np.random.default_rng(earlier)
    real = torch.from_numpy(rng.random((20, 8)) < 0.7)
    in_target = torch.from_numpy(np.arange(8) >= rng.integers(0, 9, 20)[:, None])[:, earlier:]
    found = masks.continuation_mask(real, in_target, earlier=earlier, both_ways=both_ways)
    keys = group("x", 8)
    for row in range(20):

        def reads(q: Slot, k: Slot, row: int = row) -> bool:
            if q == k:
                return True
            of_source = [n >= earlier and not bool(in_target[row, n - earlier]) for n in (q.place, k.place)]
            return bool(real[row, k.place]) and (k.place < q.place or (both_ways and all(of_source)))

        assert np.array_equal(found[row].numpy(), matrix(keys[earlier:], keys, reads))


def test_nearby_keys_are_those_at_most_a_width_away() -> None:
    positions, key_positions = [4, 0], [0, 1, 2, 3, 4, 4, 5, 7]
    found = masks.nearby_mask(torch.tensor([positions]), torch.tensor([key_positions]), 2)
    assert found[0].tolist() == [[abs(q - k) <= 2 for k in key_positions] for q in positions]
    with pytest.raises(UniclozeError, match=r"use objective\.name causal with objective\.local_width"):
        masks.nearby_mask(torch.tensor([positions]), torch.tensor([key_positions]), None)


def test_block_mask_holds_the_same_pairs() -> None:
    rng = np.random.default_rng(1)
    rows, capacity = [single_rows.pseudo_masked(100, random_steps(rng)) for _ in range(2)], 200
    padding = _intervals(np.arange(capacity), np.arange(capacity) + 1)
    padded = np.stack([np.concatenate([row, padding[len(row) :]]) for row in rows])
    block = visibility.block_mask(torch.from_numpy(padded), capacity)
    query, key = torch.meshgrid(torch.arange(capacity), torch.arange(capacity), indexing="ij")
    for row in range(2):
        dense = block.mask_mod(torch.tensor(row), torch.tensor(0), query, key)
        assert np.array_equal(dense.numpy(), visibility.bool_mask(padded[row], capacity))
    covered = block.to_dense().repeat_interleave(128, 2).repeat_interleave(128, 3)[:, 0, :capacity, :capacity].bool()
    assert (covered.numpy() | ~visibility.bool_mask(padded, capacity)).all(), "no block with a visible pair is left out"


def test_masks_are_made_on_the_device_of_what_they_are_of() -> None:
    """On torch's device without data, which refuses tensors of another device."""
    real = torch.ones(2, 5, dtype=torch.bool, device="meta")
    slots = torch.zeros(2, 3, dtype=torch.long, device="meta")
    made = [
        masks.real_rows(real, both_ways=True, width=1),
        masks.source_mask(real, both_ways=False),
        masks.continuation_mask(real, slots == 0, earlier=2, both_ways=True),
        masks.nearby_mask(slots, slots, 1),
        masks.hypothesis_mask(real, real[:, None]),
        masks.filling_mask(real, 2, 1),
        masks.in_place_of(real[:, :, None].expand(-1, -1, 5), slots),
    ]
    assert {each.device.type for each in made} == {"meta"}
