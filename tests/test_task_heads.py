"""Task heads by hand: how a prediction's slots are combined, what dropout drops, and padded predictions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from unicloze.example import TargetBatch
from unicloze.model.dropout import DropoutKey
from unicloze.model.task_heads import TASK_HEADS, TaskHead
from unicloze.settings import HeadSettings, ModelSettings

SHAPE = ModelSettings(hidden_size=6, num_layers=1, num_heads=2, intermediate_size=8, dropout=0.4)
ROWS, PREDICTIONS, SLOTS = 2, 3, 4


def head_of(**settings: Any) -> TaskHead:
    asked = HeadSettings(**{"name": "plain", **settings})
    head = TASK_HEADS[asked.name](SHAPE, asked)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(0, 1, generator=generator)
    return head


def states() -> Tensor:
    """*Shape:* (rows, predictions x slots, hidden size)"""
    return torch.randn(ROWS, PREDICTIONS * SLOTS, 6, generator=torch.Generator().manual_seed(1))


def target_of(present: Tensor | None = None, **columns: Any) -> TargetBatch:
    shape = (ROWS, PREDICTIONS)
    given: dict[str, Any] = {"labels": torch.zeros(shape, dtype=torch.long), "weights": torch.ones(shape), **columns}
    slots = torch.zeros(*shape, SLOTS, dtype=torch.long)
    return TargetBatch(
        slots=slots,
        normaliser=float(given["weights"].sum()),
        predictions=int((given["weights"] != 0).sum()),
        present=present,
        **given,
    )


PRESENT = torch.tensor([[[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0]], [[1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]]]).bool()


@pytest.mark.parametrize("pooling", ["mean", "sum"])
@pytest.mark.parametrize("present", [None, PRESENT], ids=["all", "some"])
def test_the_slots_of_a_prediction_become_one_vector(pooling: Any, present: Tensor | None) -> None:
    head, hidden = head_of(kind="classes", outputs=5, pooling=pooling), states()
    found = head.outputs(hidden, target_of(present), None)
    assert found.shape == (ROWS, PREDICTIONS, 5)
    for row in range(ROWS):
        for prediction in range(PREDICTIONS):
            first = prediction * SLOTS
            there = [
                hidden[row, first + slot] for slot in range(SLOTS) if present is None or present[row, prediction, slot]
            ]
            vector = torch.stack(there).sum(dim=0) if there else torch.zeros(6)
            if pooling == "mean" and there:
                vector = vector / len(there)
            torch.testing.assert_close(found[row, prediction], head.output(vector))


@pytest.mark.parametrize(("own", "rate"), [(None, 0.4), (0.1, 0.1), (0.0, 0.0)])
@pytest.mark.parametrize("name", ["dense", "plain"])
def test_what_the_output_layer_reads_is_dropped_at_the_head_s_own_rate(
    own: float | None, rate: float, name: str
) -> None:
    head, hidden = head_of(kind="choice", dropout=own, name=name), states()
    read = hidden.view(ROWS, PREDICTIONS, SLOTS, 6)
    if head.dense is not None:
        read = torch.tanh(head.dense(read))
    plain = head.outputs(hidden, target_of(), None)
    dropped = head.outputs(hidden, target_of(), DropoutKey(1, 2))
    torch.testing.assert_close(plain, head.output(read).squeeze(-1))
    torch.testing.assert_close(dropped, head.output(DropoutKey(1, 2)(read, rate)).squeeze(-1))
    assert torch.equal(plain, dropped) == (rate == 0)


@pytest.mark.parametrize("kind", ["classes", "quantities", "choice"])
def test_a_padded_prediction_costs_nothing_and_its_gradient_is_a_number(kind: Any) -> None:
    """It has no slots to choose from or pool."""
    head, hidden = head_of(kind=kind, outputs=1 if kind == "quantities" else 5), states().requires_grad_()
    weights = PRESENT.any(dim=2).float()
    labels = torch.full((ROWS, PREDICTIONS), 0.5) if kind == "quantities" else torch.zeros(ROWS, PREDICTIONS).long()
    target = target_of(PRESENT, weights=weights, labels=labels)
    losses = head.losses(hidden, target, None)
    (losses * weights).sum().backward()
    assert hidden.grad is not None and losses.isfinite().all() and hidden.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in head.parameters() if parameter.grad is not None)
    padded, first = slice(SLOTS, 2 * SLOTS), slice(SLOTS)
    assert not hidden.grad[1, padded].any() and hidden.grad[1, first].any()


def test_a_choice_is_among_the_slots_that_are_there() -> None:
    head, hidden = head_of(kind="choice"), states()
    scores = head.output(hidden).view(ROWS, PREDICTIONS, SLOTS)
    labels = torch.tensor([[3, 0, 1], [2, 0, 0]])
    weights = PRESENT.any(dim=2).float()
    losses = head.losses(hidden, target_of(PRESENT, weights=weights, labels=labels), None)
    for row, prediction in weights.nonzero().tolist():
        there = scores[row, prediction][PRESENT[row, prediction]]
        expected = torch.logsumexp(there, dim=0) - scores[row, prediction, labels[row, prediction]]
        torch.testing.assert_close(losses[row, prediction], expected)
