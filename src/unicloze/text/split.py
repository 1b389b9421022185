"""Decides which documents are held out, from their content and over all sources of a corpus at once.

A document is held out if the hash of its content is below the requested share. Three rules ensure that there is something to
train on and something to evaluate on, whatever the sources:

- The document with the largest hash in each source is used for training.
- If that leaves no held-out document, the one with the smallest hash that is not reserved for training is held out.
- If there is none, or it is more than four times the requested size, the end of one document is held out instead.

All rules depend on hashes, so all copies of a document are on the same side.
"""

from __future__ import annotations

import codecs
import csv
import functools
import hashlib
import io
import itertools
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze.arrays import Flags, Int32s, Int64s
from unicloze.characters import IDEOGRAPH, is_mark
from unicloze.errors import UniclozeError, UsageError
from unicloze.files import LARGEST_FILE, parse_json
from unicloze.storage import File
from unicloze.text.documents import Tally, between_characters, files_at, pieces_of, unpacked, utf8_size
from unicloze.text.sources import read_as
from unicloze.text.tokenizers import Tokenizer

Hashes = npt.NDArray[np.uint64]

BUCKET = 2**22
"""Documents of a bucket, on average; those of a smaller corpus are searched at once."""
_MOST_BUCKETS = 512
_ENTRY = np.dtype([("hash", "<u8"), ("place", "<i8")])


# Hashes are spread over buckets on disk by their value, and each bucket is searched in memory.


