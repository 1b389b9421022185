"""Keyed dropout: its rate, its independence, its gradient, and the same bits with and without a compiler."""

from __future__ import annotations

import math

import pytest
import torch

from unicloze.model import dropout
from unicloze.model.dropout import DropoutKey


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_the_same_without_a_compiler(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    if dropout._compiled() is None:
        pytest.skip("no C compiler here")
    x = torch.randn(37, 101, generator=torch.Generator().manual_seed(0)).to(dtype)
    compiled = DropoutKey(1)(x, 0.1)
    monkeypatch.setattr(dropout, "_compiled", lambda: None)
    assert torch.equal(DropoutKey(1)(x, 0.1), compiled)


def test_threads_change_nothing() -> None:
    x = torch.randn(3 * dropout.ELEMENTS_PER_THREAD + 17, generator=torch.Generator().manual_seed(0))
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(DropoutKey(1)(x, 0.1))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_rate_and_scale() -> None:
    x = torch.ones(200_000)
    for rate in (0.1, 0.5):
        dropped = DropoutKey(3, 4)(x, rate)
        assert set(dropped.unique().tolist()) == {0.0, torch.tensor(1 / (1 - rate)).item()}
        assert abs((dropped == 0).float().mean().item() - rate) < 5 * math.sqrt(rate * (1 - rate) / len(x))


def test_named_by_pass_and_site() -> None:
    x = torch.ones(50_000)
    key = DropoutKey(1, 2, 3)
    first, second = key(x, 0.5), key(x, 0.5)
    again, other = DropoutKey(1, 2, 3)(x, 0.5), DropoutKey(1, 2, 4)(x, 0.5)
    assert torch.equal(first, again)
    for different in (second, other):
        both = ((first == 0) & (different == 0)).float().mean().item()
        assert abs(both - 0.25) < 0.01, "other sites and passes are independent"


def test_gradient_is_the_same_mask() -> None:
    x = torch.randn(64, 64, requires_grad=True)
    dropped = DropoutKey(5)(x.transpose(0, 1), 0.2)
    dropped.backward(torch.ones_like(dropped))
    assert x.grad is not None
    assert torch.equal(x.grad != 0, dropped.T != 0)
    torch.testing.assert_close(x.grad[x.grad != 0], torch.full_like(x.grad[x.grad != 0], 1.25))


def test_neighbouring_elements_are_independent() -> None:
    dropped = DropoutKey(9)(torch.ones(1 << 18), 0.5) == 0
    for lag in (1, 2, 64, 128, 4096):
        both = (dropped[:-lag] & dropped[lag:]).float().mean().item()
        assert abs(both - 0.25) < 0.006, lag
