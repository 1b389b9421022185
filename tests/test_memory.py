"""Segment recurrence: what is remembered, which slots read it, and that a resumed run remembers the same."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import brute_force
import single_rows
from brute_force import by_step, group, matrix
from corpora import toy_corpus
from hf_toys import cut_after, same_ends
from test_visibility import random_steps
from toys import FIRST_ORDINARY, random_windows, vocabulary
from unicloze import visibility
from unicloze.errors import UniclozeError
from unicloze.example import Batch, Memory, collate
from unicloze.model.model import UnifiedModel
from unicloze.objectives import changed, make_examples, settings_of
from unicloze.objectives.unilmv2 import unilmv2
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe
from unicloze.settings import TrainingSettings
from unicloze.text.windows import Windows
from unicloze.training.batches import MicroBatch, pack, with_memory
from unicloze.training.checkpoint import load_checkpoint
from unicloze.training.loop import Compute, Hooks, TrainState, evaluate, fit
from unicloze.training.optimizers import build_optimizers
from xl_toys import xl_model

OBJECTIVE = settings_of(name="permuted", targets=["par"], mask_rate=0.3, factorization="token")
CPU = Compute(device=torch.device("cpu"), precision="fp32")
ROWS, WINDOW, MEMORY = 3, 16, 12


def windows_at(step: int, number: int = 0, *, short: bool = False) -> Windows:
    """Rows that continue those of the previous step, except row 1 in every second step."""
    windows = random_windows(ROWS, WINDOW, seed=100 * number + step, short=short)
    return dataclasses.replace(windows, continues=np.array([step > 0, step % 2 == 0, step > 0]))


def micro_batch(windows: Windows) -> MicroBatch:
    return MicroBatch(make_examples(windows, vocabulary(), OBJECTIVE), windows)


def batch_of(windows: Windows, former: Memory | None, model: UnifiedModel) -> Batch:
    made = micro_batch(windows)
    return with_memory(collate(made.examples), made, former, model.settings)


def test_text_slots_hold_the_text_in_order() -> None:
    windows = random_windows(20, 24, short=True)
    for examples in (
        make_examples(windows, vocabulary(), OBJECTIVE),
        make_examples(windows, vocabulary(), changed(OBJECTIVE, {"name": "compensated"})),
        unilmv2(windows, vocabulary(), settings_of()),
    ):
        slots = examples.text_slots()
        for row in range(20):
            own = slots[row][slots[row] >= 0]
            assert len(own) == windows.lengths[row] and (slots[row, len(own) :] == -1).all()
            assert np.array_equal(examples.input_ids[row, own], windows.token_ids[row, : len(own)])


@pytest.mark.parametrize("seed", range(10))
def test_a_memory_before_the_keys_follows_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    memory, context, steps = int(rng.integers(1, 9)), int(rng.integers(1, 20)), random_steps(rng)
    alone = single_rows.permuted(0, context, steps)[None]
    full = visibility.with_memory(alone, memory, np.array([memory]))[0]
    keys_at_all = memory + alone.shape[1]
    assert np.array_equal(
        visibility.bool_mask(full, keys_at_all),
        visibility.bool_mask(single_rows.permuted(memory, context, steps), keys_at_all),
    )
    filled = int(rng.integers(0, memory + 1))
    found = visibility.with_memory(alone, memory, np.array([filled]))
    tensor = visibility.with_memory(torch.from_numpy(alone), memory, torch.tensor([filled]))
    assert np.array_equal(found, tensor.numpy())
    queries = group("C", context) + by_step("O", steps) + by_step("P", steps)
    keys = group("unfilled", memory - filled) + group("memory", filled) + queries
    expected = matrix(queries, keys, lambda q, k: k.group != "unfilled" and brute_force.permuted(q, k))
    assert np.array_equal(visibility.bool_mask(found, len(keys))[0], expected)


def test_a_row_reads_its_memory_only_where_it_continues() -> None:
    """Through the window: change a token of the previous step, compare the predictions of this one."""
    model = xl_model(memory=MEMORY)

    def predictions(first: Windows) -> torch.Tensor:
        with torch.no_grad():
            before = batch_of(first, None, model)
            model(before)
            return model.logits(batch_of(windows_at(1), before.memory, model))["par"]

    first = windows_at(0)
    reference = predictions(first)
    for row in range(ROWS):
        tokens = first.token_ids.copy()
        tokens[row, -3] = FIRST_ORDINARY + (tokens[row, -3] - FIRST_ORDINARY + 1) % 43
        after = predictions(dataclasses.replace(first, token_ids=tokens))
        for other in range(ROWS):
            assert torch.equal(after[other], reference[other]) == (other != row or other == 1)
    with torch.no_grad():
        alone = model.logits(collate(micro_batch(windows_at(1)).examples))["par"]
    torch.testing.assert_close(reference[1], alone[1], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(reference[0], alone[0], atol=1e-3)


def test_a_memory_of_the_text_behind_a_row_has_its_distances() -> None:
    """One layer: a row predicts as if the remembered text were behind it in the same row."""
    model = xl_model(memory=MEMORY, num_layers=1, num_segments=0).eval()
    behind, here = (
        dataclasses.replace(
            random_windows(ROWS, WINDOW, seed=seed),
            continues=np.full(ROWS, goes_on),
            backward=np.ones(ROWS, dtype=bool),
        )
        for seed, goes_on in ((7, False), (8, True))
    )
    former, examples = batch_of(behind, None, model), micro_batch(here).examples
    with torch.no_grad():
        model(former)
        assert former.memory is not None and former.memory.lengths.tolist() == [MEMORY] * ROWS
        found = model.logits(batch_of(here, former.memory, model))["par"]

    def in_front(before: np.ndarray, column: np.ndarray) -> np.ndarray:
        return np.concatenate([np.broadcast_to(before, (ROWS, MEMORY)).astype(column.dtype), column], axis=1)

    slots = np.arange(examples.input_ids.shape[1]) < examples.lengths[:, None]
    assert not examples.intervals[slots][:, [0, 2, 3]].any(), "what a slot reads begins with the first one"
    ends = in_front(np.array(0), examples.intervals[:, :, 1]) + MEMORY
    zeros = np.zeros_like(ends)
    nearest = behind.token_ids[:, :MEMORY]  # the text behind begins with them
    target = examples.targets["par"]
    whole = dataclasses.replace(
        examples,
        input_ids=in_front(nearest, examples.input_ids),
        position_ids=in_front(WINDOW + np.arange(MEMORY), examples.position_ids),
        segment_ids=in_front(np.array(0), examples.segment_ids),
        kinds=in_front(np.array(0), examples.kinds),
        steps=in_front(np.array(-1), examples.steps),
        intervals=np.stack([zeros, ends, zeros, zeros], axis=2),
        lengths=examples.lengths + MEMORY,
        mutual=np.zeros_like(examples.mutual),
        targets={"par": dataclasses.replace(target, slots=target.slots + MEMORY)},
    )
    with torch.no_grad():
        wanted = model.logits(collate(whole, device="cpu"))["par"]
    real = torch.from_numpy(target.weights[:, : found.shape[1]] > 0)
    assert real.sum() == target.weights.sum()
    torch.testing.assert_close(found[real], wanted[real], atol=1e-4, rtol=1e-4)


def test_no_gradient_flows_into_a_memory_and_short_rows_keep_older_text() -> None:
    model = xl_model(memory=MEMORY)
    former: Memory | None = None
    text: list[list[int]] = [[] for _ in range(ROWS)]
    for step in range(5):
        windows = dataclasses.replace(windows_at(step, short=True), continues=np.full(ROWS, step > 0))
        batch = batch_of(windows, former, model)
        model(batch)["par"].total.backward()
        former = batch.memory
        assert former is not None and not former.states.requires_grad
        for row in range(ROWS):
            text[row] += windows.token_ids[row, : windows.lengths[row]].tolist()
            kept = min(len(text[row]), MEMORY)
            assert former.lengths[row] == kept
            embedded = model.backbone.embeddings.tokens.weight[text[row][-kept:]]
            assert torch.equal(former.states[0, row, MEMORY - kept :], embedded)


def steps_of(first: int, micro_batches: int = 2) -> Iterator[list[MicroBatch]]:
    step = first
    while True:
        yield [micro_batch(windows_at(step, number)) for number in range(micro_batches)]
        step += 1


def training_state() -> tuple[TrainState, TrainingSettings]:
    settings = TrainingSettings(steps=6, warmup_steps=2, learning_rate=1e-2, save_every=3)
    model = xl_model(memory=MEMORY, dropout=0.1, attention_dropout=0.1)
    return TrainState(model=model, optimizers=build_optimizers(model, settings)), settings


def hooks(save: Any = lambda _: None) -> Hooks:
    return Hooks(log=lambda *_: None, evaluate=lambda _: None, save=save, describe=str)


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert set(one) == set(other)
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def test_each_micro_batch_has_a_memory_of_its_own() -> None:
    """Two micro-batches remember what two separate runs of one micro-batch would with the same weights."""
    state, settings = training_state()
    frozen = dataclasses.replace(settings, learning_rate=0.0, weight_decay=0.0, steps=3)
    state.model = xl_model(memory=MEMORY)
    state.optimizers = []
    fit(state, steps_of(0), frozen, CPU, hooks())
    for number in range(2):
        former: Memory | None = None
        for step in range(3):
            batch = batch_of(windows_at(step, number), former, state.model)
            state.model(batch)
            former = batch.memory
        assert former is not None
        assert torch.equal(state.memories[number].states, former.states)


def test_a_step_that_fails_leaves_the_memory_of_the_step_before() -> None:
    """Its loss is finite, so its rows were remembered; its gradient is not."""
    state, settings = training_state()
    saved: list[dict[str, torch.Tensor]] = []
    fit(state, steps_of(0), dataclasses.replace(settings, steps=2), CPU, hooks())
    before = pack(state.memories)
    state.model.backbone.embeddings.tokens.weight.register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(UniclozeError, match="before the update of step 3: the norm of the gradient"):
        fit(state, steps_of(2), settings, CPU, hooks(lambda state: saved.append(pack(state.memories))))
    assert_same(saved[0], before)
    assert_same(pack(state.memories), before)


def test_another_number_of_rows_starts_with_an_empty_memory() -> None:
    model = xl_model(memory=MEMORY)
    batch = batch_of(windows_at(0), None, model)
    model(batch)
    fewer = batch_of(windows_at(2)[:2], batch.memory, model)
    assert fewer.memory is not None and fewer.memory.lengths.tolist() == [0, 0]
    unordered = batch_of(dataclasses.replace(windows_at(2), continues=None), batch.memory, model)
    assert unordered.memory is not None and unordered.memory.lengths.tolist() == [0] * ROWS
    assert batch_of(windows_at(2), None, xl_model()).memory is None


@pytest.mark.whole
def test_a_run_saves_and_restores_what_it_remembers(tmp_path: Path) -> None:
    settings = {"model.memory": 40, "training.steps": 4, "training.save_every": 2, "training.micro_batch_size": 2}
    recipe = load_recipe("xlnet-base", toy_corpus(tmp_path, settings))
    pretrain_run(recipe, whole := tmp_path / "whole", progress=False)
    pretrain_run(recipe, cut := cut_after(whole, 2), progress=False)
    last, numbers = same_ends(whole, cut), range(recipe.training.batch_size // 2)
    assert last.state["step"] == 4
    assert set(last.memories) == {f"{number}.{part}" for number in numbers for part in ("lengths", "states")}
    assert last.memories["0.lengths"].tolist() == [40, 40], "more than one window is remembered"
    assert load_checkpoint(whole / "checkpoints" / "step-00000004", weights_only=True).memories == {}


def test_an_evaluation_reads_the_memory_as_training_does() -> None:
    """Blocks of rows, each continuing the one before: the summed loss equals that of passing the memory by hand."""
    model = xl_model(memory=MEMORY).eval()
    blocks = [windows_at(step) for step in range(4)]
    columns = {field.name: [getattr(block, field.name) for block in blocks] for field in dataclasses.fields(Windows)}
    together = Windows(**{name: None if each[0] is None else np.concatenate(each) for name, each in columns.items()})
    examples = micro_batch(together).examples
    measured = evaluate(model, examples, CPU, ROWS, together)["par"]
    former, total, weight = None, 0.0, 0.0
    with torch.no_grad():
        for windows in blocks:
            batch = batch_of(windows, former, model)
            loss = model(batch)["par"]
            former, total, weight = batch.memory, total + float(loss.total), weight + loss.weight
    assert (measured.nats, measured.weight) == pytest.approx((total, weight), rel=1e-5)
    alone = evaluate(model, examples, CPU, ROWS)["par"]
    assert alone.weight == weight and abs(alone.nats - total) > 1e-3
