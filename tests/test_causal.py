"""Causal language models: rows, visibility, leakage through the window, the chain rule, the loss floor."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import toys
from brute_force import group, matrix
from toys import EOS, PAD, SOS, UNK, random_windows, vocabulary
from unicloze import keyed, visibility
from unicloze.errors import UsageError
from unicloze.example import Examples, Kind, collate
from unicloze.model.dropout import DropoutKey
from unicloze.model.heads import cross_entropy
from unicloze.model.model import UnifiedModel
from unicloze.objectives import defined, make_examples, settings_of
from unicloze.objectives.causal import causal, chain
from unicloze.recipes import load_recipe
from unicloze.settings import ObjectiveSettings, TrainingSettings
from unicloze.text.windows import Windows, windows_of
from unicloze.training.batches import MicroBatch
from unicloze.training.loop import Compute, Hooks, TrainState, fit
from unicloze.training.optimizers import build_optimizers

LEFT_TO_RIGHT = settings_of(name="causal", targets=["lm"], visibility="left_to_right")
RIGHT_TO_LEFT = dataclasses.replace(LEFT_TO_RIGHT, visibility="right_to_left")
DIRECTIONS = [LEFT_TO_RIGHT, RIGHT_TO_LEFT]
AHEAD = {"left_to_right": 1, "right_to_left": -1}
"""Which slot's token a slot predicts."""
CPU = Compute(device=torch.device("cpu"), precision="fp32")


def two_texts() -> Windows:
    """ "[SOS] 11 12 [EOS] 13 [EOS]" and "[SOS] 14 [EOS]", padded."""
    segments = [[np.array([11, 12]), np.array([13])], [np.array([14])]]
    return windows_of(segments, vocabulary(), keys=keyed.key(0, 0, np.arange(2)))


def test_a_row_from_left_to_right() -> None:
    examples = causal(two_texts(), vocabulary(), LEFT_TO_RIGHT)
    assert examples.input_ids.tolist() == [[SOS, 11, 12, EOS, 13, EOS], [SOS, 14, EOS, PAD, PAD, PAD]]
    assert examples.segment_ids.tolist() == [[0, 0, 0, 0, 1, 1], [0] * 6]
    assert examples.position_ids.tolist() == [[0, 1, 2, 3, 4, 5]] * 2
    assert examples.lengths.tolist() == examples.text_tokens.tolist() == [6, 3]
    lm = examples.targets["lm"]
    assert (lm.slots.tolist()[0], lm.labels.tolist()[0]) == ([0, 1, 2, 3, 4], [11, 12, EOS, 13, EOS])
    assert (lm.slots.tolist()[1][:2], lm.labels.tolist()[1][:2]) == ([0, 1], [14, EOS])
    assert lm.weights.tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]
    assert lm.normaliser == 7
    assert ["".join(map(str, row)) for row in examples.visible(1).astype(int)] == ["100", "110", "111"]
    assert examples.local is None


def test_a_row_from_right_to_left_is_the_mirror_image() -> None:
    examples = causal(two_texts(), vocabulary(), RIGHT_TO_LEFT)
    lm = examples.targets["lm"]
    assert (lm.slots.tolist()[0], lm.labels.tolist()[0]) == ([1, 2, 3, 4, 5], [SOS, 11, 12, EOS, 13])
    assert (lm.slots.tolist()[1][:2], lm.labels.tolist()[1][:2]) == ([1, 2], [SOS, 14])
    assert ["".join(map(str, row)) for row in examples.visible(1).astype(int)] == ["111", "011", "001"]


def test_a_band_is_as_wide_as_it_says() -> None:
    examples = causal(two_texts(), vocabulary(), dataclasses.replace(LEFT_TO_RIGHT, local_width=2))
    assert examples.local is not None
    rows = visibility.bool_mask(examples.local[0], 6).astype(int)
    assert ["".join(map(str, row)) for row in rows] == ["100000", "110000", "111000", "011100", "001110", "000111"]


@pytest.mark.parametrize("width", [0, 1, 5, 100])
@pytest.mark.parametrize("settings", DIRECTIONS, ids=lambda settings: settings.visibility)
def test_visibility_follows_the_definition(settings: ObjectiveSettings, width: int) -> None:
    windows = random_windows(40, 24, short=True, seed=1)
    examples = causal(windows, vocabulary(), dataclasses.replace(settings, local_width=width))
    assert examples.local is not None
    sign = 1 if settings is LEFT_TO_RIGHT else -1
    for row, length in enumerate(windows.lengths.tolist()):
        slots = group("x", length)
        full = matrix(slots, slots, lambda q, k: sign * (q.place - k.place) >= 0)
        near = matrix(slots, slots, lambda q, k: 0 <= sign * (q.place - k.place) <= width)
        alone = np.eye(24, dtype=bool)[length:]
        for intervals, expected in ((examples.intervals, full), (examples.local, near)):
            found = visibility.bool_mask(intervals[row], 24)
            assert np.array_equal(found[:length, :length], expected)
            assert not found[:length, length:].any()
            assert np.array_equal(found[length:], alone), "padding reads itself"
    assert (examples.kinds == np.where(np.arange(24) < windows.lengths[:, None], Kind.CONTEXT, Kind.PADDING)).all()


