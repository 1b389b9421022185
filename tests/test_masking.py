"""The masking schemes against their definitions: exact properties of every row, and distributions over many."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from objective_toys import equally_likely, repeated
from toys import EOS, MASK, PSEUDO, SOS, random_windows, vocabulary
from unicloze import keyed
from unicloze.example import Kind
from unicloze.objectives import masking, settings_of
from unicloze.objectives.unilmv2 import UniLMv2Settings, draw_steps, unilmv2
from unicloze.text.vocabulary import Boundaries
from unicloze.text.windows import Windows


def blockwise(windows: Windows, rate: float = 0.15, **settings: Any) -> masking.Steps:
    return draw_steps(windows, settings_of(**settings), np.full(len(windows), rate), vocabulary())


def sizes_of(steps: npt.NDArray[np.int32]) -> list[int]:
    return list(Counter(steps[steps >= 0].tolist()).values())


def test_no_block_where_only_single_tokens_are_drawn() -> None:
    assert set(sizes_of(blockwise(random_windows(1, 100), max_span=1)[0])) == {1}
    assert set(sizes_of(blockwise(random_windows(1, 100), block_probability=0.0)[0])) == {1}


def test_shuffled_tokens_keep_the_set_and_draw_a_uniform_order() -> None:
    windows = random_windows(20_000, 20)
    steps = blockwise(windows)
    shuffled = masking.shuffle_tokens(steps, windows.keys)
    assert np.array_equal(steps >= 0, shuffled >= 0)
    assert all(set(sizes_of(row)) == {1} for row in shuffled[:500])
    three = shuffled[(shuffled >= 0).sum(axis=1) == 3]
    equally_likely((tuple(row[row >= 0].tolist()) for row in three), 6)


def test_one_corruption_draw_serves_context_and_pseudo_mask() -> None:
    windows = random_windows(500, 64, vocab=1000)
    examples = unilmv2(windows, vocabulary(1000), settings_of())
    for row in range(len(examples)):
        kinds, positions, ids = examples.kinds[row], examples.position_ids[row], examples.input_ids[row]
        shown = {int(p): int(i) for p, i in zip(positions[kinds == Kind.MASK], ids[kinds == Kind.MASK], strict=True)}
        for position, token in zip(positions[kinds == Kind.PSEUDO], ids[kinds == Kind.PSEUDO], strict=True):
            assert int(token) == (PSEUDO if shown[int(position)] == MASK else shown[int(position)])


# Units: words and phrases


def units_by_hand(tokens: list[int], maskable: list[bool]) -> list[list[int]]:
    """Positions of each unit of a row: every third id continues a word, and words are cut after 16 tokens."""
    units: list[list[int]] = []
    for position, token in enumerate(tokens):
        follows = position > 0 and maskable[position] and maskable[position - 1] and token % 3 == 0
        if follows and len(units[-1]) < masking.LONGEST_UNIT:
            units[-1].append(position)
        else:
            units.append([position])
    return units


def spans_by_hand(one: Windows, unit: str, proposals: Iterator[tuple[int, int]], rate: float) -> list[int]:
    """UniLMv2's Algorithm 1, with units for tokens: the step of each position of a row. Proposals: index and length."""
    maskable = one.maskable[0].tolist()
    units = units_by_hand(one.token_ids[0].tolist(), maskable)
    units = units if unit == "word" else [[place] for place in range(len(maskable))]
    number = {unit[0]: i for i, unit in enumerate(units)}
    steps, step = [-1] * len(maskable), 0
    while sum(s >= 0 for s in steps) < rate * sum(maskable):
        index, size = next(proposals)
        if index not in number or number[index] + size > len(units):
            continue
        covered = [p for unit in units[number[index] : number[index] + size] for p in unit]
        if all(maskable[p] and steps[p] < 0 for p in covered):
            for p in covered:
                steps[p] = step
            step += 1
    return steps


LAWS: dict[str, list[float]] = {
    "blockwise": [0.6, *[0.4 / 5] * 5],
    "geometric": [0.8**i * 0.2 / (1 - 0.8**10) for i in range(10)],
    "ngram": [6 / 11, 3 / 11, 2 / 11],
}


