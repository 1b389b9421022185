"""The recipes have the values of the papers' tables."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import tokenizers

import unicloze.recipes
from unicloze.mixtures import parts, phases
from unicloze.objectives import settings_of
from unicloze.recipes import load_recipe, recipe_names, toy_overrides
from unicloze.settings import Recipe
from unicloze.text.tokenizers import train_wordpiece
from unicloze.verbs import count_parameters

FILES = sorted(Path(unicloze.recipes.__file__).parent.glob("*.yaml"))
BASE = {"model.num_layers": 12, "model.hidden_size": 768, "model.intermediate_size": 3072, "model.num_heads": 12}
ADAMW = {"training.optimizer": "adamw", "training.schedule": "linear", "training.weight_decay": 0.01}
ABLATION = ADAMW | {
    "training.steps": 1_000_000, "training.batch_size": 256, "training.warmup_steps": 10_000, "training.betas": (0.9, 0.999),
    "training.learning_rate": 1e-4, "training.epsilon": 1e-6,
}  # fmt: skip
MDLM = BASE | {
    "data.window": 1024, "training.batch_size": 512, "training.learning_rate": 3e-4, "training.schedule": "constant",
    "training.warmup_steps": 2500, "training.clip_norm": 1.0, "training.betas": (0.9, 0.999), "training.epsilon": 1e-8,
    "training.weight_decay": 0.0,
}  # fmt: skip
VALUES: dict[str, dict[str, Any]] = {
    "unilmv2-base": BASE | ADAMW | {  # Table 7
        "model.relative_bias": True, "model.relative_max_distance": 128, "model.dropout": 0.1, "model.attention_dropout": 0.1,
        "training.steps": 500_000, "training.batch_size": 7680, "training.epsilon": 1e-6, "training.betas": (0.9, 0.98),
        "training.learning_rate": 6e-4, "training.warmup_steps": 24_000, "training.clip_norm": 0.0,
        "tokenizer.kind": "wordpiece", "tokenizer.vocab_size": 30522, "tokenizer.lowercase": True,
        "data.window": 512, "data.segments": 2, "objective.targets": ["ae", "par"], "objective.factorization": "block",
        "objective.mask_rate": 0.15, "objective.mask_share": 0.8, "objective.random_share": 0.1,
        "objective.masking": "blockwise", "objective.block_probability": 0.4, "objective.max_span": 6,
    },
    "bert-base": BASE | ABLATION | {  # Appendix A
        "model.relative_bias": False, "model.norm": "post", "model.num_segments": 2, "model.max_positions": 512,
        "model.layer_norm_eps": 1e-12, "model.initializer_range": 0.02, "model.initializer": "truncated_normal",
        "model.dropout": 0.1, "objective.targets": ["ae", "nsp"], "objective.pairs": "next_sentence",
        "objective.static_copies": 10, "objective.masking": "token", "objective.mask_rate": 0.15,
        "objective.mask_share": 0.8, "tokenizer.kind": "wordpiece", "tokenizer.vocab_size": 30522,
    },
    "roberta-base": ADAMW | {  # Table 9
        "training.steps": 500_000, "training.batch_size": 8192, "training.warmup_steps": 24_000,
        "training.learning_rate": 6e-4, "training.betas": (0.9, 0.98), "training.epsilon": 1e-6,
        "training.clip_norm": 0.0, "training.phases": [], "objective.targets": ["ae"], "objective.pairs": "contiguous",
        "objective.static_copies": None, "data.documents": "joined", "data.segments": 1, "data.window": 512,
        "tokenizer.kind": "bpe", "tokenizer.vocab_size": 50265, "tokenizer.lowercase": False,
    },
    "spanbert-base": {  # Sections 3 and 4
        "objective.masking": "geometric", "objective.mask_unit": "word", "objective.geometric_p": 0.2,
        "objective.max_span": 10, "objective.targets": ["ae", "sbo"], "objective.corruption_unit": "span",
        "data.segments": 1, "training.steps": 2_400_000, "training.batch_size": 256, "training.epsilon": 1e-8,
    },
    "quickstart": {"data.corpus": ["python-docs"], "tokenizer.path": None},
    **{
        name: {  # Section 2.4
            "model.num_layers": layers, "model.hidden_size": width, "model.num_heads": width // 64,
            "training.steps": 770_000, "training.batch_size": 330, "training.learning_rate": 3e-5,
            "training.betas": (0.9, 0.999), "training.warmup_steps": 40_000, "training.weight_decay": 0.01,
            "objective.block_probability": 0.2, "objective.max_span": 3, "objective.mask_rate": 0.15,
        }
        for name, layers, width in (("unilm-v1-large", 24, 1024), ("unilm-v1-base", 12, 768))
    },
    **{
        f"unilmv2-ablation-{name}": ABLATION | {"objective.targets": targets, "objective.factorization": factorization}
        for name, targets, factorization in (
            ("ae-par-relpos", ["ae", "par"], "block"), ("ae-par", ["ae", "par"], "block"),
            ("ae-ar", ["ae", "par"], "token"), ("ae", ["ae"], "block"), ("par", ["par"], "block"), ("ar", ["par"], "token"),
        )
    },
    "mdlm-base": MDLM | {"training.steps": 1_000_000, "objective.name": "masked_diffusion"},
    "mdlm-base-lm1b": {"data.window": 128, "tokenizer.vocab_size": 30522},
    **{
        name: MDLM | {"training.steps": 150_000, "objective.name": "block_diffusion", "objective.block_size": size}
        for name, size in (("bd3lm-base", 4), ("bd3lm-base-block8", 8), ("bd3lm-base-block16", 16))
    },
    "xlnet-base": BASE | {
        "data.window": 512, "objective.targets": ["par"], "objective.factorization": "token",
        "objective.name": "permuted", "model.positions": "transformer_xl", "model.memory": 384, "objective.mask_rate": 1 / 6,
        "tokenizer.lowercase": False, "tokenizer.vocab_size": 32000, "data.order": "streams", "model.relative_bias": False,
        "data.overlap": 0.5, "objective.pairs": "next_sentence",
    },
    "mpnet-base": BASE | {
        "data.window": 512, "objective.targets": ["par"], "objective.factorization": "token",
        "objective.name": "compensated", "objective.mask_rate": 0.15, "objective.masking": "token",
        "objective.mask_share": 0.8, "objective.random_share": 0.1, "model.relative_bias": True, "model.relative_buckets": 32,
        "training.steps": 500_000, "training.batch_size": 8192, "training.learning_rate": 6e-4,
    },
    "elmo": {
        "model.character_filters": [32, 32, 64, 128, 256, 512, 1024], "model.character_highways": 2, "model.num_layers": 2,
        "model.intermediate_size": 4096, "model.hidden_size": 512, "model.residual": True, "model.cell_clip": 3,
        "model.projection_clip": 3, "model.embeddings": "characters", "model.tied_output": False,
    },
    "gpt-3-small": {
        "model.layer_visibility": ["full", "local"], "model.dropout": 0.0, "training.batch_size": 524_288 // 2048,
        "data.window": 2048,
    },
}  # fmt: skip
"""What the papers state."""
PLACES = {
    "unilmv2-base": "Table 7",
    **{name: f"Table 6, row [{row}]" for row, name in enumerate((n for n in VALUES if "ablation" in n), 1)},
}


def value(recipe: Recipe, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(recipe, section), name)


@pytest.mark.parametrize("name", VALUES)
def test_a_recipe_has_the_values_of_its_paper(name: str) -> None:
    recipe = load_recipe(name)
    assert {key: value(recipe, key) for key in VALUES[name]} == VALUES[name]
    assert PLACES.get(name, "") in recipe.provenance.place


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_recipe_names_the_source_of_its_values_and_has_a_toy(file: Path) -> None:
    recipe = load_recipe(file.stem)
    assert recipe.name == file.stem
    assert load_recipe(file) == recipe
    assert all(dataclasses.astuple(recipe.provenance)), "paper, place and note must all be given"
    toy = load_recipe(file.stem, toy_overrides())
    assert (toy.training.steps, toy.data.window, toy.tokenizer.vocab_size) == (2, 32, 512)
    assert toy.objective == recipe.objective
    assert toy.use.visibility == "bidirectional" or toy.use.pooling != "first", "it reads nothing of the text"


def test_models_differ_where_the_papers_say() -> None:
    base, bert = load_recipe("unilmv2-base"), load_recipe("bert-base").model
    assert base.model.head_size is None and base.training.warmup_steps == 0.048 * base.training.steps
    for name in (name for name in VALUES if "ablation" in name):
        recipe = load_recipe(name)
        assert recipe.model == dataclasses.replace(base.model, relative_bias=name.endswith("relpos"))
        assert (recipe.data, recipe.tokenizer) == (base.data, base.tokenizer)
    roberta = dataclasses.replace(bert, num_segments=1, layer_norm_eps=1e-5, initializer="normal")
    assert load_recipe("roberta-base").model == roberta
    in_bert = [(phase.last_step, phase.recipe.data.window) for phase in phases(load_recipe("bert-base"))]
    assert in_bert == [(900_000, 128), (1_000_000, 512)]
    paper, high = parts(load_recipe("quickstart").objective)
    assert (paper.settings, high.settings) == (settings_of(), settings_of(mask_rate=0.4))
    assert (paper.evaluate, high.evaluate) == (True, False)


def test_variants_differ_from_their_paper_in_nothing_else() -> None:
    mdlm, gpt_2, gpt_3 = load_recipe("mdlm-base"), load_recipe("gpt-2").model, load_recipe("gpt-3-small")
    for name in ("bd3lm-base", "bd3lm-base-block8", "bd3lm-base-block16"):
        recipe = load_recipe(name)
        assert (recipe.model, recipe.data, recipe.tokenizer) == (mdlm.model, mdlm.data, mdlm.tokenizer)
        assert recipe.training == dataclasses.replace(mdlm.training, steps=150_000)
    local: dict[str, Any] = {"layer_visibility": ["full", "local"], "dropout": 0.0, "attention_dropout": 0.0}
    assert gpt_3.objective.local_width is not None and gpt_3.model == dataclasses.replace(gpt_2, **local)


SIZES = {
    "gpt": 116_534_784, "gpt-2": 124_439_808, "gpt-3-small": 125_226_240, "albert-base": 11_683_584, "elmo": 110_082_384,
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_recipes_have_the_published_sizes(name: str) -> None:
    """117M, 124M, 125M and 12M; ELMo's has a softmax over 32,000 tokens. ALBERT's count includes the pooler but no heads."""
    heads = 768 * 128 + 128 + 2 * 128 + 30_000 + 2 * 768 + 2
    assert count_parameters(load_recipe(name)) - heads * (name == "albert-base") == SIZES[name]


@pytest.mark.parametrize("name", ["unilm-v1-large", "unilm-v1-base"])
def test_unilm_v1_mixes_four_language_models(name: str) -> None:
    recipe = load_recipe(name)
    shares = {part["visibility"]: part["share"] / 6 for part in recipe.objective.mixture}
    assert shares == {"bidirectional": 1 / 3, "prefix": 1 / 3, "left_to_right": 1 / 6, "right_to_left": 1 / 6}
    ids = [number for part in recipe.objective.mixture for number in part["segment_ids"]]
    assert sorted(ids) == list(range(recipe.model.num_segments))


def test_uncased_recipes_of_papers_normalise_text_as_the_released_tokenizers_do() -> None:
    """BERT's, which UniLMv2, ELECTRA, MPNet and MASS use, and ALBERT's and ERNIE's strip accents."""
    of_papers = [load_recipe(name).tokenizer for name in recipe_names() if name.endswith(("-base", "-small", "-lm1b"))]
    uncased = [settings for settings in of_papers if settings.lowercase and settings.kind == "wordpiece"]
    assert len(uncased) >= 8
    released, texts = tokenizers.normalizers.BertNormalizer(lowercase=True), ["\u00c9cole na\u00efve"] * 9
    for settings in set(uncased):
        own = train_wordpiece(texts, dataclasses.replace(settings, vocab_size=60)).normalizer
        assert own.normalize_str(texts[0]) == released.normalize_str(texts[0]) == "ecole naive"
