"""Finds evaluation texts in the training text and cuts them out, as for GPT-3.

Brown et al., "Language Models are Few-Shot Learners", 2020, Appendix C. Words are lower-cased runs of letters and digits; an
ideograph is a word. A document that shares n consecutive words with an evaluation text is cut around them, with 200
characters on either side. Pieces of less than 200 characters are dropped, and so is a document that falls into more than ten
pieces. N-grams found in more than ten documents are common phrases and are left.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze.arrays import Int64s
from unicloze.bounded import LARGEST_FILE, parse_json
from unicloze.characters import IDEOGRAPH
from unicloze.errors import UniclozeError, UsageError
from unicloze.storage import File
from unicloze.text.documents import files_at

Words = npt.NDArray[np.int32]

MARGIN = 200
"""Characters cut on either side; shorter pieces are dropped."""
MOST_PIECES = 10
"""A document of more pieces is dropped."""
COMMON = 10
"""N-grams in more training documents than this are left."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_WORD = re.compile(rf"{IDEOGRAPH.pattern}|[^\W{IDEOGRAPH.pattern[1:-1]}]+")
_FILES = ("words.json", "ngrams.npy", "texts.npy")


@dataclass(frozen=True, eq=False)
class NGrams:
    """The distinct n-grams of some evaluation texts."""

    words: dict[str, int]  # number of each word
    rows: Words  # The n-grams, sorted by hash. *Shape:* (n-grams, n)

    @classmethod
    def of(cls, texts: Iterable[str], n: int) -> tuple[NGrams, list[Int64s]]:
        """Collect the n-grams of texts."""
        words: dict[str, int] = {}
        found = [_windows(_numbers(text, words, grow=True), n) for text in texts]
        every = np.concatenate([np.zeros((0, n), np.int32), *found])
        distinct, place = np.unique(every, axis=0, return_inverse=True)
        order = np.argsort(_hashes(distinct), kind="stable")
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        cuts = np.cumsum([len(rows) for rows in found])[:-1]
        return cls(words, distinct[order]), [np.unique(part) for part in np.split(rank[place.reshape(-1)], cuts)]

    def save(self, folder: Path) -> None:
        """Write the n-grams to a folder."""
        (folder / _FILES[0]).write_text(json.dumps([*self.words]), encoding="utf-8")
        np.save(folder / _FILES[1], self.rows)

    @classmethod
    def load(cls, folder: Path) -> NGrams:
        """Read what `save` wrote."""
        words = json.loads((folder / _FILES[0]).read_bytes())
        return cls({word: number for number, word in enumerate(words)}, np.load(folder / _FILES[1], allow_pickle=False))

    @cached_property
    def _sorted(self) -> npt.NDArray[np.uint64]:
        return _hashes(self.rows)

    def find(self, text: str) -> Int64s:
        """Where a text holds one of the n-grams.

        Returns:
            Index of the n-gram, first character and end. *Shape:* (finds, 3)
        """
        numbers, n = _numbers(text, self.words), self.rows.shape[1]
        known = np.cumsum(np.append(0, numbers >= 0))
        starts = np.flatnonzero(known[n:] - known[:-n] == n) if len(numbers) >= n else np.zeros(0, np.int64)
        if not len(starts) or not len(self.rows):
            return np.zeros((0, 3), dtype=np.int64)
        rows = np.lib.stride_tricks.sliding_window_view(numbers, n)[starts]
        hashes = _hashes(rows)
        place = np.minimum(np.searchsorted(self._sorted, hashes), len(self.rows) - 1)
        # Equal hashes of different n-grams are so rare that only the first n-gram of a hash is compared.
        same = (self._sorted[place] == hashes) & (self.rows[place] == rows).all(axis=1)
        if not same.any():
            return np.zeros((0, 3), dtype=np.int64)
        spans = np.array([match.span() for match in _WORD.finditer(text)], dtype=np.int64)
        first = starts[same]
        return np.stack([place[same], spans[first, 0], spans[first + n - 1, 1]], axis=1)


