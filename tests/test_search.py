"""Allowed tokens, sampling and the end of a search, with logits from a table instead of a model."""

from __future__ import annotations

import dataclasses
import itertools
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import nlu_toys
from decoding_toys import finish
from unicloze.decoding import search as module
from unicloze.decoding.generate import check_settings
from unicloze.decoding.search import (
    NEVER,
    Hypothesis,
    TokenConstraints,
    draw,
    length_penalty,
    repeats,
    search,
)
from unicloze.errors import UsageError
from unicloze.finetuning.generate import _giving_way, ready_to_write
from unicloze.objectives.generation_format import GenerationFormat
from unicloze.settings import DecodingSettings

STOP = 0
LAYOUT = GenerationFormat(predicts="next", start=(), stop=STOP)


class Table:
    """Logits that depend on the last token alone; records its steps and which sources left."""

    def __init__(self, rows: int, count: int, logits: Tensor) -> None:
        self.rows, self.count, self.logits, self.steps, self.sizes = rows, count, logits, 0, [rows]

    def __len__(self) -> int:
        return self.rows

    def first(self) -> Tensor:
        return self.logits[-1].expand(self.rows, -1)

    def step(self, tokens: Tensor, parents: Tensor | None) -> Tensor:
        self.steps += 1
        assert tokens.shape == (self.rows, self.count)
        return self.logits[tokens]

    def keep(self, rows: Tensor) -> None:
        self.rows = len(rows)
        self.sizes.append(self.rows)


def run(table: Table, layout: GenerationFormat = LAYOUT, **settings: Any) -> list[list[Hypothesis]]:
    rules = TokenConstraints(DecodingSettings(**settings), layout)
    return finish(search(table, rules, list(range(len(table)))))


def table(vocabulary: int = 6, seed: int = 0) -> Tensor:
    return torch.randn(vocabulary, vocabulary, generator=torch.Generator().manual_seed(seed)) * 2


def test_draws_have_the_probabilities_of_the_softmax() -> None:
    logits = table()
    drawn = run(Table(1, 20_000, logits), sample=True, num_results=20_000, max_length=2, min_length=1, temperature=1.5)
    first = torch.tensor([hypothesis.tokens[0] for hypothesis in drawn[0]])
    allowed = logits[-1].clone()
    allowed[STOP] = -torch.inf
    expected = torch.softmax(torch.log_softmax(allowed, 0) / 1.5, 0).double()
    counts = torch.bincount(first, minlength=6).double()
    chi_squared = ((counts - 20_000 * expected)[1:] ** 2 / (20_000 * expected[1:])).sum()
    assert chi_squared < 18.5  # 4 degrees of freedom: 1 in 1,000
    second = [h.tokens[1] if len(h.tokens) > 1 else STOP for h in drawn[0] if h.tokens[0] == 3]
    shares = torch.bincount(torch.tensor(second), minlength=6) / len(second)
    torch.testing.assert_close(shares, torch.softmax(logits[3] / 1.5, 0), atol=0.03, rtol=0)


def test_the_log_probability_is_the_models_own() -> None:
    logits = table()
    (row,) = run(
        Table(1, 3, logits), sample=True, num_results=3, max_length=4, temperature=0.5, top_k=3, length_penalty=1.0
    )
    logs = torch.log_softmax(logits, 1)
    for hypothesis in row:
        path = [-1, *hypothesis.tokens, *([STOP] if hypothesis.ended else [])]
        expected = sum(float(logs[a, b]) for a, b in pairwise(path))
        assert hypothesis.log_probability == pytest.approx(expected, abs=1e-5)
        assert hypothesis.score == pytest.approx(expected / ((5 + len(path) - 1) / 6), abs=1e-5)


