"""Masked and block diffusion: rows slot by slot, visibility, the noise, and the bound against exact sums."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import toys
from brute_force import block_diffusion as reads
from brute_force import by_step, matrix
from toys import EOS, MASK, PAD, SOS, random_windows, vocabulary
from unicloze import keyed, visibility
from unicloze.errors import UsageError
from unicloze.example import Examples, Kind, Target, collate
from unicloze.model.model import UnifiedModel
from unicloze.objectives import OBJECTIVES, defined, diffusion, make_examples, settings_of
from unicloze.recipes import load_recipe
from unicloze.settings import ObjectiveSettings, TrainingSettings
from unicloze.text.windows import Windows
from unicloze.training.batches import MicroBatch
from unicloze.training.loop import Compute, Hooks, TrainState, accumulate_gradients, fit
from unicloze.training.optimizers import build_optimizers

CPU = Compute(device=torch.device("cpu"), precision="fp32")
EPS = diffusion.LOWEST_LEVEL


def objective(block_size: int | None = None) -> ObjectiveSettings:
    """Block diffusion with blocks of that size, or MDLM."""
    name = "masked_diffusion" if block_size is None else "block_diffusion"
    return settings_of(name=name, targets=["diffusion"], **({"block_size": block_size} if block_size else {}))


def window_of(text: Sequence[int], *, rows: int = 1, padding: int = 0) -> Windows:
    """Rows of the window "[SOS] text [EOS]", identical except for their keys."""
    tokens = np.tile(np.array([[SOS, *text, EOS] + [PAD] * padding], dtype=np.int32), (rows, 1))
    return Windows(
        token_ids=tokens,
        segment_ids=np.zeros_like(tokens),
        lengths=np.full(rows, len(text) + 2, dtype=np.int32),
        maskable=tokens >= toys.FIRST_ORDINARY,
        keys=keyed.key(7, 0, np.arange(rows)),
        source=np.zeros(rows, np.int32),
        index=np.arange(rows),
    )


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
    example = make_examples(window_of([11, 12, 13], padding=1), vocabulary(), objective())
    assert example.input_ids.tolist() == [[SOS, MASK, MASK, MASK, EOS, PAD]]
    assert example.position_ids.tolist() == [[0, 1, 2, 3, 4, 0]]
    assert example.steps.tolist() == [[-1, 0, 0, 0, -1, -1]]
    assert predictions(example) == [(1, 11, 1.0), (2, 12, 1.0), (3, 13, 1.0)]
    assert example.targets["diffusion"].normaliser == 3
    assert example.visible(0).all()
    assert (example.lengths.tolist(), example.mutual.tolist()) == ([5], [5])


def test_a_row_of_blocks_slot_by_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks {[SOS], 11}, {12, 13}, {14, [EOS]}; the first and last are fully noised, the second not at all."""
    levels_of(monkeypatch, 1.0, 1e-12, 1.0, 1.0)
    example = make_examples(window_of([11, 12, 13, 14], padding=1), vocabulary(), objective(2))
    clean = [SOS, 11, 12, 13, 14, EOS]
    assert example.input_ids.tolist() == [[*clean, SOS, MASK, 12, 13, MASK, EOS, PAD, PAD]]
    assert example.position_ids.tolist() == [[*range(6), *range(6), 0, 0]]
    assert example.kinds[0, 6:12].tolist() == [Kind.CONTEXT, Kind.MASK, 0, 0, Kind.MASK, 0]
    assert example.steps[0].tolist() == [-1] * 7 + [0, -1, -1, 2, -1, -1, -1]
    assert predictions(example) == [(7, 11, 1.0), (10, 14, 1.0)]
    assert example.targets["diffusion"].normaliser == 4
    assert ["".join(map(str, row)) for row in example.visible(0).astype(int)] == [
        *["110000" "000000"] * 2,
        *["111100" "000000"] * 2,
        *["111111" "000000"] * 2,
        *["000000" "110000"] * 2,
        *["110000" "001100"] * 2,
        *["111100" "000011"] * 2,
    ]  # fmt: skip


def test_left_to_right_rows_have_a_copy_for_each_place_in_a_block() -> None:
    example = diffusion.causal(window_of([11, 12, 13, 14]), vocabulary(), objective(2))
    first, second = [SOS, MASK, MASK, MASK, MASK, EOS], [SOS, MASK, 12, MASK, 14, EOS]
    assert example.input_ids.tolist() == [[SOS, 11, 12, 13, 14, EOS, *first, *second]]
    assert predictions(example) == [(13, 11, 1.0), (8, 12, 1.0), (15, 13, 1.0), (10, 14, 1.0)]
    assert example.targets["diffusion"].norms is None


