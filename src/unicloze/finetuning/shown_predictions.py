"""Predictions with their references, and a sample of them for inspection: wrong ones first."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from unicloze.evaluation.metrics.answers import exact_match, normalise
from unicloze.evaluation.metrics.registry import metric
from unicloze.records.record import Record
from unicloze.settings import TaskSettings
from unicloze.tasks import TASKS
from unicloze.tasks.several import TaskPart, part_of
from unicloze.tasks.task import Prediction

SAMPLES = 20
MOST_WRONG = 12
LONGEST_TEXT = 600
"""Characters after which a field is truncated."""


def with_references(
    predictions: Sequence[Prediction], records: Sequence[Record], settings: TaskSettings
) -> list[Prediction]:
    """Each prediction with its `reference`, JSON-serialisable."""
    task = TASKS[settings.kind]
    return [
        {**prediction, "reference": _plain(task.reference(record, settings))}
        for prediction, record in zip(predictions, records, strict=True)
    ]


def samples(answered: Sequence[Prediction], records: Sequence[Record], settings: TaskSettings) -> list[dict[str, Any]]:
    """Up to twenty predictions with the texts of their records, beginning with up to twelve wrong ones.

    Both kinds are spread evenly over the file. For quantities the largest errors come first.
    """
    generated = metric(settings.metrics[0]).compares == "texts"  # a text can be good without matching the reference
    parts = [part_of(record, settings) for record in records]
    rights = [
        _right_in(part, one, record) if part is not None
        else None if generated else is_right(one["prediction"], one["reference"])
        for part, one, record in zip(parts, answered, records, strict=True)
    ]  # fmt: skip
    wrong = [number for number, right in enumerate(rights) if right is False]
    other = [number for number, right in enumerate(rights) if right is not False]
    if not generated and other and all(right is None for right in rights):
        wrong = sorted(other, key=lambda number: -_error(answered[number]))[: SAMPLES // 2]
        other = sorted(set(other) - set(wrong))
    few_wrong = _evenly(wrong, max(MOST_WRONG, SAMPLES - len(other)))
    chosen = [*few_wrong, *_evenly(other, SAMPLES - len(few_wrong))]
    return [_sample(answered[number], records[number], settings, rights[number]) for number in chosen]


def _right_in(part: TaskPart, one: Mapping[str, Any], record: Record) -> bool | None:
    """Whether a prediction in one of several tasks is right; None for numbers and free texts."""
    compares = metric(part.metrics[0]).compares
    if part.unsupervised or compares in ("texts", "numbers"):
        return None
    right = part.reference_of(record, one["reference"], compares=compares)
    return bool(part.answer_of(one["prediction"], compares=compares) == right)


def is_right(prediction: Any, reference: Any) -> bool | None:
    """Whether a prediction equals the reference, or one of several as exact match compares them; None for a quantity."""
    if isinstance(prediction, float):
        return None
    reference = _answers(reference)
    if isinstance(reference, list) and isinstance(prediction, str):
        wanted = [text for text in reference if normalise(text)] or [""]
        return any(exact_match(prediction, text) for text in wanted)
    return bool(prediction == reference) or str(prediction) == str(reference)


def _answers(reference: Any) -> Any:
    """The answers of a question, without its other fields."""
    return reference["answers"] if isinstance(reference, Mapping) and "answers" in reference else reference


def _error(one: Mapping[str, Any]) -> float:
    """Absolute error of a quantity; 0 for anything else."""
    prediction, reference = one["prediction"], one["reference"]
    numbers = isinstance(prediction, float) and isinstance(reference, float)
    return abs(prediction - reference) if numbers else 0.0


def _evenly(numbers: Sequence[int], most: int) -> list[int]:
    """At most `most` of the numbers, evenly spaced."""
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
    """The value as truncated text or texts; a number is kept."""
    if isinstance(value, int | float):
        return value
    if _is_texts(value):
        return [_cut(part) for part in value[:50]]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}\u2026"


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value
