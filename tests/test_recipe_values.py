"""The recipes have the values of the papers' tables."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import tokenizers

import unicloze.recipes
from unicloze.mixtures import parts, phases
from unicloze.objectives import settings_of
from unicloze.recipes import (
    load_recipe,
    recipe_names,
    toy_overrides,
)
from unicloze.text.tokenizers import train_wordpiece

FILES = sorted(Path(unicloze.recipes.__file__).parent.glob("*.yaml"))


# Values of the recipes


def test_all_recipes_are_listed() -> None:
    assert recipe_names() == sorted(file.stem for file in FILES)
    assert {"quickstart", "unilmv2-base"} < set(recipe_names())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_recipe_names_the_source_of_its_values(file: Path) -> None:
    recipe = load_recipe(file.stem)
    assert recipe.name == file.stem
    assert load_recipe(file) == recipe
    assert all(dataclasses.astuple(recipe.provenance)), "paper, place and note must all be given"


@pytest.mark.parametrize("name", recipe_names())
def test_toy_overrides_fit_every_recipe(name: str) -> None:
    toy = load_recipe(name, toy_overrides())
    assert (toy.training.steps, toy.data.window, toy.tokenizer.vocab_size) == (2, 32, 512)
    assert toy.objective == load_recipe(name).objective
    assert toy.use.visibility == "bidirectional" or toy.use.pooling != "first", (
        "its first slot reads nothing of the text"
    )


def test_unilmv2_base_is_table_7() -> None:
    recipe = load_recipe("unilmv2-base")
    model, training, objective = recipe.model, recipe.training, recipe.objective
    assert "Table 7" in recipe.provenance.place
    assert (model.num_layers, model.hidden_size, model.intermediate_size, model.num_heads) == (12, 768, 3072, 12)
    assert model.hidden_size // model.num_heads == 64
    assert (model.relative_bias, model.relative_max_distance) == (True, 128)
    assert (training.steps, training.batch_size) == (500_000, 7680)
    assert (training.optimizer, training.epsilon, training.betas) == ("adamw", 1e-6, (0.9, 0.98))
    assert (training.learning_rate, training.schedule) == (6e-4, "linear")
    assert training.warmup_steps == 0.048 * training.steps
    assert (training.clip_norm, training.weight_decay) == (0.0, 0.01)
    assert (model.dropout, model.attention_dropout) == (0.1, 0.1)
    assert (recipe.tokenizer.kind, recipe.tokenizer.vocab_size, recipe.tokenizer.lowercase) == (
        "wordpiece",
        30522,
        True,
    )
    assert (recipe.data.window, recipe.data.segments) == (512, 2)
    assert (objective.targets, objective.factorization) == (["ae", "par"], "block")
    assert (objective.mask_rate, objective.mask_share, objective.random_share) == (0.15, 0.8, 0.1)
    assert (objective.masking, objective.block_probability, objective.max_span) == ("blockwise", 0.4, 6)


@pytest.mark.parametrize(
    ("row", "name", "targets", "factorization", "relative_bias"),
    [
        (1, "unilmv2-ablation-ae-par-relpos", ["ae", "par"], "block", True),
        (2, "unilmv2-ablation-ae-par", ["ae", "par"], "block", False),
        (3, "unilmv2-ablation-ae-ar", ["ae", "par"], "token", False),
        (4, "unilmv2-ablation-ae", ["ae"], "block", False),
        (5, "unilmv2-ablation-par", ["par"], "block", False),
        (6, "unilmv2-ablation-ar", ["par"], "token", False),
    ],
)
def test_ablations_are_the_rows_of_table_6(
    row: int, name: str, targets: list[str], factorization: str, relative_bias: bool
) -> None:
    recipe, base = load_recipe(name), load_recipe("unilmv2-base")
    assert f"Table 6, row [{row}]" in recipe.provenance.place
    assert (recipe.objective.targets, recipe.objective.factorization) == (targets, factorization)
    assert recipe.model == dataclasses.replace(base.model, relative_bias=relative_bias)
    assert (recipe.data, recipe.tokenizer) == (base.data, base.tokenizer)
    training = recipe.training
    assert (training.steps, training.batch_size, training.warmup_steps) == (1_000_000, 256, 10_000)
    assert (training.optimizer, training.betas, training.learning_rate) == ("adamw", (0.9, 0.999), 1e-4)
    assert (training.schedule, training.epsilon, training.weight_decay) == ("linear", 1e-6, 0.01)


def test_uncased_recipes_of_papers_normalise_text_as_the_released_tokenizers_do() -> None:
    """BERT's, which UniLMv2, ELECTRA, MPNet and MASS use, and ALBERT's and ERNIE's strip accents."""
    of_papers = [load_recipe(name).tokenizer for name in recipe_names() if name.endswith(("-base", "-small", "-lm1b"))]
    uncased = [settings for settings in of_papers if settings.lowercase and settings.kind == "wordpiece"]
    assert len(uncased) >= 8
    released, texts = tokenizers.normalizers.BertNormalizer(lowercase=True), ["\u00c9cole na\u00efve"] * 9
    for settings in set(uncased):
        own = train_wordpiece(texts, dataclasses.replace(settings, vocab_size=60)).normalizer
        assert own.normalize_str(texts[0]) == released.normalize_str(texts[0]) == "ecole naive"


