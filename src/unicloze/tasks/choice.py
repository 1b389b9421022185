"""Multiple choice: reading tests, story endings, pronoun resolution (RACE, SWAG, COPA, WSC).

A record is one row: its choices are packed sequences that see only themselves. A head scores the first slot of each, or the
last slot if the model reads from left to right, and a softmax runs over the scores (Radford et al. 2018, Section 3.3; Devlin
et al. 2019, Section 4.4).

| record | sequence of a choice |
|---|---|
| `context`, `choices` | [SOS] context [EOS] choice [EOS] |
| `context`, `question`, `choices` | [SOS] context [EOS] question choice [EOS] |
| `cloze`, a text with the gap `_`, and `choices` | [SOS] the text with the choice in its gap [EOS] |

`label` is the text of the right choice, or its index from 0. A label that matches both a choice's text and an index means
the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unicloze.errors import UniclozeError
from unicloze.records.published import GAP
from unicloze.records.record import Record
from unicloze.settings import HeadSettings, Recipe, TaskSettings
from unicloze.tasks.groups import Delimited, Headed, task_of
from unicloze.tasks.rows import Row, RowTarget, pooled_slots, pooling_of, task_format
from unicloze.tasks.task import Outputs, Prediction, cut_note
from unicloze.text.tokenizers import Tokenizer

TARGET = "choice"


@dataclass(frozen=True, kw_only=True)
class ChoiceSettings(Headed, Delimited):
    """Settings of multiple choice."""

    kind: str = "choice"

    one_slot = "a choice is scored"


def heads(settings: Headed) -> Mapping[str, HeadSettings]:
    """One head, which scores the choices."""
    return {TARGET: settings.head_settings("choice")}


def encode(records: Sequence[Record], tokenizer: Tokenizer, recipe: Recipe) -> list[Row]:
    """One row per record."""
    task = task_of(recipe, ChoiceSettings)
    pooling = pooling_of(recipe)
    each = [sequences(record, task) for record in records]
    tokens = iter(tokenizer.encode_batch([text for choices in each for parts in choices for text in parts]))
    labelled = any(record.get(task, "label") is not None for record in records)
    written = task_format(recipe, tokenizer.vocabulary)
    rows, cut = [], 0
    for number, choices in enumerate(each):
        pieces, slots, start, is_cut = [], [], 0, False
        for parts in choices:
            whole = [next(tokens) for _ in parts]
            shown = written.fit(whole)
            is_cut |= sum(map(len, shown)) < sum(map(len, whole))
            pieces.append(written.row(shown))
            length = len(pieces[-1][0])
            slots += [start + slot for slot in pooled_slots(length, pooling)]
            start += length
        cut += is_cut
        target = RowTarget(slots=[slots], labels=[right_choice(records[number], task)] if labelled else None)
        rows.append(
            Row(
                record=number,
                input_ids=np.concatenate([ids for ids, _ in pieces]),
                segment_ids=np.concatenate([ids for _, ids in pieces]),
                lengths=[len(ids) for ids, _ in pieces],
                cut=is_cut,
                targets={TARGET: target},
            )
        )
    cut_note(cut, len(records), task.max_length)
    return rows


def sequences(record: Record, settings: TaskSettings) -> list[list[str]]:
    """The texts in the sequence of each choice."""
    choices = record.texts(settings, "choices")
    if len(choices) < 2:
        raise UniclozeError(f"{record.place}: {len(choices)} choice(s); two or more are expected")
    if record.get(settings, "cloze") is not None:
        parts = record.text(settings, "cloze").split(GAP)
        if len(parts) != 2:
            raise UniclozeError(f"{record.place}: the sentence has {len(parts) - 1} gaps '{GAP}'; one is expected")
        return [[f"{parts[0]}{choice}{parts[1]}"] for choice in choices]
    context = record.text(settings, "context")
    asked = record.get(settings, "question") is not None
    question = record.text(settings, "question").rstrip() + " " if asked else ""
    return [[context, question + choice] for choice in choices]


def right_choice(record: Record, settings: TaskSettings) -> int:
    """Index of the right choice."""
    return choice_of(record.get(settings, "label"), record.texts(settings, "choices"), record.place)


def choice_of(label: Any, choices: Sequence[str], place: str) -> int:
    """Index of the choice that a label names by its text or else by its index from 0."""
    known = f"a number from 0 to {len(choices) - 1}, or the text of one choice"
    if isinstance(label, str) and choices.count(label) > 1:
        raise UniclozeError(f"{place}: the label {label!r} is the text of several choices: it must be {known}")
    if isinstance(label, str) and label in choices:
        return choices.index(label)
    numbers = [str(number) for number in range(len(choices))]
    if isinstance(label, bool) or not isinstance(label, int | str) or str(label) not in numbers:
        raise UniclozeError(f"{place}: the label {label!r} is not one of the choices: it must be {known}")
    return int(label)


def predict(
    records: Sequence[Record], rows: Sequence[Row], outputs: Sequence[Outputs], recipe: Recipe
) -> list[Prediction]:
    """Index and text of the best choice of each record, with the probabilities of all choices."""
    found: list[Prediction] = []
    for record, output in zip(records, outputs, strict=True):
        choices = record.texts(recipe.task, "choices")
        scores = output[TARGET][0, : len(choices)].astype(np.float64)
        probabilities = np.exp(scores - scores.max())
        best = int(scores.argmax())
        shares = [round(float(share), 6) for share in probabilities / probabilities.sum()]
        found.append({"id": record.id, "prediction": best, "choice": choices[best], "probabilities": shares})
    return found