def masked_by(masking_name: Any, **others: Any) -> UniLMv2Settings:
    return UniLMv2Settings(masking=masking_name, max_span=len(LAWS.get(masking_name, [0] * 6)), **others)


def test_span_lengths_follow_their_laws() -> None:
    draws = keyed.uniform(keyed.bits(keyed.key(5), 0, np.arange(400_000)))
    for name, law in LAWS.items():
        lengths = masking.span_lengths(masked_by(name))(draws)
        share = np.bincount(lengths, minlength=len(law) + 1)[1:] / len(draws)
        assert np.abs(share - law).max() < 4.5 * math.sqrt(0.25 / len(draws))


@pytest.mark.parametrize("name", ["token", "blockwise", "geometric", "ngram"])
@pytest.mark.parametrize("rate", [0.15, 0.5, 1.0])
@pytest.mark.parametrize("unit", ["token", "word"])
def test_units_are_masked_whole_and_rows_stop_at_the_rate(name: str, rate: float, unit: str) -> None:
    windows = random_windows(200, 48, short=True, seed=4)
    settings = masked_by(name, mask_unit=unit)
    steps = draw_steps(windows, settings, np.full(200, rate), vocabulary())
    span = 1 if name == "token" else settings.max_span
    for row, ids, text in zip(steps, windows.token_ids, windows.maskable, strict=True):
        assert not ((row >= 0) & ~text).any(), "special tokens and padding are never masked"
        units = units_by_hand(ids.tolist(), text.tolist()) if unit == "word" else [[place] for place in range(48)]
        assert all(len({row[p] for p in unit}) == 1 for unit in units), "a word is masked as a whole, in one step"
        masked, count = int((row >= 0).sum()), int(text.sum())
        assert masked >= min(count, max(1, round(rate * count))) if name == "token" else masked >= rate * count - 1e-9
        assert masked <= masking.most_masked(count, rate, span, max(map(len, units)))
        assert masked - (row == row.max()).sum() < max(1, round(rate * count) if name == "token" else rate * count)
        for step in range(int(row.max()) + 1):
            places = np.flatnonzero(row == step)
            assert len(places) and (np.diff(places) == 1).all(), "a span is contiguous, so it does not cross [EOS]"
            assert unit == "word" or len(places) <= span
    each = draw_steps(windows, dataclasses.replace(settings, factorization="token"), np.full(200, rate), vocabulary())
    assert np.array_equal(each >= 0, steps >= 0)
    assert all(np.array_equal(np.sort(row[row >= 0]), np.arange((row >= 0).sum())) for row in each), (
        "one token per step"
    )
    assert (name, unit) != ("token", "token") or np.array_equal(each, steps), "single tokens have an order already"


@pytest.mark.parametrize("name", ["token", "blockwise", "geometric", "ngram"])
def test_units_of_one_token_change_no_draw(name: str) -> None:
    windows = random_windows(300, 48, short=True)
    apart = dataclasses.replace(vocabulary(), boundaries=Boundaries.marked(np.zeros(50, dtype=bool)))
    by_token, by_word = (
        draw_steps(windows, masked_by(name, mask_unit=unit), np.full(300, 0.3), apart) for unit in ("token", "word")
    )
    assert np.array_equal(by_token, by_word)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("unit", ["token", "word"])
def test_spans_drawn_together_are_those_drawn_one_by_one(unit: str, name: str) -> None:
    """Each row has a rate of its own."""
    windows, settings = random_windows(60, 48, seed=9, short=True), masked_by(name, mask_unit=unit)
    rates = np.linspace(0.05, 0.95, 60)
    found = draw_steps(windows, settings, rates, vocabulary())
    law = masking.span_lengths(settings)

    def proposals(row: int) -> Iterator[tuple[int, int]]:
        for number in itertools.count():
            stream, counter = keyed.Stream.PROPOSED_BLOCKS + number // 32, np.array([number % 32])
            bits = keyed.bits(windows.keys[row : row + 1], stream, counter)
            length = law((bits & np.uint64(2**32 - 1)).astype(np.float64) / 2**32)
            yield int(keyed.below(bits, int(windows.lengths[row]))[0]), int(length[0])

    for row in range(60):
        assert found[row].tolist() == spans_by_hand(windows[row : row + 1], unit, proposals(row), float(rates[row]))


