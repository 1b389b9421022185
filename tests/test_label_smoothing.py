"""Label smoothing: all predicted tokens of every network and head are smoothed, or the setting is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import nlu_toys
import toys
from toys import random_windows, vocabulary
from unicloze.comparison.probes import open_probe
from unicloze.errors import UsageError
from unicloze.example import Batch, collate
from unicloze.finetuning.run import finetune_run
from unicloze.model.build import Model, build
from unicloze.model.model import UnifiedModel
from unicloze.objectives import make_examples, settings_of
from unicloze.settings import ModelSettings
from unicloze.training.loading import ready_model

SMOOTHING = 0.3
OBJECTIVES: dict[str, dict[str, Any]] = {
    "unilmv2": {"targets": ["ae", "par"]},
    "spanbert": {"name": "masked", "targets": ["ae", "sbo"]},
    "electra": {"name": "masked", "targets": ["ae", "rtd"]},
    "gpt": {"name": "causal", "targets": ["lm"], "visibility": "left_to_right"},
}


def logits_of(model: Model, batch: Batch, name: str) -> Tensor:
    """Logits of a target's predictions. *Shape:* (rows, predictions, vocabulary)"""
    if name != "sbo":
        return model.logits(batch)[name]
    assert isinstance(model, UnifiedModel)
    target, states = batch.targets[name], model.backbone(batch)[-1]
    row = torch.arange(len(states))[:, None, None]
    assert target.places is not None
    flat = model.boundary_head(
        states[row, target.slots].flatten(0, 1), target.places.flatten(), model.backbone.embeddings.tokens.weight
    )
    return flat.view(*target.labels.shape, -1)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("mode", ["training", "evaluation"])
def test_every_predicted_token_is_smoothed_in_training_and_none_in_evaluation(name: str, mode: str) -> None:
    objective = settings_of(**OBJECTIVES[name])
    shape = ModelSettings(**toys.SHAPE, generator_size=0.5 if name == "electra" else 0.0)
    model = build(shape, vocab_size=50, max_positions=40, targets=objective.targets)
    model.initialize(0)
    for network in model.networks:
        network.label_smoothing = SMOOTHING
    examples = make_examples(random_windows(6, 24, short=True), vocabulary(), objective)
    weighed = {
        target: dataclasses.replace(known, weights=known.weights * np.linspace(0.5, 2, 6, dtype=np.float32)[:, None])
        for target, known in examples.targets.items()
    }
    batch = collate(dataclasses.replace(examples, targets=weighed))
    smoothing = SMOOTHING if mode == "training" else 0.0
    with torch.no_grad():
        losses = model.train(mode == "training")(batch)
        for target in set(objective.targets) - {"rtd"}:
            labels, weights = (part.flatten() for part in (batch.targets[target].labels, batch.targets[target].weights))
            logits = logits_of(model, batch, target).flatten(0, 1)
            each = functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
            torch.testing.assert_close(losses[target].total, (each * weights).sum(), atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("name", ["electra-small", "spanbert-base", "unilmv2-base"])
def test_a_run_smooths_in_all_its_networks(name: str) -> None:
    recipe = nlu_toys.start(name).recipe
    recipe = dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, label_smoothing=0.1))
    model = ready_model(recipe, 300, torch.device("cpu"))
    assert [network.label_smoothing for network in model.networks] == [0.1] * (1 + (name == "electra-small"))


def test_smoothing_that_would_have_no_effect_is_refused(tmp_path: Path) -> None:
    start = nlu_toys.start("bert-base")
    file = nlu_toys.write(tmp_path / "train.jsonl", [{"text": word, "label": word[0]} for word in nlu_toys.WORDS])
    recipe = nlu_toys.recipe_for(start, "classification", training__label_smoothing=0.1)
    message = "training.label_smoothing is 0.1, but a classification task predicts no tokens"
    with pytest.raises(UsageError, match=message):
        finetune_run(recipe, start, file, None, tmp_path / "run", progress=False)
    with pytest.raises(UsageError, match=message):
        open_probe("classification", file, file, {"training.label_smoothing": 0.1})
    beside = nlu_toys.recipe_for(
        start, "classification", training__label_smoothing=0.1, finetuning__auxiliary={"ae": 1.0}
    )
    labelled = dataclasses.replace(beside, task=dataclasses.replace(beside.task, labels=["a", "b"]))
    assert ready_model(labelled, start.model.vocab_size, torch.device("cpu")).networks[0].label_smoothing == 0.1


def test_a_pre_training_that_predicts_no_tokens_has_nothing_to_smooth() -> None:
    recipe = nlu_toys.start("bert-base").recipe
    objective = dataclasses.replace(recipe.objective, name="unilmv2", targets=["nsp"])
    smoothed = dataclasses.replace(recipe.training, label_smoothing=0.1)
    with pytest.raises(UsageError, match="this objective predicts no tokens"):
        ready_model(dataclasses.replace(recipe, objective=objective, training=smoothed), 300, torch.device("cpu"))
