"""Which settings of a task's file a fine-tuning honours: those written for it, and not those that describe another model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import nlu_toys
from unicloze import verbs
from unicloze.comparison.probes import open_probe
from unicloze.errors import UsageError
from unicloze.recipes import save_recipe
from unicloze.settings import Recipe
from unicloze.training.loading import LoadedModel, load_model

CPU = {"training.device": "cpu", "training.precision": "fp32", "training.learning_rate": 0.01, "finetuning.epochs": 1}


@pytest.fixture(scope="module")
def start() -> LoadedModel:
    return nlu_toys.start()


def records(folder: Path) -> Path:
    return nlu_toys.write(folder / "train.jsonl", [{"text": "anna", "label": "ab"[n % 2]} for n in range(4)])


def tuned(start: LoadedModel, folder: Path, text: str | Path, **given: Any) -> Recipe:
    """The recipe of the run that a task file gives."""
    file = folder / "mine.yaml" if isinstance(text, str) else text
    if isinstance(text, str):
        file.write_text(text)
    overrides = {**CPU, **{key.replace("__", "."): value for key, value in given.items()}}
    verbs.finetune(task=file, model=start, train=records(folder), out=folder / "run", quiet=True, overrides=overrides)
    return load_model(folder / "run").recipe


def test_a_task_file_sets_the_dropout_and_that_is_reported(start: LoadedModel, tmp_path: Path) -> None:
    recipe = tuned(start, tmp_path, "base: classification\nmodel: {dropout: 0.33}\nuse: {pooling: last}\n")
    assert (recipe.model.dropout, recipe.model.attention_dropout) == (0.33, start.recipe.model.attention_dropout)
    assert recipe.use.pooling == "last"
    began = json.loads((tmp_path / "run" / "ledger.jsonl").read_text().split("\n")[0])
    assert began["changed"]["model.dropout"] == [0.1, 0.33]


def test_a_task_file_is_heeded_through_a_file_based_on_it_and_below_an_option(
    start: LoadedModel, tmp_path: Path
) -> None:
    (tmp_path / "first.yaml").write_text("base: classification\nmodel: {dropout: 0.33, attention_dropout: 0.25}\n")
    recipe = tuned(start, tmp_path, "base: first.yaml\n", model__attention_dropout=0.5)
    assert (recipe.model.dropout, recipe.model.attention_dropout) == (0.33, 0.5)


@pytest.mark.parametrize(("text", "message"), [
    ("model: {num_layers: 3}", r"mine\.yaml, line 2: model\.num_layers is 3, but the model none was trained with 2"),
    ("model: {max_positions: 8}", r"mine\.yaml, line 2: model\.max_positions is 8, but the model none has 32"),
    ("data: {window: 64}", r"mine\.yaml, line 2: data\.window cannot be set in fine-tuning: it is taken from the model"),
    ("training: {steps: 9}", r"line 2: training\.steps cannot be set in fine-tuning: give finetuning\.epochs"),
    ("objective: {targets: [ae]}", r"line 2: objective\.targets has no effect, because it is taken from the model"),
    ("objective: {mask_rate: 0.3}", r"line 2: objective\.mask_rate has no effect, because nothing but finetuning\.aux"),
])  # fmt: skip
def test_a_wish_that_the_model_cannot_grant_is_refused_with_its_line(
    start: LoadedModel, tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        tuned(start, tmp_path, f"base: classification\n{text}\n")


def test_the_objective_of_an_auxiliary_target_may_be_changed(start: LoadedModel, tmp_path: Path) -> None:
    text = "base: classification\nobjective: {mask_rate: 0.4}\nfinetuning: {auxiliary: {ae: 1.0}}\n"
    recipe = tuned(start, tmp_path, text)
    assert recipe.to_dict()["objective"]["mask_rate"] == 0.4


def test_the_recipe_of_a_run_describes_the_model_of_that_run(start: LoadedModel, tmp_path: Path) -> None:
    """Its shape, dropout, window and steps are facts of the past, also where a file is based on it."""
    other = nlu_toys.start(model__num_layers=1, model__dropout=0.4)
    made = nlu_toys.recipe_for(other, "classification", model__dropout=0.4, task__max_length=16)
    former = tmp_path / "former.yaml"
    save_recipe(made, former)
    whole = tuned(start, tmp_path, former)
    own = start.recipe.model
    assert (whole.model.num_layers, whole.model.dropout, whole.task.max_length) == (own.num_layers, own.dropout, 16)
    (tmp_path / "second").mkdir()
    text = f"base: {former}\nmodel: {{attention_dropout: 0.2}}\n"
    based = tuned(start, tmp_path / "second", text)
    assert (based.model.dropout, based.model.attention_dropout) == (own.dropout, 0.2)


def test_a_recipe_for_pretraining_describes_the_model_it_trains(start: LoadedModel, tmp_path: Path) -> None:
    (tmp_path / "wide.yaml").write_text(
        "base: quickstart\nmodel: {dropout: 0.2, hidden_size: 64}\ndata: {window: 48}\n"
    )
    task = "task: {kind: classification, metrics: [accuracy]}\n"
    recipe = tuned(start, tmp_path, f"base: wide.yaml\n{task}model: {{attention_dropout: 0.25}}\n")
    own = start.recipe.model
    assert (recipe.model.dropout, recipe.model.hidden_size) == (own.dropout, own.hidden_size)
    assert recipe.model.attention_dropout == 0.25


def test_a_probe_honours_the_dropout_of_its_file(tmp_path: Path) -> None:
    train = records(tmp_path)
    file = tmp_path / "mine.yaml"
    file.write_text("base: classification\nmodel: {dropout: 0.33}\n")
    assert open_probe(str(file), train, train, {}).overridden == ("model.dropout",)
    file.write_text("base: classification\nmodel: {initializer_range: 0.3}\n")
    with pytest.raises(UsageError, match=r"mine\.yaml, line 2: model\.initializer_range is set by each recipe"):
        open_probe(str(file), train, train, {})
