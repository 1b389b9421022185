"""Exact values of recipes, pre-training heads, objectives and spans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unicloze import recipes
from unicloze.model import heads
from unicloze.model.heads import BoundaryHead, cross_entropy
from unicloze.objectives import masking, settings_of
from unicloze.recipes import read_recipe, save_recipe
from unicloze.settings import DataSettings, ModelSettings, Recipe
from unicloze.tasks import extraction
from unicloze.tasks.extraction import span_labels, window_bounds


def test_a_saved_recipe_is_wrapped_and_in_order(tmp_path: Path) -> None:
    recipe = Recipe(name="é", data=DataSettings(corpus=["word " * 40]))
    save_recipe(recipe, tmp_path / "a.yaml")
    lines = (tmp_path / "a.yaml").read_text(encoding="utf-8").splitlines()
    assert lines[:2] == [f"schema: {recipes.SCHEMA}", "name: é"]
    assert 115 < max(map(len, lines)) <= 124
    keys = [line.partition(":")[0] for line in lines if line[:1].isalpha()]
    assert keys == ["schema", *recipe.to_dict()]


def test_what_is_given_beside_a_setting(tmp_path: Path) -> None:
    (tmp_path / "first.yaml").write_text("training:\n  seed: 3\n")
    (tmp_path / "mine.yaml").write_text("base: first.yaml\ntraining:\n  steps: 7\n  batch_size: 4\n")
    file = tmp_path / "mine.yaml"
    assert read_recipe(file).given_beside("training.steps", {"training.log_every": 5}) == {
        "name": str(file),
        "training.batch_size": f"{file}, line 4",
        "training.log_every": "option --training.log_every",
    }
    beside = read_recipe(file).given_beside("training.log_every", {"training.log_every": 5, "data.window": 8})
    assert beside == {"data.window": "option --data.window"}
    assert read_recipe(file).given_beside("training.clip_norm", {}) == {}


def head_settings(**changes: Any) -> ModelSettings:
    return ModelSettings(**{"hidden_size": 8, "num_heads": 2, "num_layers": 1, "intermediate_size": 8, **changes})


def test_places_of_a_span_begin_at_one_and_end_at_the_last_embedding() -> None:
    head = BoundaryHead(head_settings(embedding_size=4, layer_norm_eps=0.5), vocab_size=5)
    assert head.places.weight.shape == (128, 200) and head.inner_norm.eps == head.outer_norm.eps == 0.5
    embeddings, states = torch.randn(5, 4), torch.randn(1, 2, 8)

    def logits(place: int) -> list[float]:
        found: list[float] = head(states, torch.tensor([place]), embeddings)[0].tolist()
        return found

    with torch.no_grad():
        assert logits(0) == logits(1) != logits(2)
        assert logits(127) != logits(128) == logits(129) == logits(1000)


@pytest.mark.parametrize("dtype, close", [(torch.float64, 1e-6), (torch.float32, 1e-6), (torch.bfloat16, 0.02)])
def test_smoothed_cross_entropy(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, close: float) -> None:
    monkeypatch.setattr(heads, "WIDENED", 14)  # two rows at once
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    labels = torch.tensor([0, 6, 3, 3, 1])
    for smoothing in (0.0, 0.25):
        expected = torch.nn.functional.cross_entropy(
            logits.double(), labels, reduction="none", label_smoothing=smoothing
        )
        losses = cross_entropy(logits, labels, smoothing) if smoothing else cross_entropy(logits, labels)
        assert losses.dtype == torch.float32
        torch.testing.assert_close(losses.double(), expected, atol=1e-6, rtol=1e-6)
        weights = torch.arange(1.0, 6.0)
        (gradient,) = torch.autograd.grad((losses * weights).sum(), logits)
        (wanted,) = torch.autograd.grad((expected * weights).sum(), logits)
        assert gradient.dtype == dtype
        torch.testing.assert_close(gradient.double(), wanted.double(), atol=close / 100, rtol=close)


def test_the_gradient_of_a_sure_token_survives_half_precision() -> None:
    """There, its probability less 1 would be 0."""
    logits = torch.zeros(5, 3, dtype=torch.bfloat16)
    logits[:, 0] = torch.tensor([2.0, 4.0, 6.0, 8.0, 10.0])
    logits.requires_grad_()
    labels = torch.zeros(5, dtype=torch.long)
    (gradient,) = torch.autograd.grad(cross_entropy(logits, labels).sum(), logits)
    (wanted,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits.double(), labels, reduction="sum"), logits)
    torch.testing.assert_close(gradient.double(), wanted.double(), rtol=1e-2, atol=0.0)


def test_the_most_tokens_that_a_row_can_mask() -> None:
    assert masking.most_masked(100, 0.15, 6) == 20 and masking.most_masked(100, 0.15, 6, 3) == 32
    assert masking.most_masked(3, 1.0, 6) == 3 and masking.most_masked(0, 0.15, 1) == 1


@pytest.mark.parametrize("masks", ["geometric", "ngram"])
def test_lengths_of_spans_at_the_bounds_of_their_shares(masks: str) -> None:
    lengths = masking.span_lengths(settings_of(masking=masks, geometric_p=0.5, max_span=2))
    assert lengths(np.array([0.0, 0.66, 0.67, 0.999])).tolist() == [1, 1, 2, 2]


def test_windows_and_labels_of_spans() -> None:
    assert window_bounds(10, 10, 4) == [(0, 10)] and window_bounds(0, 10, 4) == [(0, 0)]
    assert window_bounds(11, 10, 4) == [(0, 10), (4, 11)] and window_bounds(15, 10, 9) == [(0, 10), (5, 15)]
    assert window_bounds(3, 1, 9) == [(0, 1), (1, 2), (2, 3)]
    nowhere = {"start": 0, "end": 0}
    assert span_labels((4, 6), 4, 7) == {"start": 1, "end": 3}
    assert span_labels(None, 4, 7) == span_labels((3, 6), 4, 7) == span_labels((4, 7), 4, 7) == nowhere


def test_characters_that_continue_a_letter() -> None:
    assert all(extraction._goes_on(each) for each in ("\u0301", "\u1160", "\u11ff"))
    assert not any(extraction._goes_on(each) for each in ("a", "\u115f", "\u1200"))
