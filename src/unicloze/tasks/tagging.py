"""Tagging: one tag per word of a sentence, for entities, chunks, parts of speech or semantic roles.

A record has `tokens`, its words, and `tags`, one per word. A word is predicted from its first sub-token (Devlin et al. 2019,
Section 5.3), in a causal model from the last, which has seen the whole word, or as set by `task.pooling`. A word without
sub-tokens, for example of invisible characters, becomes [UNK].

A sentence longer than a row is read in windows that overlap by a quarter; each word is predicted in one window, and each of
two windows predicts half of their overlap, so that words have context on both sides. A word longer than a row is cut.

A record for semantic roles has `predicate`, the index of its word from 0, and tags its arguments. `task.predicate: segment`
gives the predicate segment 1; `repeat` reads "[SOS] sentence [EOS] predicate [EOS]" (Shi and Lin 2019, Section 3). A window
that does not contain the predicate shows it only with `repeat`.

With `task.parts` several taggers share the network: each has its own tags and head, and a target named after it. A record
that names none of them in the field `task`, such as unlabelled text, is tagged by all.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from unicloze.arrays import Int32s
from unicloze.errors import UniclozeError, UsageError, option_of
from unicloze.records.record import Record
from unicloze.rules import AT_LEAST_ONE, NOT_NEGATIVE, Needs, Problem
from unicloze.settings import HeadSettings, Recipe, TaskPooling, TaskSettings
from unicloze.tasks.groups import Delimited, Headed, Labelled, task_of
from unicloze.tasks.rows import Row, RowTarget, TextFormat, pooled_slots, pooling_of, task_format
from unicloze.tasks.several import TAGGING, TASK, by_part, part_problems, parts_of
from unicloze.tasks.task import Outputs, Prediction
from unicloze.text.tokenizers import Tokenizer

TARGET = "tags"
OVERLAP = 4
"""Neighbouring windows overlap by a row divided by this number."""

_BIO = re.compile(r"O|[BI]-.+")


@dataclass(frozen=True, kw_only=True)
class TaggingSettings(Headed, Delimited, Labelled):
    """Settings of tagging.

    Args:
        predicate: How to mark the predicate of a sentence, if any: `segment` gives it segment 1, `repeat` appends it.
        encoder_size: Cells of each direction of a biLSTM that reads the words before the head, as ELMo's taggers do; 0 for
            none.
        output_mix: Give the head a second mix of the layers (`model.layer_mix`), with weights of its own, beside the output
            of that biLSTM (ELMo, Section 3.3).
        parts: Several taggers to train together (CVT): for each a mapping of `label`, `train` and `dev` (its files in the
            folders --train and --dev), `source` (`{tokens: FIELD}`), `target` (the field of its tags), `labels`, `metrics`,
            `format` and `share`; see `unicloze.tasks.several.TaskPart`. Every step trains one of them, drawn at random.
        mixing_cap: Most rows of a part that count when a step's part is drawn; default: all.
        mixing_temperature: Temperature of that draw: 1 draws parts by their number of rows, 2 by its square root.
    """

    kind: str = TAGGING
    predicate: Literal["segment", "repeat"] = "segment"
    encoder_size: int = 0
    output_mix: bool = False
    parts: list[dict[str, Any]] = field(default_factory=list)
    mixing_cap: int | None = None
    mixing_temperature: float = 2.0

    ranges: ClassVar = {
        "encoder_size": NOT_NEGATIVE,
        "mixing_cap": AT_LEAST_ONE,
        "mixing_temperature": AT_LEAST_ONE,
    }
    needs: ClassVar = {
        "delimiter": (Needs("task.predicate repeat", lambda recipe: recipe.task.predicate == "repeat"),),
        **dict.fromkeys(
            ("mixing_cap", "mixing_temperature"), (Needs("task.parts", lambda recipe: bool(recipe.task.parts)),)
        ),
    }

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Reject invalid parts, and a second mix without a first."""
        yield from super().problems(recipe)
        yield from part_problems(self.parts, taggers=True)
        if self.parts and (self.fields or self.format != "auto" or self.labels is not None):
            yield (
                "task.parts",
                "each entry names its own fields, format and labels: leave out task.fields, task.format and task.labels",
            )
        if self.parts and self.class_weights is not None:
            yield "task.class_weights", "task.parts does not support it: leave it out"
        if self.output_mix and not (self.encoder_size and recipe.model.layer_mix):
            yield (
                "task.output_mix",
                "it needs a biLSTM that reads the first mix: set task.encoder_size and model.layer_mix",
            )


