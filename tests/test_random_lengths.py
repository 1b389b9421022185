"""Windows of random length: what each step reads, that the streams lose nothing, and the rate of a step."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from corpora import write_corpus
from recurrent_toys import recurrent_model
from toys import random_windows, vocabulary
from unicloze.objectives import make_examples, settings_of
from unicloze.pretraining.data import build_sampler
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.settings import TrainingSettings
from unicloze.text.prepare import Prepared, open_or_prepare
from unicloze.text.sampler import RandomLengthSampler, WindowSampler, lengths_of
from unicloze.training.batches import MicroBatch, training_steps
from unicloze.training.loop import Compute, Hooks, TrainState, fit
from unicloze.training.optimizers import build_optimizers

LANES = 3


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    place = tmp_path_factory.mktemp("lengths")
    write_corpus(place / "corpus")
    recipe = load_recipe("awd-lstm", toy_overrides() | {"data.corpus": [str(place / "corpus")]})
    return open_or_prepare(recipe.data, recipe.tokenizer, place / "data", progress=False)


def sampler_of(
    prepared: Prepared, direction: str = "forward", kind: type[WindowSampler] = RandomLengthSampler, window: int = 22
) -> WindowSampler:
    return kind(
        prepared.train, window=window, segments=1, vocabulary=prepared.tokenizer.vocabulary, seed=5, documents="joined",
        order="streams", directions=direction,  # type: ignore[arg-type]
    )  # fmt: skip


def test_lengths_are_drawn_around_the_window_and_around_half_of_it() -> None:
    lengths = lengths_of(np.arange(20_000), 70, 1)
    halved = lengths < 52
    assert halved.mean() == pytest.approx(0.05, abs=0.01)
    assert lengths[~halved].mean() == pytest.approx(69.5, abs=0.2) and lengths[~halved].std() == pytest.approx(
        5, abs=0.2
    )
    assert lengths[halved].mean() == pytest.approx(34.5, abs=1)
    assert (lengths_of(np.arange(2_000), 6, 1) >= 5).all()
    assert not np.array_equal(lengths[:50], lengths_of(np.arange(50), 70, 2))


@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
def test_each_stream_is_read_token_by_token(prepared: Prepared, direction: str) -> None:
    """The texts of a lane, one step after the other, are those that windows of one token would read."""
    steps = 12
    windows = sampler_of(prepared, direction).read(0, steps * LANES, lanes=LANES)
    lengths = lengths_of(np.arange(steps), 20, 5)
    assert windows.lengths.tolist() == np.repeat(lengths + 2, LANES).tolist()
    vocabulary = prepared.tokenizer.vocabulary
    single = sampler_of(prepared, direction, WindowSampler, 3).read(0, int(lengths.sum()) * LANES, lanes=LANES)
    for lane in range(LANES):
        wanted, cut = single.token_ids[lane::LANES, 1], single.cut[lane::LANES]
        found, read = [], 0
        for row in range(lane, steps * LANES, LANES):
            tokens = windows.token_ids[row, : windows.lengths[row]]
            assert tokens[0] == vocabulary.sos and tokens[-1] == vocabulary.eos
            assert (windows.token_ids[row, windows.lengths[row] :] == vocabulary.pad).all()
            backward = windows.backward is not None and bool(windows.backward[row])
            found.append(tokens[1:-1][::-1] if backward else tokens[1:-1])
            first, last = sorted((read, read + len(tokens) - 3), reverse=backward)
            read += len(tokens) - 2
            ends = {0: cut[first, 0], len(tokens) - 1: cut[last, 2]}
            assert np.flatnonzero(windows.cut[row]).tolist() == [column for column, is_cut in ends.items() if is_cut]
        assert np.array_equal(np.concatenate(found), wanted)
    assert windows.continues is not None and windows.continues.tolist() == [
        row >= LANES for row in range(steps * LANES)
    ]


def test_a_step_reads_the_same_wherever_reading_begins(prepared: Prepared) -> None:
    sampler = sampler_of(prepared)
    whole = sampler.read(0, 9 * LANES, lanes=LANES)
    part = sampler_of(prepared).read(4 * LANES + 1, 7, lanes=LANES)
    for row in range(7):
        length = part.lengths[row]
        assert length == whole.lengths[4 * LANES + 1 + row]
        assert np.array_equal(part.token_ids[row, :length], whole.token_ids[4 * LANES + 1 + row, :length])


def test_the_rate_of_a_step_is_scaled_by_its_length(prepared: Prepared) -> None:
    recipe = load_recipe("awd-lstm", toy_overrides() | {"training.steps": 6, "training.micro_batch_size": 4})
    made = list(training_steps(recipe, lambda each: build_sampler(each, prepared), 0))
    resumed = list(training_steps(recipe, lambda each: build_sampler(each, prepared), 3))
    rates = [[micro_batch.rate for micro_batch in step] for step in made]
    lengths = lengths_of(np.arange(6), 30, recipe.training.seed)
    for step, (of_step, length) in enumerate(zip(rates, lengths.tolist(), strict=True)):
        assert of_step == [length / 30] * 2
        assert {int(n) for micro_batch in made[step] for n in micro_batch.examples.lengths} == {length + 2}
    assert [[one.rate for one in step] for step in resumed] == rates[3:]
    for one, other in zip(made[3:], resumed, strict=True):
        assert np.array_equal(one[0].examples.input_ids, other[0].examples.input_ids)


def test_held_out_text_has_whole_windows(prepared: Prepared, tmp_path: Path) -> None:
    recipe = load_recipe("awd-lstm", toy_overrides())
    assert type(build_sampler(recipe, prepared, heldout=True)) is WindowSampler
    assert type(build_sampler(recipe, prepared)) is RandomLengthSampler


def test_a_step_learns_at_its_scaled_rate() -> None:
    """Gradient descent moves a weight by the rate of the step: half the rate, half the way."""
    moved = []
    for rate in (1.0, 0.5):
        model = recurrent_model()
        settings = TrainingSettings(
            optimizer="nt_asgd", steps=1, schedule="constant", warmup_steps=0, learning_rate=0.1
        )
        windows = random_windows(3, 9)
        objective = settings_of(name="causal", targets=["lm"], visibility="left_to_right")
        micro_batch = MicroBatch(make_examples(windows, vocabulary(), objective), windows, rate=rate)
        state = TrainState(
            model=model, optimizers=build_optimizers(model, dataclasses.replace(settings, weight_decay=0.0))
        )
        before = model.token_head.bias.detach().clone()
        hooks = Hooks(log=lambda *_: None, evaluate=lambda _: False, save=lambda _: None, describe=str)
        fit(state, iter([[micro_batch]]), settings, Compute(device=torch.device("cpu"), precision="fp32"), hooks)
        moved.append(model.token_head.bias.detach() - before)
    assert moved[0].abs().max() > 0
    torch.testing.assert_close(moved[1], moved[0] / 2)
