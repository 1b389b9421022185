"""Builds rows: lists the masked tokens of windows and lays out windows and masked tokens as slots."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze.arrays import Flags, Int32s, Int64s, flagged, ranks, sorted_in_rows
from unicloze.errors import UsageError
from unicloze.example import Examples, Kind, Target
from unicloze.objectives.groups import PAIRS_OF_TARGETS, Pairs
from unicloze.objectives.masking import Steps
from unicloze.settings import Reading
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows
from unicloze.visibility import Intervals


def unknown_words(token_ids: npt.NDArray[np.number], vocabulary: Vocabulary) -> Flags:
    """Which tokens are [UNK]: visible text that is never predicted.

    No token is, if [UNK] shares its id with [SOS], [EOS] or padding.

    Args:
        token_ids: *Shape:* any
        vocabulary: Provides the id of [UNK].
    """
    roles = vocabulary.sos, vocabulary.eos, vocabulary.pad
    flags: Flags = (token_ids == vocabulary.unk) & (vocabulary.unk not in roles)
    return flags


def without_unknown(target: Target, vocabulary: Vocabulary) -> Target:
    """The target without predictions of [UNK]."""
    unknown = unknown_words(target.labels, vocabulary) & (target.weights > 0)
    return target.only(~unknown) if unknown.any() else target


def named_segments(windows: Windows, reading: Reading) -> Windows:
    """The windows with the segment ids of the rows."""
    if reading.segment_ids is None:
        return windows
    ids = np.array(reading.segments, dtype=np.int32)
    return dataclasses.replace(windows, segment_ids=ids[windows.segment_ids])


def in_turn(windows: Windows) -> Steps:
    """Steps that mask every text token, one per step, from left to right. *Shape:* (rows, window)"""
    numbers = np.cumsum(windows.maskable, axis=1, dtype=np.int32) - 1
    return np.where(windows.maskable, numbers, np.int32(-1))


@dataclass(frozen=True)
class MaskedTokens:
    """The masked tokens of all rows in one list, by row, then step, then position. *Shape:* (masked,) each."""

    row: Int64s  # row of each token
    position: Int32s  # position of each token in the window
    step: Int32s  # factorization step of each token
    rank: Int32s  # index of each token within its row
    counts: Int32s  # Masked tokens of each row. *Shape:* (rows,)

    @classmethod
    def none(cls, rows: int) -> MaskedTokens:
        """Those of rows without any."""
        return cls.of(np.full((rows, 1), -1, dtype=np.int32))

    @classmethod
    def of(cls, steps: Steps) -> MaskedTokens:
        """List the positions with a step >= 0. *Shape:* (rows, window)"""
        row, position, counts = flagged(steps >= 0)
        window = steps.shape[1]
        step = steps.reshape(-1)[row * window + position]
        step, position = np.divmod(sorted_in_rows(step * np.int64(window) + position, counts), window)
        rank = ranks(row, len(steps)).astype(np.int32)
        return cls(row, position.astype(np.int32), step.astype(np.int32), rank, counts.astype(np.int32))

    def place(self, column: Int32s, width: int) -> Int64s:
        """Index of a column of each token's row in a flattened array with `width` columns. *Shape:* (masked,)"""
        return self.row * width + column

    def step_bounds(self) -> tuple[Int32s, Int32s]:
        """Ranks of the first token of each token's step and of the first token after that step. *Shape:* (masked,) each."""
        first = np.flatnonzero((self.rank == 0) | (np.diff(self.step, prepend=-1) != 0))
        sizes = np.diff(first, append=len(self.row)).astype(np.int32)
        starts = np.repeat(self.rank[first], sizes)
        return starts, starts + np.repeat(sizes, sizes)

    def target(self, slot: Int32s, labels: Int32s, most: int) -> Target:
        """Predict every masked token at the given slot, with at most `most` predictions per row."""
        return target_of(self.row, slot, labels, rows=len(self.counts), width=most)


def target_of(
    row: Int64s,
    slot: npt.NDArray[np.integer],
    labels: Int32s,
    *,
    rows: int,
    width: int,
    weights: float | npt.NDArray[np.floating] = 1.0,
    norms: npt.NDArray[np.float32] | None = None,
) -> Target:
    """The target of predictions that are listed row by row.

    Args:
        row: Row of each, ascending. *Shape:* (predictions,)
        slot: Slot of each. *Shape:* (predictions,)
        labels: Label of each. *Shape:* (predictions,)
        rows: Number of rows.
        width: Maximum number of predictions in a row.
        weights: Weight of each. *Shape:* (predictions,)
        norms: See `Target.norms`.
    """
    slots, answers = np.zeros((2, rows, width), dtype=np.int32)
    scattered = np.zeros((rows, width), dtype=np.float32)
    place = row * width + ranks(row, rows)
    for column, values in ((slots, slot), (answers, labels), (scattered, weights)):
        column.reshape(-1)[place] = values
    return Target(slots=slots, labels=answers, weights=scattered, norms=norms)


class Joined:
    """Joins copies of each window into one row, with all padding at the end.

    Args:
        lengths: Tokens of each window. *Shape:* (rows,)
        copies: Copies per window.
        window: Length of a window with padding.
    """

    def __init__(self, lengths: Int32s, copies: int, window: int) -> None:
        self.shape = len(lengths), copies, window
        self.width = copies * window
        self.full = int(lengths.min(initial=window)) == window
        if not self.full:
            copy, place = np.divmod(np.arange(self.width), lengths[:, None])
            self.real = copy < copies
            self.source = np.where(self.real, copy * window + place, 0)

    def __call__(self, values: npt.NDArray[Any], padding: npt.ArrayLike) -> npt.NDArray[Any]:
        """Join values broadcastable to (rows, copies, window). *Shape:* (rows, copies x window)"""
        spread = np.empty(self.shape, dtype=values.dtype)
        spread[...] = values
        joined = spread.reshape(self.shape[0], self.width)
        if self.full:
            return joined
        return np.where(self.real, np.take_along_axis(joined, self.source, axis=1), np.asarray(padding, joined.dtype))