def with_tags(settings: TaggingSettings, records: Sequence[Record]) -> TaggingSettings:
    """The settings with the tags of the training records as labels and their weights, unless set, for each part."""
    if settings.parts:
        parts, numbers = [], by_part(records)
        for part, entry in zip(parts_of(settings), settings.parts, strict=True):
            if part.label not in numbers:
                raise UniclozeError(
                    f"{records[0].place}: no training record is of {part.label}, an entry of task.parts"
                )
            labels = part.labels or sorted(set(_tags_in([records[number] for number in numbers[part.label]], settings)))
            parts.append({**entry, "labels": list(labels)})
        return dataclasses.replace(settings, parts=parts)
    if settings.labels is not None and settings.class_weights != "balanced":
        return settings
    return settings.with_classes(_tags_in(records, settings))


def _tags_in(records: Sequence[Record], settings: TaskSettings) -> list[str]:
    """The tags of all words, in order."""
    answers = [tag for record in records for tag in tags_of(record, settings)]
    if not answers:
        raise UniclozeError(f"{records[0].place}: no record has any words, so there are no tags to train on")
    return answers


def taggers_of(settings: TaggingSettings) -> dict[str, Sequence[str]]:
    """The tags of each tagger by its target."""
    parts = parts_of(settings)
    if not parts:
        return {TARGET: settings.labels or ()}
    return {f"{TARGET}:{part.label}": part.labels or () for part in parts}


def _targets(record: Record, settings: TaggingSettings) -> list[str]:
    """The targets of a record: that of the part it names, or all."""
    named = record.fields.get(TASK)
    every = list(taggers_of(settings))
    return [f"{TARGET}:{named}"] if settings.parts and named is not None else every


def tags_of(record: Record, settings: TaskSettings) -> list[str]:
    """The tags of a record, one per word."""
    tags, words = [tag.strip() for tag in record.texts(settings, "tags")], record.texts(settings, "tokens")
    if len(tags) != len(words):
        raise UniclozeError(f"{record.place}: {len(tags)} tags for {len(words)} tokens; give one for each")
    own = {part.label: part.metrics for part in parts_of(settings)}
    metrics = own.get(str(record.fields.get(TASK)), ()) if own else settings.metrics
    wrong = next((tag for tag in tags if not _BIO.fullmatch(tag)), None) if "entity-f1" in metrics else None
    if wrong is not None:
        raise UniclozeError(
            f"{record.place}: the tag '{wrong}' is not one of B-KIND, I-KIND and O, which entity-f1 needs; for tags of "
            f"single words fine-tune with {option_of('task.metrics')} tag-accuracy"
        )
    return tags


def heads(settings: TaggingSettings) -> Mapping[str, HeadSettings]:
    """One head for the tag of a word, or one for each part."""
    return {
        name: settings.head_settings(
            "classes",
            outputs=len(labels),
            encoder_size=settings.encoder_size,
            output_mix=settings.output_mix,
        )
        for name, labels in taggers_of(settings).items()
    }


