"""Exact values of recipes, pre-training heads, standard errors, objectives and passages."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from toys import MASK, PSEUDO, random_windows, vocabulary
from unicloze import recipes
from unicloze.errors import UsageError
from unicloze.evaluation.metrics import standard_errors as errors
from unicloze.model import heads
from unicloze.model.heads import BoundaryHead, PairHead, ReplacedTokenHead, TokenHead, cross_entropy
from unicloze.objectives import diffusion, masking, settings_of, unilmv2
from unicloze.recipes import given_beside, load_recipe, recipe_names, save_recipe, task_names, toy_overrides
from unicloze.settings import DataSettings, ModelSettings, Recipe
from unicloze.tasks import extraction
from unicloze.tasks.extraction import Passage, best_spans, span_labels, window_bounds


def test_toy_overrides() -> None:
    assert toy_overrides() == {
        "data.window": 32, "tokenizer.path": None, "tokenizer.vocab_size": 512, "model.hidden_size": 32,
        "model.num_layers": 2, "model.num_heads": 2, "model.intermediate_size": 64, "model.max_positions": None,
        "model.character_filters": [8, 8, 16], "training.copy_to": None,
        "training.steps": 2, "training.batch_size": 8, "training.phases": [], "training.initialize_from": None,
        "training.word_vectors": None,
        "training.micro_batch_size": None, "training.warmup_steps": 1, "training.decay_steps": None,
        "training.device": "cpu", "training.compile": False, "training.evaluate_every": 0,
        "training.evaluate_windows": 4, "training.log_every": 1, "training.save_every": 0,
    }  # fmt: skip


def test_names_of_recipes() -> None:
    assert recipes.TASKS_SHELF == "tasks"
    for names, folder in ((recipe_names(), "."), (task_names(), "tasks")):
        shelf = Path(recipes.__file__).parent / folder
        assert names == sorted(file.name.removesuffix(".yaml") for file in shelf.glob("*.yaml")) and len(names) > 3


def refusal(name: str | Path, overrides: dict[str, Any] | None = None) -> str:
    with pytest.raises(UsageError) as refused:
        load_recipe(name, overrides)
    return str(refused.value)


def test_recipes_that_are_not_found(tmp_path: Path) -> None:
    listed = "`unicloze recipes` lists the built-in recipes."
    assert refusal(tmp_path) == f"{tmp_path}: this is a directory; name the recipe file in it; {listed}"
    for name in ("mine.yaml", "mine.yml", "a/b"):
        assert refusal(name) == f"{name}: there is no such file; {listed}"
    assert refusal("quikstart") == (
        "No recipe is named 'quikstart'; did you mean 'quickstart'? `unicloze recipes` lists all."
    )
    assert refusal("clasification").startswith("No recipe is named 'clasification'; did you mean 'classification'? ")
    assert refusal("0000") == "No recipe is named '0000'. `unicloze recipes` lists all."


def test_files_that_are_no_recipes(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    for content, problem in (
        (
            b"training:\n  steps: 1\n  steps: 2\n",
            ", line 3: training.steps is given twice (first on line 2); keep one.",
        ),
        (b"schema: 7\n", f", line 1: schema is 7; this version reads {recipes.SCHEMA}."),
        (b"name: a\nbase: 3\n", ", line 2: base is 3; expected the name of a recipe."),
        (b"name: \xff", ": this is not UTF-8 text (byte 6); a recipe is a YAML file."),
        (
            b"name: a\nbase: nothing.yaml",
            f", line 2: base: nothing.yaml: there is no such file; {'`unicloze recipes` lists'}",
        ),
        (b"name: a\n  b: c", ", line 2: this is not valid YAML: mapping values are not allowed here."),
    ):
        file.write_bytes(content)
        assert refusal(file).startswith(f"{file}{problem}"), content
    file.write_text(f"base: {file.name}\n")
    assert refusal(
        file
    ) == f"{file}, line 1: base: {file}: this recipe is its own base; remove one `base:` of {file}." or (
        refusal(file) == f"{file}: this recipe is its own base; remove one `base:` of {file}."
    )


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
    assert given_beside("training.steps", file, {"training.log_every": 5}) == {
        "name": str(file),
        "training.batch_size": f"{file}, line 4",
        "training.log_every": "option --training.log_every",
    }
    assert given_beside("training.log_every", file, {"training.log_every": 5, "data.window": 8}) == {
        "data.window": "option --data.window"
    }
    assert given_beside("training.clip_norm", file, {}) == {}


def head_settings(**changes: Any) -> ModelSettings:
    return ModelSettings(**{"hidden_size": 8, "num_heads": 2, "num_layers": 1, "intermediate_size": 8, **changes})


def test_shapes_of_heads() -> None:
    plain = TokenHead(head_settings(), vocab_size=5)
    assert plain.bias is not None and plain.bias.tolist() == [0.0] * 5 and plain.dense.weight.shape == (8, 8)
    linear = TokenHead(head_settings(head="linear", head_bias=False), vocab_size=5)
    assert linear.bias is None and [type(each) for each in (linear.dense, linear.norm)] == [torch.nn.Identity] * 2
    narrow = TokenHead(head_settings(head="linear", embedding_size=4), vocab_size=5)
    assert narrow.dense.weight.shape == (4, 8) and isinstance(narrow.activation, torch.nn.Identity)
    boundary = BoundaryHead(head_settings(embedding_size=4, layer_norm_eps=0.5), vocab_size=5)
    assert boundary.places.weight.shape == (128, 200) and boundary.inner.weight.shape == (8, 216)
    assert boundary.outer.weight.shape == (4, 8) and boundary.bias.tolist() == [0.0] * 5
    assert boundary.inner_norm.eps == boundary.outer_norm.eps == 0.5
    assert (boundary.inner_norm.normalized_shape, boundary.outer_norm.normalized_shape) == ((8,), (4,))
    assert PairHead(head_settings()).output.weight.shape == (2, 8)
    assert ReplacedTokenHead(head_settings()).output.weight.shape == (1, 8)
    assert (heads.WIDENED, heads.WIDENED_ON_GPU) == (524288, 67108864)


def test_places_of_a_span_begin_at_one_and_end_at_the_last_embedding() -> None:
    head = BoundaryHead(head_settings(), vocab_size=5)
    embeddings, states = torch.randn(5, 8), torch.randn(1, 2, 8)

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
        torch.testing.assert_close(losses.double(), expected, atol=close, rtol=close)
        weights = torch.arange(1.0, 6.0)
        (gradient,) = torch.autograd.grad((losses * weights).sum(), logits)
        (wanted,) = torch.autograd.grad((expected * weights).sum(), logits)
        assert gradient.dtype == dtype
        torch.testing.assert_close(gradient.double(), wanted.double(), atol=5 * close, rtol=close)


def test_standard_errors_by_hand() -> None:
    assert errors.binomial_error(25.0, 3) == pytest.approx(25.0)
    with pytest.raises(UsageError) as refused:
        errors.binomial_error(50.0, 0)
    assert str(refused.value) == "items is 0: give 1 or more."
    assert errors.binomial_error(50.0, 1) == 50.0
    assert errors.standard_errors("accuracy", ["a", "b", "b", "b"], ["a", "a", "a", "a"]) == {
        "accuracy": pytest.approx(100 * math.sqrt(0.25 * 0.75 / 4))
    }
    assert errors.standard_errors("accuracy", [], []) == {}
    defaults = inspect.signature(errors.bootstrap_errors).parameters
    assert (defaults["samples"].default, defaults["seed"].default) == (1000, 0)
    assert (200, 1e-6, {"rouge", "coco", "lambada", "squad"}) == (errors._SAMPLES, errors._CLOSE, errors._MEANS)
    for samples, items in ((1, ["a"]), (2, [])):
        with pytest.raises(UsageError) as refused:
            errors.bootstrap_errors(errors.metric("accuracy"), items, items, samples=samples)
        assert str(refused.value) == f"{samples} samples of {len(items)} items: give 2 samples and 1 item or more."


def test_number_of_bootstrap_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(errors, "bootstrap_errors", lambda *_, **named: asked.append(named) or {"f1": 1.0})
    assert errors.standard_errors("f1", ["1", "b"], ["1", "b"]) == {"f1": 1.0}
    assert asked == [{"samples": 200}]


def test_ids_of_pseudo_masks() -> None:
    for token, expected in (("mask", MASK), ("own", PSEUDO)):
        settings = settings_of(pseudo_token=token)
        assert unilmv2.pseudo_id(vocabulary(), settings) == expected  # type: ignore[arg-type]
        generated = unilmv2._generates(settings, vocabulary())  # type: ignore[arg-type]
        assert generated is not None and (generated.predicts, generated.pseudo) == ("pseudo", expected)
    assert unilmv2._generates(settings_of(targets=["ae"]), vocabulary()) is None  # type: ignore[arg-type]
    assert unilmv2._defines(settings_of(targets=["ae"])) == {"cloze"}  # type: ignore[arg-type]
    assert unilmv2._defines(settings_of(targets=["par"])) == {"stepwise", "causal"}  # type: ignore[arg-type]


def test_constants_of_objectives() -> None:
    assert (masking.PROPOSALS_OF_A_STREAM, masking.LONGEST_UNIT, diffusion.LOWEST_LEVEL) == (32, 16, 1e-3)
    assert (unilmv2.ALL_MASKED.mask_share, unilmv2.ALL_MASKED.random_share) == (1.0, 0.0)
    assert diffusion.BlockDiffusionSettings().block_size == 4
    assert masking.most_masked(100, 0.15, 6) == 20 and masking.most_masked(100, 0.15, 6, 3) == 32
    assert masking.most_masked(3, 1.0, 6) == 3 and masking.most_masked(0, 0.15, 1) == 1
    assert masking.geometric_lengths(0.5, 2)(np.array([0.0, 0.66, 0.67, 0.999])).tolist() == [1, 1, 2, 2]
    assert masking.ngram_lengths(2)(np.array([0.0, 0.66, 0.67, 0.999])).tolist() == [1, 1, 2, 2]


def test_steps_of_spans_are_numbered_in_turn() -> None:
    windows = random_windows(6, 60)
    rates = np.full(6, 0.5)
    steps = masking.spans(
        windows.maskable,
        windows.lengths,
        windows.keys,
        rates=rates,
        lengths_of=masking.block_lengths(0.4, 6),
        max_span=6,
    )
    for row in steps:
        found = np.unique(row[row >= 0])
        assert found.tolist() == list(range(len(found))) and len(found) > 5
        for step in found:
            assert (np.diff(np.flatnonzero(row == step)) == 1).all()


def passage() -> Passage:
    text = "the  cat sat"
    starts, ends = np.array([0, 3, 8], dtype=np.int32), np.array([3, 8, 12], dtype=np.int32)
    return Passage(text=text, ids=np.array([7, 8, 9], dtype=np.int32), starts=starts, ends=ends)


def test_tokens_of_characters_and_back() -> None:
    each = passage()
    assert len(each) == 3
    assert [each.covering(*span) for span in ((0, 3), (0, 4), (3, 8), (4, 6), (7, 9), (0, 12), (9, 10), (3, 5), (2, 2))] == [
        (0, 0), (0, 0), (1, 1), (1, 1), (1, 1), (0, 2), (2, 2), None, None,
    ]  # fmt: skip
    assert [each.span(*tokens) for tokens in ((0, 0), (1, 1), (1, 2))] == [(0, "the"), (5, "cat"), (5, "cat sat")]


def test_windows_and_labels_of_spans() -> None:
    assert extraction.NOWHERE == 0
    assert window_bounds(10, 10, 4) == [(0, 10)] and window_bounds(0, 10, 4) == [(0, 0)]
    assert window_bounds(11, 10, 4) == [(0, 10), (4, 11)] and window_bounds(15, 10, 9) == [(0, 10), (5, 15)]
    assert window_bounds(3, 1, 9) == [(0, 1), (1, 2), (2, 3)]
    nowhere = {"start": 0, "end": 0}
    assert span_labels((4, 6), 4, 7) == {"start": 1, "end": 3}
    assert span_labels(None, 4, 7) == span_labels((3, 6), 4, 7) == span_labels((4, 7), 4, 7) == nowhere


def test_best_spans_of_a_few_tokens() -> None:
    starts, ends = np.array([1.0, 5.0, 2.0]), np.array([4.0, 1.0, 3.0])
    first, last, scores = best_spans(starts, ends, longest=2, most=9)
    assert list(zip(first.tolist(), last.tolist(), scores.tolist(), strict=True)) == [
        (1, 2, 8.0), (1, 1, 6.0), (0, 0, 5.0), (2, 2, 5.0), (0, 1, 2.0),
    ]  # fmt: skip
    none = best_spans(starts[:0], ends[:0], longest=2, most=9)
    assert [len(each) for each in none] == [0, 0, 0]
    assert [each.tolist() for each in best_spans(starts, ends, longest=1, most=1)] == [[1], [1], [6.0]]


def test_characters_that_continue_a_letter() -> None:
    assert [extraction._goes_on(each) for each in ("a", "\u0301", "\u1160", "\u11ff", "\u115f", "\u1200")] == [
        False, True, True, True, False, False,
    ]  # fmt: skip


def test_which_objectives_mask_the_whole_text_for_the_chain_rule() -> None:
    from unicloze.objectives import OBJECTIVES

    assert {name for name in OBJECTIVES if OBJECTIVES[name].causal_masks} == {
        "unilmv2", "masked", "permuted", "compensated",
    }  # fmt: skip
