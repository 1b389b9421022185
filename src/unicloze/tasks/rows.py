"""Converts token sequences of tasks to `Examples`, for all tasks without random draws."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from unicloze.arrays import Int32s
from unicloze.example import Examples, Kind, Target
from unicloze.keyed import Bits
from unicloze.settings import Pooling, Recipe, TaskPooling, TaskSettings
from unicloze.tasks.task import OF_TEXTS, Delimited, Headed, Labelled, Task
from unicloze.text.vocabulary import Vocabulary
from unicloze.visibility import Intervals, nearby, packed_rows, prefix_rows


@dataclass(frozen=True, kw_only=True)
class RowTarget:
    """Predictions of one name in a row."""

    # the slots of each prediction; several if they predict together
    slots: Sequence[Sequence[int] | npt.NDArray[np.integer]]
    labels: Sequence[int] | Sequence[float] | None  # the answers; None if unknown
    # first slot of what each prediction is about, such as a word, and the slot after its last; empty if not known
    units: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a task before padding."""

    record: int  # index of its record
    input_ids: Int32s  # Its tokens, special tokens included. *Shape:* (slots,)
    segment_ids: Int32s  # *Shape:* (slots,)
    targets: Mapping[str, RowTarget] = field(default_factory=dict)  # predictions by name
    # slots of each packed sequence, which sees only itself; default: one sequence of all slots
    lengths: Sequence[int] = ()
    # Slots that an encoder reads; a decoder reads the others, from left to right. 0 if there is no decoder's part.
    source: int = 0
    cut: bool = False  # whether it lacks a part of the record's texts

    @property
    def slots(self) -> int:
        """Length of the row."""
        return len(self.input_ids)


def packed_row(record: int, pieces: Sequence[tuple[Int32s, Int32s]], *, cut: bool, **targets: RowTarget) -> Row:
    """A row of sequences, tokens and segments of each, that see only themselves."""
    input_ids, segment_ids = map(np.concatenate, zip(*pieces, strict=True))
    lengths = [len(ids) for ids, _ in pieces]
    return Row(record=record, input_ids=input_ids, segment_ids=segment_ids, lengths=lengths, cut=cut, targets=targets)


class RowTask(Task):
    """A task whose rows are laid out as they are, without random draws."""

    def lay_out(self, rows: Sequence[Any], vocabulary: Vocabulary, recipe: Recipe, keys: Bits | None) -> Examples:
        """Pad rows to one length."""
        return lay_out(rows, vocabulary, recipe)