def cut_out(text: str, spans: Int64s) -> list[tuple[int, int]]:
    """First character and end of the pieces of a document that are left around some places; none if there are too many.

    Args:
        text: The document.
        spans: First character and end of each place, sorted. *Shape:* (places, 2)
    """
    pieces, start = [], 0
    for first, end in spans.tolist():
        if first - MARGIN > start:
            pieces.append(_stripped(text, start, _word_end(text, first - MARGIN)))
        start = max(start, _word_start(text, end + MARGIN))
    pieces.append(_stripped(text, start, len(text)))
    return [] if len(pieces) > MOST_PIECES else [piece for piece in pieces if piece[1] - piece[0] >= MARGIN]


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """Bounds of a piece without the white space at its ends."""
    piece = text[start:end]
    first = start + len(piece) - len(piece.lstrip())
    return first, max(first, start + len(piece.rstrip()))


def evaluation_texts(names: Sequence[str]) -> Iterator[tuple[File, list[str]]]:
    """The texts of evaluation files: strings of JSON, cells of tables, and lines of other files."""
    for name in names:
        files = files_at(name)
        if not files:
            raise UsageError(f"data.decontaminate: there is no file at {name}: name files, folders or globs.")
        for file in files:
            try:
                yield file, list(_texts(file))
            except (ValueError, OSError, EOFError) as error:
                raise UniclozeError(f"{file} cannot be read ({error}): correct it, or leave it out.") from error


def _texts(file: File) -> Iterator[str]:
    kind = Path(file.name.removesuffix(".gz")).suffix
    if kind == ".parquet":
        import pyarrow.parquet as parquet

        with file.open("rb") as table:
            for batch in parquet.ParquetFile(table).iter_batches():
                yield from itertools.chain.from_iterable(map(_strings, batch.to_pylist()))
        return
    with file.open("rb") as packed, gzip.open(packed) if file.suffix == ".gz" else packed as opened:
        raw = opened.read(LARGEST_FILE + 1)
    if len(raw) > LARGEST_FILE:
        raise UniclozeError(f"{file} has more than {LARGEST_FILE:,} bytes: split it.")
    text = raw.decode("utf-8-sig", errors="replace")
    if kind == ".json":
        yield from _strings(parse_json(text))
    elif kind == ".jsonl":
        yield from itertools.chain.from_iterable(
            _strings(parse_json(line)) for line in text.splitlines() if line.strip()
        )
    elif kind in (".csv", ".tsv"):
        yield from itertools.chain.from_iterable(
            csv.reader(text.splitlines(), delimiter="\t" if kind == ".tsv" else ",")
        )
    else:
        yield from text.splitlines()


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from itertools.chain.from_iterable(map(_strings, value.values()))
    elif isinstance(value, list):
        yield from itertools.chain.from_iterable(map(_strings, value))


def _numbers(text: str, words: dict[str, int], *, grow: bool = False) -> Words:
    """Number of each word of a text; -1 if unknown, unless the words may grow. *Shape:* (words,)"""
    found = [word.lower() for word in _WORD.findall(text)]
    if grow:
        return np.array([words.setdefault(word, len(words)) for word in found], dtype=np.int32)
    return np.array([words.get(word, -1) for word in found], dtype=np.int32)


def _windows(numbers: Words, n: int) -> Words:
    if len(numbers) < n:
        return np.zeros((0, n), dtype=np.int32)
    return np.lib.stride_tricks.sliding_window_view(numbers, n)


def _hashes(rows: Words) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of each n-gram. *Shape:* (n-grams,)"""
    total = np.zeros(len(rows), dtype=np.uint64)
    for column in rows.T:
        total = (total + column.astype(np.uint64) + np.uint64(1)) * _FACTOR
        total ^= total >> np.uint64(29)
    return total


def _word_end(text: str, place: int) -> int:
    """The last end of a word up to a place."""
    while place > 0 and not text[place - 1 : place].isspace() and not text[place : place + 1].isspace():
        place -= 1
    return place


def _word_start(text: str, place: int) -> int:
    """The first beginning of a word from a place on."""
    while 0 < place < len(text) and not text[place - 1].isspace() and not text[place].isspace():
        place += 1
    return min(place, len(text))
