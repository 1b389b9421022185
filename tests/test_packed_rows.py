"""Rows of different lengths concatenated into one: losses, gradients and outputs are those of each alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import toys
from objective_toys import rows_of, target_of
from toys import random_windows, vocabulary
from unicloze.example import Batch, Examples, collate
from unicloze.model.dropout import DropoutKey
from unicloze.model.model import UnifiedModel
from unicloze.objectives import make_examples, settings_of
from unicloze.packing import pack
from unicloze.settings import HeadSettings, ObjectiveSettings
from xl_toys import xl_model

CASES: dict[str, tuple[ObjectiveSettings, dict[str, Any]]] = {
    "ae and par": (settings_of(targets=["ae", "par"]), {"relative_bias": True}),
    "ae": (settings_of(targets=["ae"]), {}),
    "causal": (settings_of(name="causal", targets=["lm"], visibility="left_to_right"), {"norm": "pre"}),
    "nearby": (
        settings_of(name="causal", targets=["lm"], visibility="left_to_right", local_width=3),
        {"layer_visibility": ["full", "local"]},
    ),
    "xlnet": (settings_of(name="permuted", targets=["par"]), {"num_segments": 2}),
}


def buckets_of(objective: ObjectiveSettings) -> list[Examples]:
    """Rows of three lengths, some of them shorter than their bucket."""
    shapes = (3, 30, True), (1, 17, False), (4, 12, True)
    windows = [random_windows(rows, length, short=short, seed=rows) for rows, length, short in shapes]
    return [make_examples(window, vocabulary(), objective) for window in windows]


def weighed(model: UnifiedModel, batches: Sequence[Batch]) -> tuple[list[torch.Tensor], list[Any]]:
    """Summed losses of all batches, and their gradients."""
    model.zero_grad(set_to_none=True)
    sums: dict[str, torch.Tensor] = {}
    for batch in batches:
        for name, loss in model(batch).items():
            sums[name] = sums.get(name, torch.zeros(())) + loss.total
    torch.stack(list(sums.values())).sum().backward()
    return list(sums.values()), [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("backend", ["explicit", "sdpa"])
@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_are_those_of_the_rows_by_themselves(case: str, backend: Any) -> None:
    objective, settings = CASES[case]
    every = buckets_of(objective)
    batches = [collate(examples) for examples in every]
    model = xl_model(**settings) if case == "xlnet" else toys.model(targets=objective.targets, **settings)
    model.backbone.backend = backend
    flat = pack(batches)
    assert len(flat.input_ids) == 1 and flat.input_ids.shape[1] == sum(batch.input_ids.numel() for batch in batches)
    apart = weighed(model, batches)
    together = weighed(model, [flat])
    torch.testing.assert_close(together, apart, atol=2e-5, rtol=1e-4)
    of_one_shape = weighed(model, [collate(examples, fixed_shape=True) for examples in every])
    torch.testing.assert_close(of_one_shape, apart, atol=2e-5, rtol=1e-4)
    if case != "xlnet":  # the row's own intervals are equivalent to its buckets
        torch.testing.assert_close(weighed(model, [dataclasses.replace(flat, buckets=())]), apart, atol=2e-5, rtol=1e-4)


def pooled(rows: int, length: int, width: int, seed: int) -> Examples:
    """Rows whose predictions have several slots, one slot fewer in the first row."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(7, 40, (rows, length)).astype(np.int32)
    slots = np.stack([draw.permutation(length)[:width] for _ in range(rows)]).astype(np.int32)[:, None]
    if width > 1:
        slots[0, 0, -1] = -1
    target = target_of(slots, draw.integers(0, max(1, width - 1), (rows, 1)))
    everything = np.broadcast_to(np.array([0, length, 0, 0], dtype=np.int32), (rows, length, 4)).copy()
    return rows_of(ids, everything, {"task": target})


@pytest.mark.parametrize("kind", ["classes", "choice"])
def test_predictions_of_as_many_slots_as_they_like(kind: Any) -> None:
    batches = [collate(pooled(*shape)) for shape in ((3, 9, 4, 0), (2, 6, 2, 1), (1, 5, 5, 2))]
    model = toys.model(targets=(), heads={"task": HeadSettings(kind=kind, outputs=4)})
    flat = pack(batches)
    outputs = model.outputs(flat)["task"][0]
    for part, batch in zip(outputs.split([3, 2, 1]), batches, strict=True):
        alone = model.outputs(batch)["task"][:, 0]
        if kind == "choice":
            assert (part[:, alone.shape[1] :] == -torch.inf).all()
            part = part[:, : alone.shape[1]]
        torch.testing.assert_close(part, alone, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(weighed(model, [flat]), weighed(model, batches), atol=2e-5, rtol=1e-4)


def test_texts_do_not_read_each_other_with_dropout_on_either() -> None:
    """Bit for bit: another text elsewhere in the row changes nothing, with any dropout."""
    objective = settings_of(targets=["ae", "par"])
    examples = buckets_of(objective)
    model = toys.model(relative_bias=True, dropout=0.3, attention_dropout=0.3).train()
    changed = dataclasses.replace(examples[1], input_ids=examples[1].input_ids[:, ::-1].copy())
    states = []
    for middle in (examples[1], changed):
        flat = pack([collate(bucket) for bucket in (examples[0], middle, examples[2])])
        hidden = model.backbone(flat, dropout=DropoutKey(1, 2, 3))[-1][0]
        sizes = [bucket.input_ids.numel() for bucket in flat.buckets]
        states.append(hidden.split(sizes))
    assert torch.equal(states[0][0], states[1][0]) and torch.equal(states[0][2], states[1][2])
    assert not torch.equal(states[0][1], states[1][1])
