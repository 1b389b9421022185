"""Bidirectional language models: a row by hand, who reads whom, leakage through the window, both losses."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

import toys
from brute_force import group, matrix
from recurrent_toys import recurrent_model
from toys import EOS, PAD, SOS, random_windows, vocabulary
from unicloze import keyed, visibility
from unicloze.errors import UsageError
from unicloze.example import collate
from unicloze.objectives import make_examples, settings_of
from unicloze.recipes import load_recipe
from unicloze.text.windows import Windows, windows_of

OBJECTIVE = settings_of(name="bidirectional_lm", targets=["lm", "lm_back"])
CAUSAL = {
    "lm": settings_of(name="causal", targets=["lm"], visibility="left_to_right"),
    "lm_back": settings_of(name="causal", targets=["lm"], visibility="right_to_left"),
}
SIGN = {"forward": 1, "backward": -1}


def test_a_row_is_the_text_forward_and_then_backward() -> None:
    segments = [[np.array([11, 12])], [np.array([14])]]
    examples = make_examples(
        windows_of(segments, vocabulary(), keys=keyed.key(0, np.arange(2))), vocabulary(), OBJECTIVE
    )
    assert examples.input_ids.tolist() == [
        [SOS, 11, 12, EOS, SOS, 11, 12, EOS],
        [SOS, 14, EOS, SOS, 14, EOS, PAD, PAD],
    ]
    assert examples.position_ids[0].tolist() == [0, 1, 2, 3] * 2
    assert examples.lengths.tolist() == [8, 6] and examples.text_tokens.tolist() == [4, 3]
    lm, back = examples.targets["lm"], examples.targets["lm_back"]
    assert (lm.slots[0].tolist(), lm.labels[0].tolist()) == ([0, 1, 2], [11, 12, EOS])
    assert (back.slots[0].tolist(), back.labels[0].tolist()) == ([5, 6, 7], [SOS, 11, 12])
    assert (back.slots[1, :2].tolist(), back.labels[1, :2].tolist(), back.weights[1].tolist()) == (
        [4, 5], [SOS, 14], [1, 1, 0],
    )  # fmt: skip


def test_visibility_follows_the_definition() -> None:
    windows = random_windows(20, 12, short=True, seed=3)
    examples = make_examples(windows, vocabulary(), OBJECTIVE)
    for row, length in enumerate(windows.lengths.tolist()):
        slots = group("forward", length) + group("backward", length)
        wanted = matrix(slots, slots, lambda q, k: q.group == k.group and SIGN[q.group] * (q.place - k.place) >= 0)
        assert examples.position_ids[row].max() == length - 1, "the position table has a row per token of a window"
        found = visibility.bool_mask(examples.intervals[row], 24)
        assert np.array_equal(found[: 2 * length, : 2 * length], wanted)
        assert np.array_equal(found[2 * length :], np.eye(24, dtype=bool)[2 * length :])


@pytest.mark.parametrize("recurrent", [True, False])
def test_the_losses_are_those_of_two_causal_models(recurrent: bool) -> None:
    windows = random_windows(6, 12, short=True, seed=3)
    model: Any = recurrent_model(targets=("lm", "lm_back"), directions="both", projection=True, intermediate_size=16)
    if not recurrent:
        model = toys.model(targets=("lm", "lm_back"))
    with torch.no_grad():
        both = model.eval()(collate(make_examples(windows, vocabulary(), OBJECTIVE)))
        for name, settings in CAUSAL.items():
            alone = model(collate(make_examples(windows, vocabulary(), settings)))["lm"]
            assert both[name].weight == alone.weight
            torch.testing.assert_close(both[name].total, alone.total)


def test_no_prediction_reads_its_answer() -> None:
    model = recurrent_model(targets=("lm", "lm_back"), directions="both")
    windows = random_windows(1, 14, seed=11)

    def logits(changed: Windows) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            return dict(model.logits(collate(make_examples(changed, vocabulary(), OBJECTIVE))))

    reference = logits(windows)
    for place in np.flatnonzero(windows.maskable[0]).tolist():
        tokens = windows.token_ids.copy()
        tokens[0, place] = toys.FIRST_ORDINARY + (tokens[0, place] - toys.FIRST_ORDINARY + 1) % 43
        found = logits(dataclasses.replace(windows, token_ids=tokens))
        for prediction in range(13):
            forward, back = (torch.equal(found[name][0, prediction], reference[name][0, prediction]) for name in found)
            assert forward == (prediction < place)  # predicts the token at prediction + 1
            assert back == (prediction + 1 > place)  # predicts the token at prediction


def test_a_model_of_one_direction_is_refused() -> None:
    with pytest.raises(UsageError, match=r"model\.directions is 'forward'; objective bidirectional_lm reads in both"):
        load_recipe("elmo", {"model.directions": "forward"})