@pytest.mark.parametrize("size", [1, 3, 4, 100])
def test_blocks_are_seen_by_the_papers_rule(size: int) -> None:
    windows = random_windows(20, 17, short=True)
    examples = make_examples(windows, vocabulary(), objective(size))
    for row, length in enumerate(windows.lengths.tolist()):
        blocks = [min(size, length - start) for start in range(0, length, size)]
        slots = by_step("clean", blocks) + by_step("noised", blocks)
        assert np.array_equal(examples.visible(row), matrix(slots, slots, reads))


@pytest.mark.parametrize("size", [None, 1, 4])
def test_rows_are_the_same_alone_and_among_others(size: int | None) -> None:
    windows = random_windows(40, 32, short=True)
    together = make_examples(windows, vocabulary(), objective(size))
    for row in (0, 7, 39):
        alone = make_examples(windows[row : row + 1], vocabulary(), objective(size))
        length = int(alone.lengths[0])
        for field in ("input_ids", "position_ids", "segment_ids", "kinds", "steps", "intervals"):
            assert np.array_equal(getattr(alone, field)[0, :length], getattr(together, field)[row, :length])
        assert predictions(alone) == predictions(together, row)
    assert (together.kinds == Kind.PADDING).sum() == ((32 - windows.lengths) * (1 if size is None else 2)).sum()
    for row in range(40):
        first = 0 if size is None else int(windows.lengths[row])
        shown, kept = together.input_ids[row, first:], windows.token_ids[row]
        for position in range(int(windows.lengths[row])):
            assert shown[position] in (kept[position], MASK), "all others are copied"


# What a prediction sees


def states_by_position(model: UnifiedModel, examples: Examples) -> dict[int, torch.Tensor]:
    """The hidden state of the only row's prediction at each position."""
    batch = collate(examples)
    with torch.no_grad():
        states = model.backbone(batch, select=True)[-1][0]
    slots = batch.targets["diffusion"].slots[0].tolist()
    return {int(examples.position_ids[0, slot]): state for slot, state in zip(slots, states, strict=True)}


@pytest.mark.parametrize("size", [None, 1, 4, "causal"])
def test_a_token_reaches_what_may_see_it_and_nothing_else(size: int | str | None) -> None:
    """Independent of the rule: change a token in the window, make the example again, look at every prediction."""
    windows = random_windows(1, 24, seed=5)
    model = toys.model()
    block = 4 if size == "causal" else 24 if size is None else int(size)

    def make(windows: Windows) -> Examples:
        if size == "causal":
            return diffusion.causal(windows, vocabulary(), objective(4))
        return make_examples(windows, vocabulary(), objective(size))  # type: ignore[arg-type]

    before = states_by_position(model, make(windows))
    assert len(before) > 5
    outcomes = Counter[bool]()
    for m in np.flatnonzero(windows.maskable[0]).tolist():
        tokens = windows.token_ids.copy()
        tokens[0, m] = toys.FIRST_ORDINARY + (tokens[0, m] - toys.FIRST_ORDINARY + 1) % (50 - toys.FIRST_ORDINARY)
        after = states_by_position(model, make(dataclasses.replace(windows, token_ids=tokens)))
        assert after.keys() == before.keys(), "noise does not depend on the text"
        for position, state in after.items():
            shown = m < position if size == "causal" else m not in before
            sees = m // block < position // block or (m // block == position // block and shown)
            assert torch.equal(state, before[position]) != sees, (m, position)
            outcomes[sees] += 1
    assert min(outcomes[True], outcomes[False]) > 10 or size is None


def test_one_pass_over_blocks_equals_a_pass_for_each_block() -> None:
    windows = random_windows(8, 19, short=True, seed=4)
    examples = make_examples(windows, vocabulary(), objective(4))
    model = toys.model()
    with torch.no_grad():
        logits = model.logits(collate(examples))["diffusion"]
    compared = 0
    for row, length in enumerate(windows.lengths.tolist()):
        for j, (slot, label, _) in enumerate(predictions(examples, row)):
            place = slot - length
            start = place // 4 * 4
            shown = examples.input_ids[row, length + start : length + min(start + 4, length)]
            alone = block_alone(windows[row : row + 1], start, shown, place, label)
            torch.testing.assert_close(logits[row, j], model_logits(model, alone), atol=1e-5, rtol=1e-5)
            compared += 1
    assert compared > 10