@pytest.mark.parametrize("settings", DIRECTIONS, ids=lambda settings: settings.visibility)
def test_every_token_but_the_first_is_predicted_once(settings: ObjectiveSettings) -> None:
    windows = random_windows(50, 24, short=True, seed=4)
    windows.token_ids[:, 3] = np.where(windows.token_ids[:, 3] > UNK, UNK, PAD)  # a token that is not in the vocabulary
    ahead = AHEAD[settings.visibility]
    target = causal(windows, vocabulary(), settings).targets["lm"]
    for row, length in enumerate(windows.lengths.tolist()):
        real = int(target.weights[row].sum())
        assert target.weights[row].tolist() == [1] * real + [0] * (23 - real)
        slots = target.slots[row, :real]
        answers = range(1, length) if ahead > 0 else range(length - 1)
        positions = [p for p in answers if windows.token_ids[row, p] != UNK]
        assert (slots + ahead).tolist() == positions
        assert np.array_equal(target.labels[row, :real], windows.token_ids[row, positions])


def test_segments_may_be_named() -> None:
    for ids, expected in (([2, 3], [2, 2, 2, 2, 3, 3]), ([2], [2] * 6)):
        named = causal(two_texts(), vocabulary(), dataclasses.replace(LEFT_TO_RIGHT, segment_ids=ids))
        assert named.segment_ids.tolist()[0] == expected


def test_reading_in_both_directions_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"lets a slot see its own answer: set --objective\.visibility left_to_right or"
    ):
        make_examples(two_texts(), vocabulary(), settings_of(name="causal", targets=["lm"]))


# Leakage


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("settings", DIRECTIONS, ids=lambda settings: settings.visibility)
def test_a_token_reaches_only_later_predictions(settings: ObjectiveSettings, training: bool) -> None:
    """Independent of the rule: change a token in the window, remake the example, compare every prediction."""
    model = toys.model(dropout=0.1, attention_dropout=0.1)
    windows = random_windows(1, 20, seed=11)

    def predictions(tokens: Any) -> dict[int, Tensor]:
        """Hidden state behind the prediction of each position."""
        batch = collate(causal(dataclasses.replace(windows, token_ids=tokens), vocabulary(), settings))
        with torch.no_grad():
            states = model.backbone(batch, select=True, dropout=DropoutKey(1) if training else None)[-1][0]
        positions = batch.targets["lm"].slots[0] + AHEAD[settings.visibility]
        return dict(zip(positions.tolist(), states, strict=True))

    reference = predictions(windows.token_ids)
    for changed in np.flatnonzero(windows.maskable[0]).tolist():
        tokens = windows.token_ids.copy()
        tokens[0, changed] = toys.FIRST_ORDINARY + (tokens[0, changed] - toys.FIRST_ORDINARY + 1) % 43
        for position, state in predictions(tokens).items():
            read = changed < position if settings is LEFT_TO_RIGHT else changed > position
            assert torch.equal(state, reference[position]) != read, (changed, position)


def test_local_layers_carry_a_token_no_further_than_their_bands_together() -> None:
    width, layers = 2, 3
    model = toys.model(num_layers=layers, layer_visibility=["local"])
    settings = dataclasses.replace(LEFT_TO_RIGHT, local_width=width)
    windows = random_windows(1, 20, seed=11)
    with torch.no_grad():
        before = model.logits(collate(causal(windows, vocabulary(), settings)))["lm"][0]
        windows.token_ids[0, 4] = toys.FIRST_ORDINARY if windows.token_ids[0, 4] != toys.FIRST_ORDINARY else 8
        after = model.logits(collate(causal(windows, vocabulary(), settings)))["lm"][0]
    changed = [slot for slot in range(19) if not torch.equal(before[slot], after[slot])]
    assert changed == list(range(4, 4 + layers * width + 1))


# The chain rule


@pytest.mark.parametrize("settings", DIRECTIONS, ids=lambda settings: settings.visibility)
def test_the_chain_predicts_each_maskable_token_as_in_training(settings: ObjectiveSettings) -> None:
    windows = random_windows(8, 24, short=True, seed=6)
    rows = chain(windows, vocabulary(), settings)
    assert list(rows.targets) == ["lm"]
    for row in range(8):
        real = rows.targets["lm"].weights[row] > 0
        assert rows.targets["lm"].labels[row, real].tolist() == windows.token_ids[row, windows.maskable[row]].tolist()
    model = toys.model()
    trained = causal(windows, vocabulary(), settings)
    ahead = AHEAD[settings.visibility]
    found, expected = losses_by_position(model, rows, ahead), losses_by_position(model, trained, ahead)
    assert set(found) == {(row, p) for row, p in zip(*np.nonzero(windows.maskable), strict=True)}
    for place, loss in found.items():
        assert loss == pytest.approx(expected[place], abs=1e-5)


