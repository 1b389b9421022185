"""Weights of classes in the loss, and the calibration of their probabilities."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nlu_toys import recipe_for, start
from unicloze.errors import UsageError
from unicloze.evaluation.metrics.labels import calibration
from unicloze.example import collate
from unicloze.finetuning.scores import measure
from unicloze.recipes import load_recipe, save_recipe
from unicloze.records.record import Record
from unicloze.settings import Recipe
from unicloze.tasks import TASKS
from unicloze.tasks.columns import resolved
from unicloze.training.loading import LoadedModel, ready_model

TEXTS = [
    Record(str(number), {"text": text, "label": label}, f"here, line {number}")
    for number, (text, label) in enumerate([("a cat", "yes"), ("a dog", "no"), ("a bird", "no"), ("the old cat", "no")])
]
SENTENCE = Record("0", {"tokens": ["the", "cat", "sees"], "tags": ["DET", "NOUN", "NOUN"]}, "here, line 1")


@pytest.fixture(scope="module")
def bert() -> LoadedModel:
    return start()


def weighted_recipe(model: LoadedModel, records: list[Record], kind: str = "classification", **settings: Any) -> Recipe:
    recipe = recipe_for(model, kind, task__class_weights="balanced", **settings)
    task = resolved(recipe.task, records)
    return recipe_for(
        model, kind, **{f"task__{key}": getattr(task, key) for key in ("labels", "class_weights")}, **settings
    )


def test_balanced_weights_are_those_of_scikit_learn(bert: LoadedModel) -> None:
    utils = pytest.importorskip("sklearn.utils.class_weight")
    answers = np.array(["no", "no", "no", "yes"])
    no, yes = utils.compute_class_weight("balanced", classes=np.unique(answers), y=answers)
    task = weighted_recipe(bert, TEXTS).task
    assert task.class_weights == pytest.approx({"no": no, "yes": yes}) and task.labels == ["no", "yes"]  # type: ignore[attr-defined]
    named = resolved(recipe_for(bert, "classification", task__class_weights={"yes": 3.0}).task, TEXTS)
    assert named.class_weights == {"yes": 3.0}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kind", "records", "answers"), [("classification", TEXTS, [1, 0, 0, 0]), ("tagging", [SENTENCE], [0, 1, 1])]
)
def test_the_loss_is_torchs_weighted_cross_entropy(
    bert: LoadedModel, kind: str, records: list[Record], answers: list[int]
) -> None:
    recipe = weighted_recipe(bert, records, kind, task__metrics=["tag-accuracy" if kind == "tagging" else "accuracy"])
    model = ready_model(recipe, bert.model.vocab_size, torch.device("cpu")).eval()
    rows = TASKS[kind].encode(records, bert.tokenizer, recipe)
    batch = collate(TASKS[kind].lay_out(rows, bert.tokenizer.vocabulary, recipe, None))
    weights = torch.tensor([recipe.task.class_weights[label] for label in recipe.task.labels])  # type: ignore[attr-defined]
    outputs = next(iter(model.networks[0].outputs(batch).values())).reshape(len(answers), -1)
    expected = torch.nn.functional.cross_entropy(outputs, torch.tensor(answers), weight=weights)
    (loss,) = model(batch).values()
    torch.testing.assert_close(loss.total / loss.weight, expected, rtol=1e-5, atol=1e-6)


def test_weights_in_a_recipe_are_read_again_and_wrong_ones_refused(bert: LoadedModel, tmp_path: Path) -> None:
    recipe = weighted_recipe(bert, TEXTS)
    save_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml").task == recipe.task
    for weights, message in (
        ({"maybe": 2.0}, r"'maybe' is not a label of the task \(no, yes\)"),
        ({"yes": 0.0}, "every weight must be above 0 and finite"),
        ({"yes": float("inf")}, "every weight must be above 0 and finite"),
    ):
        with pytest.raises(UsageError, match=message):
            recipe_for(bert, "classification", task__labels=["no", "yes"], task__class_weights=weights)


def test_calibration_by_hand() -> None:
    # bins of 1/15: 0.9 twice (one right), 0.6 once (wrong), 1.0 once (right)
    said = [{"a": 0.9, "b": 0.1}, {"a": 0.9, "b": 0.1}, {"a": 0.4, "b": 0.6}, {"a": 1.0, "b": 0.0}]
    found = calibration(said, ["a", "b", "a", "a"])
    assert found.values["ece"] == pytest.approx(100 * (2 * abs(0.9 - 0.5) + abs(0.6 - 0.0) + abs(1.0 - 1.0)) / 4)
    assert calibration([[0.75, 0.25], [0.5, 0.5]], [0, 1]).values["ece"] == pytest.approx((25 + 50) / 2)
    assert found.values["log_loss"] == pytest.approx(-(math.log(0.9) + math.log(0.1) + math.log(0.4)) / 4)
    assert found.values["confidence"] == pytest.approx(100 * (0.9 + 0.9 + 0.6 + 1.0) / 4)


def test_classes_are_scored_with_their_calibration_and_a_baseline_without(bert: LoadedModel) -> None:
    recipe = weighted_recipe(bert, TEXTS)
    sure = [{"id": one.id, "prediction": "no", "probabilities": {"no": 1.0, "yes": 0.0}} for one in TEXTS]
    scores = measure(sure, TEXTS, recipe)
    assert scores["calibration"].values == {
        "ece": pytest.approx(25), "confidence": pytest.approx(100), "log_loss": pytest.approx(-math.log(1e-6) / 4),
    }  # fmt: skip
    assert list(measure([{"id": one.id, "prediction": "no"} for one in TEXTS], TEXTS, recipe)) == recipe.task.metrics