def lay_out(rows: Sequence[Row], vocabulary: Vocabulary, recipe: Recipe) -> Examples:
    """Pad rows to one length."""
    reads = recipe.use.visibility
    if reads == "both_directions":
        rows = [in_both_directions(row) for row in rows]
    lengths = np.array([row.slots for row in rows], dtype=np.int32)
    shape = len(rows), int(lengths.max(initial=1))
    slot = np.arange(shape[1], dtype=np.int32)
    real = slot < lengths[:, None]
    input_ids = np.full(shape, vocabulary.pad, dtype=np.int32)
    segment_ids, begins = np.zeros((2, *shape), dtype=np.int32)
    input_ids[real] = np.concatenate([row.input_ids for row in rows])
    segment_ids[real] = np.concatenate([row.segment_ids for row in rows])
    packed = [row.lengths or (row.slots,) for row in rows]
    for row, sizes in zip(begins, packed, strict=True):  # first slot of the sequence of each slot
        row[: sum(sizes)] = np.repeat(np.cumsum([0, *sizes[:-1]], dtype=np.int32), sizes)
    if reads == "both_directions":  # the halves of a row are read in either direction
        middle = np.array([sum(sizes) // 2 for sizes in packed], dtype=np.int32)
        halves = [packed_rows(packed, reads=way, capacity=shape[1]) for way in ("left_to_right", "right_to_left")]
        intervals: Intervals = np.where((slot < middle[:, None])[..., None], *halves)
    else:
        intervals = packed_rows(packed, reads=reads, capacity=shape[1])
    both_ways = reads == "bidirectional"
    width = None if both_ways else recipe.objective.reading.local_width
    sources = np.array([row.source for row in rows], dtype=np.int32)
    if sources.any():
        intervals = prefix_rows(sources, lengths, capacity=shape[1])
    positions = slot - np.where(slot < sources[:, None], 0, sources[:, None]) - begins
    alone = np.array([len(sizes) == 1 for sizes in packed])
    names = {name: None for row in rows for name in row.targets}
    return Examples(
        input_ids=input_ids,
        position_ids=np.where(real, positions, 0).astype(np.int32),
        segment_ids=segment_ids,
        kinds=np.where(real, Kind.CONTEXT, Kind.PADDING).astype(np.uint8),
        steps=np.full(shape, -1, dtype=np.int32),
        intervals=intervals,
        lengths=lengths,
        mutual=np.where(sources > 0, sources, np.where(alone & both_ways, lengths, 0)).astype(np.int32),
        text_tokens=lengths,
        local=None if width is None else nearby(intervals, width),
        targets={name: _target([row.targets.get(name, _NONE) for row in rows], recipe.task) for name in names},
    )


_NONE = RowTarget(slots=(), labels=None)
"""No predictions."""


def in_both_directions(row: Row) -> Row:
    """The row twice: each prediction is made from its slots in the first half and those in the second."""
    targets = {}
    for name, target in row.targets.items():
        slots = [[*inner, *(int(slot) + row.slots for slot in inner)] for inner in target.slots]
        targets[name] = dataclasses.replace(target, slots=slots, units=())
    tokens, segments, lengths = np.tile(row.input_ids, 2), np.tile(row.segment_ids, 2), row.lengths or (row.slots,)
    return dataclasses.replace(row, input_ids=tokens, segment_ids=segments, targets=targets, lengths=[*lengths] * 2)


def _target(targets: Sequence[RowTarget], task: TaskSettings) -> Target:
    """Predictions of all rows, padded to the same number of predictions and of slots per prediction."""
    rows, most = len(targets), max(1, *(len(target.slots) for target in targets))
    together = max((len(slots) for target in targets for slots in target.slots), default=1)
    quantities = any(isinstance(label, float) for target in targets for label in target.labels or ())
    slots = np.full((rows, most, together), -1, dtype=np.int32)
    labels: Any = np.zeros((rows, most), dtype=np.float32 if quantities else np.int32)
    weights = np.zeros((rows, most), dtype=np.float32)
    for row, target in enumerate(targets):
        for prediction, at in enumerate(target.slots):
            slots[row, prediction, : len(at)] = at
        weights[row, : len(target.slots)] = 1.0
        if target.labels is not None:
            labels[row, : len(target.labels)] = target.labels
    if isinstance(task, Labelled) and isinstance(task.class_weights, dict):
        of_classes = [task.class_weights.get(label, 1.0) for label in task.labels or ()]
        weights *= np.array(of_classes, dtype=np.float32)[labels]
    return Target(slots=slots[:, :, 0] if together == 1 else slots, labels=labels, weights=weights)


def sizes_within(lengths: Sequence[int], room: int) -> list[int]:
    """Sizes of texts that fit together: the longest are cut, to equal length if necessary; odd tokens are left to them."""
    sizes, left = list(lengths), max(0, room)
    for done, number in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        sizes[number] = min(sizes[number], left // (len(sizes) - done))  # longer ones share what shorter ones leave
        left -= sizes[number]
    return sizes


@dataclass(frozen=True, kw_only=True)
class TextFormat:
    """How a model writes a text or a pair of texts as a row: the one answer for tasks, embedding, import and export."""

    start: tuple[int, ...]  # tokens before the first text
    between: tuple[int, ...]  # tokens between the texts of a pair
    end: tuple[int, ...]  # tokens after the last text
    segments: tuple[int, int]  # segments of the first and the second text; of tokens, that of the text they follow
    longest: int  # most tokens of a row
    keep: Literal["beginning", "end"] = "beginning"  # what is kept of a text that is too long

    def specials(self, texts: int = 1) -> int:
        """Tokens of a row beside its texts."""
        return len(self.start) + len(self.between) * (texts - 1) + len(self.end)

    def fit(self, texts: Sequence[Int32s], spare: int = 0) -> tuple[Int32s, ...]:
        """A text or a pair, shortened to a row of `longest` tokens less `spare`.

        Of a pair the longer text is cut until both are equally long, then both; an odd token is left to the text that was
        longer, as in the truncation of `tokenizers`.
        """
        sizes = sizes_within([len(text) for text in texts], self.longest - spare - self.specials(len(texts)))
        cut = zip(texts, sizes, strict=True)
        return tuple(text[:size] if self.keep == "beginning" else text[len(text) - size :] for text, size in cut)

    def row(self, texts: Sequence[Int32s]) -> tuple[Int32s, Int32s]:
        """Tokens and segments of the row of a text or a pair. *Shape:* (slots,) each"""
        closing = [self.between] * (len(texts) - 1) + [self.end]
        parts = [np.append(text, tokens) for text, tokens in zip(texts, closing, strict=True)]
        parts[0] = np.insert(parts[0], 0, self.start)
        segment_ids = np.repeat(self.segments[: len(parts)], [len(part) for part in parts])
        return np.concatenate(parts).astype(np.int32), segment_ids.astype(np.int32)


def task_format(recipe: Recipe, vocabulary: Vocabulary) -> TextFormat:
    """The format of a task's rows.

    With `task.delimiter` both texts have one segment, and the token between them is one that no causal model has seen
    before (Radford et al. 2018, Section 3.3). Models with a single segment (RoBERTa) use [EOS] alone.
    """
    own = isinstance(recipe.task, Delimited) and recipe.task.delimiter
    delimiter = vocabulary.mask if vocabulary.pseudo is None else vocabulary.pseudo
    return TextFormat(
        start=(vocabulary.sos,),
        between=(delimiter,) if own else (vocabulary.eos,) * recipe.use.separators,
        end=(vocabulary.eos,),
        segments=(0, 0 if own or recipe.model.num_segments < 2 else 1),
        longest=recipe.task.max_length,
    )


def pooling_of(recipe: Recipe) -> TaskPooling:
    """Which slots represent the unit that a task predicts from: a text, a choice, a word, or a question's whole row."""
    task, use = recipe.task, recipe.use
    if isinstance(task, Headed) and task.pooling is not None:
        return task.pooling
    if task.kind in OF_TEXTS:
        return use.pooling
    return "last" if task.kind == "choice" and use.visibility == "left_to_right" else "first"


UNREAD = {"left_to_right": ("first", "last"), "right_to_left": ("last", "first")}
"""The slot that has read nothing of a text where it is read in one direction, and the one that has read all of it."""


def text_pooling(recipe: Recipe) -> Pooling:
    """The slot that represents a text: that of the recipe, or the one that has read all of it."""
    unread, other = UNREAD.get(recipe.use.visibility, ("", ""))
    return cast(Pooling, other) if recipe.use.pooling == unread else recipe.use.pooling


def pooled_slots(length: int, pooling: TaskPooling, *, leftward: bool = False) -> Sequence[int]:
    """The slots that represent a sequence: its `first`, its `last`, or all for the `mean` and for `concat`.

    A decoder reads the sequence a second time, and its last slot represents it.
    """
    every = range(length)
    slots: dict[str, Sequence[int]] = {
        "first": every[:1],
        "last": every[-1:],
        "mean": every,
        "concat": every[::-1] if leftward else every,
        "decoder": range(2 * length - 1, 2 * length),
    }
    return slots[pooling]


def read_again(input_ids: Int32s, segment_ids: Int32s, start: int) -> tuple[Int32s, Int32s]:
    """A row that an encoder reads, followed by the same tokens for the decoder, after its start slot.

    The decoder's slots are as many as the encoder's: its input is that of the encoder moved by one, so that the last slot
    has read all but the closing [EOS] (BART, Section 3.1).
    """
    again = np.concatenate([input_ids, [start], input_ids[:-1]]).astype(np.int32)
    return again, np.concatenate([segment_ids, segment_ids])