def test_only_reading_from_the_left_defines_the_chain_rule() -> None:
    assert defined(LEFT_TO_RIGHT).causal is chain
    assert defined(RIGHT_TO_LEFT).causal is None


def losses_by_position(model: UnifiedModel, examples: Examples, ahead: int) -> dict[tuple[int, int], float]:
    batch = collate(examples)
    target = batch.targets["lm"]
    with torch.no_grad():
        losses = cross_entropy(model.logits(batch)["lm"].flatten(0, 1), target.labels.flatten()).view_as(target.labels)
    row, j = target.weights.nonzero(as_tuple=True)
    positions = target.slots[row, j] + ahead
    return dict(zip(zip(row.tolist(), positions.tolist(), strict=True), losses[row, j].tolist(), strict=True))


# Learning


def train(model: UnifiedModel, settings: TrainingSettings, windows_of_step: Any, vocab: int) -> float:
    """The loss of the last step."""
    losses = []

    def steps() -> Any:
        for step in range(settings.steps):
            windows = windows_of_step(step)
            yield [MicroBatch(causal(windows, vocabulary(vocab), LEFT_TO_RIGHT), windows)]

    state = TrainState(model=model, optimizers=build_optimizers(model, settings))
    hooks = Hooks(
        log=lambda _, measures: losses.append(measures["loss"]["lm"]),
        evaluate=lambda _: None,
        save=lambda _: None,
        describe=str,
    )
    fit(state, steps(), settings, CPU, hooks)
    return float(losses[-1])


@pytest.mark.slow
def test_a_small_batch_is_memorised() -> None:
    """All but the first token of each row is predictable: ln 4 for one of 15 predictions."""
    windows = random_windows(4, 16, seed=1)
    model = toys.model(
        relative_bias=False, num_segments=0, head="linear", norm="pre", initializer_range=0.02, num_layers=1
    )
    settings = TrainingSettings(learning_rate=1e-2, steps=100, warmup_steps=10, weight_decay=0.0)
    assert train(model, settings, lambda _: windows, 50) == pytest.approx(math.log(4) / 15, abs=0.02)


@pytest.mark.slow
def test_random_tokens_are_learned_down_to_the_floor_and_no_further() -> None:
    """A row's entropy is 9 tokens out of 8 and the place of the first [EOS] out of 8, spread over 11 predictions."""
    ordinary = 8
    vocab = toys.FIRST_ORDINARY + ordinary
    lowest = (9 * math.log(ordinary) + math.log(8)) / 11
    model = toys.model(vocab=vocab, positions=12, initializer_range=0.02, num_layers=1)
    settings = TrainingSettings(learning_rate=1.5e-2, steps=100, warmup_steps=20, betas=(0.9, 0.98))
    train(model, settings, lambda step: random_windows(16, 12, vocab=vocab, seed=step + 1), vocab)
    windows = random_windows(3000, 12, vocab=vocab, seed=10_000)
    with torch.no_grad():
        loss = model(collate(causal(windows, vocabulary(vocab), LEFT_TO_RIGHT)))["lm"]
    mean, noise = float(loss.total / loss.weight), 4 * 1.5 / math.sqrt(float(loss.weight))
    assert lowest - noise < mean < lowest + 0.03


# What is refused


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"objective.visibility": "prefix"}, "objective causal needs left_to_right or right_to_left."),
        ({"objective.targets": ["ae"]}, "name at least one of 'lm'."),
        ({"objective.local_width": -1}, "it must be at least 0 and finite."),
        ({"model.layer_visibility": []}, "name at least one of 'full' and 'local'."),
        ({"model.layer_visibility": ["local"]}, "'local' needs objective.local_width"),
        ({"data.segments": 2}, "two segments need a segment table"),
        ({"model.embedding_size": 0}, "it must be above 0 and finite."),
        ({"model.num_segments": -1}, "it must be at least 0 and finite."),
    ],
    ids=str,
)
def test_settings_that_cannot_work_together(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_recipe("gpt", overrides)
    assert message in str(caught.value)


def test_local_layers_over_another_objective_are_refused() -> None:
    overrides = {"model.layer_visibility": ["full", "local"]}
    with pytest.raises(
        UsageError, match=r"'local' needs rows in text order, such as those of objective\.name causal.* pseudo"
    ):
        load_recipe("unilmv2-base", overrides)
