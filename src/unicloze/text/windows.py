"""Windows: the rows of text from which objectives make examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unicloze import keyed
from unicloze.example import select_rows
from unicloze.text.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class Windows:
    """A block of windows "[SOS] S1 [EOS] S2 [EOS]" or "[SOS] S1 [EOS]" (paper Section 2.2), padded on the right.

    Padding holds the id of the padding token.
    """

    token_ids: npt.NDArray[np.int32]  # *Shape:* (rows, window)
    # 0 up to the [EOS] that ends S1, 1 after it, 0 in the padding. *Shape:* (rows, window)
    segment_ids: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]  # Number of tokens in each row, special tokens included. *Shape:* (rows,)
    maskable: npt.NDArray[np.bool_]  # Text tokens, neither special nor padding. *Shape:* (rows, window)
    keys: npt.NDArray[np.uint64]  # Key of all random draws for a row, see `unicloze.keyed`. *Shape:* (rows,)
    source: npt.NDArray[np.int32]  # Index of the row's source in the corpus. *Shape:* (rows,)
    index: npt.NDArray[np.int64]  # Number of the window within its source. *Shape:* (rows,)
    # Whether S2 does not follow S1 in the text (it is from another document, or precedes it); None if it always
    # follows. *Shape:* (rows,)
    negative: npt.NDArray[np.bool_] | None = None
    # Whether a token belongs to the same phrase as the token before it; None without a phrase table. *Shape:* (rows,
    # window)
    joined: npt.NDArray[np.bool_] | None = None
    # Bytes of the spans that documents give, see `unicloze.text.marks`, 0 at special tokens; None if they are not read.
    # *Shape:* (rows, window)
    marks: npt.NDArray[np.uint8] | None = None
    # Whether a row is adjacent in its text to the same row of the previous batch (segment recurrence); None unless
    # windows are read as streams. *Shape:* (rows,)
    continues: npt.NDArray[np.bool_] | None = None
    # Tokens that a window adds to the memory of its stream, where windows overlap; None if all of them. *Shape:* (rows,
    # window)
    new: npt.NDArray[np.bool_] | None = None
    # Whether a row's stream runs from the end of the text to its beginning; None if none does. *Shape:* (rows,)
    backward: npt.NDArray[np.bool_] | None = None
    # Which special tokens stand where the text was cut inside a document, and so say nothing about where documents
    # begin and end; None if none does. *Shape:* (rows, window)
    cut: npt.NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

    def __getitem__(self, rows: slice) -> Windows:
        return select_rows(self, rows)

    @property
    def ends_cut(self) -> npt.NDArray[np.bool_]:
        """Whether the text goes on after a row's last [EOS]. *Shape:* (rows,)"""
        if self.cut is None:
            return np.zeros(len(self), dtype=bool)
        return self.cut[np.arange(len(self)), self.lengths - 1]


def without_start(windows: Windows) -> Windows:
    """The windows without their [SOS]."""
    return dataclasses.replace(
        windows,
        token_ids=windows.token_ids[:, 1:],
        segment_ids=windows.segment_ids[:, 1:],
        lengths=windows.lengths - 1,
        maskable=windows.maskable[:, 1:],
        joined=None if windows.joined is None else windows.joined[:, 1:],
        marks=None if windows.marks is None else windows.marks[:, 1:],
        new=None if windows.new is None else windows.new[:, 1:],
        cut=None if windows.cut is None else windows.cut[:, 1:],
    )


def split_segments(pieces: Sequence[npt.NDArray[np.integer]], keys: keyed.Bits) -> list[list[npt.NDArray[np.integer]]]:
    """Split each piece into S1 and S2 where the sampler would, given its length and key: uniformly, neither empty."""
    sizes = np.array([len(piece) for piece in pieces], dtype=np.int64)
    cuts = keyed.below(keyed.bits(keys, keyed.Stream.SEGMENT_BORDER, np.zeros(1, np.int64)), sizes - 1) + 1
    return [[piece[:cut], piece[cut:]] for piece, cut in zip(pieces, cuts.tolist(), strict=True)]


def windows_of(
    rows: Sequence[Sequence[npt.NDArray[np.integer]]], vocabulary: Vocabulary, *, keys: keyed.Bits
) -> Windows:
    """Make windows from given text instead of a corpus, padded to the longest."""
    lengths = np.array([1 + sum(len(segment) + 1 for segment in row) for row in rows], dtype=np.int32)
    shape = len(rows), int(lengths.max(initial=1))
    token_ids = np.full(shape, vocabulary.pad, dtype=np.int32)
    segment_ids = np.zeros(shape, dtype=np.int32)
    token_ids[:, 0] = vocabulary.sos
    for number, row in enumerate(rows):
        start = 1
        for segment, ids in enumerate(row):
            end = start + len(ids)
            token_ids[number, start:end] = ids
            token_ids[number, end] = vocabulary.eos
            segment_ids[number, start : end + 1] = segment
            start = end + 1
    return Windows(
        token_ids=token_ids,
        segment_ids=segment_ids,
        lengths=lengths,
        maskable=~np.isin(token_ids, vocabulary.special),
        keys=keys,
        source=np.zeros(len(rows), dtype=np.int32),
        index=np.arange(len(rows), dtype=np.int64),
    )