def test_draws_are_named_by_seed_source_and_step() -> None:
    settings: dict[str, Any] = dict(sample=True, num_results=2, max_length=6)
    both, again = run(Table(2, 2, table()), **settings), run(Table(2, 2, table()), **settings)
    assert both == again
    assert both != run(Table(2, 2, table()), seed=1, **settings)
    assert both[0] != both[1]
    rules = TokenConstraints(DecodingSettings(**settings), LAYOUT)
    assert finish(search(Table(1, 2, table()), rules, [1])) == both[1:]


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        (dict(top_k=2), {0, 2}),
        (dict(top_k=9), {0, 1, 2, 3}),
        (dict(top_p=0.7), {0, 2}),  # 0.4 + 0.3 are exactly enough
        (dict(top_p=0.71), {0, 1, 2}),
        (dict(top_p=0.01), {2}),
        (dict(top_k=3, top_p=0.75), {0, 2}),  # of the three, 0.4 and 0.3 are 0.78
    ],
)
def test_a_token_is_drawn_from_the_likely_ones(settings: dict[str, Any], left: set[int]) -> None:
    shares = torch.tensor([0.3, 0.2, 0.4, 0.1], dtype=torch.float64)
    uniform = torch.linspace(0, 1, 2001, dtype=torch.float64)[:-1]
    drawn = draw(shares.log().expand(2000, -1), DecodingSettings(**settings), uniform)
    counts = torch.bincount(drawn, minlength=4) / 2000
    assert set(counts.nonzero().flatten().tolist()) == left
    kept = torch.where(torch.tensor([token in left for token in range(4)]), shares, 0.0)
    torch.testing.assert_close(counts.double(), kept / kept.sum(), atol=2e-3, rtol=0)


@pytest.mark.parametrize("settings", [dict(), dict(top_k=2), dict(top_p=0.9), dict(top_k=3, top_p=0.5)])
def test_the_lowest_temperatures_draw_the_likeliest_token(settings: dict[str, Any]) -> None:
    """Divided by 1e-320, all logarithms except the largest overflow; ties are drawn evenly."""
    uniform = torch.tensor([0.0, 0.3, 0.7, 0.999], dtype=torch.float64)
    for temperature in (1e-3, 1e-320, 5e-324):
        lowest = DecodingSettings(temperature=temperature, **settings)
        logs = torch.tensor([[0.2, 0.1, 0.6, 0.1]]).log().expand(4, -1)
        assert draw(logs, lowest, uniform).tolist() == [2] * 4
        if not settings:
            logs = torch.tensor([[0.4, 0.1, 0.4, 0.1]]).log().expand(4, -1)
            assert draw(logs, lowest, uniform).tolist() == [0, 0, 2, 2]


def by_hand(text: list[int], size: int, free: set[int]) -> set[int]:
    grams = [tuple(text[i : i + size]) for i in range(len(text) - size + 1)]
    return {
        token
        for token in range(5)
        if (gram := tuple([*text, token][-size:])) in grams and len(text) >= size - 1 and not free & set(gram)
    }


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("free", [(), (2,), (0, 3)])
def test_repeated_sequences(size: int, free: tuple[int, ...]) -> None:
    texts = np.random.default_rng(size).integers(0, 5, (40, 9))
    rows, tokens = repeats(torch.from_numpy(texts), size, free)
    found: dict[int, set[int]] = {row: set() for row in range(40)}
    for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
        found[row].add(token)
    assert found == {row: by_hand(text.tolist(), size, set(free)) for row, text in enumerate(texts)}
    assert any(found.values())


def test_where_nothing_may_follow_the_text_ends() -> None:
    (row,) = run(Table(1, 1, table(4)), max_length=9, min_length=9, no_repeat_ngram=1)
    assert sorted(row[0].tokens) == [1, 2, 3]
    assert row[0].ended
    assert math.isfinite(row[0].score)


def test_lengths() -> None:
    for seed in range(5):
        logits = table(seed=seed)
        logits[:, STOP] += 3
        for settings in (dict(), dict(beams=3, num_results=3), dict(sample=True, num_results=3)):
            for row in run(Table(2, 3 if settings else 1, logits), min_length=2, max_length=4, **settings):
                assert all(2 <= len(h.tokens) <= 4 and STOP not in h.tokens for h in row)
                assert all(h.ended or len(h.tokens) == 4 for h in row)


