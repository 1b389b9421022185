"""Masked and block diffusion: rows slot by slot, the noise, and the bound against sums over all orders and masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, permutations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import toys
from objective_toys import diffusion_of, picture, row_of, window_of
from toys import EOS, MASK, PAD, SOS, random_windows, vocabulary
from unicloze import keyed
from unicloze.example import Examples, Kind, collate
from unicloze.model.model import UnifiedModel
from unicloze.objectives import diffusion, make_examples
from unicloze.settings import TrainingSettings
from unicloze.training.batches import MicroBatch
from unicloze.training.loop import Compute, TrainState, losses_and_norm

CPU = Compute(device=torch.device("cpu"), precision="fp32")
EPS = diffusion.LOWEST_LEVEL


def levels_of(monkeypatch: pytest.MonkeyPatch, *levels: float) -> None:
    """Make every row draw these levels."""
    monkeypatch.setattr(diffusion, "noise_levels", lambda keys, count: np.tile(levels[:count], (len(keys), 1)))


def predictions(examples: Examples, row: int = 0) -> list[tuple[int, int, float]]:
    """Slot, label and weight of each prediction of a row."""
    target = examples.targets["diffusion"]
    columns = target.slots[row], target.labels[row], target.weights[row]
    return [(int(s), int(a), float(w)) for s, a, w in zip(*columns, strict=True) if w > 0]


# Rows, slot by slot


def test_a_noised_row_slot_by_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    levels_of(monkeypatch, 1.0)
    example = make_examples(window_of([SOS, 11, 12, 13, EOS, PAD]), vocabulary(), diffusion_of())
    assert example.input_ids.tolist() == [[SOS, MASK, MASK, MASK, EOS, PAD]]
    assert example.position_ids.tolist() == [[0, 1, 2, 3, 4, 0]]
    assert example.steps.tolist() == [[-1, 0, 0, 0, -1, -1]]
    assert predictions(example) == [(1, 11, 1.0), (2, 12, 1.0), (3, 13, 1.0)]
    assert example.targets["diffusion"].normaliser == 3
    assert example.visible(0).all()
    assert (example.lengths.tolist(), example.mutual.tolist(), example.kinds.dtype) == ([5], [5], np.uint8)


def test_a_row_of_blocks_slot_by_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks {[SOS], 11}, {12, 13}, {14, [EOS]}; the first and last are fully noised, the second not at all."""
    levels_of(monkeypatch, 1.0, 1e-12, 1.0, 1.0)
    example = make_examples(window_of([SOS, 11, 12, 13, 14, EOS, PAD]), vocabulary(), diffusion_of(2))
    clean = [SOS, 11, 12, 13, 14, EOS]
    assert example.input_ids.tolist() == [[*clean, SOS, MASK, 12, 13, MASK, EOS, PAD, PAD]]
    assert example.position_ids.tolist() == [[*range(6), *range(6), 0, 0]]
    assert example.kinds[0, 6:12].tolist() == [Kind.CONTEXT, Kind.MASK, 0, 0, Kind.MASK, 0]
    assert example.steps[0].tolist() == [-1] * 7 + [0, -1, -1, 2, -1, -1, -1]
    assert predictions(example) == [(7, 11, 1.0), (10, 14, 1.0)]
    assert example.targets["diffusion"].normaliser == 4
    assert picture(example.visible(0)) == [
        *["110000" "000000"] * 2,
        *["111100" "000000"] * 2,
        *["111111" "000000"] * 2,
        *["000000" "110000"] * 2,
        *["110000" "001100"] * 2,
        *["111100" "000011"] * 2,
    ]  # fmt: skip


def test_left_to_right_rows_have_a_copy_for_each_place_in_a_block() -> None:
    example = diffusion.causal(window_of([SOS, 11, 12, 13, 14, EOS]), vocabulary(), diffusion_of(2))
    first, second = [SOS, MASK, MASK, MASK, MASK, EOS], [SOS, MASK, 12, MASK, 14, EOS]
    assert example.input_ids.tolist() == [[SOS, 11, 12, 13, 14, EOS, *first, *second]]
    assert predictions(example) == [(13, 11, 1.0), (8, 12, 1.0), (15, 13, 1.0), (10, 14, 1.0)]
    assert example.targets["diffusion"].norms is None


