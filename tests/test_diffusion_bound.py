"""Diffusion losses bound the likelihood: checked by enumerating all orders and masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, permutations

import numpy as np
import pytest
import torch

import toys
from test_diffusion import EPS, costs_of, model_logits, objective, plain_row, predictions, window_of
from toys import EOS, MASK, SOS, random_windows, vocabulary
from unicloze.model.model import UnifiedModel
from unicloze.objectives import diffusion, make_examples


def masked_cost(model: UnifiedModel, ids: Sequence[int], masked: Sequence[int], predicted: int) -> float:
    """-log p of one token of a partly masked sequence, in a hand-written row."""
    shown = [MASK if place in masked else token for place, token in enumerate(ids)]
    slots = len(ids)
    row = plain_row(shown, range(slots), [0] * slots, [slots] * slots, predicted, ids[predicted])
    return float(-torch.log_softmax(model_logits(model, row).double(), 0)[ids[predicted]])


def moment(masked: int, tokens: int) -> float:
    """Integral of P(exactly these are masked | t) / t over the level, which is at least EPS."""
    t = np.polynomial.Polynomial([0, 1])
    integral = (t ** (masked - 1) * (1 - t) ** (tokens - masked)).integ()
    return float(integral(1) - integral(EPS)) + EPS**masked * (1 - EPS) ** (tokens - masked)


TEXT = [11, 23, 9, 31]


def test_the_moments_are_those_of_random_orders() -> None:
    """Of n! orders (k-1)! (n-k)! fill one given token of k open ones first."""
    for masked in (1, 2, 3, 4):
        orders = math.factorial(masked - 1) * math.factorial(4 - masked) / math.factorial(4)
        assert moment(masked, 4) == pytest.approx(orders, abs=2 * EPS**masked if masked > 1 else 4 * EPS)
    assert moment(1, 1) == pytest.approx(1, abs=1e-12), "exact in blocks of one token"


def any_order(model: UnifiedModel, text: Sequence[int]) -> list[float]:
    """-log p of a text in each order its tokens can be filled in, by the chain rule."""
    ids = [SOS, *text, EOS]
    places = range(1, len(text) + 1)
    cost = {
        (frozenset(open_), place): masked_cost(model, ids, open_, place)
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
    windows = window_of(TEXT)
    exact = exact_to_zero = 0.0
    for size in (1, 2, 3, 4):
        for open_ in combinations(range(1, 5), size):
            steps = np.full((1, 6), -1, dtype=np.int32)
            steps[0, list(open_)] = 0
            cost = costs_of(model, diffusion.cloze(windows, steps, vocabulary(), objective())).sum()
            exact += moment(size, 4) * cost
            exact_to_zero += math.factorial(size - 1) * math.factorial(4 - size) / math.factorial(4) * cost
    assert exact_to_zero == pytest.approx(np.mean(by_order), rel=1e-5), "two independent computations"
    assert exact == pytest.approx(exact_to_zero, rel=4 * EPS)

    likelihood = np.mean(np.exp(-np.array(by_order)))
    assert -math.log(likelihood) < exact, "the sampler fills the tokens in a random order"

    examples = make_examples(window_of(TEXT, rows=rows), vocabulary(), objective())
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
                    row = plain_row(ids[:start] + shown, range(len(ends)), [0] * len(ends), ends, place, ids[place])
                    log = torch.log_softmax(model_logits(model, row).double(), 0)[ids[place]]
                    total -= moment(count, len(text)) * float(log)
    return total


@pytest.mark.whole
@pytest.mark.parametrize("size", [1, 2, 4, 6])
def test_the_loss_of_blocks_is_the_sum_over_their_masks(size: int) -> None:
    model, rows = toys.model(), 8000
    exact = exact_by_blocks(model, size)
    examples = make_examples(window_of(TEXT, rows=rows), vocabulary(), objective(size))
    losses = (costs_of(model, examples) * examples.targets["diffusion"].weights).sum(axis=1)
    assert abs(losses.mean() - exact) < 4 * losses.std() / math.sqrt(rows)
    if size == 6:
        assert exact == pytest.approx(np.mean(any_order(model, TEXT)), rel=4 * EPS)


def test_blocks_of_one_token_are_a_left_to_right_language_model() -> None:
    model, ids = toys.model(), [SOS, *TEXT, EOS]
    chain = []
    for place in range(1, 5):  # clean tokens read to the left, then a mask reads them all
        row = plain_row(
            [*ids[:place], MASK], range(place + 1), [0] * (place + 1), range(1, place + 2), place, ids[place]
        )
        chain.append(float(-torch.log_softmax(model_logits(model, row).double(), 0)[ids[place]]))
    assert exact_by_blocks(model, 1) == pytest.approx(sum(chain), rel=1e-6)
    causal = diffusion.causal(window_of(TEXT), vocabulary(), objective(1))
    assert costs_of(model, causal)[0, :4] == pytest.approx(chain, rel=1e-5)
    noised = make_examples(window_of(TEXT, rows=20), vocabulary(), objective(1))
    for row, costs in enumerate(costs_of(model, noised)):
        for (_, label, _), cost in zip(predictions(noised, row), costs, strict=False):
            assert cost == pytest.approx(chain[TEXT.index(label)], rel=1e-5), "whatever else is masked"


def test_a_block_as_long_as_the_window_is_masked_diffusion() -> None:
    windows, model = random_windows(30, 18, short=True), toys.model()
    whole = make_examples(windows, vocabulary(), objective(18))
    plain = make_examples(windows, vocabulary(), objective())
    for row in range(30):
        length = int(windows.lengths[row])
        shifted = [(slot + length, label, weight) for slot, label, weight in predictions(plain, row)]
        assert predictions(whole, row) == shifted
    np.testing.assert_allclose(costs_of(model, whole), costs_of(model, plain), atol=1e-5)


def test_left_to_right_within_blocks_equals_a_row_for_each_token() -> None:
    model, windows = toys.model(), window_of(TEXT)
    found = costs_of(model, diffusion.causal(windows, vocabulary(), objective(4)))[0]
    ids = [SOS, *TEXT, EOS]
    for place in range(1, 5):
        start = place // 4 * 4
        end = min(start + 4, 6)
        shown = [MASK if place <= other <= 4 else ids[other] for other in range(start, end)]
        ends = [4] * start + [end] * (end - start)
        row = plain_row(ids[:start] + shown, range(end), [0] * end, ends, place, ids[place])
        cost = float(-torch.log_softmax(model_logits(model, row).double(), 0)[ids[place]])
        assert found[place - 1] == pytest.approx(cost, rel=1e-5)
