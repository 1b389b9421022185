"""Transformers' classes with the head of a task: their layers, and our task with its classes from a configuration."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from unicloze.interop.checked_json import LARGEST, Config
from unicloze.interop.tables import Entry, SplitRows, module
from unicloze.recipes import load_recipe
from unicloze.settings import TaskSettings

TaskClass = Literal["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice"]

TASK_CLASSES: Mapping[frozenset[str], TaskClass] = {
    frozenset({"label"}): "ForSequenceClassification",
    frozenset({"tags"}): "ForTokenClassification",
    frozenset({"start", "end"}): "ForQuestionAnswering",
    frozenset({"choice"}): "ForMultipleChoice",
}
"""Class of a task, by the task's targets."""
DENSE: Mapping[TaskClass, bool] = {
    "ForSequenceClassification": True,
    "ForTokenClassification": False,
    "ForQuestionAnswering": False,
    "ForMultipleChoice": True,
}
"""Whether a class has a dense layer before its output layer."""

_BIO = re.compile(r"O|[BI]-.+")


@dataclass(frozen=True, kw_only=True)
class TaskLayers:
    """Layers of a class with a dense layer before its output layer.

    Args:
        dense: Name of the dense layer.
        output: Name of the output layer.
        head: `task.head` of such layers.
    """

    dense: str
    output: str
    head: str = "dense"


def task_entries(kind: TaskClass, layers: Mapping[TaskClass, TaskLayers]) -> list[Entry]:
    """Entries of a task's heads.

    Args:
        kind: The class.
        layers: Of a family's classes with a dense layer.
    """
    if kind == "ForQuestionAnswering":
        ours = "task_heads.start.output", "task_heads.end.output"
        return [
            Entry(ours=tuple(f"{name}.{part}" for name in ours), theirs=(f"qa_outputs.{part}",), change=SplitRows(2))
            for part in ("weight", "bias")
        ]
    if kind == "ForTokenClassification":
        return module("task_heads.tags.output", "classifier")
    target = "label" if kind == "ForSequenceClassification" else "choice"
    own = layers[kind]
    return module(f"task_heads.{target}.dense", own.dense) + module(f"task_heads.{target}.output", own.output)


def class_of(config: Config) -> TaskClass | None:
    """The class with a task's head that a configuration names; None if it names another or none."""
    names = config.values.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    return next((kind for kind in get_args(TaskClass) if isinstance(name, str) and name.endswith(kind)), None)


def imported_task(config: Config, kind: TaskClass, layers: Mapping[TaskClass, TaskLayers]) -> TaskSettings:
    """The task of a checkpoint with a task's head.

    Args:
        config: Its configuration.
        kind: Its class.
        layers: Of its family's classes with a dense layer.

    Raises:
        UniclozeError: The head has another structure than ours.
    """
    decodes = config.values.get("is_encoder_decoder") is True
    if not layers or (kind not in layers and (DENSE[kind] or decodes)):
        raise _refused(config, "architectures", "a head of this class cannot be imported")
    recipes = {"ForTokenClassification": "tagging", "ForQuestionAnswering": "squad-v1.1", "ForMultipleChoice": "choice"}
    labels: list[str] | None = None
    if kind in ("ForSequenceClassification", "ForTokenClassification"):
        labels = _labels(config)
    name = recipes.get(kind, "classification")
    if kind == "ForSequenceClassification" and _is_regression(config, labels or []):
        name, labels = "regression", None
    task: Any = load_recipe(name).task
    values: dict[str, Any] = {
        "head": layers[kind].head if DENSE[kind] else "plain",
        "pooling": "decoder" if decodes else "first",
        "head_dropout": _dropout(config, kind),
    }
    if labels is not None:
        values["labels"] = labels
    if kind == "ForTokenClassification" and not all(_BIO.fullmatch(label) for label in labels or ()):
        values["metrics"] = ["tag-accuracy"]
    imported: TaskSettings = dataclasses.replace(task, **values)
    return imported


DROPOUT: Mapping[str, tuple[str, float | None]] = {
    "albert": ("classifier_dropout_prob", 0.1),
    "distilbert": ("seq_classif_dropout", 0.2),
    "bart": ("classifier_dropout", 0.0),
}
"""Key of the dropout before an output layer, and its default; None for the model's."""


def _dropout(config: Config, kind: TaskClass) -> float | None:
    if kind == "ForQuestionAnswering":
        return config.number("qa_dropout", 0.0, most=1)
    model = str(config.values.get("model_type"))
    of_words = model == "distilbert" and not DENSE[kind]
    key, default = DROPOUT.get("" if of_words else model, ("classifier_dropout", None))
    return default if config.values.get(key) is None else config.number(key, 0.0, most=1)


def _is_regression(config: Config, labels: list[str]) -> bool:
    """Whether a class of texts has one output, a quantity.

    Raises:
        UniclozeError: It predicts several classes of a text, or several quantities.
    """
    problem = config.values.get("problem_type")
    if problem not in (None, "regression", "single_label_classification"):
        raise _refused(config, "problem_type", "only one class or one quantity of a text can be predicted")
    if problem == "regression" and len(labels) != 1:
        raise _refused(config, "problem_type", f"only one quantity of a text can be predicted, not {len(labels)}")
    if problem == "single_label_classification" and len(labels) < 2:
        raise _refused(config, "problem_type", "there is only one class")
    return len(labels) == 1


def _labels(config: Config) -> list[str]:
    """The classes of a configuration, in the order of their indices.

    Raises:
        UniclozeError: They are not named one by one.
    """
    named = config.values.get("id2label")
    if named is None:
        return [f"LABEL_{number}" for number in range(config.whole("num_labels", 2))]
    wrong = not isinstance(named, dict) or not 1 <= len(named) <= LARGEST["size"]
    labels = [] if wrong else [named.get(str(number)) for number in range(len(named))]
    if wrong or not all(isinstance(label, str) and label for label in labels) or len(set(labels)) < len(labels):
        raise _refused(config, "id2label", "it must give every class from 0 a name of its own")
    return labels


def _refused(config: Config, key: str, why: str) -> Exception:
    return config.refused(key, f"{why}; pass --allow 'PATTERN' for the tensors of its head to import the encoder alone")