def block_alone(window: Windows, start: int, shown: npt.NDArray[np.int32], place: int, label: int) -> Examples:
    """The clean blocks of four before `start`, then one block as shown; predicts the token at a position of it."""
    clean = np.arange(start)
    positions = np.concatenate([clean, start + np.arange(len(shown))])
    slots = len(positions)
    ends = np.concatenate([clean // 4 * 4 + 4, np.full(len(shown), slots)])
    ids = np.concatenate([window.token_ids[0, :start], shown])
    return plain_row(ids, positions, window.segment_ids[0, positions], ends, place, label)


def plain_row(ids: Any, positions: Any, segments: Any, ends: Any, slot: int, label: int) -> Examples:
    """One row with one prediction; slot q reads the keys before `ends[q]`."""
    slots = len(ids)
    intervals = np.stack([np.zeros(slots), ends, np.zeros(slots), np.zeros(slots)], axis=1).astype(np.int32)
    return Examples(
        input_ids=np.array([ids], np.int32), position_ids=np.array([positions], np.int32),
        segment_ids=np.array([segments], np.int32), kinds=np.zeros((1, slots), np.uint8),
        steps=np.zeros((1, slots), np.int32), intervals=intervals[None], lengths=np.array([slots], np.int32),
        mutual=np.array([0], np.int32), text_tokens=np.array([slots], np.int32),
        targets={"diffusion": Target(
            slots=np.array([[slot]], np.int32), labels=np.array([[label]], np.int32), weights=np.ones((1, 1), np.float32)
        )},
    )  # fmt: skip


def model_logits(model: UnifiedModel, examples: Examples) -> torch.Tensor:
    """Logits of the only prediction."""
    with torch.no_grad():
        return model.logits(collate(examples))["diffusion"][0, 0]


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
    windows = window_of([11, 12, 13, 14, 15], rows=rows)
    examples = make_examples(windows, vocabulary(), objective(size))
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
    examples = make_examples(window_of([11, 12, 13, 14], rows=rows), vocabulary(), objective(size))
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


# The bound


def costs_of(model: UnifiedModel, examples: Examples) -> npt.NDArray[np.float64]:
    """Cross-entropy of each prediction, 0 where there is none. *Shape:* (rows, predictions)"""
    batch = collate(examples, fixed_shape=True)
    target = batch.targets["diffusion"]
    with torch.no_grad():
        logits = model.logits(batch)["diffusion"].double()
    costs = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.labels.flatten(), reduction="none")
    found: npt.NDArray[np.float64] = (costs.view(logits.shape[:2]) * (target.weights > 0)).numpy()
    return found


# Training


@pytest.mark.parametrize("size", [None, 4])
def test_the_loss_is_normalised_over_the_global_batch(size: int | None) -> None:
    windows, model = random_windows(8, 24, short=True), toys.model()
    examples = make_examples(windows, vocabulary(), objective(size))
    total = (costs_of(model, examples) * examples.targets["diffusion"].weights).sum()
    expected = total / windows.maskable.sum()
    gradients = []
    for rows in (8, 4, 1):
        parts = [MicroBatch(examples[i : i + rows], windows[i : i + rows]) for i in range(0, 8, rows)]
        state = TrainState(model=toys.model(), optimizers=[])
        losses = accumulate_gradients(state, parts, TrainingSettings(), CPU, str)
        assert losses == {"diffusion": pytest.approx(expected, rel=1e-5)}
        gradients.append(torch.cat([p.grad.flatten() for p in state.model.parameters() if p.grad is not None]))
    scale = float(gradients[0].abs().max())
    for other in gradients[1:]:
        torch.testing.assert_close(other / scale, gradients[0] / scale, atol=1e-5, rtol=1e-4)


def test_a_micro_batch_without_any_mask_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    levels_of(monkeypatch, 1e-12)
    windows = random_windows(2, 12)
    examples = make_examples(windows, vocabulary(), objective())
    assert not predictions(examples)
    state = TrainState(model=toys.model(), optimizers=[])
    assert accumulate_gradients(state, [MicroBatch(examples, windows)], TrainingSettings(), CPU, str) == {
        "diffusion": 0.0
    }
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in state.model.parameters())


def train(model: UnifiedModel, batches: Iterator[list[MicroBatch]], steps: int, rate: float) -> None:
    settings = TrainingSettings(
        learning_rate=rate, steps=steps, warmup_steps=20, clip_norm=1.0, weight_decay=0.0, schedule="cosine"
    )
    state = TrainState(model=model, optimizers=build_optimizers(model, settings))
    hooks = Hooks(log=lambda *_: None, evaluate=lambda _: None, save=lambda _: None, describe=str)
    fit(state, batches, settings, CPU, hooks)


