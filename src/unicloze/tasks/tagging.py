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
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from unicloze.arrays import Int32s
from unicloze.errors import UniclozeError, UsageError, option_of
from unicloze.records.record import Record
from unicloze.rules import NOT_NEGATIVE, Problem, needs, setting
from unicloze.settings import HeadSettings, Recipe, TaskSettings
from unicloze.tasks.rows import Row, RowTarget, RowTask, pooled_slots, pooling_of, task_format
from unicloze.tasks.several import TAGGING, TASK, SeveralSettings, by_part, has_parts, part_of, parts_of
from unicloze.tasks.task import Baseline, Delimited, Headed, Labelled, Outputs, Prediction, task_of
from unicloze.text.tokenizers import Tokenizer

TARGET = "tags"
OVERLAP = 4
"""Neighbouring windows overlap by a row divided by this number."""

_BIO = re.compile(r"O|[BI]-.+")


@dataclass(frozen=True, kw_only=True)
class TaggingSettings(Headed, Delimited, Labelled, SeveralSettings):
    """Settings of tagging.

    Args:
        predicate: How to mark the predicate of a sentence, if any: `segment` gives it segment 1, `repeat` appends it.
        encoder_size: Cells of each direction of a biLSTM that reads the words before the head, as ELMo's taggers do; 0 for
            none.
        output_mix: Give the head a second mix of the layers (`model.layer_mix`), with weights of its own, beside the output
            of that biLSTM (ELMo, Section 3.3).
    """

    kind: str = TAGGING
    predicate: Literal["segment", "repeat"] = "segment"
    delimiter: bool = setting(False, needs("task.predicate", "repeat"))
    encoder_size: int = setting(0, NOT_NEGATIVE)
    output_mix: bool = False
    mixing_temperature: float = 2.0

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Reject labels of several taggers, and a second mix without a first."""
        yield from super().problems(recipe)
        if self.parts and self.labels is not None:
            yield "task.parts", "each entry names its own labels: leave out task.labels"
        if self.parts and self.class_weights is not None:
            yield "task.class_weights", "task.parts does not support it: leave it out"
        if self.output_mix and not (self.encoder_size and recipe.model.layer_mix):
            lacks = "it needs a biLSTM that reads the first mix"
            yield "task.output_mix", f"{lacks}: set task.encoder_size and model.layer_mix"


class Tagging(RowTask):
    """Tags each word of a sentence."""

    def resolve(self, settings: Any, records: Sequence[Record]) -> TaggingSettings:
        """The settings with the tags of the training records as labels and their weights, unless set, for each part."""
        tagging: TaggingSettings = settings
        if not tagging.parts:
            fixed = tagging.labels is not None and tagging.class_weights != "balanced"
            return tagging if fixed else tagging.with_classes(_tags_in(records, tagging))
        entries, numbers = [], by_part(records, tagging)
        for part, entry in zip(parts_of(tagging), tagging.parts, strict=True):
            if part.label not in numbers:
                raise UniclozeError(f"{records[0].place}: no training record is of {part.label} (task.parts)")
            labels = part.labels or sorted(set(_tags_in([records[number] for number in numbers[part.label]], tagging)))
            entries.append({**entry, "labels": list(labels)})
        return dataclasses.replace(tagging, parts=entries)

    def heads(self, settings: Any) -> Mapping[str, HeadSettings]:
        """One head for the tag of a word, or one for each part."""
        head = partial(settings.head_settings, encoder_size=settings.encoder_size, output_mix=settings.output_mix)
        return {name: head("classes", outputs=len(labels)) for name, labels in taggers_of(settings).items()}

    def encode(self, records: Sequence[Record], tokenizer: Tokenizer, recipe: Recipe) -> list[Row]:
        """One row per record, or several for a long one."""
        task = task_of(recipe, TaggingSettings)
        answers, predicates = _answers(records, task), _predicates(records, recipe)
        written, pooling = task_format(recipe, tokenizer.vocabulary), pooling_of(recipe)
        rows, windowed = [], 0
        for number, (record, predicate) in enumerate(zip(records, predicates, strict=True)):
            words = word_tokens(record.texts(task, "tokens"), tokenizer)
            room, repeated = task.max_length - written.specials(), []
            if predicate is not None and task.predicate == "repeat":
                repeated = [words[predicate][: room // 2]]
                room -= len(repeated[0]) + len(written.between)
            parts = list(windows([min(len(word), room) for word in words], room))
            windowed += len(parts) > 1 or any(len(word) > room for word in words)
            for window, predicted in parts:
                shown = [words[word][:room] for word in window]
                ends = 1 + np.cumsum([0, *map(len, shown)])
                units = [(int(ends[word - window.start]), int(ends[word - window.start + 1])) for word in predicted]
                sentence = np.concatenate([*shown, np.zeros(0, np.int32)])
                input_ids, segment_ids = written.row([sentence, *repeated])
                if predicate is not None and predicate in window and not repeated:
                    segment_ids[ends[predicate - window.start] : ends[predicate - window.start + 1]] = 1
                target = RowTarget(
                    slots=[[first + slot for slot in pooled_slots(end - first, pooling)] for first, end in units],
                    labels=None if answers is None else [answers[number][word] for word in predicted],
                    units=units,
                )
                targets = dict.fromkeys(_targets(record, task), target)
                rows.append(Row(record=number, input_ids=input_ids, segment_ids=segment_ids, targets=targets))
        if windowed:
            longer = f"{windowed} of {len(records)} sentences are longer than the {task.max_length} tokens of a row"
            warnings.warn(f"{longer} (task.max_length) and are read in windows", stacklevel=2)
        return rows

    def predict(self, record: Record, rows: Sequence[Row], outputs: Sequence[Outputs], recipe: Recipe) -> Prediction:
        """The most likely tag of each word; by part if all tag it."""
        task = task_of(recipe, TaggingSettings)
        taggers = taggers_of(task)
        tags = {
            name: [taggers[name][number] for output in outputs for number in output[name].argmax(axis=-1)]
            for name in _targets(record, task)
        }
        if len(tags) == 1:
            return {"prediction": next(iter(tags.values()))}
        return {"prediction": {name.removeprefix(f"{TARGET}:"): own for name, own in tags.items()}}

    def reference(self, record: Record, settings: Any) -> list[str]:
        """The tags of a record."""
        return tags_of(record, settings)

    def baseline(self, train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> Baseline:
        """The most common tag of each word, else of its longest known ending of at most four letters, else of all words."""
        task = recipe.task
        seen: defaultdict[tuple[str | None, str], Counter[str]] = defaultdict(Counter)
        for record in train:
            part = _part_named(record, task)
            for word, tag in zip(record.texts(task, "tokens"), tags_of(record, task), strict=True):
                for form in _forms(word):
                    seen[part, form][tag] += 1
        answers = []
        for record in records:
            forms = [
                [(_part_named(record, task), form) for form in _forms(word)] for word in record.texts(task, "tokens")
            ]
            known = [next((seen[form] for form in of_word if form in seen), Counter({"": 1})) for of_word in forms]
            answers.append([counts.most_common(1)[0][0] for counts in known])
        return Baseline("the most common tag of each word or its ending", answers)


def _forms(word: str) -> list[str]:
    """A word, its last four to one letters, the longest first, and what all words have in common."""
    return [f" {word}", *(word[-size:] for size in (4, 3, 2, 1) if size < len(word)), ""]


def _tags_in(records: Sequence[Record], settings: TaskSettings) -> list[str]:
    """The tags of all words, in order."""
    answers = [tag for record in records for tag in tags_of(record, settings)]
    if not answers:
        raise UniclozeError(f"{records[0].place}: no record has any words, so there are no tags to train on")
    return answers


def taggers_of(settings: TaggingSettings) -> dict[str, Sequence[str]]:
    """The tags of each tagger by its target."""
    return {":".join(filter(None, (TARGET, part.label))): part.labels or () for part in parts_of(settings)}


def _targets(record: Record, settings: TaggingSettings) -> list[str]:
    """The targets of a record: that of the part it names, or all."""
    named = _part_named(record, settings)
    return [*taggers_of(settings)] if named is None else [f"{TARGET}:{named}"]


def _part_named(record: Record, settings: TaskSettings) -> str | None:
    """The part that a record of several taggers names; None if it names none, or there is one tagger."""
    named: str | None = record.fields.get(TASK) if has_parts(settings) else None
    return named


def tags_of(record: Record, settings: TaskSettings) -> list[str]:
    """The tags of a record, one per word."""
    tags, words = [tag.strip() for tag in record.texts(settings, "tags")], record.texts(settings, "tokens")
    if len(tags) != len(words):
        raise UniclozeError(f"{record.place}: {len(tags)} tags for {len(words)} tokens; give one for each")
    part = part_of(record, settings)
    chunks = part is not None and "entity-f1" in part.metrics
    wrong = next((tag for tag in tags if not _BIO.fullmatch(tag)), None) if chunks else None
    if wrong is not None:
        cure = f"for tags of single words fine-tune with {option_of('task.metrics')} tag-accuracy"
        needs = "one of B-KIND, I-KIND and O, which entity-f1 needs"
        raise UniclozeError(f"{record.place}: the tag '{wrong}' is not {needs}; {cure}")
    return tags


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


def word_tokens(words: Sequence[str], tokenizer: Tokenizer) -> list[Int32s]:
    """The sub-tokens of each word as within a sentence: byte-level vocabularies spell a word with its leading space."""
    unknown = np.array([tokenizer.vocabulary.unk], dtype=np.int32)
    return [tokens if len(tokens) else unknown for tokens in tokenizer.encode_batch([f" {word}" for word in words])]


def _answers(records: Sequence[Record], settings: TaggingSettings) -> list[list[int]] | None:
    """Tag indices of all records, or None if no record has tags."""
    if all(record.get(settings, "tags") is None for record in records):
        return None
    taggers = taggers_of(settings)
    answers = []
    for record in records:
        tags, (target, *others) = tags_of(record, settings), _targets(record, settings)
        if others:
            raise UniclozeError(f"{record.place}: the field 'task' must name the part of task.parts of the tags")
        numbers = {label: number for number, label in enumerate(taggers[target])}
        unknown = next((tag for tag in tags if tag not in numbers), None)
        if unknown is not None:
            cure = f"correct the record, or fine-tune with {option_of('task.labels')} listing all tags"
            known = f"a tag of the task ({', '.join(numbers)})"
            raise UniclozeError(f"{record.place}: the tag '{unknown}' is not {known}: {cure}")
        answers.append([numbers[tag] for tag in tags])
    return answers


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
        cure = f"fine-tune with {option_of('task.predicate')} repeat"
        raise UsageError(f"the model has no second segment to mark a predicate with: {cure}")
    return found


TASKS = {
    TAGGING: Tagging(
        purpose="Tags each word of a sentence.",
        settings=TaggingSettings,
        roles=("tokens", "tags", "predicate"),
        answers=("tags",),
        optional=("predicate",),
        texts=("tokens",),
        compares=("tags",),
    )
}
