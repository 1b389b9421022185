"""Texts and pairs of texts to a class or a quantity (Devlin et al. 2019, Section 4.1; UniLMv2, Table 3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unicloze.errors import UniclozeError
from unicloze.model.task_heads import HeadSettings
from unicloze.settings import Recipe, TaskSettings
from unicloze.tasks.records import Record
from unicloze.tasks.rows import Ints, Row, RowTarget, cut_pair, text_row
from unicloze.tasks.task import Outputs, Prediction, cut_note
from unicloze.text.tokenizers import Tokenizer


def with_labels(settings: TaskSettings, records: Sequence[Record]) -> TaskSettings:
    """The settings with the classes of the training records, where none are given.

    Raises:
        UniclozeError: There are fewer than two classes, or a record has none.
    """
    if settings.labels is not None:
        return settings
    labels = sorted({label_of(record, settings) for record in records})
    if len(labels) < 2:
        raise UniclozeError(
            f"{records[0].place}: all records have the label '{labels[0]}'; give records of two classes"
        )
    return dataclasses.replace(settings, labels=labels)


def label_of(record: Record, settings: TaskSettings) -> str:
    """The label of a record as text.

    Raises:
        UniclozeError: It has none; the message names its line.
    """
    value = record.get(settings, "label")
    if isinstance(value, float):
        raise UniclozeError(
            f"{record.place}: the label {value} is a quantity and no class: give classes as text or whole numbers, or use "
            "--task regression"
        )
    return str(value) if isinstance(value, int) else record.text(settings, "label")


def heads(settings: TaskSettings) -> Mapping[str, HeadSettings]:
    """One head for the class, or for the quantity."""
    dense = settings.head == "dense"
    if settings.kind == "regression":
        return {"label": HeadSettings(kind="quantities", dense=dense)}
    return {"label": HeadSettings(kind="classes", outputs=len(settings.labels or ()), dense=dense)}


def encode(records: Sequence[Record], tokenizer: Tokenizer, recipe: Recipe) -> list[Row]:
    """A row for each record: "[SOS] text [EOS]" or "[SOS] text [EOS] pair [EOS]", predicted from its pooled slots.

    Raises:
        UniclozeError: A record lacks a field or has an unknown label; the message names its line.
    """
    task = recipe.task
    texts = [tokenizer.encode_batch([record.text(task, "text") for record in records])]
    if any(record.get(task, "pair") is not None for record in records):
        texts.append(tokenizer.encode_batch([record.text(task, "pair") for record in records]))
    room = task.max_length - 1 - len(texts)
    answers = _answers(records, task)
    rows, cut = [], 0
    for number, parts in enumerate(zip(*texts, strict=True)):
        shown: tuple[Ints, ...] = cut_pair(*parts, room) if len(parts) == 2 else (parts[0][:room],)
        cut += sum(map(len, shown)) < sum(map(len, parts))
        input_ids, segment_ids = text_row(shown, tokenizer.vocabulary, (0, 1))
        slots = pooled_slots(len(input_ids), task.pooling or recipe.use.pooling)
        target = RowTarget(slots=[slots], labels=None if answers is None else [answers[number]])
        rows.append(Row(record=number, input_ids=input_ids, segment_ids=segment_ids, targets={"label": target}))
    cut_note(cut, len(records), task.max_length)
    return rows


def pooled_slots(length: int, pooling: str) -> Sequence[int]:
    """The slots that stand for a row."""
    return {"first": range(1), "last": range(length - 1, length), "mean": range(length)}[pooling]


def _answers(records: Sequence[Record], settings: TaskSettings) -> list[int] | list[float] | None:
    """The answers of all records, None where none has one."""
    if all(record.get(settings, "label") is None for record in records):
        return None
    if settings.kind == "regression":
        return [quantity_of(record, settings) for record in records]
    numbers = {label: number for number, label in enumerate(settings.labels or ())}
    found = []
    for record in records:
        label = label_of(record, settings)
        if label not in numbers:
            raise UniclozeError(
                f"{record.place}: the label '{label}' is none of those of the task ({', '.join(numbers)}): mend the record, "
                "or name all labels with --task.labels"
            )
        found.append(numbers[label])
    return found


def quantity_of(record: Record, settings: TaskSettings) -> float:
    """The quantity a record is labelled with.

    Raises:
        UniclozeError: It is no finite number; the message names its line.
    """
    value = record.get(settings, "label")
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    if not np.isfinite(number):
        raise UniclozeError(f"{record.place}: the label {value!r} is no number, as a regression needs")
    return number


def predict(
    records: Sequence[Record], rows: Sequence[Row], outputs: Sequence[Outputs], recipe: Recipe
) -> list[Prediction]:
    """The likeliest class of each record with the probability of each, or its quantity."""
    labels = recipe.task.labels or []
    found: list[Prediction] = []
    for record, output in zip(records, outputs, strict=True):
        scores = output["label"][0].astype(np.float64)
        if recipe.task.kind == "regression":
            found.append({"id": record.id, "prediction": float(scores[0])})
            continue
        probabilities = np.exp(scores - scores.max())
        probabilities /= probabilities.sum()
        each = {label: round(float(share), 6) for label, share in zip(labels, probabilities, strict=True)}
        found.append({"id": record.id, "prediction": labels[int(scores.argmax())], "probabilities": each})
    return found


def reference(record: Record, settings: TaskSettings) -> Any:
    """What the prediction of a record is compared with."""
    return quantity_of(record, settings) if settings.kind == "regression" else label_of(record, settings)