class RowBuilder:
    """The slots of a block of windows, initially all padding.

    Args:
        windows: The text; each slot has the position and segment of the token it represents.
        masked: The masked tokens.
        vocabulary: Provides the id of padding.
        capacity: Slots per row.
    """

    def __init__(self, windows: Windows, masked: MaskedTokens, vocabulary: Vocabulary, capacity: int) -> None:
        self.windows, self.masked = windows, masked
        shape = len(windows), capacity
        self.input_ids = np.full(shape, vocabulary.pad, dtype=np.int32)
        self.position_ids = np.zeros(shape, dtype=np.int32)
        self.segment_ids = np.zeros(shape, dtype=np.int32)
        self.kinds = np.full(shape, Kind.PADDING, dtype=np.uint8)
        self.steps = np.full(shape, -1, dtype=np.int32)

    def put_windows(self, shown: Int32s | None = None) -> Int32s:
        """Put the whole windows as context, with the given ids at masked positions, or as they are.

        Returns:
            Context slots of each row. *Shape:* (rows,)
        """
        windows, masked, window = self.windows, self.masked, self.windows.token_ids.shape[1]
        self.input_ids[:, :window] = windows.token_ids
        self.position_ids[:, :window] = np.arange(window, dtype=np.int32)
        self.segment_ids[:, :window] = windows.segment_ids
        self.kinds[:, :window] = Kind.CONTEXT
        if shown is not None:
            place = masked.place(masked.position, self.input_ids.shape[1])
            self.input_ids.reshape(-1)[place] = shown
            self.kinds.reshape(-1)[place] = Kind.MASK
            self.steps.reshape(-1)[place] = masked.step
        if windows.lengths.min(initial=window) < window:
            self.kinds[:, :window][np.arange(window) >= windows.lengths[:, None]] = Kind.PADDING
        return windows.lengths

    def put_unmasked(self, ahead: Flags | None = None) -> Int32s:
        """Put the windows without their masked positions as context.

        Args:
            ahead: Positions to put before all others. *Shape:* (rows, window)

        Returns:
            Context slots of each row. *Shape:* (rows,)
        """
        windows, masked = self.windows, self.masked
        context = (windows.lengths - masked.counts).astype(np.int32)
        window, capacity = windows.token_ids.shape[1], self.input_ids.shape[1]
        kept = np.arange(window) < windows.lengths[:, None]
        kept.reshape(-1)[masked.place(masked.position, window)] = False
        row, position, _ = flagged(kept)
        if ahead is not None:
            position = position[np.argsort(2 * row + ~ahead[row, position], kind="stable")]
        source, in_context = row * window + position, np.arange(capacity) < context[:, None]
        self.input_ids[in_context] = windows.token_ids.reshape(-1)[source]
        self.position_ids[in_context] = position
        self.segment_ids[in_context] = windows.segment_ids.reshape(-1)[source]
        self.kinds[in_context] = Kind.CONTEXT
        return context

    def put_masked(self, slot: Int32s, ids: Int32s, kind: Kind) -> None:
        """Put one slot for every masked token.

        Args:
            slot: Its index in the row. *Shape:* (masked,)
            ids: Its token id. *Shape:* (masked,)
            kind: Its kind.
        """
        masked, segment_ids = self.masked, self.windows.segment_ids
        place = masked.place(slot, self.input_ids.shape[1])
        self.input_ids.reshape(-1)[place] = ids
        self.position_ids.reshape(-1)[place] = masked.position
        self.segment_ids.reshape(-1)[place] = segment_ids.reshape(-1)[
            masked.place(masked.position, segment_ids.shape[1])
        ]
        self.kinds.reshape(-1)[place] = kind
        self.steps.reshape(-1)[place] = masked.step

    def examples(
        self,
        intervals: Intervals,
        *,
        lengths: npt.NDArray[np.integer],
        mutual: npt.NDArray[np.integer],
        targets: Mapping[str, Target],
        local: Intervals | None = None,
    ) -> Examples:
        """The finished rows; see `Examples`."""
        return Examples(
            input_ids=self.input_ids,
            position_ids=self.position_ids,
            segment_ids=self.segment_ids,
            kinds=self.kinds,
            steps=self.steps,
            intervals=intervals,
            local=local,
            lengths=lengths.astype(np.int32),
            mutual=mutual.astype(np.int32),
            text_tokens=self.windows.lengths,
            targets=targets,
        )


def with_pair_target(examples: Examples, windows: Windows, settings: Pairs) -> Examples:
    """Add the target `nsp` or `sop` if the settings name it: 0 if S2 follows S1, else 1."""
    names = [name for name in PAIRS_OF_TARGETS if name in settings.targets]
    if not names:
        return examples
    if windows.negative is None:
        raise UsageError(
            f"objective.targets names {names[0]}, which needs paired segments: set --objective.pairs "
            f"{PAIRS_OF_TARGETS[names[0]]}."
        )
    rows, begins = len(examples), (examples.position_ids == 0) & (examples.kinds == Kind.CONTEXT)
    target = Target(
        slots=begins.argmax(axis=1).astype(np.int32)[:, None],
        labels=windows.negative.astype(np.int32)[:, None],
        weights=np.ones((rows, 1), dtype=np.float32),
    )
    return dataclasses.replace(examples, targets={**examples.targets, names[0]: target})
