"""A tag for each word of a sentence: entities, chunks, parts of speech, the roles of a predicate.

A record has `tokens`, its words, and `tags`, one each. A word is predicted from the first of its sub-tokens (Devlin et al.
2019, Section 5.3), by a causal model from the last, where it has read all of the word, or as `task.pooling` says. A word
without sub-tokens, such as one of invisible characters, is shown as [UNK].

A sentence longer than a row is read in windows that overlap by a quarter; each word is predicted in one window, and the
overlap is halved between both, so that every word has words on both sides. Of a word longer than a row the beginning is read.

A record for semantic roles has `predicate`, the number of its word from 0, and tags its arguments. `task.predicate: segment`
gives the words of the predicate segment 1; `repeat` reads "[SOS] sentence [EOS] predicate [EOS]" (Shi and Lin 2019,
Section 3). A window without the predicate shows it with `repeat` only.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from unicloze.errors import UniclozeError, UsageError, option_of
from unicloze.records.record import Record
from unicloze.rules import Needs
from unicloze.settings import HeadSettings, Recipe, TaskSettings
from unicloze.tasks.groups import Delimited, Headed, Labelled, task_of
from unicloze.tasks.rows import Ints, Row, RowTarget, pair_marks, pooled_slots, pooling_of, text_row
from unicloze.tasks.task import Outputs, Prediction
from unicloze.text.tokenizers import Tokenizer

TARGET = "tags"
OVERLAP = 4
"""Neighbouring windows share this fraction of a row."""

_BIO = re.compile(r"O|[BI]-.+")


@dataclass(frozen=True, kw_only=True)
class TaggingSettings(Headed, Delimited, Labelled):
    """Settings of a task of tags.

    Args:
        predicate: How a tagged sentence shows its predicate, where it has one: by `segment` 1, or `repeat`ed behind it.
    """

    kind: str = "tagging"
    predicate: Literal["segment", "repeat"] = "segment"

    needs: ClassVar = {"delimiter": (Needs("task.predicate repeat", lambda recipe: recipe.task.predicate == "repeat"),)}


def with_tags(settings: TaggingSettings, records: Sequence[Record]) -> TaggingSettings:
    """The settings with the tags of the training records as labels, where none are given.

    Raises:
        UniclozeError: A record has no tags, or not one for each word; the message names its line.
    """
    if settings.labels is not None:
        return settings
    labels = sorted({tag for record in records for tag in tags_of(record, settings)})
    if not labels:
        raise UniclozeError(f"{records[0].place}: no record has a word, and so there is no tag to learn")
    return dataclasses.replace(settings, labels=labels)


def tags_of(record: Record, settings: TaskSettings) -> list[str]:
    """The tags of a record, one for each word.

    Raises:
        UniclozeError: It has others; the message names its line.
    """
    tags, words = record.texts(settings, "tags"), record.texts(settings, "tokens")
    if len(tags) != len(words):
        raise UniclozeError(f"{record.place}: {len(tags)} tags for {len(words)} tokens; give one for each")
    wrong = next((tag for tag in tags if not _BIO.fullmatch(tag)), None) if "entity-f1" in settings.metrics else None
    if wrong is not None:
        raise UniclozeError(
            f"{record.place}: the tag '{wrong}' is none of B-KIND, I-KIND and O, whose entities are counted; for tags "
            f"of single words fine-tune with {option_of('task.metrics')} tag-accuracy"
        )
    return tags


def heads(settings: TaggingSettings) -> Mapping[str, HeadSettings]:
    """One head for the tag of a word."""
    count, dense = len(settings.labels or ()), settings.head == "dense"
    return {TARGET: HeadSettings(kind="classes", outputs=count, dense=dense, dropout=settings.head_dropout)}


def encode(records: Sequence[Record], tokenizer: Tokenizer, recipe: Recipe) -> list[Row]:
    """A row for each record, or several for a long one.

    Raises:
        UniclozeError: A record lacks a field, has an unknown tag or an impossible predicate; the message names its line.
        UsageError: The model has no segment to mark a predicate with.
    """
    task = task_of(recipe, TaggingSettings)
    answers = _answers(records, task)
    predicates = _predicates(records, recipe)
    rows, windowed = [], 0
    for number, record in enumerate(records):
        words = _word_tokens(record.texts(task, "tokens"), tokenizer)
        predicate = predicates[number]
        repeated = words[predicate] if predicate is not None and task.predicate == "repeat" else None
        room = task.max_length - 2
        if repeated is not None:
            repeated = repeated[: room // 2]
            room -= len(repeated) + 1
        parts = list(windows([min(len(word), room) for word in words], room))
        windowed += len(parts) > 1 or any(len(word) > room for word in words)
        for window, predicted in parts:
            tags = None if answers is None else [answers[number][word] for word in predicted]
            shown = [words[word][:room] for word in window]
            places = [word - window.start for word in predicted]
            input_ids, segment_ids, slots = _row(shown, places, repeated, tokenizer, recipe)
            if predicate is not None and predicate in window and repeated is None:
                first = 1 + sum(len(word) for word in shown[: predicate - window.start])
                segment_ids[first : first + len(shown[predicate - window.start])] = 1
            target = RowTarget(slots=slots, labels=tags)
            rows.append(Row(record=number, input_ids=input_ids, segment_ids=segment_ids, targets={TARGET: target}))
    if windowed:
        warnings.warn(
            f"{windowed} of {len(records)} sentences are longer than the {task.max_length} tokens of a row "
            "(task.max_length, and no more than the model has positions) and are read in windows",
            stacklevel=2,
        )
    return rows


def windows(sizes: Sequence[int], room: int) -> Iterator[tuple[range, range]]:
    """The words each window shows, and those predicted in it; together these are all, each once.

    Args:
        sizes: Sub-tokens of each word, none more than `room`.
        room: Sub-tokens of a window.
    """
    start = predicted = 0
    while True:
        end, used = start, 0
        while end < len(sizes) and used + sizes[end] <= room:
            used += sizes[end]
            end += 1
        if end == len(sizes):
            yield range(start, end), range(predicted, end)
            return
        following, shared = end, 0
        most = min(room // OVERLAP, room - sizes[end])
        while following > start + 1 and shared + sizes[following - 1] <= most:
            following -= 1
            shared += sizes[following]
        boundary = (following + end + 1) // 2
        yield range(start, end), range(predicted, boundary)
        start, predicted = following, boundary


def _row(
    words: Sequence[Ints], predicted: Sequence[int], repeated: Ints | None, tokenizer: Tokenizer, recipe: Recipe
) -> tuple[Ints, Ints, list[list[int]]]:
    """Tokens and segments of a window, and the slots of the words predicted in it."""
    sizes = [len(word) for word in words]
    sentence = np.concatenate([*words, np.zeros(0, np.int32)])
    segments, between = pair_marks(recipe, tokenizer.vocabulary)
    texts = [sentence] if repeated is None else [sentence, repeated]
    input_ids, segment_ids = text_row(texts, tokenizer.vocabulary, segments, between)
    starts = 1 + np.cumsum([0, *sizes[:-1]])
    slots = [[int(starts[word]) + slot for slot in pooled_slots(sizes[word], pooling_of(recipe))] for word in predicted]
    return input_ids, segment_ids, slots


def _word_tokens(words: Sequence[str], tokenizer: Tokenizer) -> list[Ints]:
    """The sub-tokens of each word as they are within a sentence: byte-level vocabularies spell a word with its space."""
    unknown = np.array([tokenizer.vocabulary.unk], dtype=np.int32)
    spaced = [word if number == 0 else f" {word}" for number, word in enumerate(words)]
    return [tokens if len(tokens) else unknown for tokens in tokenizer.encode_batch(spaced)]


def _answers(records: Sequence[Record], settings: TaggingSettings) -> list[list[int]] | None:
    """The numbers of the tags of all records, None where none has any."""
    if all(record.get(settings, "tags") is None for record in records):
        return None
    numbers = {label: number for number, label in enumerate(settings.labels or ())}
    found = []
    for record in records:
        tags = tags_of(record, settings)
        unknown = next((tag for tag in tags if tag not in numbers), None)
        if unknown is not None:
            raise UniclozeError(
                f"{record.place}: the tag '{unknown}' is none of those of the task ({', '.join(numbers)}): mend the "
                f"record, or fine-tune with {option_of('task.labels')} that name all"
            )
        found.append([numbers[tag] for tag in tags])
    return found


def _predicates(records: Sequence[Record], recipe: Recipe) -> list[int | None]:
    """The number of the word that is the predicate of each record, None where none has one."""
    task = task_of(recipe, TaggingSettings)
    found: list[int | None] = [record.get(task, "predicate") for record in records]
    if all(place is None for place in found):
        return found
    for record, place in zip(records, found, strict=True):
        words = record.texts(task, "tokens")
        if isinstance(place, bool) or not isinstance(place, int) or not 0 <= place < len(words):
            known = f"the number of one of its {len(words)} tokens, from 0"
            raise UniclozeError(f"{record.place}: the predicate is {place!r}; it must be {known}")
    if task.predicate == "segment" and recipe.model.num_segments < 2:
        raise UsageError(
            "the model has no second segment to mark a predicate with: fine-tune with "
            f"{option_of('task.predicate')} repeat"
        )
    return found


def predict(
    records: Sequence[Record], rows: Sequence[Row], outputs: Sequence[Outputs], recipe: Recipe
) -> list[Prediction]:
    """The likeliest tag of each word of each record."""
    labels = task_of(recipe, TaggingSettings).labels or []
    found: list[list[str]] = [[] for _ in records]
    for row, output in zip(rows, outputs, strict=True):
        found[row.record] += [labels[number] for number in output[TARGET].argmax(axis=-1)]
    return [{"id": record.id, "prediction": tags} for record, tags in zip(records, found, strict=True)]


def reference(record: Record, settings: TaskSettings) -> Any:
    """What the prediction of a record is compared with."""
    return tags_of(record, settings)
