"""What fine-tuning refuses before training: metrics, settings and files that do not fit together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import nlu_toys
from unicloze import verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.finetuning.run import FinetuneResult, finetune_run
from unicloze.finetuning.scores import measure_file
from unicloze.recipes import load_recipe
from unicloze.records import read_records
from unicloze.settings import Recipe
from unicloze.tasks.classification import ClassificationSettings, with_labels
from unicloze.training.loading import LoadedModel, load_model

SHORT = {"finetuning__epochs": 3, "finetuning__evaluations": 1, "training__batch_size": 8}


@pytest.fixture(scope="module")
def start() -> LoadedModel:
    return nlu_toys.start()


def records(count: int = 24) -> list[dict[str, Any]]:
    words = nlu_toys.WORDS
    return [{"text": f"{words[i % 6]} {words[i // 6]}", "label": "ab"[i * 7 % 3 % 2]} for i in range(count)]


def files(folder: Path) -> tuple[Path, Path]:
    train = nlu_toys.write(folder / "train.jsonl", records())
    return train, nlu_toys.write(folder / "dev.jsonl", records(9))


def recipe_for(start: LoadedModel, **settings: Any) -> Recipe:
    return nlu_toys.recipe_for(start, "classification", **{**SHORT, **settings})


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("acuracy", "did you mean accuracy"),
        ("squad", "squad, which compares squad, but a classification task predicts labels"),
        ("f1", "does not fit the development file: No reference has the label 1"),
    ],
)
def test_a_metric_that_cannot_measure_is_refused_before_anything_is_learned(
    start: LoadedModel, tmp_path: Path, metric: str, message: str
) -> None:
    train, dev = files(tmp_path)
    with pytest.raises(UsageError, match=message):
        finetune_run(recipe_for(start, task__metrics=[metric]), start, train, dev, tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


@pytest.mark.whole
def test_an_option_that_no_metric_has_is_refused_and_one_of_another_metric_left_out(
    start: LoadedModel, tmp_path: Path
) -> None:
    train, dev = files(tmp_path)
    recipe = recipe_for(start, task__metric_options={"positive": "a"})
    with pytest.raises(UsageError, match="names positive, but none of the metrics accuracy has it: leave it out"):
        finetune_run(recipe, start, train, dev, tmp_path / "run", progress=False)
    recipe = recipe_for(start, finetuning__epochs=1, task__metrics=["f1"], task__metric_options={"positive": "a"})
    finetune_run(recipe, start, train, dev, tmp_path / "run", progress=False)
    verbs.predict(tmp_path / "run", dev, out=tmp_path / "said.jsonl", quiet=True)
    scores = measure_file(tmp_path / "said.jsonl", dev, load_recipe(tmp_path / "run" / "recipe.yaml"), "accuracy")
    assert list(scores.results) == ["accuracy"]


def test_white_space_around_a_label_does_not_count_in_a_file_of_predictions(start: LoadedModel, tmp_path: Path) -> None:
    labels = ["a ", " b", "a ", " b"]
    gold = nlu_toys.write(tmp_path / "gold.jsonl", [{"text": "anna", "label": label} for label in labels])
    said = nlu_toys.write(tmp_path / "said.jsonl", [{"prediction": label} for label in labels])
    recipe = recipe_for(start, task__labels=["a", "b"])
    assert with_labels(ClassificationSettings(), read_records(gold, recipe.task)).labels == ["a", "b"]
    assert measure_file(said, gold, recipe).results["accuracy"].values == {"accuracy": 100.0}


def test_a_development_file_without_labels_is_refused_before_anything_is_learned(
    start: LoadedModel, tmp_path: Path
) -> None:
    train, _ = files(tmp_path)
    dev = nlu_toys.write(tmp_path / "dev.jsonl", [{"text": "anna"}])
    with pytest.raises(UniclozeError, match=r"dev\.jsonl, line 1: the field 'label' is missing"):
        finetune_run(recipe_for(start), start, train, dev, tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


@pytest.mark.parametrize(("key", "value", "own"), [
    ("model__num_layers", 4, "2"), ("model__intermediate_size", 48, "64"), ("model__activation", "relu", "gelu"),
    ("tokenizer__lowercase", False, "True"), ("data__window", 9, "32"),
])  # fmt: skip
def test_a_setting_that_is_the_models_own_is_not_changed(start: LoadedModel, key: str, value: Any, own: str) -> None:
    """An additional layer would be newly initialised without a warning."""
    dotted = key.replace("__", ".")
    with pytest.raises(
        UsageError, match=f"{dotted} is {value}, but the model none was trained with {own}: leave it out"
    ):
        recipe_for(start, **{key: value})
    section, name = dotted.split(".")
    recipe_for(start, **{key: getattr(getattr(start.recipe, section), name)})
    kept = recipe_for(start, model__dropout=0.3, model__attention_dropout=0.2, model__initializer_range=0.5).model
    assert (kept.dropout, kept.attention_dropout, kept.initializer_range) == (0.3, 0.2, 0.5)


PAIRS = [{**record, "pair": "eva"} for record in records()]
OPTIONAL: dict[str, tuple[str, str, list[dict[str, Any]]]] = {
    "pairs": ("classification", "pair", PAIRS),
    "quantities": ("regression", "pair", [{**record, "label": 1.5} for record in PAIRS]),
    "questions": (
        "choice",
        "question",
        [{"context": "anna", "question": "eva", "choices": ["carl", "berlin"], "label": n % 2} for n in range(8)],
    ),
    "predicates": (
        "tagging",
        "predicate",
        [{"tokens": ["anna", "sees"], "tags": ["B-X", "O"], "predicate": n % 2} for n in range(8)],
    ),
}


@pytest.mark.parametrize("name", OPTIONAL)
def test_every_file_holds_what_the_training_file_does(start: LoadedModel, tmp_path: Path, name: str) -> None:
    """Otherwise half of a pair would be scored and predicted as if it were complete."""
    task, role, whole = OPTIONAL[name]
    full = nlu_toys.write(tmp_path / "full.jsonl", whole)
    bare = nlu_toys.write(tmp_path / "bare.jsonl", [{k: v for k, v in one.items() if k != role} for one in whole])

    def tune(out: str, train: Path, dev: Path | None, **settings: Any) -> FinetuneResult:
        recipe = nlu_toys.recipe_for(start, task, **{**SHORT, "finetuning__epochs": 1, **settings})
        return finetune_run(recipe, start, train, dev, tmp_path / out, progress=False)

    missing = rf"bare\.jsonl, line 1: the field '{role}' is missing .* name it with --task\.fields"
    with pytest.raises(UniclozeError, match=missing):
        tune("run", full, bare)
    tune("run", full, full)
    with pytest.raises(UniclozeError, match=missing):
        verbs.predict(tmp_path / "run", bare, quiet=True)
    assert load_model(tmp_path / "run").recipe.task.optional == [role]
    there = rf"full\.jsonl, line 1: there is a field '{role}', but the training file has none"
    with pytest.raises(UniclozeError, match=there):
        tune("none", bare, full)
    tune("none", bare, bare)
    with pytest.raises(UniclozeError, match=there):
        verbs.predict(tmp_path / "none", full, quiet=True)
    with pytest.raises(UniclozeError, match=r"full\.jsonl, line 1: the field 'other' is missing"):
        tune("named", full, full, task__fields={role: "other"})
    with pytest.raises(
        UsageError, match=f"task.fields names the role '{role}s'; the roles of a task of the kind {task} are"
    ):
        tune("named", full, full, task__fields={f"{role}s": role})
    with pytest.raises(UsageError, match=f"task.optional names the role 'label'; .* are {role}"):
        tune("named", full, full, task__optional=["label"])


def test_an_optional_role_of_some_records_may_be_lacking_in_others(start: LoadedModel, tmp_path: Path) -> None:
    asked = {"context": "anna", "question": "eva", "choices": ["carl", "berlin"], "label": 0}
    gap = {"cloze": "anna sees _", "choices": ["carl", "berlin"], "label": 1}
    train = nlu_toys.write(tmp_path / "train.jsonl", [gap, asked] * 4)
    recipe = nlu_toys.recipe_for(start, "choice", **{**SHORT, "finetuning__epochs": 1})
    finetune_run(recipe, start, train, train, tmp_path / "run", progress=False)
    assert load_model(tmp_path / "run").recipe.task.optional == ["question"]


def test_a_schedule_longer_than_the_run_is_refused_before_anything_is_learned(
    start: LoadedModel, tmp_path: Path
) -> None:
    train, dev = files(tmp_path)
    recipe = recipe_for(start, training__schedule="wsd", training__decay_steps=100)
    with pytest.raises(UsageError, match="decay_steps"):
        finetune_run(recipe, start, train, dev, tmp_path / "run", progress=False)
