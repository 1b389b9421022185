"""Predictions beside what is right, and some of them for people to look at: the wrong ones first."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from unicloze.evaluation.metrics.registry import metric
from unicloze.records.record import Record
from unicloze.settings import TaskSettings
from unicloze.tasks import TASKS
from unicloze.tasks.task import Prediction

SAMPLES = 20
MOST_WRONG = 12
LONGEST_TEXT = 600
"""Characters of a field that are kept."""


def with_references(
    predictions: Sequence[Prediction], records: Sequence[Record], settings: TaskSettings
) -> list[Prediction]:
    """Each prediction with its `reference`, fit for JSON."""
    task = TASKS[settings.kind]
    return [
        {**prediction, "reference": _plain(task.reference(record, settings))}
        for prediction, record in zip(predictions, records, strict=True)
    ]


def samples(answered: Sequence[Prediction], records: Sequence[Record], settings: TaskSettings) -> list[dict[str, Any]]:
    """At most twenty predictions with the texts of their records, up to twelve wrong ones first.

    Both kinds are taken evenly over the file; of quantities those that are farthest off come first.

    Args:
        answered: Predictions with their references.
        records: The records they are of.
        settings: Which fields the task reads.

    Returns:
        For each its `id`, `fields`, `prediction`, `reference`, `right` (None of quantities and of texts that were written,
        which are near or far) and `confidence`, the probability of the prediction, where there is one.
    """
    generated = metric(settings.metrics[0]).compares == "texts"  # there are many good ones
    rights = [None if generated else is_right(one["prediction"], one["reference"]) for one in answered]
    wrong = [number for number, right in enumerate(rights) if right is False]
    other = [number for number, right in enumerate(rights) if right is not False]
    if not generated and other and all(right is None for right in rights):
        wrong = sorted(other, key=lambda number: -_error(answered[number]))[: SAMPLES // 2]
        other = sorted(set(other) - set(wrong))
    few_wrong = _evenly(wrong, max(MOST_WRONG, SAMPLES - len(other)))
    chosen = [*few_wrong, *_evenly(other, SAMPLES - len(few_wrong))]
    return [_sample(answered[number], records[number], settings, rights[number]) for number in chosen]


def is_right(prediction: Any, reference: Any) -> bool | None:
    """Whether a prediction is the reference or one of several; None of a quantity, which is only near or far."""
    if isinstance(prediction, float):
        return None
    reference = _answers(reference)
    if isinstance(reference, list) and isinstance(prediction, str):
        return prediction in reference if reference else not prediction
    return bool(prediction == reference) or str(prediction) == str(reference)


def _answers(reference: Any) -> Any:
    """Those of a question, without what else is known of it."""
    return reference["answers"] if isinstance(reference, Mapping) and "answers" in reference else reference


def _error(one: Mapping[str, Any]) -> float:
    """How far off a quantity is; 0 of anything else."""
    prediction, reference = one["prediction"], one["reference"]
    numbers = isinstance(prediction, float) and isinstance(reference, float)
    return abs(prediction - reference) if numbers else 0.0


def _evenly(numbers: Sequence[int], most: int) -> list[int]:
    """At most so many of them, as far apart as can be."""
    count = min(most, len(numbers))
    return [numbers[place * len(numbers) // count] for place in range(count)]


def _sample(one: Prediction, record: Record, settings: TaskSettings, right: bool | None) -> dict[str, Any]:
    fields = {}
    for role in TASKS[settings.kind].roles:
        value = record.get(settings, role)
        readable = isinstance(value, str | int | float) or _is_texts(value)
        if readable and str(value) != str(one["reference"]) and [value] != one["reference"]:
            fields[role] = _cut(value)
    probabilities = one.get("probabilities")
    confidence = probabilities.get(str(one["prediction"])) if isinstance(probabilities, Mapping) else None
    return {
        "id": one["id"],
        "fields": fields,
        "prediction": _cut(one["prediction"]),
        "reference": _cut(_answers(one["reference"])),
        "right": right,
        "confidence": confidence,
    }


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) for part in value)


def _cut(value: Any) -> Any:
    """What people can read of it; a number stays one."""
    if isinstance(value, int | float):
        return value
    if _is_texts(value):
        return [_cut(part) for part in value[:50]]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}\u2026"


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value