def test_single_words_are_drawn_evenly() -> None:
    one = random_windows(1, 30, seed=6)
    rows = 20_000
    steps = draw_steps(repeated(one, rows), masked_by("token", mask_unit="word"), np.full(rows, 0.2), vocabulary())
    units = [u for u in units_by_hand(one.token_ids[0].tolist(), one.maskable[0].tolist()) if one.maskable[0, u[0]]]
    first = [float((steps[:, unit[0]] == 0).mean()) for unit in units]
    assert max(abs(share - 1 / len(units)) for share in first) < 4.5 * math.sqrt(1 / len(units) / rows)


def test_long_units_fall_into_several() -> None:
    tokens = np.array([[SOS, 10, *[12] * 39, EOS, 9, 11]], dtype=np.int32)
    maskable = tokens > 6
    units = masking.Units.of(tokens % 3 == 0, maskable)
    assert units.sizes[0, :7].tolist() == [1, 16, 16, 8, 1, 1, 1]
    assert units.maskable[0, :7].tolist() == [False, True, True, True, False, True, True]
    assert units.begins.sum() == 7
    assert not units.maskable[0, 7:].any()


def test_a_phrase_is_its_words_whole() -> None:
    tokens = np.array([[SOS, 10, 12, 13, 16, 19, EOS, 22, 25, EOS]], dtype=np.int32)
    joined = np.zeros(tokens.shape, dtype=bool)
    joined[0, [3, 7]] = True  # 13 belongs to 10 12; a word does not continue across an [EOS]
    windows = dataclasses.replace(random_windows(1, 10), token_ids=tokens, maskable=tokens > 6, joined=joined)
    found = masking.units_of(windows, vocabulary(), settings_of(mask_unit="phrase"))
    assert found is not None
    assert found.of_position.tolist() == [[0, 1, 1, 1, 2, 3, 4, 5, 6, 7]]
    words = masking.units_of(windows, vocabulary(), settings_of(mask_unit="word"))
    assert words is not None
    assert words.of_position.tolist() == [[0, 1, 1, 2, 3, 4, 5, 6, 7, 8]]


@pytest.mark.parametrize("unit", ["token", "span"])
def test_a_unit_is_corrupted_as_a_whole(unit: Any) -> None:
    """Shown as masks (kind 0), random tokens (1) or as it is (2); a random token is itself once in a thousand."""
    windows = random_windows(3000, 64, vocab=1000)
    settings = settings_of(targets=["ae"], masking="geometric", max_span=10, corruption_unit=unit)
    examples = unilmv2(windows, vocabulary(1000), settings)
    masked = examples.steps >= 0
    own = np.arange(masked.size).reshape(masked.shape)
    units = own if unit == "token" else np.arange(3000)[:, None] * 64 + examples.steps
    shown = np.where(examples.input_ids == MASK, 0, np.where(examples.input_ids == windows.token_ids, 2, 1))
    kinds: dict[int, list[int]] = {}
    for number, kind in zip(units[masked].tolist(), shown[masked].tolist(), strict=True):
        kinds.setdefault(number, []).append(kind)
    assert sum(len(set(kind)) > 1 for kind in kinds.values()) < 0.005 * len(kinds)
    share = Counter(kind[0] for kind in kinds.values())
    for kind, expected in ((0, 0.8), (1, 0.1), (2, 0.1)):
        error = 4.5 * math.sqrt(expected * (1 - expected) / len(kinds)) + 1e-3
        assert abs(share[kind] / len(kinds) - expected) < error
    random_ones = [number for number, kind in kinds.items() if set(kind) == {1} and len(kind) > 2][:40]
    assert bool(random_ones) == (unit == "span")
    for number in random_ones:
        assert len(set(examples.input_ids[(units == number) & masked].tolist())) > 1, "they differ within a span"
