"""Checks of a recipe's uses agree with the rows that `embed` makes and those that objectives train on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from toys import EOS, MASK, PSEUDO, random_windows, vocabulary
from unicloze.decoding.embed import rows_to_encode
from unicloze.interop.stock import encoder_inputs, never_written, step_inputs
from unicloze.model.from_attention_mask import StepInputs, encoding_batch, slots_of
from unicloze.objectives import settings_of
from unicloze.objectives.seq2seq import prefix
from unicloze.recipes import load_recipe, recipe_names
from unicloze.settings import Recipe
from unicloze.text.windows import without_start
from unicloze.visibility import bool_mask


@pytest.mark.parametrize("name", [name for name in recipe_names() if load_recipe(name).model.kind == "transformer"])
def test_texts_are_read_as_embed_reads_them(name: str) -> None:
    recipe = load_recipe(name)
    windows = random_windows(4, 20, short=True)
    expected = rows_to_encode(windows, recipe)
    if not getattr(recipe.objective, "source_start", True):
        windows = without_start(windows)
    width = windows.token_ids.shape[1]
    real = np.arange(width) < windows.lengths[:, None]
    assert np.array_equal(expected.input_ids[real], windows.token_ids[real])
    ids, mask, segments = (torch.from_numpy(each).long() for each in (windows.token_ids, real, windows.segment_ids))
    found = encoding_batch(ids, mask, segments, None, rule=encoder_inputs(recipe), max_positions=20)
    assert np.array_equal(found.position_ids.numpy()[real], expected.position_ids[real])
    assert np.array_equal(bool_mask(found.intervals.numpy(), width), bool_mask(expected.intervals, width))
    if recipe.model.num_segments > 1:
        assert np.array_equal(found.segment_ids.numpy()[real], expected.segment_ids[real])
    if recipe.model.layer_visibility != ["full"]:
        assert found.local is not None and expected.local is not None
        assert np.array_equal(bool_mask(found.local.numpy(), 20)[real], bool_mask(expected.local, 20)[real])


def test_a_source_and_its_target_are_read_as_the_prefix_objective_trains() -> None:
    settings = settings_of(name="prefix", targets=["lm"], mask_rate=0.5)
    rows = prefix(random_windows(6, 20, short=True), vocabulary(), settings)
    width = rows.input_ids.shape[1]
    real = np.arange(width) < rows.lengths[:, None]
    rule = step_inputs(Recipe(objective=settings), vocabulary())
    assert rule == StepInputs(predicts="next")
    is_target = np.arange(width) >= rows.mutual[:, None]
    ids, mask, segments = (torch.from_numpy(array) for array in (rows.input_ids, real, is_target))
    found = slots_of(ids.long(), mask, segments.long(), rule=rule, earlier=0, max_positions=width)
    assert np.array_equal(found.visible.numpy()[real], bool_mask(rows.intervals, width)[real])
    assert np.array_equal(found.positions.numpy()[real], rows.position_ids[real])
    assert np.array_equal(found.segment_ids.numpy()[real], rows.segment_ids[real])


MIXED = [{"visibility": "left_to_right", "segment_ids": [2]}, {"visibility": "prefix", "segment_ids": [4, 5]}]
WRITERS: list[tuple[dict[str, Any], StepInputs | None]] = [
    ({}, StepInputs(predicts="pseudo", pseudo=PSEUDO)),
    ({"pseudo_token": "mask"}, StepInputs(predicts="pseudo", pseudo=MASK)),
    ({"targets": ["ae"]}, None),
    ({"name": "masked", "targets": ["ae"]}, None),
    ({"name": "masked", "targets": ["ae"], "visibility": "prefix"}, StepInputs(predicts="pseudo", pseudo=MASK)),
    ({"name": "masked", "targets": ["ae", "rtd"], "visibility": "prefix"}, None),
    ({"name": "causal", "targets": ["lm"], "visibility": "left_to_right", "local_width": 7},
     StepInputs(predicts="next", source="left_to_right", segment_ids=(0, 0), local_width=7)),
    ({"name": "masked", "targets": ["ae"], "mixture": MIXED}, StepInputs(predicts="pseudo", segment_ids=(4, 5), pseudo=MASK)),
    ({"name": "masked_diffusion", "targets": ["diffusion"]}, None),
]  # fmt: skip


@pytest.mark.parametrize(("objective", "expected"), WRITERS)
def test_a_target_is_written_as_the_objective_trains(objective: dict[str, Any], expected: StepInputs | None) -> None:
    recipe = load_recipe("unilm-v1-large") if "mixture" in objective else Recipe()
    recipe = Recipe(objective=settings_of(**objective), model=recipe.model)
    assert step_inputs(recipe, vocabulary()) == expected


def test_special_tokens_are_never_written_but_the_end_and_sentinels() -> None:
    words = vocabulary(extra=3)
    assert never_written(Recipe(), words) == sorted({*words.special.tolist()} - {EOS})
    spans = Recipe(objective=settings_of(name="span_corruption", targets=["lm"]))
    assert never_written(spans, words) == sorted({*words.special.tolist()} - {EOS, *words.extra.tolist()})