def test_bert_base_is_appendix_a() -> None:
    recipe = load_recipe("bert-base")
    model, training, objective = recipe.model, recipe.training, recipe.objective
    assert (model.num_layers, model.hidden_size, model.intermediate_size, model.num_heads) == (12, 768, 3072, 12)
    assert (model.relative_bias, model.norm, model.num_segments, model.max_positions) == (False, "post", 2, 512)
    assert (model.layer_norm_eps, model.initializer_range, model.dropout) == (1e-12, 0.02, 0.1)
    assert model.initializer == "truncated_normal"
    assert (training.steps, training.batch_size, training.warmup_steps) == (1_000_000, 256, 10_000)
    assert (training.learning_rate, training.betas, training.weight_decay) == (1e-4, (0.9, 0.999), 0.01)
    assert [(phase.last_step, phase.recipe.data.window) for phase in phases(recipe)] == [
        (900_000, 128),
        (1_000_000, 512),
    ]
    assert (objective.targets, objective.pairs, objective.static_copies) == (["ae", "nsp"], "next_sentence", 10)
    assert (objective.masking, objective.mask_rate, objective.mask_share) == ("token", 0.15, 0.8)
    assert (recipe.tokenizer.kind, recipe.tokenizer.vocab_size) == ("wordpiece", 30522)


def test_roberta_base_is_table_9() -> None:
    recipe = load_recipe("roberta-base")
    training, objective = recipe.training, recipe.objective
    assert (training.steps, training.batch_size, training.warmup_steps) == (500_000, 8192, 24_000)
    assert (training.learning_rate, training.betas, training.epsilon) == (6e-4, (0.9, 0.98), 1e-6)
    assert (training.weight_decay, training.clip_norm, training.phases) == (0.01, 0.0, [])
    assert (objective.targets, objective.pairs, objective.static_copies) == (["ae"], "contiguous", None)
    assert (recipe.data.documents, recipe.data.segments, recipe.data.window) == ("joined", 1, 512)
    assert (recipe.tokenizer.kind, recipe.tokenizer.vocab_size, recipe.tokenizer.lowercase) == ("bpe", 50265, False)
    bert = load_recipe("bert-base").model
    assert recipe.model == dataclasses.replace(bert, num_segments=1, layer_norm_eps=1e-5, initializer="normal")


def test_spanbert_base_is_sections_3_and_4() -> None:
    recipe = load_recipe("spanbert-base")
    objective, training = recipe.objective, recipe.training
    assert (objective.masking, objective.mask_unit, objective.geometric_p, objective.max_span) == (
        "geometric",
        "word",
        0.2,
        10,
    )
    assert (objective.targets, objective.corruption_unit, recipe.data.segments) == (["ae", "sbo"], "span", 1)
    assert (training.steps, training.batch_size, training.epsilon) == (2_400_000, 256, 1e-8)


@pytest.mark.parametrize(("name", "size"), [("unilm-v1-large", (24, 1024, 16)), ("unilm-v1-base", (12, 768, 12))])
def test_unilm_v1_is_section_2_4(name: str, size: tuple[int, int, int]) -> None:
    recipe = load_recipe(name)
    model, training, objective = recipe.model, recipe.training, recipe.objective
    assert (model.num_layers, model.hidden_size, model.num_heads) == size
    assert (training.steps, training.batch_size, training.learning_rate) == (770_000, 330, 3e-5)
    assert (training.betas, training.warmup_steps, training.weight_decay) == ((0.9, 0.999), 40_000, 0.01)
    assert (objective.block_probability, objective.max_span, objective.mask_rate) == (0.2, 3, 0.15)
    shares = {part["visibility"]: part["share"] / 6 for part in objective.mixture}
    assert shares == {"bidirectional": 1 / 3, "prefix": 1 / 3, "left_to_right": 1 / 6, "right_to_left": 1 / 6}
    ids = [number for part in objective.mixture for number in part["segment_ids"]]
    assert sorted(ids) == list(range(model.num_segments))


def test_quickstart_needs_nothing_but_python() -> None:
    recipe = load_recipe("quickstart")
    assert recipe.data.corpus == ["python-docs"]
    assert recipe.tokenizer.path is None
    paper, high = parts(recipe.objective)
    assert paper.settings == settings_of()
    assert high.settings == settings_of(mask_rate=0.4)
    assert (paper.evaluate, high.evaluate) == (True, False)
