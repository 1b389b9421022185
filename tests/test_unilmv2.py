"""UniLMv2's rows: the paper's example, one pass against many, and leakage measured through the window."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

import toys
from objective_toys import CASES, picture, row_of, window_of
from toys import MASK, PSEUDO, SOS, random_windows, vocabulary
from unicloze.example import Examples, Kind, collate
from unicloze.objectives import make_examples, settings_of
from unicloze.objectives.permuted import lay_out_permuted
from unicloze.objectives.unilmv2 import ALL_MASKED, draw_steps, lay_out, unilmv2
from unicloze.text.windows import Windows

PLAIN = settings_of(mask_share=1.0, random_share=0.0)
VARIANTS: list[dict[str, Any]] = [{}, {"relative_bias": False}, {"norm": "pre"}]


def paper_example() -> Examples:
    """x1 .. x6 are the tokens 11 .. 16; x4 and x5 are predicted first, then x2."""
    windows = window_of([11, 12, 13, 14, 15, 16])
    steps = np.array([[-1, 1, -1, 0, 0, -1]], dtype=np.int32)
    return lay_out(windows, steps, vocabulary(), ALL_MASKED, predict=("ae", "par"), pseudo=PSEUDO)


def test_the_papers_example_slot_by_slot() -> None:
    example = paper_example()
    assert example.lengths.tolist() == [12]
    assert example.input_ids[0, :12].tolist() == [11, MASK, 13, MASK, MASK, 16, 14, 15, 12, PSEUDO, PSEUDO, PSEUDO]
    assert example.position_ids[0, :12].tolist() == [0, 1, 2, 3, 4, 5, 3, 4, 1, 3, 4, 1]
    assert example.steps[0, :12].tolist() == [-1, 1, -1, 0, 0, -1, 0, 0, 1, 0, 0, 1]
    assert picture(example.visible(0)) == ["111111000000"] * 6 + ["111111110000"] * 2 + ["111111111000"] + [
        "111111000110"
    ] * 2 + ["111111110001"]
    ae, par = example.targets["ae"], example.targets["par"]
    assert (ae.slots[0, :3].tolist(), ae.labels[0, :3].tolist()) == ([3, 4, 1], [14, 15, 12])
    assert (par.slots[0, :3].tolist(), par.labels[0, :3].tolist()) == ([9, 10, 11], [14, 15, 12])
    assert ae.weights.sum() == par.weights.sum() == 3


def test_without_masks_in_context_they_are_absent() -> None:
    windows = random_windows(20, 24, short=True)
    settings = settings_of(targets=["par"], masks_in_context=False)
    examples = unilmv2(windows, vocabulary(), settings)
    with_masks = unilmv2(windows, vocabulary(), dataclasses.replace(settings, masks_in_context=True))
    assert not (examples.kinds == Kind.MASK).any()
    for row in range(20):
        seen = []
        for each in (examples, with_masks):
            slots = np.flatnonzero(each.kinds[row] == Kind.CONTEXT)
            seen.append(list(zip(each.position_ids[row, slots], each.input_ids[row, slots], strict=True)))
        assert seen[0] == seen[1]
        assert len(seen[0]) + (examples.kinds[row] == Kind.PSEUDO).sum() == windows.lengths[row]


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
    ends = [*[length] * length, *(length + np.repeat(np.cumsum(sizes, dtype=np.int64), sizes)), *[slots] * len(now)]
    segments = windows.segment_ids[row, positions]
    predicting = np.arange(slots - len(now), slots)
    return row_of(ids, ends, predicting, tokens[now], position_ids=positions, segment_ids=segments, target="par")


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


def test_steps_may_outnumber_the_window() -> None:
    windows = random_windows(2, 5)
    steps = np.array([[-1, 9, -1, 8, -1], [-1, 0, -1, 1, -1]], dtype=np.int32)
    examples = lay_out(windows, steps, vocabulary(), ALL_MASKED, predict=("ae", "par"), pseudo=PSEUDO)
    pseudo = examples.kinds == Kind.PSEUDO
    assert examples.position_ids[0][pseudo[0]].tolist() == [3, 1]
    assert examples.position_ids[1][pseudo[1]].tolist() == [1, 3]


# Permuted language models


SIX = window_of([SOS, 11, 12, 13, 14, 15], segments=[0, 0, 0, 1, 1, 1])
STEPS = np.array([[-1, 1, -1, 0, 0, -1]], dtype=np.int32)
"""13 and 14 are predicted first, then 11."""


def drawn(examples: Examples, groups: int) -> list[str]:
    """Which slot reads which, in groups of three slots."""
    return [" ".join(line[3 * n : 3 * n + 3] for n in range(groups)) for line in picture(examples.visible(0))]


def test_xlnets_row_slot_by_slot() -> None:
    example = lay_out_permuted(SIX, STEPS, vocabulary(), pseudo=PSEUDO)
    assert example.lengths.tolist() == [9] and example.mutual.tolist() == [3]
    assert example.input_ids[0, :9].tolist() == [SOS, 12, 15, 13, 14, 11, PSEUDO, PSEUDO, PSEUDO]
    assert example.position_ids[0, :9].tolist() == [0, 2, 5, 3, 4, 1, 3, 4, 1]
    assert example.segment_ids[0, :9].tolist() == [0, 0, 1, 1, 1, 0, 1, 1, 0]
    assert example.steps[0, :9].tolist() == [-1, -1, -1, 0, 0, 1, 0, 0, 1]
    assert drawn(example, 3) == [
        "111 000 000", "111 000 000", "111 000 000", "111 110 000", "111 110 000", "111 111 000",
        "111 000 000", "111 000 000", "111 110 000",
    ]  # fmt: skip
    target = example.targets["par"]
    assert target.slots[0, :3].tolist() == [6, 7, 8]
    assert target.labels[0, :3].tolist() == [13, 14, 11]
    assert target.weights.sum() == 3


def test_mpnets_row_slot_by_slot() -> None:
    example = lay_out_permuted(SIX, STEPS, vocabulary(), ALL_MASKED, pseudo=PSEUDO)
    assert example.lengths.tolist() == [12]
    assert example.input_ids[0, :12].tolist() == [SOS, 12, 15, 13, 14, 11, *[MASK] * 3, *[PSEUDO] * 3]
    assert example.position_ids[0, :12].tolist() == [0, 2, 5, 3, 4, 1, 3, 4, 1, 3, 4, 1]
    assert drawn(example, 4) == [
        "111 000 111 000", "111 000 111 000", "111 000 111 000", "111 110 001 000", "111 110 001 000", "111 111 000 000",
        "111 000 111 000", "111 000 111 000", "111 000 111 000", "111 000 111 000", "111 000 111 000", "111 110 001 000",
    ]  # fmt: skip
    target = example.targets["par"]
    assert (target.slots[0, :3].tolist(), target.labels[0, :3].tolist()) == ([9, 10, 11], [13, 14, 11])
    same_id = lay_out_permuted(SIX, STEPS, vocabulary(), ALL_MASKED, pseudo=MASK)
    assert same_id.input_ids[0, 6:12].tolist() == [MASK] * 6


def test_partial_prediction_and_its_spans() -> None:
    """One token in six, in spans whose mean length is that of 1 to 5 tokens drawn in proportion to 1/length."""
    windows = random_windows(3000, 128)
    objective = dataclasses.replace(CASES["xlnet"], mask_rate=1 / 6, block_probability=0.52, max_span=5)
    examples = make_examples(windows, vocabulary(), objective)
    text = windows.maskable.sum(axis=1)
    predicted = examples.targets["par"].weights.sum(axis=1)
    assert (predicted >= text / 6).all() and (predicted < text / 6 + 5).all()
    wanted = 5 / sum(1 / n for n in range(1, 6))
    whole = draw_steps(
        windows, dataclasses.replace(objective, factorization="block"), np.full(3000, 1 / 6), vocabulary()
    )
    spans = (whole >= 0).sum() / (whole.max(axis=1) + 1).sum()
    assert abs(spans - wanted) < 0.03
    assert all(len(set(s[s >= 0].tolist())) * 2 == (s >= 0).sum() for s in examples.steps[:100]), "one token per step"


def test_a_mask_and_its_query_show_the_same() -> None:
    windows = random_windows(600, 64, vocab=1000)
    examples = make_examples(windows, vocabulary(1000), CASES["mpnet"])
    by_position = {kind: examples.input_ids[examples.kinds == kind] for kind in (Kind.ORIGINAL, Kind.MASK, Kind.PSEUDO)}
    truth, mask, query = by_position.values()  # all by row, then step
    assert np.array_equal(np.where(mask == MASK, PSEUDO, mask), query)
    shares = {0.8: mask == MASK, 0.1: mask == truth}
    for share, hits in shares.items():
        assert abs(hits.mean() - share) < 4.5 * math.sqrt(share * (1 - share) / len(truth)) + 1e-3


def test_rows_have_room_for_one_predicted_token_or_as_many_as_asked_for() -> None:
    one = np.where(STEPS == 1, 0, -1).astype(np.int32)
    for shown in (None, ALL_MASKED):
        default, at_least_one, two = (
            lay_out_permuted(SIX, one, vocabulary(), shown, pseudo=PSEUDO, **most).input_ids.shape[1]
            for most in ({}, {"most": 1}, {"most": 2})
        )
        assert default == at_least_one < two
