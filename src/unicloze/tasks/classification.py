"""Classification and regression of texts and text pairs (Devlin et al. 2019, Section 4.1; UniLMv2, Table 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from unicloze.arrays import Int32s
from unicloze.errors import UniclozeError, option_of
from unicloze.mixtures import parts
from unicloze.objectives.seq2seq import SourceTarget, start_ids
from unicloze.records.record import Record
from unicloze.settings import HeadSettings, Recipe, TaskSettings
from unicloze.tasks.groups import Labelled, Paired, task_of
from unicloze.tasks.rows import Row, RowTarget, pooled_slots, pooling_of, read_again, task_format
from unicloze.tasks.task import Outputs, Prediction, cut_note
from unicloze.text.tokenizers import Tokenizer
from unicloze.text.vocabulary import Vocabulary

LARGEST = float(np.finfo(np.float32).max)
"""Largest valid quantity."""


@dataclass(frozen=True, kw_only=True)
class ClassificationSettings(Paired, Labelled):
    """Settings of classification."""

    kind: str = "classification"


@dataclass(frozen=True, kw_only=True)
class RegressionSettings(Paired):
    """Settings of regression."""

    kind: str = "regression"


def with_labels(settings: Labelled, records: Sequence[Record]) -> Labelled:
    """The settings with the classes of the training records and their weights, unless given."""
    if settings.labels is not None and settings.class_weights != "balanced":
        return settings
    answers = [label_of(record, settings) for record in records]
    if settings.labels is None and len(set(answers)) < 2:
        raise UniclozeError(
            f"{records[0].place}: all records have the label '{answers[0]}'; give records of at least two classes"
        )
    return settings.with_classes(answers)


def label_of(record: Record, settings: Labelled) -> str:
    """The label of a record as text, without surrounding white space."""
    value = record.get(settings, "label")
    if isinstance(value, float):
        raise UniclozeError(
            f"{record.place}: the label {value} is a quantity, not a class: give classes as text or whole numbers, or use "
            "--task regression"
        )
    label = str(value) if isinstance(value, int) else record.text(settings, "label").strip()
    if settings.labels is None and not label:
        raise UniclozeError(f"{record.place}: the label is empty: fill it in, or leave the record out")
    if settings.labels is not None and label not in settings.labels:
        known = ", ".join(settings.labels)
        raise UniclozeError(
            f"{record.place}: the label '{label}' is not a label of the task ({known}): correct the record, or fine-tune "
            f"with {option_of('task.labels')} listing all labels"
        )
    return label


def heads(settings: Paired) -> Mapping[str, HeadSettings]:
    """One head, for the class or the quantity."""
    outputs = len(settings.labels or ()) if isinstance(settings, Labelled) else 1
    kind: Literal["quantities", "classes"] = "quantities" if settings.kind == "regression" else "classes"
    texts = 2 if "pair" in (settings.optional or ()) else 1
    head = settings.head_settings(
        kind, outputs=outputs, pooling=_pooling(settings), texts=texts, size=settings.head_size
    )
    return {"label": head}


def _pooling(settings: Paired) -> Literal["mean", "sum", "concat"]:
    if settings.pooling == "concat":
        return "concat"
    return "sum" if settings.both_orders and settings.pooling != "mean" else "mean"


def encode(records: Sequence[Record], tokenizer: Tokenizer, recipe: Recipe) -> list[Row]:
    """One row per record: "[SOS] text [EOS]" or "[SOS] text [EOS] pair [EOS]", predicted from its pooled slots.

    With `task.both_orders` a pair is packed in both orders and predicted from both (Radford et al. 2018, Section 3.3).
    """
    task = task_of(recipe, Paired)
    texts = [tokenizer.encode_batch([record.text(task, "text") for record in records])]
    if any(record.get(task, "pair") is not None for record in records):
        texts.append(tokenizer.encode_batch([record.text(task, "pair") for record in records]))
    answers = _answers(records, task)
    written = task_format(recipe, tokenizer.vocabulary)
    rows, cut, pooling = [], 0, pooling_of(recipe)
    for number, given in enumerate(zip(*texts, strict=True)):
        apart = task.head == "biattentive"
        shown = written.fit(given, spare=apart * (len(given) - 1))
        is_cut = sum(map(len, shown)) < sum(map(len, given))
        cut += is_cut
        orders: Sequence[Sequence[Int32s]] = (shown,)
        if task.both_orders and len(shown) == 2:
            orders = (shown, shown[::-1])
        elif apart:
            orders = [(each,) for each in shown]
        pieces = [written.row(order) for order in orders]
        length = len(pieces[0][0])
        pooled = pooled_slots(length, pooling, leftward=recipe.use.visibility == "right_to_left")
        if pooling == "decoder":
            pieces = [read_again(*pieces[0], start=start_of_decoder(recipe, tokenizer.vocabulary))]
        slots = [start + slot for start in range(0, len(pieces) * length, length) for slot in pooled]
        if apart:
            slots = alternating([len(ids) for ids, _ in pieces])
        rows.append(
            Row(
                record=number,
                input_ids=np.concatenate([ids for ids, _ in pieces]),
                segment_ids=np.concatenate([ids for _, ids in pieces]),
                lengths=[] if pooling == "decoder" else [len(ids) for ids, _ in pieces],
                source=length if pooling == "decoder" else 0,
                cut=is_cut,
                targets={"label": RowTarget(slots=[slots], labels=None if answers is None else [answers[number]])},
            )
        )
    cut_note(cut, len(records), task.max_length)
    return rows


def alternating(lengths: Sequence[int]) -> list[int]:
    """The slots of some sequences that follow one another: the first of each, the second of each, -1 where one has ended."""
    starts = [sum(lengths[:number]) for number in range(len(lengths))]
    return [
        start + place if place < length else -1
        for place in range(max(lengths))
        for start, length in zip(starts, lengths, strict=True)
    ]


def start_of_decoder(recipe: Recipe, vocabulary: Vocabulary) -> int:
    """The first start slot of an encoder-decoder's targets."""
    found = (part.settings for part in parts(recipe.objective))
    settings = next(each for each in found if isinstance(each, SourceTarget))
    return start_ids(vocabulary, settings)[0]


def _answers(records: Sequence[Record], settings: TaskSettings) -> list[int] | list[float] | None:
    """The answers of all records, or None if no record has one."""
    if all(record.get(settings, "label") is None for record in records):
        return None
    if not isinstance(settings, Labelled):
        return [quantity_of(record, settings) for record in records]
    numbers = {label: number for number, label in enumerate(settings.labels or ())}
    return [numbers[label_of(record, settings)] for record in records]


def quantity_of(record: Record, settings: TaskSettings) -> float:
    """The quantity that labels a record."""
    value = record.get(settings, "label")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = np.nan
    if isinstance(value, bool) or not abs(number) <= LARGEST:
        raise UniclozeError(f"{record.place}: the label {value!r:.40} is not a number that a regression can learn")
    return number


def predict(
    records: Sequence[Record], rows: Sequence[Row], outputs: Sequence[Outputs], recipe: Recipe
) -> list[Prediction]:
    """The most likely class of each record with the probabilities of all classes, or its quantity."""
    labels = recipe.task.labels or [] if isinstance(recipe.task, Labelled) else []
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
    """The reference for a record's prediction."""
    return label_of(record, settings) if isinstance(settings, Labelled) else quantity_of(record, settings)
