"""A small untrained model, and records for it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hf_toys import same_bits
from unicloze.finetuning import run
from unicloze.finetuning.data import finetuning_steps
from unicloze.finetuning.initial import task_recipe
from unicloze.finetuning.run import FinetuneResult, finetune_run
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.records.record import Record
from unicloze.settings import Recipe, TokenizerSettings
from unicloze.tasks import TASKS
from unicloze.tasks.rows import Row
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.checkpoint import load_checkpoint
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


def record(**fields: Any) -> Record:
    """The only record of a file."""
    return Record("0", fields, "here, line 1")


def rows_of(model: LoadedModel, recipe: Recipe, *records: Record) -> list[Row]:
    return list(TASKS[recipe.task.kind].encode(records, model.tokenizer, recipe))


def finetuned(recipe: Recipe, model: LoadedModel, train: Path, dev: Path | None, out: Path) -> FinetuneResult:
    """A fine-tuning run, or what is left of one, without progress."""
    return finetune_run(recipe, model, train, dev, out, progress=False)


def events_of(out: Path) -> list[dict[str, Any]]:
    """The ledger of a run."""
    return [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]


class Killed(Exception):
    """Stands for the end of the process."""


def resumed_alike(tune: Callable[[str], FinetuneResult], *steps: int, folder: Path) -> FinetuneResult:
    """A whole run, after asserting that one killed before each of these steps ends with the same bits.

    Args:
        tune: Runs or resumes in a subfolder with this name.
        steps: Numbers of the steps that the run is killed before, in order.
        folder: The folder.
    """
    whole = tune("whole")
    for last in steps:

        def stopping(*arguments: Any, last: int = last) -> Iterator[Any]:
            yield from itertools.islice(finetuning_steps(*arguments), last - arguments[4])
            raise Killed

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run, "finetuning_steps", stopping)
            with pytest.raises(Killed):
                tune("broken")
    resumed = tune("broken")
    assert (resumed.step, resumed.best_step, resumed.scores) == (whole.step, whole.best_step, whole.scores)
    for place in ("checkpoints", "best"):
        for path in (folder / "whole" / place).glob("step-*"):
            same_bits(*(load_checkpoint(folder / name / place / path.name) for name in ("whole", "broken")))
    return whole