@pytest.mark.slow
@pytest.mark.parametrize("size", [None, 4])
def test_a_small_batch_is_memorised(size: int | None) -> None:
    windows = random_windows(6, 16, short=True, seed=3)
    examples = make_examples(windows, vocabulary(), objective(size))
    model = toys.model(initializer_range=0.02, num_layers=2)

    def steps() -> Iterator[list[MicroBatch]]:
        while True:
            yield [MicroBatch(examples, windows)]

    train(model, steps(), 150, 1e-2)
    with torch.no_grad():
        loss = model(collate(examples))["diffusion"]
    assert float(loss.total) / loss.weight < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("size", [None, 4])
def test_random_tokens_are_learned_down_to_the_floor_and_no_further(size: int | None) -> None:
    """The floor is ln V per token; for drawn levels, ln V times the sum of drawn weights over the number of tokens."""
    ordinary = 8
    vocab = toys.FIRST_ORDINARY + ordinary
    model = toys.model(vocab=vocab, positions=24, initializer_range=0.02, num_layers=1)

    def steps() -> Iterator[list[MicroBatch]]:
        seed = 0
        while True:
            seed += 1
            windows = random_windows(16, 12, vocab=vocab, seed=seed)
            yield [MicroBatch(make_examples(windows, vocabulary(vocab), objective(size)), windows)]

    train(model, steps(), 120, 6e-3)
    windows = random_windows(3000, 12, vocab=vocab, seed=10_000)
    examples = make_examples(windows, vocabulary(vocab), objective(size))
    costs, target = costs_of(model, examples), examples.targets["diffusion"]
    weights = target.weights.astype(np.float64)
    loss = (weights * costs).sum() / target.normaliser
    floor = math.log(ordinary) * weights.sum() / target.normaliser
    spread = (costs[weights > 0] - math.log(ordinary)).std()
    noise = 4 * spread * math.sqrt((weights**2).sum()) / target.normaliser
    assert loss > floor - noise, f"{loss:.3f} is below the floor {floor:.3f}"
    assert loss < floor + noise + 0.05, f"{loss:.3f} did not come down to the floor {floor:.3f}"
    by_token = 4 * math.log(ordinary) * math.sqrt(math.log(1 / EPS) / 3000)
    assert abs(floor - math.log(ordinary)) < by_token, "the floor itself is ln V in expectation"


# What a trained model defines, and the recipes


def test_what_is_defined() -> None:
    whole, blocks = defined(objective()), defined(objective(4))
    assert (whole.cloze, whole.stepwise, whole.causal) == (diffusion.cloze, None, None)
    assert (blocks.cloze, blocks.stepwise, blocks.causal) == (None, None, diffusion.causal)
    assert OBJECTIVES["block_diffusion"].make is diffusion.block_diffusion


def test_recipes_are_those_of_the_papers() -> None:
    mdlm, lm1b = load_recipe("mdlm-base"), load_recipe("mdlm-base-lm1b")
    assert (mdlm.data.window, lm1b.data.window, lm1b.tokenizer.vocab_size) == (1024, 128, 30522)
    assert (mdlm.model.num_layers, mdlm.model.hidden_size, mdlm.model.num_heads) == (12, 768, 12)
    training = mdlm.training
    assert (training.steps, training.batch_size, training.learning_rate) == (1_000_000, 512, 3e-4)
    assert (training.schedule, training.warmup_steps, training.clip_norm) == ("constant", 2500, 1.0)
    assert (training.betas, training.epsilon, training.weight_decay) == ((0.9, 0.999), 1e-8, 0.0)
    for name, size in (("bd3lm-base", 4), ("bd3lm-base-block8", 8), ("bd3lm-base-block16", 16)):
        recipe = load_recipe(name)
        assert (recipe.objective.name, recipe.objective.block_size) == ("block_diffusion", size)
        assert (recipe.model, recipe.data, recipe.tokenizer) == (mdlm.model, mdlm.data, mdlm.tokenizer)
        assert recipe.training == dataclasses.replace(training, steps=150_000)


def test_a_block_has_at_least_one_token() -> None:
    with pytest.raises(UsageError, match=r"objective.block_size is 0; it must be above 0 and finite"):
        load_recipe("bd3lm-base", {"objective.block_size": 0})


def test_visibility_of_rows_of_one_length_is_that_of_any() -> None:
    lengths = np.full(5, 9)
    rows = visibility.block_diffusion_rows(lengths, 4, capacity=18)
    assert (rows == visibility.block_diffusion([4, 4, 1])).all()
