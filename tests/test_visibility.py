"""Every constructor against a brute-force definition from the papers, and the renderings against each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import brute_force
import single_rows
from brute_force import Slot, block_diffusion, by_step, group, matrix
from objective_toys import picture
from unicloze import visibility
from unicloze import visibility_masks as masks
from unicloze.errors import UniclozeError
from unicloze.visibility import _intervals


def random_steps(rng: np.random.Generator) -> list[int]:
    return [int(size) for size in rng.integers(1, 7, rng.integers(1, 8))]


def test_paper_example_gives_the_rows_of_figure_5() -> None:
    rows = picture(visibility.bool_mask(single_rows.pseudo_masked(6, [2, 1]), 12))
    assert rows[:6] == ["111111" + "000" + "000"] * 6
    assert rows[6:9] == ["111111110000", "111111110000", "111111111000"]
    assert rows[9:] == ["111111000110", "111111000110", "111111110001"]


LETTERS = {"pseudo_masked": "COP", "permuted": "COP", "compensated": "COMQ"}
"""The groups of slots of a row with factorization steps."""


def slots_of(name: str, context: int, steps: list[int]) -> list[Slot]:
    groups = [group("C", context) if letter == "C" else by_step(letter, steps) for letter in LETTERS[name]]
    return [slot for each in groups for slot in each]


def row_of(name: str, context: int, steps: list[int], memory: int = 0) -> visibility.Intervals:
    return getattr(single_rows, name)(*([memory] if name == "permuted" else []), context, steps)


@pytest.mark.parametrize("name", LETTERS)
@pytest.mark.parametrize("seed", range(20))
def test_rows_with_steps_follow_the_definition(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    memory, context, steps = int(rng.integers(0, 9)) * (name == "permuted"), int(rng.integers(1, 30)), random_steps(rng)
    queries = slots_of(name, context, steps)
    keys = group("memory", memory) + queries
    found = visibility.bool_mask(row_of(name, context, steps, memory), len(keys))
    assert np.array_equal(found, matrix(queries, keys, getattr(brute_force, name)))
    if name == "compensated":
        assert (found[-sum(steps) :].sum(axis=1) == context + sum(steps)).all(), "a query sees every position once"


def same_rows(together: visibility.Intervals, alone: list[visibility.Intervals]) -> None:
    """Rows made together are those made alone, and padding reads itself."""
    capacity = together.shape[1]
    for row, own in zip(together, alone, strict=True):
        found = visibility.bool_mask(row, capacity)
        assert np.array_equal(found[: len(own)], visibility.bool_mask(own, capacity))
        assert np.array_equal(found[len(own) :], np.eye(capacity, dtype=bool)[len(own) :])


@pytest.mark.parametrize("name", LETTERS)
def test_rows_with_steps_made_together_equal_rows_made_alone(name: str) -> None:
    rng = np.random.default_rng(0)
    contexts = rng.integers(1, 20, 50)
    steps = [random_steps(rng) if i % 7 else [] for i in range(50)]
    bounds = [single_rows.step_bounds(sizes) for sizes in steps]
    row = np.repeat(np.arange(50), [sum(sizes) for sizes in steps])
    starts, ends = (np.concatenate([each[side] for each in bounds]) for side in (0, 1))
    together = getattr(visibility, f"{name}_rows")(contexts, row, starts, ends, capacity=20 + 3 * 42)
    same_rows(together, [row_of(name, int(contexts[i]), steps[i]) for i in range(50)])


@pytest.mark.parametrize("blocks", [[1], [3, 3, 3], [4, 1, 2]])
def test_block_diffusion_follows_the_definition(blocks: list[int]) -> None:
    slots = by_step("clean", blocks) + by_step("noised", blocks)
    found = visibility.bool_mask(single_rows.block_diffusion(blocks), len(slots))
    assert np.array_equal(found, matrix(slots, slots, block_diffusion))


@pytest.mark.parametrize("size", [1, 3, 4, 40])
def test_block_diffusion_rows_made_together_equal_rows_made_alone(size: int) -> None:
    lengths = np.random.default_rng(size).integers(1, 20, 30)
    blocks = [[min(size, length - start) for start in range(0, length, size)] for length in lengths.tolist()]
    together = visibility.block_diffusion_rows(lengths, size, capacity=45)
    same_rows(together, [single_rows.block_diffusion(each) for each in blocks])


def test_each_copy_of_block_diffusion_follows_the_definition_and_reads_no_other() -> None:
    blocks = [3, 3, 2]
    clean, copies = by_step("clean", blocks), [by_step("noised", blocks) for _ in range(3)]
    found = visibility.bool_mask(visibility.block_diffusion_rows(np.array([8]), 3, copies=3, capacity=32)[0], 32)
    expected = np.zeros((32, 32), dtype=bool)
    expected[:8, :8] = matrix(clean, clean, block_diffusion)
    for number, copy in enumerate(copies, start=1):
        own = slice(8 * number, 8 * number + 8)
        expected[own, :8], expected[own, own] = (
            matrix(copy, clean, block_diffusion),
            matrix(copy, copy, block_diffusion),
        )
    assert np.array_equal(found, expected)


def test_plain_rules_follow_their_definitions() -> None:
    n = 7
    slots = group("x", n)
    rules = {
        "bidirectional": (single_rows.bidirectional(n), lambda q, k: True),
        "left to right": (single_rows.left_to_right(n), lambda q, k: k.place <= q.place),
        "right to left": (single_rows.right_to_left(n), lambda q, k: k.place >= q.place),
        "prefix": (single_rows.prefix(3, 4), lambda q, k: k.place < 3 or k.place <= q.place),
        "nearby": (visibility.nearby(single_rows.bidirectional(n), 2), lambda q, k: abs(q.place - k.place) <= 2),
        "banded": (visibility.nearby(single_rows.left_to_right(n), 2), lambda q, k: q.place - 2 <= k.place <= q.place),
    }
    for name, (intervals, rule) in rules.items():
        assert np.array_equal(visibility.bool_mask(intervals, n), matrix(slots, slots, rule)), name


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
def test_a_source_reads_itself_as_its_row_says(both_ways: bool) -> None:
    real = real_slots([(0, 6), (0, 3)], 6)
    mask = masks.source_mask(real, both_ways=both_ways).expand(-1, 6, -1)
    rows = visibility.bool_mask(masks.real_rows(real, both_ways=both_ways), 6)
    assert torch.equal(mask[real], rows[real])
    assert mask.any(dim=2).all(), "padding reads something"


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


def test_hypotheses_read_what_they_share_their_own_tokens_and_themselves() -> None:
    # The second source ends in padding. The last two of the three hypotheses share their first token.
    shared = real_slots([(0, 3), (0, 2)], 3)
    ancestors = torch.tensor([[True, False], [False, True], [False, True]]).expand(2, -1, -1)
    found = masks.hypothesis_mask(shared, ancestors).int().tolist()
    assert found[0] == [[1, 1, 1, 1, 0, 1, 0, 0], [1, 1, 1, 0, 1, 0, 1, 0], [1, 1, 1, 0, 1, 0, 0, 1]]
    assert found[1] == [[1, 1, 0, 1, 0, 1, 0, 0], [1, 1, 0, 0, 1, 0, 1, 0], [1, 1, 0, 0, 1, 0, 0, 1]]


def test_pseudo_masks_follow_the_definition() -> None:
    """After the target slots, each mask reads what the token it replaces would (UniLMv2, Section 3.4)."""
    source, target = 3, 4
    slots = group("x", source + target)
    prefix = visibility.bool_mask(torch.from_numpy(single_rows.prefix(source, target)), len(slots))[None]
    labelled = [5, 3, 6]
    pseudo = [Slot("mask", place) for place in labelled]

    def reads(q: Slot, k: Slot) -> bool:
        if q.group == "x":
            return k.group == "x" and (k.place < source or k.place <= q.place)
        return q == k if k.group == "mask" else k.place < q.place

    found = masks.with_pseudo_masks(prefix, masks.in_place_of(prefix, torch.tensor([labelled])))
    assert np.array_equal(found[0].numpy(), matrix(slots + pseudo, slots + pseudo, reads))


def test_open_positions_read_what_is_known_and_themselves() -> None:
    known = torch.tensor([[True, True, False, True, True, True], [True, True, True, True, False, True]])
    found = masks.filling_mask(known, 2, 3)
    keys = [Slot("known", place) for place in range(6)] + group("mask", 3)
    for row in range(2):

        def reads(q: Slot, k: Slot, row: int = row) -> bool:
            return q == k if k.group == "mask" else bool(known[row, k.place])

        assert np.array_equal(found[row].numpy(), matrix(keys[4:], keys, reads))


def test_packed_rows_do_not_read_each_other() -> None:
    rows = [single_rows.pseudo_masked(4, [2]), single_rows.left_to_right(3)]
    mask = visibility.bool_mask(single_rows.packed(rows), 11)
    expected = np.zeros((11, 11), dtype=bool)
    expected[:8, :8] = visibility.bool_mask(rows[0], 8)
    expected[8:, 8:] = visibility.bool_mask(rows[1], 3)
    assert np.array_equal(mask, expected)


@pytest.mark.parametrize("reads", ["bidirectional", "left_to_right", "right_to_left"])
def test_packed_rows_made_together_equal_rows_made_alone(reads: visibility.TextVisibility) -> None:
    sizes = [[3, 1, 4], [5], [2, 2], [9]]
    together = visibility.packed_rows(sizes, reads=reads, capacity=9)
    same_rows(together, [single_rows.packed([getattr(single_rows, reads)(size) for size in inner]) for inner in sizes])


@pytest.mark.parametrize("rule", ["bidirectional", "left_to_right", "right_to_left"])
def test_plain_rows_made_together_equal_rows_made_alone(rule: str) -> None:
    lengths = [4, 7, 1, 0]
    together = getattr(visibility, f"{rule}_rows")(np.array(lengths), capacity=7)
    same_rows(together, [getattr(single_rows, rule)(length) for length in lengths])


def test_masks_behind_a_row_read_what_is_left_of_their_slots() -> None:
    lengths, places = [4, 2, 3], [[1, 3], [], [2]]
    row = np.repeat(np.arange(3), list(map(len, places)))
    found = visibility.with_masks_rows(np.array(lengths), row, np.concatenate(places).astype(int), capacity=7)
    for number, (length, masked) in enumerate(zip(lengths, places, strict=True)):
        padding = 7 - length - len(masked)
        slots = group("x", length) + [Slot("mask", place) for place in masked] + group("padding", padding)

        def reads(q: Slot, k: Slot) -> bool:
            if k.group != "x" or q.group == "padding":
                return q == k
            return k.place < q.place or q == k

        assert np.array_equal(visibility.bool_mask(found[number], 7), matrix(slots, slots, reads))


def test_tensors_render_as_arrays_do() -> None:
    intervals = single_rows.pseudo_masked(6, [2, 1])[None]
    assert np.array_equal(
        visibility.bool_mask(torch.from_numpy(intervals), 12).numpy(), visibility.bool_mask(intervals, 12)
    )


def test_block_mask_holds_the_same_pairs() -> None:
    rng = np.random.default_rng(1)
    rows = [single_rows.pseudo_masked(100, random_steps(rng)) for _ in range(2)]
    capacity = 200
    padded = np.stack(
        [
            np.concatenate([row, _intervals(np.arange(len(row), capacity), np.arange(len(row), capacity) + 1)])
            for row in rows
        ]
    )
    block = visibility.block_mask(torch.from_numpy(padded), capacity)
    query, key = torch.meshgrid(torch.arange(capacity), torch.arange(capacity), indexing="ij")
    for row in range(2):
        dense = block.mask_mod(torch.tensor(row), torch.tensor(0), query, key)
        assert np.array_equal(dense.numpy(), visibility.bool_mask(padded[row], capacity))
    covered = block.to_dense().repeat_interleave(128, 2).repeat_interleave(128, 3)[:, 0, :capacity, :capacity].bool()
    assert (covered.numpy() | ~visibility.bool_mask(padded, capacity)).all(), "no block with a visible pair is left out"


def test_text_shows_groups_apart() -> None:
    drawn = visibility.text(
        single_rows.pseudo_masked(2, [1]), 4, query_names=["C1", "C2", "O2", "P2"], groups=[2, 1, 1]
    )
    assert drawn.splitlines() == ["C1  11 0 0", "C2  11 0 0", "O2  11 1 0", "P2  11 0 1"]
