"""Predictions of a model of a task, and what they are worth."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from unicloze.evaluation.metrics.coqa import Gold
from unicloze.evaluation.metrics.registry import metric
from unicloze.evaluation.metrics.result import MetricResult
from unicloze.example import collate
from unicloze.files import replace_file
from unicloze.finetuning.data import TaskData, blocks_by_length
from unicloze.model.model import UnifiedModel
from unicloze.settings import Recipe
from unicloze.tasks import TASKS
from unicloze.tasks.task import Outputs, Prediction
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.loop import Compute

BY_ID: Mapping[str, Callable[[Any], Any]] = {
    "squad": lambda texts: texts,
    "coqa": lambda answers: Gold(**answers),
}
"""Metrics that compare answers by the id of their question, and what they compare a task's reference as."""

SLOTS_AT_ONCE = 8192
"""Slots of a forward pass, padding counted."""


@dataclass(frozen=True)
class TaskModel:
    """A model of a task, ready to predict.

    Args:
        model: Has the heads of the task.
        tokenizer: Its tokenizer.
        recipe: Has the task.
        compute: Where and how to compute.
    """

    model: UnifiedModel
    tokenizer: Tokenizer
    recipe: Recipe
    compute: Compute


def predict(model: TaskModel, data: TaskData, *, progress: bool = False) -> list[Prediction]:
    """A prediction for each record, in their order."""
    task = TASKS[model.recipe.task.kind]
    assert task.predict is not None
    return task.predict(data.records, data.rows, outputs_of(model, data.rows, progress=progress), model.recipe)


def outputs_of(model: TaskModel, rows: Sequence[object], *, progress: bool = False) -> list[Outputs]:
    """What the heads say of each row, without what is padding."""
    task, vocabulary = TASKS[model.recipe.task.kind], model.tokenizer.vocabulary
    found: list[Outputs] = [{}] * len(rows)
    model.model.eval()
    with torch.inference_mode(), tqdm(total=len(rows), unit="row", disable=not progress, dynamic_ncols=True) as bar:
        for block in blocks_by_length(rows, SLOTS_AT_ONCE):
            examples = task.lay_out([rows[number] for number in block], vocabulary, model.recipe, None)
            with model.compute.autocast():
                outputs = model.model.outputs(collate(examples, device=model.compute.device))
            each = {name: values.float().cpu().numpy() for name, values in outputs.items()}
            counts = {name: (target.weights > 0).sum(axis=1) for name, target in examples.targets.items()}
            for row, number in enumerate(block):
                found[number] = {name: values[row, : counts[name][row]] for name, values in each.items()}
            bar.update(len(block))
    return found


def measure(predictions: Sequence[Prediction], data: TaskData, recipe: Recipe) -> Mapping[str, MetricResult]:
    """What predictions are worth, by the metrics of the task.

    Raises:
        UsageError: There is no such metric (`task.metrics`).
        UniclozeError: A record has no answer, or a library that the metric needs is absent.
    """
    task = TASKS[recipe.task.kind]
    references = [task.reference(record, recipe.task) for record in data.records]
    answers = [prediction["prediction"] for prediction in predictions]
    ids = [record.id for record in data.records]
    results = {}
    for name in recipe.task.metrics:
        by_id = BY_ID.get(metric(name).compares)
        given = by_id and (dict(zip(ids, answers, strict=True)), dict(zip(ids, map(by_id, references), strict=True)))
        results[name] = metric(name)(*(given or (answers, references)))
    return results


def headline(results: Mapping[str, MetricResult], recipe: Recipe) -> float:
    """The one number that chooses the best checkpoint: more is better."""
    first = metric(recipe.task.metrics[0])
    value = results[recipe.task.metrics[0]].values[first.headline]
    # A correlation of constant predictions is no number: nothing is worse.
    return -np.inf if np.isnan(value) else value if first.higher_is_better else -value


def write_predictions(predictions: Sequence[Prediction], path: Path, recipe: Recipe) -> None:
    """Write predictions: into a .json as the official scripts of the task read them, else a JSON object a line.

    Beside a .json of questions that may have no answer, `NAME.na_probabilities.json` holds how sure the model is of that.
    """
    if path.suffix != ".json":
        replace_file(path, "".join(json.dumps(said, ensure_ascii=False) + "\n" for said in predictions))
        return
    replace_file(path, json.dumps(TASKS[recipe.task.kind].published(predictions), ensure_ascii=False) + "\n")
    sure = {said["id"]: said["na_probability"] for said in predictions if "na_probability" in said}
    if sure:
        replace_file(path.with_suffix(".na_probabilities.json"), json.dumps(sure) + "\n")