def encode(records: Sequence[Record], tokenizer: Tokenizer, recipe: Recipe) -> list[Row]:
    """One row per record, or several for a long one."""
    task = task_of(recipe, TaggingSettings)
    answers = _answers(records, task)
    predicates = _predicates(records, recipe)
    written = task_format(recipe, tokenizer.vocabulary)
    rows, windowed = [], 0
    for number, record in enumerate(records):
        words = word_tokens(record.texts(task, "tokens"), tokenizer)
        predicate = predicates[number]
        repeated = words[predicate] if predicate is not None and task.predicate == "repeat" else None
        room = task.max_length - written.specials()
        if repeated is not None:
            repeated = repeated[: room // 2]
            room -= len(repeated) + len(written.between)
        parts = list(windows([min(len(word), room) for word in words], room))
        windowed += len(parts) > 1 or any(len(word) > room for word in words)
        for window, predicted in parts:
            tags = None if answers is None else [answers[number][word] for word in predicted]
            shown = [words[word][:room] for word in window]
            places = [word - window.start for word in predicted]
            input_ids, segment_ids, slots, units = _row(shown, places, repeated, written, pooling_of(recipe))
            if predicate is not None and predicate in window and repeated is None:
                first = 1 + sum(len(word) for word in shown[: predicate - window.start])
                segment_ids[first : first + len(shown[predicate - window.start])] = 1
            target = RowTarget(slots=slots, labels=tags, units=units)
            targets = dict.fromkeys(_targets(record, task), target)
            rows.append(Row(record=number, input_ids=input_ids, segment_ids=segment_ids, targets=targets))
    if windowed:
        warnings.warn(
            f"{windowed} of {len(records)} sentences are longer than the {task.max_length} tokens of a row "
            "(task.max_length) and are read in windows",
            stacklevel=2,
        )
    return rows


def windows(sizes: Sequence[int], room: int) -> Iterator[tuple[range, range]]:
    """The words that each window contains, and those it predicts; every word is predicted exactly once."""
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
    words: Sequence[Int32s],
    predicted: Sequence[int],
    repeated: Int32s | None,
    written: TextFormat,
    pooling: TaskPooling,
) -> tuple[Int32s, Int32s, list[list[int]], list[tuple[int, int]]]:
    """Tokens and segments of a window, and the pooled slots and the range of slots of each word predicted in it."""
    sizes = [len(word) for word in words]
    sentence = np.concatenate([*words, np.zeros(0, np.int32)])
    texts = [sentence] if repeated is None else [sentence, repeated]
    input_ids, segment_ids = written.row(texts)
    starts = 1 + np.cumsum([0, *sizes[:-1]])
    slots = [[int(starts[word]) + slot for slot in pooled_slots(sizes[word], pooling)] for word in predicted]
    units = [(int(starts[word]), int(starts[word]) + sizes[word]) for word in predicted]
    return input_ids, segment_ids, slots, units


def word_tokens(words: Sequence[str], tokenizer: Tokenizer) -> list[Int32s]:
    """The sub-tokens of each word as within a sentence: byte-level vocabularies spell a word with its leading space."""
    unknown = np.array([tokenizer.vocabulary.unk], dtype=np.int32)
    return [tokens if len(tokens) else unknown for tokens in tokenizer.encode_batch([f" {word}" for word in words])]


def _answers(records: Sequence[Record], settings: TaggingSettings) -> list[list[int]] | None:
    """Tag indices of all records, or None if no record has tags."""
    if all(record.get(settings, "tags") is None for record in records):
        return None
    of_tagger = {
        name: {label: number for number, label in enumerate(labels)} for name, labels in taggers_of(settings).items()
    }
    found = []
    for record in records:
        tags, (target, *others) = tags_of(record, settings), _targets(record, settings)
        if others:
            raise UniclozeError(
                f"{record.place}: the field 'task' must name the part of task.parts that the tags are of"
            )
        numbers = of_tagger[target]
        unknown = next((tag for tag in tags if tag not in numbers), None)
        if unknown is not None:
            raise UniclozeError(
                f"{record.place}: the tag '{unknown}' is not a tag of the task ({', '.join(numbers)}): correct the "
                f"record, or fine-tune with {option_of('task.labels')} listing all tags"
            )
        found.append([numbers[tag] for tag in tags])
    return found


def _predicates(records: Sequence[Record], recipe: Recipe) -> list[int | None]:
    """Index of each record's predicate word; all None if no record has a predicate."""
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
    """The most likely tag of each word of each record; by part if all tag it."""
    task = task_of(recipe, TaggingSettings)
    taggers = taggers_of(task)
    found: list[dict[str, list[str]]] = [{name: [] for name in _targets(record, task)} for record in records]
    for row, output in zip(rows, outputs, strict=True):
        for name, tags in found[row.record].items():
            tags += [taggers[name][number] for number in output[name].argmax(axis=-1)]
    return [
        {"id": record.id, "prediction": _by_part(tags) if len(tags) > 1 else next(iter(tags.values()))}
        for record, tags in zip(records, found, strict=True)
    ]


def _by_part(tags: Mapping[str, list[str]]) -> dict[str, list[str]]:
    return {name.removeprefix(f"{TARGET}:"): each for name, each in tags.items()}


def reference(record: Record, settings: TaskSettings) -> Any:
    """The reference for a record's prediction."""
    return tags_of(record, settings)