@pytest.mark.parametrize("alpha", [-0.5, 0.0, 1.0])
def test_stopping_early_changes_no_result(alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = dict(beams=3, num_results=2, max_length=12, length_penalty=alpha)
    saved = 0
    for seed in range(6):
        early, whole = Table(3, 3, table(seed=seed)), Table(3, 3, table(seed=seed))
        found = run(early, **settings)
        with monkeypatch.context() as patch:
            patch.setattr(module, "_is_over", lambda c, totals, *_: torch.zeros(len(totals), dtype=torch.bool))
            assert run(whole, **settings) == found
        assert early.steps <= whole.steps == 11
        saved += whole.steps - early.steps
    assert saved


class Tables(Table):
    """A separate table for each source and step. *Shape:* (rows, steps, vocabulary, vocabulary)"""

    def first(self) -> Tensor:
        return self.logits[:, 0, -1]

    def step(self, tokens: Tensor, parents: Tensor | None) -> Tensor:
        super().step(tokens, parents)
        return self.logits[torch.arange(self.rows)[:, None], self.steps, tokens]

    def keep(self, rows: Tensor) -> None:
        super().keep(rows)
        self.logits = self.logits[rows]


def first_to_end(logits: Tensor, beams: int, longest: int) -> list[tuple[list[int], bool]]:
    """Beam search in plain Python that stops once as many hypotheses have ended as there are beams."""
    logs = torch.log_softmax(logits, 2).tolist()
    going: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    for step in range(longest):
        more = [
            (total + log, [*tokens, token])
            for total, tokens in going
            for token, log in enumerate(logs[step][tokens[-1] if tokens else -1])
        ]
        more.sort(key=lambda one: -one[0])
        ended += [(total, tokens) for total, tokens in more[:beams] if tokens[-1] == STOP]
        going = [(total, tokens) for total, tokens in more[: 2 * beams] if tokens[-1] != STOP][:beams]
        if len(ended) >= beams:
            break
    found = [(*one, True) for one in ended]
    if len(ended) < beams:
        found += [(*one, False) for one in going]
    found.sort(key=lambda one: -one[0])
    return [(tokens[:-1] if is_ended else tokens, is_ended) for _, tokens, is_ended in found[:beams]]


def test_a_source_whose_search_has_ended_gains_nothing() -> None:
    """Neither while it waits for others in its batch, nor at the maximum length."""
    logits = torch.randn(24, 8, 6, 6, generator=torch.Generator().manual_seed(0)) * 2
    logits[..., STOP] += torch.linspace(-1, 2, 24)[:, None, None]  # they end at all lengths
    for longest in (3, 4, 8):
        batch = Tables(24, 3, logits)
        found = run(batch, beams=3, num_results=3, max_length=longest, early_stop="first")
        expected = [first_to_end(one, 3, longest) for one in logits]
        assert [[(h.tokens, h.ended) for h in row] for row in found] == expected
        assert {True, False} == {is_ended for row in expected for _, is_ended in row}


def test_finished_sources_leave_the_batch() -> None:
    """The first sampled tokens differ, and only some are immediately followed by [EOS]."""
    logits = table()
    logits[:, STOP] = -9
    logits[2, STOP] = 99
    drawn = Table(40, 1, logits)
    found = run(drawn, sample=True, max_length=12)
    assert drawn.sizes[-1] < drawn.sizes[0]
    assert sum(row[0].ended for row in found) > 30
    assert all(row[0].tokens.index(2) == len(row[0].tokens) - 1 for row in found if row[0].ended)


REFUSED: list[tuple[dict[str, Any], str]] = [
    (dict(beams=0), "beams is 0"), (dict(min_length=9, max_length=8), "above max_length"),
    (dict(temperature=0.0, sample=True), "temperature is 0.0: give more than 0"),
    (dict(temperature=float("nan"), sample=True), "temperature is nan: give more"),
    (dict(temperature=0.0), "temperature is 0.0, but nothing is sampled: .* or leave out temperature"),
    (dict(temperature=0.5), "temperature is 0.5, but nothing is sampled: set sample to true"),
    (dict(top_k=3), "top_k is 3, but nothing is sampled"),
    (dict(top_p=0.9, beams=2), "top_p is 0.9, but nothing is sampled"),
    (dict(seed=3, beams=2), "seed is 3, but nothing is sampled"),
    (dict(early_stop="first"), "early_stop is first, but beams is 1: give 2 or more beams"),
    (dict(early_stop="first", sample=True), "early_stop is first, but beams is 1"),
    (dict(may_repeat=["x"]), "may_repeat is .'x'., but no_repeat_ngram is 0: set it"),
    (dict(length_penalty=float("inf")), "length_penalty is inf"),
    (dict(length_penalty=1e6), "length_penalty is 1000000.0: give a number from -10 to 10"), (dict(top_p=1.5), "top_p"),
    (dict(sample=True, beams=2), "set only one of them"), (dict(num_results=2), "as many beams"),
    (dict(parallel=2, beams=2), "in any order"), (dict(parallel=2), "pseudo masks"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_settings_that_contradict_each_other(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_settings(DecodingSettings(**settings), LAYOUT)


CHOICES: dict[str, Any] = {
    "beams": 3, "sample": True, "temperature": 2.0, "top_k": 4, "top_p": 0.5, "min_length": 40, "max_length": 20,
    "no_repeat_ngram": 3, "may_repeat": ["a"], "early_stop": "first", "num_results": 2, "parallel": 2, "seed": 3,
}  # fmt: skip


def test_half_the_positions_give_way_to_a_given_minimum() -> None:
    model = nlu_toys.start("gpt-2")
    assert model.model.max_positions == 32
    for given, longest in ((None, 16), (9, 16), (20, 20)):
        decoding = ready_to_write(model, given and {"decoding.min_length": given}).recipe.decoding
        assert (decoding.min_length, decoding.max_length) == (given or 0, longest)


def test_settings_of_a_recipe_give_way_to_given_ones() -> None:
    """All that is valid by itself, in the recipe and given, is valid together, and what is given is kept."""
    pseudo, plain = dataclasses.replace(LAYOUT, predicts="pseudo"), DecodingSettings()

    def is_valid(settings: DecodingSettings) -> bool:
        try:
            check_settings(settings, pseudo)
        except UsageError:
            return False
        return True

    some = [dict(pairs) for count in (1, 2, 3) for pairs in itertools.combinations(CHOICES.items(), count)]
    some += [{"sample": False}, {"beams": 1}, {"no_repeat_ngram": 0}, {"early_stop": "exact"}, {"num_results": 1}]
    valid = [each for each in some if is_valid(dataclasses.replace(plain, **each))]
    for recipe, given in itertools.product(valid, valid):
        merged = _giving_way(dataclasses.replace(plain, **{**recipe, **given}), [f"decoding.{name}" for name in given])
        assert is_valid(merged), (recipe, given, merged)
        assert {name: getattr(merged, name) for name in given} == given


# Exact candidates, settled tokens and stopping points of a search


def candidates(beams: int = 2, longest: int = 3) -> module._Candidates:
    return module._Candidates.none(1, beams, longest, torch.device("cpu"))


def scores(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def hypothesis(tokens: list[int], log: float, score: float, *, ended: bool) -> Hypothesis:
    return Hypothesis(tokens=tokens, log_probability=log, score=score, ended=ended)


def test_the_best_candidates_are_kept_and_ties_go_to_the_earlier() -> None:
    kept = candidates()
    kept.add(scores(-2.0, -1.0), scores(-4.0, -2.0), torch.tensor([[[7, 0], [8, 0]]]), ended=True)
    assert kept.hypotheses(0, 2) == [hypothesis([8], -2.0, -1.0, ended=True), hypothesis([7], -4.0, -2.0, ended=True)]
    assert kept.hypotheses(0, 1) == [hypothesis([8], -2.0, -1.0, ended=True)]
    kept.add(scores(-1.0, NEVER), scores(-3.0, NEVER), torch.tensor([[[9, 9, 9], [1, 1, 1]]]), ended=False)
    expected = [hypothesis([8], -2.0, -1.0, ended=True), hypothesis([9, 9, 9], -3.0, -1.0, ended=False)]
    assert kept.hypotheses(0, 2) == expected


def settled(tokens: list[list[int]], totals: list[float], kept: module._Candidates) -> list[int]:
    return module._settled(torch.tensor([tokens]), torch.tensor([totals]), kept, 1)


def test_tokens_are_settled_that_all_open_hypotheses_share() -> None:
    assert settled([[1, 2, 3], [1, 2, 4]], [-1.0, -2.0], candidates()) == [1, 2]
    assert settled([[1, 2, 3], [1, 9, 4]], [-1.0, NEVER], candidates()) == [1, 2, 3]
    assert settled([[1, 2, 3], [1, 9, 4]], [NEVER, NEVER], candidates()) == []


LATE, FALLING = {"length_penalty": 1.0, "max_length": 7}, {"length_penalty": -1.0, "max_length": 7}
SEVERAL = {"num_results": 2, "max_length": 7, "length_penalty": 0.0}


@pytest.mark.parametrize(("best", "found", "length", "settings", "over"), [
    ([-1.0, -2.0], [-3.0, NEVER], 1, {"early_stop": "first", "max_length": 9}, False),
    ([-1.0, -2.0], [-3.0, -4.0], 1, {"early_stop": "first", "max_length": 9}, True),
    ([NEVER, NEVER], [-3.0, NEVER], 1, {"early_stop": "first", "max_length": 9}, True),
    ([-4.0, NEVER], [-4.0 / length_penalty(7, 1.0), NEVER], 1, LATE, True),
    ([-4.0, NEVER], [-4.0 / length_penalty(7, 1.0) - 1e-6, NEVER], 1, LATE, False),
    ([-4.0, NEVER], [-4.0 / length_penalty(3, -1.0), NEVER], 2, FALLING, True),
    ([-4.0, NEVER], [-4.0 / length_penalty(3, -1.0) - 1e-6, NEVER], 2, FALLING, False),
    ([-4.0, NEVER], [-3.0, -5.0], 1, SEVERAL, False),
    ([-4.0, NEVER], [-3.0, -4.0], 1, SEVERAL, True),
])  # fmt: skip
def test_a_search_is_over_when_nothing_better_can_come(
    best: list[float], found: list[float], length: int, settings: dict[str, Any], over: bool
) -> None:
    kept = candidates(beams=2)
    kept.scores = scores(*found)
    assert bool(module._is_over(kept, scores(*best), length, DecodingSettings(beams=2, **settings))) is over


def test_the_best_candidate_limits_what_is_settled() -> None:
    kept = candidates()
    kept.add(scores(-9.0), scores(-9.0), torch.tensor([[[1, 2, 0]]]), ended=True)
    assert settled([[1, 2, 3], [1, 2, 3]], [-1.0, -2.0], kept) == [1, 2]
    kept.add(scores(-8.0), scores(-8.0), torch.tensor([[[1, 7, 0]]]), ended=True)
    assert settled([[1, 2, 3], [1, 2, 3]], [-1.0, -2.0], kept) == [1]
    assert settled([[1, 2, 3], [1, 2, 3]], [NEVER, NEVER], kept) == [1, 7]
    two = module._settled(torch.tensor([[[1]], [[1]]]), torch.zeros(2, 1), kept, 1)
    several = module._settled(torch.tensor([[[1]]]), torch.zeros(1, 1), kept, 2)
    assert two == several == []
