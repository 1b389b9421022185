"""UniLMv2's rows: the paper's example, one pass against many, and leakage measured through the window."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

import toys
from toys import EOS, MASK, PSEUDO, SOS, random_windows, vocabulary
from unicloze import keyed, visibility
from unicloze.example import Examples, Kind, Target, collate
from unicloze.model.dropout import DropoutKey
from unicloze.objectives import settings_of
from unicloze.objectives.unilmv2 import ALL_MASKED, draw_steps, lay_out, unilmv2
from unicloze.text.windows import Windows

PLAIN = settings_of(mask_share=1.0, random_share=0.0)
VARIANTS: list[dict[str, Any]] = [
    {},
    {"relative_bias": False},
    {"norm": "pre"},
]


def paper_example() -> Examples:
    """x1 .. x6 are the tokens 11 .. 16; x4 and x5 are predicted first, then x2."""
    tokens = np.array([[11, 12, 13, 14, 15, 16]], dtype=np.int32)
    windows = Windows(
        token_ids=tokens,
        segment_ids=np.zeros_like(tokens),
        lengths=np.array([6], dtype=np.int32),
        maskable=np.ones((1, 6), dtype=bool),
        keys=keyed.key(0, 0, np.arange(1)),
        source=np.zeros(1, np.int32),
        index=np.zeros(1, np.int64),
    )
    steps = np.array([[-1, 1, -1, 0, 0, -1]], dtype=np.int32)
    return lay_out(windows, steps, vocabulary(), ALL_MASKED, predict=("ae", "par"), pseudo=PSEUDO)


def test_the_papers_example_slot_by_slot() -> None:
    example = paper_example()
    assert example.lengths.tolist() == [12]
    assert example.input_ids[0, :12].tolist() == [11, MASK, 13, MASK, MASK, 16, 14, 15, 12, PSEUDO, PSEUDO, PSEUDO]
    assert example.position_ids[0, :12].tolist() == [0, 1, 2, 3, 4, 5, 3, 4, 1, 3, 4, 1]
    assert example.steps[0, :12].tolist() == [-1, 1, -1, 0, 0, -1, 0, 0, 1, 0, 0, 1]
    rows = ["".join(map(str, row)) for row in example.visible(0).astype(int)]
    assert rows == ["111111000000"] * 6 + ["111111110000"] * 2 + ["111111111000"] + ["111111000110"] * 2 + [
        "111111110001"
    ]
    ae, par = example.targets["ae"], example.targets["par"]
    assert (ae.slots[0, :3].tolist(), ae.labels[0, :3].tolist()) == ([3, 4, 1], [14, 15, 12])
    assert (par.slots[0, :3].tolist(), par.labels[0, :3].tolist()) == ([9, 10, 11], [14, 15, 12])
    assert ae.weights.sum() == par.weights.sum() == 3


def test_without_masks_in_context_they_are_absent() -> None:
    windows = random_windows(20, 24, short=True)
    settings = settings_of(targets=["par"], masks_in_context=False)
    examples = unilmv2(windows, vocabulary(), settings)
    with_masks = unilmv2(windows, vocabulary(), dataclasses.replace(settings, masks_in_context=True))
    for row in range(20):
        kinds = examples.kinds[row]
        assert not (kinds == Kind.MASK).any()
        context, masked = (kinds == Kind.CONTEXT).sum(), (kinds == Kind.PSEUDO).sum()
        assert context + masked == windows.lengths[row]
        assert np.array_equal(
            examples.visible(row),
            visibility.bool_mask(examples.intervals[row, : examples.lengths[row]], examples.lengths[row]),
        )
        both = [(e.position_ids[row], e.input_ids[row], e.kinds[row]) for e in (examples, with_masks)]
        seen = [{(int(p), int(i)) for p, i, k in zip(*e, strict=True) if k == Kind.CONTEXT} for e in both]
        assert seen[0] == seen[1]


def test_the_five_variants_draw_the_same_set() -> None:
    windows = random_windows(30, 32)
    sets = []
    for targets in (["ae"], ["par"], ["ae", "par"]):
        for factorization in ("block", "token"):
            settings = settings_of(targets=targets, factorization=factorization)  # type: ignore[arg-type]
            sets.append(draw_steps(windows, settings, np.full(30, 0.15), vocabulary()) >= 0)
            examples = unilmv2(windows, vocabulary(), settings)
            assert list(examples.targets) == targets
            assert examples.kinds.shape[1] == 32 if targets == ["ae"] else examples.kinds.shape[1] > 32
    assert all(np.array_equal(sets[0], other) for other in sets)


def one_step_alone(windows: Windows, steps: np.ndarray, row: int, step: int) -> Examples:  # type: ignore[type-arg]
    """A row with only the slots that the pseudo masks of one step may read: C, O of earlier steps, and themselves."""
    length = int(windows.lengths[row])
    tokens, own = windows.token_ids[row, :length], steps[row, :length]
    context = np.where(own >= 0, MASK, tokens)
    earlier = np.array([p for t in range(step) for p in np.flatnonzero(own == t)], dtype=np.int64)
    now = np.flatnonzero(own == step)
    sizes = [int((own == t).sum()) for t in range(step)]
    positions = np.concatenate([np.arange(length), earlier, now])
    ids = np.concatenate([context, tokens[earlier], np.full(len(now), PSEUDO)])
    slots = len(ids)
    ends = np.repeat(np.cumsum(sizes, dtype=np.int64), sizes)
    intervals = np.concatenate(
        [
            visibility.bidirectional(length),
            visibility._intervals(0, length + ends),
            visibility._intervals(np.zeros(len(now)), slots),
        ]
    )
    target = Target(
        slots=np.arange(slots - len(now), slots, dtype=np.int32)[None],
        labels=tokens[now][None],
        weights=np.ones((1, len(now)), np.float32),
    )
    return Examples(
        input_ids=ids[None].astype(np.int32), position_ids=positions[None].astype(np.int32),
        segment_ids=windows.segment_ids[row, positions][None], kinds=np.zeros((1, slots), np.uint8),
        steps=np.zeros((1, slots), np.int32), intervals=intervals[None], lengths=np.array([slots], np.int32),
        mutual=np.array([0], np.int32), text_tokens=np.array([length], np.int32), targets={"par": target},
    )  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("factorization", ["block", "token"])
def test_one_pass_equals_a_pass_per_step(variant: dict[str, Any], factorization: Any) -> None:
    model = toys.model(**variant)
    settings = dataclasses.replace(PLAIN, factorization=factorization, mask_rate=0.4)
    windows = random_windows(4, 24, short=True, seed=5)
    steps = draw_steps(windows, settings, np.full(4, 0.4), vocabulary())
    together = unilmv2(windows, vocabulary(), settings)
    with torch.no_grad():
        logits = model.logits(collate(together))["par"]
        for row in range(4):
            ranked = together.steps[row][together.targets["par"].slots[row]]
            for step in range(int(steps[row].max()) + 1):
                alone = model.logits(collate(one_step_alone(windows, steps, row, step)))["par"][0]
                own = (ranked == step) & (together.targets["par"].weights[row] > 0)
                found = logits[row][torch.from_numpy(own[: logits.shape[1]])]
                torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_autoencoding_equals_a_plain_masked_pass(variant: dict[str, Any]) -> None:
    model = toys.model(**variant)
    windows = random_windows(6, 24, short=True)
    joint = unilmv2(windows, vocabulary(), settings_of())
    plain = unilmv2(windows, vocabulary(), settings_of(targets=["ae"]))
    assert plain.input_ids.shape[1] == 24
    with torch.no_grad():
        torch.testing.assert_close(
            model.logits(collate(joint))["ae"], model.logits(collate(plain))["ae"], atol=1e-5, rtol=1e-5
        )
        state = model.backbone(collate(plain))[-1]
        for row in range(6):  # independent of padding and neighbours
            alone = model.backbone(collate(plain[row : row + 1]))[-1]
            length = int(windows.lengths[row])
            torch.testing.assert_close(state[row, :length], alone[0, :length], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "variant", [{}, {"targets": ["par"]}, {"factorization": "token"}, {"targets": ["par"], "masks_in_context": False}]
)
def test_a_masked_token_reaches_only_later_steps(training: bool, variant: dict[str, Any]) -> None:
    """Independent of the rule: change x_m in the window, remake the example, compare every prediction."""
    model = toys.model(dropout=0.1, attention_dropout=0.1)
    settings = settings_of(mask_rate=0.4, **variant)
    windows = random_windows(1, 30, seed=11)
    before = unilmv2(windows, vocabulary(), settings)

    def predictions(examples: Examples) -> dict[tuple[str, int], torch.Tensor]:
        """Hidden state of each prediction, in a batch of fixed shape with the same dropout."""
        batch = collate(examples)
        with torch.no_grad():
            states = model.backbone(batch, select=True, dropout=DropoutKey(1, 2, 3) if training else None)[-1][0]
        places = [
            (name, int(examples.position_ids[0, slot]))
            for name, target in batch.targets.items()
            for slot in target.slots[0].tolist()
        ]
        return dict(zip(places, states, strict=True))

    reference = predictions(before)
    step_of = {
        int(p): int(s)
        for p, s, k in zip(before.position_ids[0], before.steps[0], before.kinds[0], strict=True)
        if k == Kind.PSEUDO
    }
    hidden_under_mask = [
        int(p)
        for p, i, k in zip(before.position_ids[0], before.input_ids[0], before.kinds[0], strict=True)
        if k == Kind.PSEUDO and i == PSEUDO
    ]
    assert len(hidden_under_mask) > 5
    changed_later = 0
    for m in hidden_under_mask:
        tokens = windows.token_ids.copy()
        tokens[0, m] = toys.FIRST_ORDINARY + (tokens[0, m] - toys.FIRST_ORDINARY + 1) % (50 - toys.FIRST_ORDINARY)
        after = predictions(unilmv2(dataclasses.replace(windows, token_ids=tokens), vocabulary(), settings))
        for (name, position), state in after.items():
            same = torch.equal(state, reference[name, position])
            if name == "ae" or step_of[position] <= step_of[m]:
                assert same, f"x_{m} (step {step_of[m]}) leaks into {name} of x_{position}"
            else:
                assert not same, (
                    f"x_{m} (step {step_of[m]}) does not reach {name} of x_{position} (step {step_of[position]})"
                )
                changed_later += 1
    assert changed_later > 10


CONSTRUCTORS: dict[str, Any] = {
    "bidirectional": visibility.bidirectional(12),
    "left to right": visibility.left_to_right(12),
    "right to left": visibility.right_to_left(12),
    "prefix": visibility.prefix(5, 7),
    "banded": visibility.nearby(visibility.left_to_right(12), 2),
    "pseudo-masked": visibility.pseudo_masked(6, [2, 1]),
    "MPNet": visibility.compensated(3, [1, 1, 1]),
    "block diffusion": visibility.block_diffusion([2, 3, 1]),
    "packed": visibility.packed([visibility.prefix(2, 3), visibility.left_to_right(7)]),
}


@pytest.mark.parametrize("name", CONSTRUCTORS)
@pytest.mark.parametrize("relative_bias", [False, True])
def test_a_slot_no_path_reaches_changes_nothing(name: str, relative_bias: bool) -> None:
    model = toys.model(relative_bias=relative_bias)
    intervals = CONSTRUCTORS[name]
    slots = len(intervals)
    reads = visibility.bool_mask(intervals, slots)
    reaches = np.linalg.matrix_power((reads | np.eye(slots, dtype=bool)).astype(int), model.settings.num_layers) > 0
    rng = np.random.default_rng(0)
    ids = rng.integers(7, 50, slots).astype(np.int32)

    def states(ids: np.ndarray) -> torch.Tensor:  # type: ignore[type-arg]
        everything = np.arange(slots, dtype=np.int32)[None]
        examples = Examples(
            input_ids=ids[None], position_ids=everything, segment_ids=0 * everything, kinds=everything.astype(np.uint8),
            steps=everything, intervals=intervals[None], lengths=np.array([slots], np.int32), mutual=np.array([0], np.int32),
            text_tokens=np.array([slots], np.int32), targets={},
        )  # fmt: skip
        with torch.no_grad():
            return model.backbone(collate(examples))[-1][0]

    reference = states(ids)
    for slot in range(slots):
        other = ids.copy()
        other[slot] = 7 + (other[slot] - 6) % 43
        after = states(other)
        for query in range(slots):
            assert torch.equal(after[query], reference[query]) != reaches[query, slot], (query, slot)


def test_steps_may_outnumber_the_window() -> None:
    windows = random_windows(2, 5)
    steps = np.array([[-1, 9, -1, 8, -1], [-1, 0, -1, 1, -1]], dtype=np.int32)
    examples = lay_out(windows, steps, vocabulary(), ALL_MASKED, predict=("ae", "par"), pseudo=PSEUDO)
    pseudo = examples.kinds == Kind.PSEUDO
    assert examples.position_ids[0][pseudo[0]].tolist() == [3, 1]
    assert examples.position_ids[1][pseudo[1]].tolist() == [1, 3]


def test_rows_are_the_same_alone_and_among_others() -> None:
    windows = random_windows(40, 32, short=True)
    together = unilmv2(windows, vocabulary(), settings_of())
    for row in (0, 7, 39):
        alone = unilmv2(windows[row : row + 1], vocabulary(), settings_of())
        length = int(alone.lengths[0])
        for field in ("input_ids", "position_ids", "segment_ids", "kinds", "steps", "intervals"):
            assert np.array_equal(getattr(alone, field)[0, :length], getattr(together, field)[row, :length])
    assert (together.input_ids[:, 0] == SOS).all()
    assert (together.input_ids == EOS).sum() == 2 * len(windows)
