"""Chooses on the development file the score threshold above which a question counts as unanswerable."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from unicloze.evaluation.metrics.answers import best_threshold, token_f1
from unicloze.finetuning.data import TaskData
from unicloze.settings import Recipe
from unicloze.tasks import TASKS
from unicloze.tasks.extraction import ExtractionSettings, no_answer_margin, with_threshold
from unicloze.tasks.task import Prediction


def with_best_threshold(
    recipe: Recipe, data: TaskData, predictions: Sequence[Prediction]
) -> tuple[Recipe, Sequence[Prediction]]:
    """The recipe with the no-answer threshold of the best F1, halfway to the next margin, and its predictions.

    Both are returned unchanged if the task has no unanswerable questions or the recipe already has a threshold.
    """
    task = recipe.task
    if not isinstance(task, ExtractionSettings) or not task.unanswerable or task.no_answer_threshold is not None:
        return recipe, predictions
    right = [TASKS[task.kind].reference(record, task) for record in data.records]
    margins = {said["id"]: no_answer_margin(said) for said in predictions}
    kept = {said["id"]: _f1_if_kept(said, texts) for said, texts in zip(predictions, right, strict=True)}
    answerable = {said["id"] for said, texts in zip(predictions, right, strict=True) if texts}
    _, threshold = best_threshold(margins, kept, answerable)
    above = min((margin for margin in margins.values() if threshold < margin < math.inf), default=threshold)
    threshold = (threshold + above) / 2
    chosen = dataclasses.replace(recipe, task=dataclasses.replace(task, no_answer_threshold=threshold))
    return chosen, with_threshold(predictions, threshold)


def _f1_if_kept(prediction: Prediction, right: Sequence[str]) -> float:
    """F1 of the best answer, ignoring the no-answer score."""
    text = prediction["n_best"][0]["text"] if prediction["n_best"] else ""
    return max(token_f1(text, wanted) for wanted in right or [""])