# What a prediction sees


def logits_by_hand(model: UnifiedModel, ids: Any, ends: Any, slot: int, **columns: Any) -> torch.Tensor:
    """Logits at a slot of a row whose slot q reads the keys before `ends[q]`. *Shape:* (vocabulary,)"""
    row = row_of(ids, ends, [slot], [0], target="diffusion", **columns)
    with torch.no_grad():
        return model.logits(collate(row))["diffusion"][0, 0].double()


def cost_by_hand(model: UnifiedModel, ids: Any, ends: Any, slot: int, label: int) -> float:
    """-log p of a token at a slot of such a row."""
    return float(-torch.log_softmax(logits_by_hand(model, ids, ends, slot), 0)[label])


def costs_of(model: UnifiedModel, examples: Examples) -> npt.NDArray[np.float64]:
    """Cross-entropy of each prediction, 0 where there is none. *Shape:* (rows, predictions)"""
    batch = collate(examples, fixed_shape=True)
    target = batch.targets["diffusion"]
    with torch.no_grad():
        logits = model.logits(batch)["diffusion"].double()
    costs = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.labels.flatten(), reduction="none")
    found: npt.NDArray[np.float64] = (costs.view(logits.shape[:2]) * (target.weights > 0)).numpy()
    return found


def test_one_pass_over_blocks_equals_a_pass_for_each_block() -> None:
    """Of each block alone: the clean blocks of four before it, then the block as shown."""
    windows = random_windows(8, 19, short=True, seed=4)
    examples = make_examples(windows, vocabulary(), diffusion_of(4))
    model = toys.model()
    with torch.no_grad():
        logits = model.logits(collate(examples))["diffusion"].double()
    compared = 0
    for row, length in enumerate(windows.lengths.tolist()):
        for number, (slot, _, _) in enumerate(predictions(examples, row)):
            place = slot - length
            start, end = place // 4 * 4, min(place // 4 * 4 + 4, length)
            ids = [*windows.token_ids[row, :start], *examples.input_ids[row, length + start : length + end]]
            ends = [*(np.arange(start) // 4 * 4 + 4), *[end] * (end - start)]
            alone = logits_by_hand(model, ids, ends, place, segment_ids=windows.segment_ids[row, :end])
            torch.testing.assert_close(logits[row, number], alone, atol=1e-5, rtol=1e-5)
            compared += 1
    assert compared > 10


# The noise


def test_levels_are_uniform_and_apart() -> None:
    levels = diffusion.noise_levels(keyed.key(1, 2, np.arange(50_000)), 3)
    assert levels.min() == EPS, "raised to the lowest"
    assert abs((levels == EPS).mean() - EPS) < 4 * math.sqrt(EPS / levels.size)
    for cut in (0.1, 0.25, 0.5, 0.9):
        error = 4 * math.sqrt(cut * (1 - cut) / 50_000)
        assert np.abs((levels < cut).mean(axis=0) - cut).max() < error
    correlation = np.corrcoef(levels.T) - np.eye(3)
    assert np.abs(correlation).max() < 4 / math.sqrt(50_000), "each block draws its own"


@pytest.mark.parametrize(("size", "block"), [(None, [1, 2, 3, 4, 5]), (3, [3, 4, 5]), (1, [4])])
def test_a_block_has_any_number_of_masks_equally_often(size: int | None, block: list[int]) -> None:
    """Masking k of n tokens has probability C(n, k) B(k+1, n-k+1) = 1 / (n+1) where the level is uniform."""
    rows = 40_000
    windows = window_of([SOS, 11, 12, 13, 14, 15, EOS], rows=rows)
    examples = make_examples(windows, vocabulary(), diffusion_of(size))
    masked = examples.input_ids[:, -7:] == MASK
    share = np.bincount(masked[:, block].sum(axis=1), minlength=len(block) + 1) / rows
    expected = 1 / (len(block) + 1)
    assert np.abs(share - expected).max() < 4.5 * math.sqrt(expected * (1 - expected) / rows)
    assert np.abs(masked[:, 1:-1].mean(axis=0) - 0.5).max() < 4.5 * math.sqrt(0.25 / rows)
    assert not masked[:, [0, -1]].any(), "special tokens are never noised"


@pytest.mark.parametrize("size", [None, 1, 2])
def test_weights_count_every_token_once(size: int | None) -> None:
    """The mean of mask/t is 1 and of its square 1 + ln(1/eps), integrated over the level, which is at least eps."""
    rows = 60_000
    examples = make_examples(window_of([SOS, 11, 12, 13, 14, EOS], rows=rows), vocabulary(), diffusion_of(size))
    target = examples.targets["diffusion"]
    weight = np.zeros((rows, 4))
    assert target.weights.dtype == np.float32
    row, rank = np.nonzero(target.weights)
    weight[row, target.labels[row, rank] - 11] = target.weights[row, rank]
    error = math.sqrt((math.log(1 / EPS) + 1 - 1) / rows)
    assert np.abs(weight.mean(axis=0) - 1).max() < 4.5 * error
    assert weight.max() <= 1 / EPS * (1 + 1e-6)
    assert target.norms is not None
    assert (target.norms == 4).all()


# Training


@pytest.mark.parametrize("size", [None, 4])
def test_the_loss_is_normalised_over_the_global_batch(size: int | None) -> None:
    windows, model = random_windows(8, 24, short=True), toys.model()
    examples = make_examples(windows, vocabulary(), diffusion_of(size))
    total = (costs_of(model, examples) * examples.targets["diffusion"].weights).sum()
    expected = total / windows.maskable.sum()
    for rows in (8, 4, 1):
        parts = [MicroBatch(examples[i : i + rows], windows[i : i + rows]) for i in range(0, 8, rows)]
        losses, _ = losses_and_norm(TrainState(model=model, optimizers=[]), parts, TrainingSettings(), CPU, str)
        assert losses == {"diffusion": pytest.approx(expected, rel=1e-5)}


# The bound, by enumeration of orders and masks


def moment(masked: int, tokens: int) -> float:
    """Integral of P(exactly these are masked | t) / t over the level, which is at least EPS."""
    t = np.polynomial.Polynomial([0, 1])
    integral = (t ** (masked - 1) * (1 - t) ** (tokens - masked)).integ()
    return float(integral(1) - integral(EPS)) + EPS**masked * (1 - EPS) ** (tokens - masked)


TEXT = [11, 23, 9, 31]


def any_order(model: UnifiedModel, text: Sequence[int]) -> list[float]:
    """-log p of a text in each order its tokens can be filled in, by the chain rule."""
    ids = [SOS, *text, EOS]
    places = range(1, len(text) + 1)
    cost = {
        (frozenset(open_), place): cost_by_hand(
            model,
            [MASK if other in open_ else token for other, token in enumerate(ids)],
            [len(ids)] * len(ids),
            place,
            ids[place],
        )
        for size in places
        for open_ in combinations(places, size)
        for place in open_
    }
    return [
        sum(cost[frozenset(order[step:]), place] for step, place in enumerate(order)) for order in permutations(places)
    ]


@pytest.mark.whole
def test_the_loss_is_the_mean_over_all_orders_and_bounds_the_likelihood() -> None:
    model, rows = toys.model(), 8000
    by_order = any_order(model, TEXT)
    windows = window_of([SOS, *TEXT, EOS])
    exact = exact_to_zero = 0.0
    for size in (1, 2, 3, 4):
        for open_ in combinations(range(1, 5), size):
            steps = np.full((1, 6), -1, dtype=np.int32)
            steps[0, list(open_)] = 0
            cost = costs_of(model, diffusion.cloze(windows, steps, vocabulary(), diffusion_of())).sum()
            exact += moment(size, 4) * cost
            exact_to_zero += math.factorial(size - 1) * math.factorial(4 - size) / math.factorial(4) * cost
    assert exact_to_zero == pytest.approx(np.mean(by_order), rel=1e-5), "two independent computations"
    assert exact == pytest.approx(exact_to_zero, rel=4 * EPS)

    likelihood = np.mean(np.exp(-np.array(by_order)))
    assert -math.log(likelihood) < exact, "the sampler fills the tokens in a random order"

    examples = make_examples(window_of([SOS, *TEXT, EOS], rows=rows), vocabulary(), diffusion_of())
    losses = (costs_of(model, examples) * examples.targets["diffusion"].weights).sum(axis=1)
    assert abs(losses.mean() - exact) < 4 * losses.std() / math.sqrt(rows)


def exact_by_blocks(model: UnifiedModel, size: int) -> float:
    """Expected loss of block diffusion: all masks of every block, weighted by the moments of the level."""
    total, ids = 0.0, [SOS, *TEXT, EOS]
    for start in range(0, 6, size):
        block = range(start, min(start + size, 6))
        text = [place for place in block if 1 <= place <= 4]
        for count in range(1, len(text) + 1):
            for masked in combinations(text, count):
                shown = [MASK if place in masked else ids[place] for place in block]
                ends = [min(place // size * size + size, 6) for place in range(start)] + [block[-1] + 1] * len(block)
                for place in masked:
                    cost = cost_by_hand(model, ids[:start] + shown, ends, place, ids[place])
                    total += moment(count, len(text)) * cost
    return total


@pytest.mark.whole
@pytest.mark.parametrize("size", [1, 2, 4, 6])
def test_the_loss_of_blocks_is_the_sum_over_their_masks(size: int) -> None:
    model, rows = toys.model(), 8000
    exact = exact_by_blocks(model, size)
    examples = make_examples(window_of([SOS, *TEXT, EOS], rows=rows), vocabulary(), diffusion_of(size))
    losses = (costs_of(model, examples) * examples.targets["diffusion"].weights).sum(axis=1)
    assert abs(losses.mean() - exact) < 4 * losses.std() / math.sqrt(rows)
    if size == 6:
        assert exact == pytest.approx(np.mean(any_order(model, TEXT)), rel=4 * EPS)


def test_blocks_of_one_token_are_a_left_to_right_language_model() -> None:
    model, ids = toys.model(), [SOS, *TEXT, EOS]
    # clean tokens read to the left, then a mask reads them all
    chain = [cost_by_hand(model, [*ids[:at], MASK], range(1, at + 2), at, ids[at]) for at in range(1, 5)]
    assert exact_by_blocks(model, 1) == pytest.approx(sum(chain), rel=1e-6)
    causal = diffusion.causal(window_of([SOS, *TEXT, EOS]), vocabulary(), diffusion_of(1))
    assert costs_of(model, causal)[0, :4] == pytest.approx(chain, rel=1e-5)
    noised = make_examples(window_of([SOS, *TEXT, EOS], rows=20), vocabulary(), diffusion_of(1))
    for row, costs in enumerate(costs_of(model, noised)):
        for (_, label, _), cost in zip(predictions(noised, row), costs, strict=False):
            assert cost == pytest.approx(chain[TEXT.index(label)], rel=1e-5), "whatever else is masked"


def test_a_block_as_long_as_the_window_is_masked_diffusion() -> None:
    windows, model = random_windows(30, 18, short=True), toys.model()
    whole = make_examples(windows, vocabulary(), diffusion_of(18))
    plain = make_examples(windows, vocabulary(), diffusion_of())
    for row in range(30):
        length = int(windows.lengths[row])
        shifted = [(slot + length, label, weight) for slot, label, weight in predictions(plain, row)]
        assert predictions(whole, row) == shifted
    np.testing.assert_allclose(costs_of(model, whole), costs_of(model, plain), atol=1e-5)


def test_the_noise_of_a_weighted_loss_is_that_of_its_terms() -> None:
    """The standard error of the mean over the text's tokens, of which most are not masked in a row and a few weigh much."""
    examples = make_examples(random_windows(40, 18), vocabulary(), diffusion_of())
    with torch.no_grad():
        (loss,) = toys.model()(collate(examples)).values()
    terms = costs_of(toys.model(), examples) * examples.targets["diffusion"].weights
    assert [float(one) for one in loss.counted] == pytest.approx([terms.sum(), (terms**2).sum()], rel=1e-5)
