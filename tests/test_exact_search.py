"""Exact candidates, settled tokens and stopping points of a search."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unicloze.decoding import search as module
from unicloze.decoding.search import NEVER, Hypothesis, TokenConstraints, length_penalty
from unicloze.objectives.generation_format import GenerationFormat
from unicloze.settings import DecodingSettings


def candidates(beams: int = 2, longest: int = 3) -> module._Candidates:
    return module._Candidates.none(1, beams, longest, torch.device("cpu"))


def scores(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def hypothesis(tokens: list[int], log: float, score: float, *, ended: bool) -> Hypothesis:
    return Hypothesis(tokens=tokens, log_probability=log, score=score, ended=ended)


def test_no_candidates() -> None:
    none = candidates(beams=3, longest=4)
    assert none.scores.tolist() == none.logs.tolist() == [[NEVER] * 3]
    assert (none.scores.dtype, none.logs.dtype, none.lengths.dtype) == (torch.float64, torch.float64, torch.long)
    assert (none.ended.dtype, none.tokens.dtype, none.tokens.shape) == (torch.bool, torch.long, (1, 3, 4))
    assert none.scores is not none.logs
    assert none.hypotheses(0, 3) == []


def test_the_best_candidates_are_kept_and_ties_go_to_the_earlier() -> None:
    kept = candidates()
    kept.add(scores(-2.0, -1.0), scores(-4.0, -2.0), torch.tensor([[[7, 0], [8, 0]]]), ended=True)
    assert kept.hypotheses(0, 2) == [hypothesis([8], -2.0, -1.0, ended=True), hypothesis([7], -4.0, -2.0, ended=True)]
    assert kept.hypotheses(0, 1) == [hypothesis([8], -2.0, -1.0, ended=True)]
    kept.add(scores(-1.0, NEVER), scores(-3.0, NEVER), torch.tensor([[[9, 9, 9], [1, 1, 1]]]), ended=False)
    expected = [hypothesis([8], -2.0, -1.0, ended=True), hypothesis([9, 9, 9], -3.0, -1.0, ended=False)]
    assert kept.hypotheses(0, 2) == expected
    assert (kept.scores.dtype, kept.logs.dtype, kept.lengths.dtype) == (torch.float64, torch.float64, torch.long)
    assert (kept.ended.dtype, kept.tokens.dtype) == (torch.bool, torch.long)


def test_few_candidates_leave_places_empty() -> None:
    kept = candidates(beams=3)
    kept.add(scores(-1.0), scores(-2.0), torch.tensor([[[4, 0]]]), ended=True)
    assert kept.hypotheses(0, 3) == [hypothesis([4], -2.0, -1.0, ended=True)]


def settled(tokens: list[list[int]], totals: list[float], kept: module._Candidates, told: list[int]) -> module.Settled:
    return module._settled([5], torch.tensor([tokens]), torch.tensor([totals]), kept, told, 1)


def test_tokens_are_settled_that_all_open_hypotheses_share() -> None:
    told = [0]
    assert settled([[1, 2, 3], [1, 2, 4]], [-1.0, -2.0], candidates(), told) == [(5, [1, 2])]
    assert told == [2]
    assert settled([[1, 2, 3], [1, 2, 4]], [-1.0, -2.0], candidates(), told) == [] and told == [2]
    assert settled([[1, 2, 3], [1, 9, 4]], [-1.0, NEVER], candidates(), told) == [(5, [3])] and told == [3]
    assert settled([[1, 2, 3], [1, 9, 4]], [NEVER, NEVER], candidates(), told) == [] and told == [3]


def test_the_best_candidate_limits_what_is_settled() -> None:
    kept, told = candidates(), [0]
    kept.add(scores(-9.0), scores(-9.0), torch.tensor([[[1, 2, 0]]]), ended=True)
    assert settled([[1, 2, 3], [1, 2, 3]], [-1.0, -2.0], kept, told) == [(5, [1, 2])]
    kept.add(scores(-8.0), scores(-8.0), torch.tensor([[[1, 7, 0]]]), ended=True)
    told = [0]
    assert settled([[1, 2, 3], [1, 2, 3]], [-1.0, -2.0], kept, told) == [(5, [1])]
    assert settled([[1, 2, 3], [1, 2, 3]], [NEVER, NEVER], kept, told) == [(5, [7])] and told == [2]
    two = module._settled([5, 6], torch.tensor([[[1]], [[1]]]), torch.zeros(2, 1), kept, [0, 0], 1)
    several = module._settled([5], torch.tensor([[[1]]]), torch.zeros(1, 1), kept, [0], 2)
    assert two == several == []


def is_over(best: list[float], found: list[float], length: int, **settings: object) -> bool:
    kept = candidates(beams=2)
    kept.scores = scores(*found)
    return bool(module._is_over(kept, scores(*best), length, DecodingSettings(beams=2, **settings)))  # type: ignore[arg-type]


def test_a_search_is_over_when_nothing_better_can_come() -> None:
    early: dict[str, object] = {"early_stop": "first", "max_length": 9}
    assert not is_over([-1.0, -2.0], [-3.0, NEVER], 1, **early)
    assert is_over([-1.0, -2.0], [-3.0, -4.0], 1, **early)
    assert is_over([NEVER, NEVER], [-3.0, NEVER], 1, **early)
    late: dict[str, object] = {"length_penalty": 1.0, "max_length": 7}
    assert is_over([-4.0, NEVER], [-4.0 / length_penalty(7, 1.0), NEVER], 1, **late)
    assert not is_over([-4.0, NEVER], [-4.0 / length_penalty(7, 1.0) - 1e-6, NEVER], 1, **late)
    falling: dict[str, object] = {"length_penalty": -1.0, "max_length": 7}
    assert is_over([-4.0, NEVER], [-4.0 / length_penalty(3, -1.0), NEVER], 2, **falling)
    assert not is_over([-4.0, NEVER], [-4.0 / length_penalty(3, -1.0) - 1e-6, NEVER], 2, **falling)
    several: dict[str, object] = {"num_results": 2, "max_length": 7, "length_penalty": 0.0}
    assert not is_over([-4.0, NEVER], [-3.0, -5.0], 1, **several)
    assert is_over([-4.0, NEVER], [-3.0, -4.0], 1, **several)


def test_texts_of_chains() -> None:
    tokens, lengths = torch.tensor([[4, 5, 0, 9], [6, 7, 8, 9], [0, 7, 8, 9]]), torch.tensor([3, -1, 1])
    found = module._texts(tokens, scores(-3.0, -2.0, -1.0)[0], lengths, DecodingSettings(length_penalty=1.0))
    assert found == [
        hypothesis([4, 5], -3.0, -2.25, ended=True),
        hypothesis([6, 7, 8, 9], -2.0, -4 / 3, ended=False),
        hypothesis([], -1.0, -1.0, ended=True),
    ]


def test_constants() -> None:
    assert module.LEAVE_AT == 0.25
    assert length_penalty(1, 2.0) == 1.0 and length_penalty(7, 1.0) == 2.0 and length_penalty(7, 2.0) == 4.0


class Fixed:
    """Logits that depend neither on the source nor on the tokens before."""

    def __init__(self, rows: int, count: int, logits: list[float]) -> None:
        self.rows, self.count, self.logits = rows, count, torch.tensor(logits)

    def __len__(self) -> int:
        return self.rows

    def first(self) -> Tensor:
        return self.logits.expand(self.rows, -1)

    def step(self, tokens: Tensor, parents: Tensor | None) -> Tensor:
        return self.logits.expand(*tokens.shape, -1)

    def keep(self, rows: Tensor) -> None:
        self.rows = len(rows)


def test_a_greedy_text_is_cut_off_at_its_length() -> None:
    layout = GenerationFormat(predicts="next", start=(), stop=0)
    rules = TokenConstraints(DecodingSettings(max_length=3), layout)
    steps, told = module.search(Fixed(2, 1, [0.0, 1.0, 2.0]), rules, [0, 1]), []
    try:
        while True:
            told.append(next(steps))
    except StopIteration as end:
        found = end.value
    assert told == [[(0, [2]), (1, [2])]] * 3
    log = 3 * float(torch.log_softmax(torch.tensor([0.0, 1.0, 2.0]), 0)[2])
    assert [[(each.tokens, each.ended) for each in row] for row in found] == [[([2, 2, 2], False)]] * 2
    assert [row[0].log_probability for row in found] == pytest.approx([log, log])
