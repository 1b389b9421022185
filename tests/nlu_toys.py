"""A small untrained model, and records for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unicloze.finetuning.initial import task_recipe
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.settings import Recipe, TokenizerSettings
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.loading import LoadedModel, build_model

WORDS = ["anna", "berlin", "carl", "dublin", "eva", "fargo", "sees", "leaves", "playing", "plays"]

QUICK = {
    "finetuning.epochs": 40,
    "finetuning.evaluations": 0.05,
    "training.batch_size": 16,
    "training.learning_rate": 5e-3,
    "training.precision": "fp32",
    "training.device": "cpu",
    "model.dropout": 0.0,
    "model.attention_dropout": 0.0,
}
"""Settings that memorise sixteen records."""


def start(name: str = "bert-base", **settings: Any) -> LoadedModel:
    """A newly initialised model of a pre-training recipe with a sub-word vocabulary."""
    overrides = {
        **toy_overrides(),
        "tokenizer.vocab_size": 300,
        "model.initializer_range": 0.1,
        **{k.replace("__", "."): v for k, v in settings.items()},
    }
    recipe = load_recipe(name, overrides)
    texts = [" ".join(WORDS), "the old cat, the dog _ and a bird.", "abcdefghijklmnopqrstuvwxyz 0123456789"] * 3
    kind, extra = recipe.tokenizer.kind, recipe.tokenizer.extra_tokens
    tokenizer = Tokenizer.train(texts, TokenizerSettings(kind=kind, vocab_size=300 + extra, extra_tokens=extra))
    model = build_model(recipe, tokenizer.vocabulary.size)
    return LoadedModel(model.for_use().eval(), tokenizer, recipe, Path("none"), 0)


def recipe_for(model: LoadedModel, name: str, **settings: Any) -> Recipe:
    """A task's recipe for a model, with settings that learn quickly."""
    overrides = {**QUICK, **{key.replace("__", "."): value for key, value in settings.items()}}
    return task_recipe(load_recipe(name, overrides), model, list(overrides))


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    """Write a file of JSON lines."""
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    return path