def first_copies(parts: Iterable[Hashes], count: int, folder: Path) -> Flags:
    """Whether each document is the first of its hash."""
    buckets = min(_MOST_BUCKETS, -(-count // BUCKET))
    if buckets <= 1:
        first = np.zeros(count, dtype=bool)
        first[np.unique(np.concatenate([np.zeros(0, np.uint64), *parts]), return_index=True)[1]] = True
        return first
    folder.mkdir(parents=True, exist_ok=True)
    first = np.memmap(folder / "first", dtype=bool, mode="w+", shape=count)
    with ExitStack() as stack:
        files = [stack.enter_context((folder / f"{number}").open("wb", 2**16)) for number in range(buckets)]
        place = 0
        for part in parts:
            entries = np.empty(len(part), dtype=_ENTRY)
            entries["hash"], entries["place"] = part, np.arange(place, place + len(part))
            place += len(part)
            bucket = (entries["hash"] >> np.uint64(32)) * np.uint64(buckets) >> np.uint64(32)
            order = np.argsort(bucket, kind="stable")
            cuts = np.searchsorted(bucket[order], np.arange(buckets + 1))
            for number, file in enumerate(files):
                file.write(entries[order[cuts[number] : cuts[number + 1]]].tobytes())
    for number in range(buckets):
        entries = np.fromfile(folder / f"{number}", dtype=_ENTRY)
        # Entries are in the order of the documents, so the first index of a hash is that of its first document.
        first[entries["place"][np.unique(entries["hash"], return_index=True)[1]]] = True
        (folder / f"{number}").unlink()
    return first


DROP, TRAIN, HELDOUT, CUT = range(4)
"""Dropped as a duplicate, used for training, held out, or cut in two with its end held out."""

_LEAST_HELDOUT = 2048
_CANDIDATES = 8

_SPACES = bytes.maketrans(b"\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f", b" " * 9)
_WIDE_SPACE = re.compile("[\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")

Ids = npt.NDArray[np.integer]


@dataclass(frozen=True)
class _Document:
    """Hash and size of a document, and whether every copy seen so far is text, which can be cut."""

    hash: int
    size: int
    is_text: bool


_NOTHING = _Document(0, 0, False)


class HeldoutSplit:
    """Sees all documents once, then returns the side of each. Memory use does not grow with the corpus.

    Args:
        share: Share of the documents to hold out.
        sources: Number of sources.
    """

    def __init__(self, share: float, *, sources: int) -> None:
        self._share, self._limit = share, int(share * 2**64)
        self._largest: dict[str, _Document] = {}
        self._smallest: dict[int, _Document] = {}
        self._most = sources + _CANDIDATES  # enough to include one not reserved for training, if there is any
        self._total = 0
        self._sides: dict[int, int] = {0: DROP}
        self.cut_size = 0

    def add(self, source: str, values: Hashes, sizes: Int64s, *, is_text: bool) -> None:
        """Add documents of one source, none of them a duplicate that is dropped."""
        if not len(values):
            return
        self._total += int(sizes.sum())
        last = int(np.flatnonzero(values == values.max())[-1])
        if int(values[last]) >= self._largest.get(source, _NOTHING).hash:
            self._largest[source] = _Document(int(values[last]), int(sizes[last]), is_text)
        full = len(self._smallest) >= self._most
        limit = np.uint64(max(self._smallest)) if full else np.unique(values)[: self._most][-1]
        for place in np.flatnonzero(values <= limit).tolist():
            value = int(values[place])
            all_text = is_text and (value not in self._smallest or self._smallest[value].is_text)
            self._smallest[value] = _Document(value, int(sizes[place]), all_text)
        self._smallest = {value: self._smallest[value] for value in sorted(self._smallest)[: self._most]}

    def decide(self) -> None:
        """Apply the three rules, once every document has been added."""
        trained = {document.hash for document in self._largest.values()}
        self._sides |= dict.fromkeys(trained, TRAIN)
        free = [self._smallest[value] for value in sorted(self._smallest) if value not in trained]
        if not self._share or (free and free[0].hash < self._limit):
            return
        want = max(int(self._share * self._total), _LEAST_HELDOUT)
        small = next((document for document in free if document.is_text or document.size <= 4 * want), None)
        chosen = small or next(iter(free), None)
        if chosen and (chosen.size <= 4 * want or not chosen.is_text):
            self._sides[chosen.hash] = HELDOUT
            return
        if chosen is None:
            tokens = {document.hash for document in self._largest.values() if not document.is_text}
            texts = [document for document in self._largest.values() if document.hash not in tokens]
            texts.sort(key=lambda document: (min(0, document.size - 2 * want), -document.hash))
            chosen = texts[-1] if texts else None
        if chosen is not None:
            self._sides[chosen.hash] = CUT
            self.cut_size = min(want, chosen.size // 2)

    def sides(self, values: Hashes) -> npt.NDArray[np.uint8]:
        """The sides of many documents. *Shape:* that of the hashes"""
        sides = np.where(values < np.uint64(self._limit), HELDOUT, TRAIN).astype(np.uint8)
        for value, side in self._sides.items():
            sides[values == np.uint64(value)] = side
        return sides


def text_hash(text: str) -> tuple[int, int]:
    """A 64-bit hash that ignores case and white space, and the size of the text in bytes."""
    digest, size, gap, begun = hashlib.blake2b(digest_size=8), 0, False, False
    for piece in pieces_of(text):
        size += utf8_size(piece)
        gap |= piece[:1].isspace()
        if words := _words(piece.lower()):
            digest.update(b" " + words if gap and begun else words)
            gap, begun = piece[-1:].isspace(), True
    digest.update(b" ")
    return int.from_bytes(digest.digest(), "little"), size


def _words(text: str) -> bytes:
    """`" ".join(text.split())` in UTF-8, several times faster."""
    if not text.isascii() and _WIDE_SPACE.search(text):
        return " ".join(text.split()).encode()
    found = text.encode().translate(_SPACES)
    while b"  " in found:
        found = found.replace(b"  ", b" ")
    return found.strip(b" ")


def tokens_hash(tokens: Ids, vocab_size: int) -> int:
    """A 64-bit hash of tokens that does not depend on their integer width."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(tokens.astype("<u2" if vocab_size <= 2**16 else "<u4").tobytes())
    return int.from_bytes(digest.digest(), "little")


class Spelling:
    """Hashes the text that tokens spell, ignoring case, white space and special tokens, to match texts with token shards.

    Args:
        tokenizer: The tokenizer of the tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        silent = set(tokenizer.vocabulary.special.tolist()) - {tokenizer.vocabulary.unk}
        prefix = b"" if tokenizer.spaced else b"##"
        texts = enumerate(tokenizer.texts())
        self._table = [b"" if number in silent else text.removeprefix(prefix) for number, text in texts]

    def hash(self, parts: Iterable[Ids]) -> tuple[int, int]:
        """A 64-bit hash of the text a document spells, and its size in bytes."""
        decoder, digest, size = codecs.getincrementaldecoder("utf-8")("replace"), hashlib.blake2b(digest_size=8), 0
        for part in parts:
            text = decoder.decode(b"".join(map(self._table.__getitem__, part.tolist())))
            spelled = "".join(text.casefold().split()).encode()
            digest.update(spelled)
            size += len(spelled)
        return int.from_bytes(digest.digest(), "little"), size


MARGIN = 200
"""Characters cut on either side; shorter pieces are dropped."""
MOST_PIECES = 10
"""A document of more pieces is dropped."""
COMMON = 10
"""N-grams in more training documents than this are left."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_LETTER = rf"[^\W{IDEOGRAPH.pattern[1:-1]}]"


@functools.cache
def _word() -> re.Pattern[str]:
    """A word: letters and digits with the marks that belong to them, such as the vowel signs of Hindi, or an ideograph."""
    marks = [code for code in range(sys.maxunicode + 1) if is_mark(chr(code))]
    firsts = [code for code in marks if not is_mark(chr(code - 1))]
    lasts = [code for code in marks if code == sys.maxunicode or not is_mark(chr(code + 1))]
    ranges = "".join(f"{chr(first)}-{chr(last)}" for first, last in zip(firsts, lasts, strict=True))
    return re.compile(rf"{IDEOGRAPH.pattern}|{_LETTER}+(?:[{ranges}]+{_LETTER}*)*")


# Brown et al., "Language Models are Few-Shot Learners", 2020, Appendix C. Words are lower-cased runs of letters and
# digits with their marks; an ideograph is a word. A document that shares n consecutive words with an evaluation text is
# cut around them, with 200 characters on either side. Pieces of less than 200 characters are dropped, and so is a
# document that falls into more than ten pieces. N-grams found in more than ten documents are common phrases and are left.


@dataclass(frozen=True, eq=False)
class NGrams:
    """The distinct n-grams of some evaluation texts."""

    words: dict[str, int]  # number of each word
    rows: Int32s  # The n-grams, sorted by hash. *Shape:* (n-grams, n)

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

    def save(self, file: Path) -> None:
        """Write the n-grams to a file."""
        words = np.frombuffer("\n".join(self.words).encode(), dtype=np.uint8)
        np.savez(file, words=words, rows=self.rows)

    @classmethod
    def load(cls, file: Path) -> NGrams:
        """Read what `save` wrote."""
        with np.load(file, allow_pickle=False) as known:
            words = known["words"].tobytes().decode().split("\n")
            return cls({word: number for number, word in enumerate(words)}, known["rows"])

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
        spans = np.array([match.span() for match in _word().finditer(text)], dtype=np.int64)
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
            except (ValueError, OSError, EOFError, csv.Error, zlib.error) as error:
                raise UniclozeError(f"{file} cannot be read ({error}): correct it, or leave it out.") from error


def _texts(file: File) -> Iterator[str]:
    kind = read_as(file)
    if kind == ".parquet":
        import pyarrow.parquet as parquet

        with file.open("rb") as table:
            for batch in parquet.ParquetFile(table).iter_batches():
                yield from itertools.chain.from_iterable(map(_strings, batch.to_pylist()))
        return
    with unpacked(file, Tally()) as opened:
        raw = opened.read(LARGEST_FILE + 1)
    if len(raw) > LARGEST_FILE:
        raise UniclozeError(f"{file} has more than {LARGEST_FILE:,} bytes: split it.")
    if b"\0" in raw:  # an archive, or text in UTF-16
        raise UniclozeError(f"{file} is not text in UTF-8: unpack or convert it, or leave it out.")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = raw.count(b"\n", 0, error.start) + 1
        raise UniclozeError(f"{file}:{number} is not text in UTF-8: convert the file, or leave it out.") from error
    if kind == ".json":
        yield from _strings(parse_json(text))
    elif kind == ".jsonl":
        for number, line in enumerate(text.split("\n"), 1):
            try:
                yield from _strings(parse_json(line)) if line.strip() else ()
            except ValueError as error:
                raise ValueError(f"line {number}: {getattr(error, 'msg', error)}") from error
    elif kind == ".csv":
        csv.field_size_limit(LARGEST_FILE)
        yield from itertools.chain.from_iterable(csv.reader(io.StringIO(text, newline="")))
    elif kind == ".tsv":
        yield from itertools.chain.from_iterable(line.split("\t") for line in text.split("\n"))
    else:
        yield from text.splitlines()


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from itertools.chain.from_iterable(map(_strings, value.values()))
    elif isinstance(value, list):
        yield from itertools.chain.from_iterable(map(_strings, value))


def _numbers(text: str, words: dict[str, int], *, grow: bool = False) -> Int32s:
    """Number of each word of a text; -1 if unknown, unless the words may grow. *Shape:* (words,)"""
    found = [word.lower() for word in _word().findall(text)]
    if grow:
        return np.array([words.setdefault(word, len(words)) for word in found], dtype=np.int32)
    return np.array([words.get(word, -1) for word in found], dtype=np.int32)


def _windows(numbers: Int32s, n: int) -> Int32s:
    if len(numbers) < n:
        return np.zeros((0, n), dtype=np.int32)
    return np.lib.stride_tricks.sliding_window_view(numbers, n)


def _hashes(rows: Int32s) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of each n-gram. *Shape:* (n-grams,)"""
    total = np.zeros(len(rows), dtype=np.uint64)
    for column in rows.T:
        total = (total + column.astype(np.uint64) + np.uint64(1)) * _FACTOR
        total ^= total >> np.uint64(29)
    return total


def _word_end(text: str, place: int) -> int:
    """The last end of a word among the `MARGIN` characters before a place; without one, the place itself."""
    first = max(0, place - MARGIN)
    found = (at for at in range(place, first, -1) if text[at - 1].isspace() or text[at : at + 1].isspace())
    return next(found, between_characters(text, first, place))


def _word_start(text: str, place: int) -> int:
    """The first beginning of a word among the `MARGIN` characters from a place on; without one, the place itself."""
    if place >= len(text):
        return len(text)
    found = (at for at in range(place, min(len(text), place + MARGIN)) if text[at - 1].isspace() or text[at].isspace())
    return next(found, between_characters(text, place - MARGIN, place))
