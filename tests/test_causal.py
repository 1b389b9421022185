"""Causal and bidirectional language models: rows by hand, and what is predicted."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

import toys
from objective_toys import CASES, picture
from recurrent_toys import recurrent_model
from toys import EOS, PAD, SOS, UNK, random_windows, vocabulary
from unicloze import keyed
from unicloze.example import Examples, collate
from unicloze.objectives import make_examples
from unicloze.objectives.causal import causal, chain
from unicloze.text.windows import Windows, windows_of

LEFT_TO_RIGHT, RIGHT_TO_LEFT, BOTH = CASES["gpt"], CASES["gpt, right_to_left"], CASES["elmo"]
AHEAD = {"left_to_right": 1, "right_to_left": -1}
"""Which slot's token a slot predicts."""


def two_texts() -> Windows:
    """ "[SOS] 11 [UNK] 12 [EOS] 13 [EOS]" and "[SOS] 14 [EOS]", padded."""
    segments = [[np.array([11, UNK, 12]), np.array([13])], [np.array([14])]]
    return windows_of(segments, vocabulary(), keys=keyed.key(0, 0, np.arange(2)))


def predictions(examples: Examples) -> list[dict[int, int]]:
    """Of each row, the answer at each slot that predicts."""
    target = examples.targets["lm"]
    assert target.weights.tolist() == [[1, 1, 1, 1, 1, 0], [1, 1, 0, 0, 0, 0]] and target.normaliser == 7
    rows = zip(target.slots.tolist(), target.labels.tolist(), (5, 2), strict=True)
    return [dict(zip(slots[:real], labels[:real], strict=True)) for slots, labels, real in rows]


def test_rows_of_two_texts() -> None:
    """Every token is predicted once, but the first of its direction and those that are not in the vocabulary."""
    examples, mirrored = (causal(two_texts(), vocabulary(), one) for one in (LEFT_TO_RIGHT, RIGHT_TO_LEFT))
    assert examples.input_ids.tolist() == [[SOS, 11, UNK, 12, EOS, 13, EOS], [SOS, 14, EOS, PAD, PAD, PAD, PAD]]
    assert examples.segment_ids.tolist() == [[0, 0, 0, 0, 0, 1, 1], [0] * 7]
    assert examples.position_ids.tolist() == [[0, 1, 2, 3, 4, 5, 6]] * 2
    assert examples.lengths.tolist() == examples.text_tokens.tolist() == [7, 3]
    assert predictions(examples) == [{0: 11, 2: 12, 3: EOS, 4: 13, 5: EOS}, {0: 14, 1: EOS}]
    assert predictions(mirrored) == [{1: SOS, 2: 11, 4: 12, 5: EOS, 6: 13}, {1: SOS, 2: 14}]
    assert picture(examples.visible(1)) == ["100", "110", "111"]
    assert picture(mirrored.visible(1)) == ["111", "011", "001"]
    assert examples.local is None


def test_segments_may_be_named() -> None:
    for ids, expected in (([2, 3], [2, 2, 2, 2, 2, 3, 3]), ([2], [2] * 7)):
        named = causal(two_texts(), vocabulary(), dataclasses.replace(LEFT_TO_RIGHT, segment_ids=ids))
        assert named.segment_ids.tolist()[0] == expected


def test_the_chain_rule_costs_what_training_does() -> None:
    """Its predictions of text tokens are those of the training rows, which also predict special tokens."""
    windows, model = random_windows(8, 24, short=True, seed=6), toys.model()
    for settings in (LEFT_TO_RIGHT, RIGHT_TO_LEFT):
        costs = []
        for rows in (chain(windows, vocabulary(), settings), causal(windows, vocabulary(), settings)):
            batch = collate(rows)
            target = batch.targets["lm"]
            row, number = target.weights.nonzero(as_tuple=True)
            with torch.no_grad():
                logs = model.logits(batch)["lm"].log_softmax(dim=-1)[row, number, target.labels[row, number]]
            places = (target.slots[row, number] + AHEAD[settings.visibility]).tolist()
            costs.append(dict(zip(zip(row.tolist(), places, strict=True), logs.tolist(), strict=True)))
        assert set(costs[0]) == set(zip(*np.nonzero(windows.maskable), strict=True))
        assert costs[0] == pytest.approx({place: costs[1][place] for place in costs[0]}, abs=1e-5)


@pytest.mark.parametrize("recurrent", [True, False])
def test_the_losses_are_those_of_two_causal_models(recurrent: bool) -> None:
    """Its rows are the text forward and then backward."""
    windows = random_windows(6, 12, short=True, seed=3)
    model: Any = toys.model(targets=("lm", "lm_back"))
    if recurrent:
        more: dict[str, Any] = {"directions": "both", "projection": True, "intermediate_size": 16}
        model = recurrent_model(targets=("lm", "lm_back"), **more)
    examples = make_examples(windows, vocabulary(), BOTH)
    assert examples.lengths.tolist() == (2 * windows.lengths).tolist()
    assert examples.text_tokens.tolist() == windows.lengths.tolist()
    with torch.no_grad():
        both = model.eval()(collate(examples))
        for name, settings in {"lm": LEFT_TO_RIGHT, "lm_back": RIGHT_TO_LEFT}.items():
            alone = model(collate(make_examples(windows, vocabulary(), settings)))["lm"]
            assert both[name].weight == alone.weight
            torch.testing.assert_close(both[name].total, alone.total)
