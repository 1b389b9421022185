"""Token shards in datatrove's layout: written as a stream, read by memory-mapping.

NAME.ds           token ids, document after document, little-endian uint16 (uint32 for more than 65,536 ids)
NAME.ds.index     end of each document, in tokens, uint64
NAME.ds.metadata  three lines: "tokenizer|bytes per token", number of tokens, that number in readable form
NAME.ds.bytes     bytes of text up to the end of each document, uint64 (ours; not in datatrove)
NAME.ds.lines     line of its file (row of a table) where each document begins, uint64, 0 if unknown (ours)
NAME.ds.spans     one byte per token, see `unicloze.text.phrases`; absent if no document gives spans (ours)
NAME.ds.json      source files of the documents (ours)
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from unicloze.arrays import Int64s
from unicloze.errors import UniclozeError
from unicloze.files import misfit, parse_json
from unicloze.text.columns import AT_ONCE, Column, Kept, Stored, Sums
from unicloze.text.digests import Blocks, Digests
from unicloze.text.marks import Marks

SCHEMA = 1
"""Schema version of the `.ds.json` files."""

_SHAPE = {"schema": int, "files": [{"path": str, "first_document": int}]}
_SMALL = 2**20
"""Columns of up to this many bytes are verified when a shard is opened, larger ones where they are read."""


class ShardWriter:
    """Writes one shard as a stream; use it as a context manager.

    Args:
        path: The `.ds` file; the other files are written next to it.
        vocab_size: Determines the width of a token.
        tokenizer_name: Recorded in the metadata.
    """

    def __init__(self, path: Path, *, vocab_size: int, tokenizer_name: str) -> None:
        self._path = path
        self._dtype = np.dtype("<u2" if vocab_size <= 2**16 else "<u4")
        self._tokenizer_name = tokenizer_name
        self._files: list[dict[str, str | int]] = []
        self._open: list[BinaryIO] = [beside(path, end).open("wb", 2**20) for end in ("", ".index", ".bytes", ".lines")]
        self._marks: BinaryIO | None = None
        self.tokens = self.bytes = self.documents = 0

    def begin_file(self, name: str) -> None:
        """Set the source file of the following documents."""
        if self._files and self._files[-1]["path"] == name:
            return
        if self._files and self._files[-1]["first_document"] == self.documents:
            self._files.pop()
        self._files.append({"path": name, "first_document": self.documents})

    def write(
        self,
        token_ids: npt.NDArray[np.integer],
        size: int,
        *,
        line: int = 0,
        ends_document: bool = True,
        marks: Marks | None = None,
    ) -> None:
        """Write a document, or a piece of one."""
        self._write_marks(token_ids, marks)
        tokens_file, index_file, bytes_file, lines_file = self._open[:4]
        tokens_file.write(token_ids.astype(self._dtype).tobytes())
        self.tokens += len(token_ids)
        self.bytes += size
        if not ends_document:
            return
        self.documents += 1
        index_file.write(self.tokens.to_bytes(8, "little"))
        bytes_file.write(self.bytes.to_bytes(8, "little"))
        lines_file.write(line.to_bytes(8, "little"))

    def _write_marks(self, token_ids: npt.NDArray[np.integer], marks: Marks | None) -> None:
        if self._marks is None:
            if marks is None or not marks.any():
                return
            self._marks = beside(self._path, ".spans").open("wb", 2**20)
            self._open.append(self._marks)
            for start in range(0, self.tokens, AT_ONCE):
                self._marks.write(bytes(min(AT_ONCE, self.tokens - start)))
        self._marks.write(bytes(len(token_ids)) if marks is None else marks.tobytes())

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for file in self._open:
            file.close()
        if kind is None:
            metadata = f"{self._tokenizer_name}|{self._dtype.itemsize}\n{self.tokens}\n{self.tokens / 1e6:.3g} MT"
            beside(self._path, ".metadata").write_text(metadata, encoding="utf-8")
            sidecar = {"schema": SCHEMA, "files": self._files}
            beside(self._path, ".json").write_text(json.dumps(sidecar, indent=1) + "\n", encoding="utf-8")


def beside(path: Path, end: str) -> Path:
    """Path of a shard's file with this suffix."""
    return path.with_name(path.name + end)


def files_beside(path: Path) -> list[Path]:
    """The existing files of a shard other than its tokens."""
    ends = ".index", ".metadata", ".bytes", ".lines", ".spans", ".json"
    return [file for file in (beside(path, end) for end in ends) if file.is_file()]


def shard_paths(folder: Path, entry: dict[str, Any]) -> list[Path]:
    """The `.ds` files of a source of text: one for each portion it was prepared in."""
    name, portions = entry["name"], entry.get("portions", 1)
    names = [name] if portions == 1 else [f"{name}.{number:05d}" for number in range(portions)]
    return [folder / f"{one}.ds" for one in names]


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenShard:
    """An open shard, or some of its documents. The columns of its documents are read from disk when indexed.

    Args:
        path: The `.ds` file.
        tokens: Token ids of all documents of the file. *Shape:* (tokens of the file,)
        starts: First token of each document.
        ends: End of each document.
        sizes: Bytes of text of each document; None if unknown.
        lines: Line of its file where each document begins, 0 if unknown; None if unknown for all.
        numbers: Index of each document within the `.ds` file.
        is_whole: Whether these are all documents of the file.
        files: Name of each source file and the index of its first document.
        tokenizer_name: Name of the tokenizer in the metadata; empty without metadata.
        blocks: Digests of the tokens; None without digests.
        marks: Bytes of the spans of all documents of the file; None if no document gives spans. *Shape:* (tokens of the
            file,)
        mark_blocks: Digests of the marks; None without digests.
    """

    path: Path
    tokens: npt.NDArray[np.unsignedinteger]
    starts: Column
    ends: Column
    sizes: Column | None
    lines: Column | None
    numbers: Column
    is_whole: bool
    files: tuple[tuple[str, int], ...]
    tokenizer_name: str = ""
    blocks: Blocks | None = None
    marks: Marks | None = None
    mark_blocks: Blocks | None = None

    @classmethod
    def open(
        cls, path: Path, *, documents: npt.NDArray[np.int64] | Stored | None = None, digests: Digests | None = None
    ) -> TokenShard:
        """Open a shard written by us or by datatrove.

        Args:
            path: The `.ds` file.
            documents: Indices of the documents to select, sorted; default: all.
            digests: Digests of the prepared folder. Small files are checked now, tokens and large files when they are read.

        Raises:
            UniclozeError: A file is missing, truncated, damaged or inconsistent with the others.
        """
        index = beside(path, ".index")
        for file in (path, index):
            if not file.is_file():
                raise UniclozeError(
                    f"{file} is missing: remove the folder and prepare again (datatrove: with save_index)."
                )
        files = {end: beside(path, end) for end in (".index", ".bytes", ".lines")}
        for file in files.values():
            if file.is_file() and (file.stat().st_size != index.stat().st_size or index.stat().st_size % 8):
                raise UniclozeError(f"{file} does not fit {index}: remove the folder and prepare again.")
        found = {end: open_column(file, digests) for end, file in files.items() if file.is_file()}
        ends, size = found[".index"], path.stat().st_size
        total = int(ends.values[-1]) if len(ends) else 0
        if total * 2 != size != total * 4 or (8 * len(ends) <= _SMALL and (np.diff(ends.values, prepend=0) < 0).any()):
            raise UniclozeError(
                f"{path} ({size} bytes) does not fit {index.name} ({total} tokens): remove the folder and prepare again."
            )
        width = "<u2" if total * 2 == size else "<u4"
        tokens: npt.NDArray[np.unsignedinteger] = (
            np.memmap(path, dtype=width, mode="r") if size else np.zeros(0, dtype=width)
        )
        marks, of_spans = None, beside(path, ".spans")
        if of_spans.is_file():
            if of_spans.stat().st_size != total:
                raise UniclozeError(f"{of_spans} does not fit {index.name}: remove the folder and prepare again.")
            marks = np.memmap(of_spans, dtype=np.uint8, mode="r")
        if digests is not None:
            digests.check(beside(path, ".json"), beside(path, ".metadata"))
        chosen = documents if documents is None or isinstance(documents, Stored) else Stored(documents)
        if chosen is not None and len(chosen) and int(chosen.values[-1]) >= len(ends):
            raise UniclozeError(
                f"{path} has {len(ends)} documents, but had at least {int(chosen.values[-1]) + 1} when it was prepared: "
                "prepare again."
            )
        count = len(ends if chosen is None else chosen)
        sizes, lines = found.get(".bytes"), found.get(".lines")
        return cls(
            path=path,
            tokens=tokens,
            starts=Column(count, ends, chosen, start=True),
            ends=Column(count, ends, chosen),
            sizes=None if sizes is None else Column(count, sizes, chosen, size=True),
            lines=None if lines is None else Column(count, lines, chosen),
            numbers=Column(count, None, chosen),
            is_whole=chosen is None,
            files=_files(path),
            tokenizer_name=_tokenizer_name(beside(path, ".metadata")),
            blocks=None if digests is None else digests.blocks(path),
            marks=marks,
            mark_blocks=None if digests is None or marks is None else digests.blocks(of_spans),
        )

    def lengths(self, index: slice | Int64s) -> Int64s:
        """Number of tokens of some documents. *Shape:* (documents,)

        Raises:
            UniclozeError: A document ends before it begins.
        """
        found = self.ends[index] - self.starts[index]
        if len(found) and int(found.min()) < 0:
            raise UniclozeError(f"{beside(self.path, '.index')} is damaged: remove the folder and prepare again.")
        return found

    @cached_property
    def num_tokens(self) -> int:
        """Number of tokens in all documents."""
        if self.is_whole:
            return len(self.tokens)
        return sum(int(self.lengths(part).sum()) for part in parts_of(len(self.ends)))

    def documents_at(self, first: int, last: int) -> tuple[int, int, int]:
        """The documents that hold some tokens, counted over the documents of this shard.

        Args:
            first: The first token.
            last: The last token.

        Returns:
            First and last document, and the number of tokens before the first.
        """
        if self.is_whole:
            both = bisect.bisect_right(self.ends, first), bisect.bisect_right(self.ends, last)
            return *both, int(self.starts[both[0]])
        documents, before, _ = self._sums.find(np.array([first, last]))
        return int(documents[0]), int(documents[1]), int(before[0])

    @cached_property
    def _sums(self) -> Sums:
        return Sums(self.lengths, lambda start, end: (self.lengths(slice(start, end)), 0), len(self.ends))

    def read(self, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.unsignedinteger]:
        """Verify ranges of the tokens and return all tokens, of which only those ranges may be used.

        Args:
            starts: First token of each range. *Shape:* (ranges,)
            ends: End of each range; may exceed the number of tokens. *Shape:* (ranges,)

        Raises:
            UniclozeError: A range is damaged; the message names file and bytes.
        """
        if self.blocks is not None:
            width = self.tokens.itemsize
            self.blocks.check(self._bytes(), starts * width, np.minimum(ends, len(self.tokens)) * width)
        return self.tokens

    def read_marks(self, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Marks | None:
        """`read` for the marks; None if no document gives spans.

        Raises:
            UniclozeError: A range is damaged; the message names file and bytes.
        """
        if self.marks is not None and self.mark_blocks is not None:
            self.mark_blocks.check(np.asarray(self.marks), starts, np.minimum(ends, len(self.marks)))
        return self.marks

    def check_first(self) -> None:
        """Verify the first block.

        Raises:
            UniclozeError: It is damaged.
        """
        self.read(np.zeros(min(1, len(self.tokens)), np.int64), np.ones(min(1, len(self.tokens)), np.int64))

    def check_all(self) -> None:
        """Verify every block of the tokens and of the columns.

        Raises:
            UniclozeError: One is damaged.
        """
        if self.blocks is not None:
            self.blocks.check_all(self._bytes())
        if self.mark_blocks is not None:
            self.mark_blocks.check_all(np.asarray(self.marks))
        for column in (self.ends, self.sizes, self.lines):
            if column is not None:
                column.check_all()

    def _bytes(self) -> npt.NDArray[np.uint8]:
        return np.asarray(self.tokens).view(np.uint8)


def _tokenizer_name(metadata: Path) -> str:
    if not metadata.is_file():
        return ""
    return metadata.read_text(encoding="utf-8", errors="replace").split("\n")[0].rpartition("|")[0]


def open_column(file: Path, digests: Digests | None) -> Stored:
    """Map a file of 64-bit numbers; a small one is verified at once."""
    stored = Stored.open(file, None if digests is None else digests.blocks(file))
    if 8 * len(stored) <= _SMALL:
        stored.check_all()
    return stored


def _files(path: Path) -> tuple[tuple[str, int], ...]:
    """Name of each source file of a shard and the index of its first document."""
    file = beside(path, ".json")
    if not file.is_file():
        return ((str(path), 0),)
    try:
        sidecar = parse_json(file.read_bytes())
    except ValueError as error:
        raise UniclozeError(f"{file} is damaged: remove the folder and prepare again.") from error
    if misfit(sidecar, _SHAPE) is not None or sidecar["schema"] != SCHEMA:
        raise UniclozeError(f"{file} does not have schema {SCHEMA}: remove the folder and prepare again.")
    return tuple((entry["path"], entry["first_document"]) for entry in sidecar["files"])


def parts_of(count: int) -> Iterator[slice]:
    """Consecutive parts of `count` documents, few enough to be held in memory."""
    return (slice(start, min(start + AT_ONCE, count)) for start in range(0, count, AT_ONCE))


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenSource:
    """One tokenised entry of `data.corpus`.

    Args:
        name: Its name.
        shards: Its shards.
        recorded_tokens: Number of tokens recorded when it was prepared; default: they are counted.
        index: Where sums over its documents are kept, see `unicloze.text.pieces`; None if they are not.
    """

    name: str
    shards: tuple[TokenShard, ...]
    recorded_tokens: int | None = None
    index: Kept | None = None

    @property
    def num_documents(self) -> int:
        """Number of documents in all shards."""
        return int(self.bounds[-1])

    @cached_property
    def bounds(self) -> Int64s:
        """Number of documents before each shard, and of all. *Shape:* (shards + 1,)"""
        return np.cumsum([0, *(len(shard.ends) for shard in self.shards)], dtype=np.int64)

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all documents."""
        if self.recorded_tokens is not None:
            return self.recorded_tokens
        return sum(shard.num_tokens for shard in self.shards)

    @property
    def num_bytes(self) -> int | None:
        """Bytes of text in all documents; None if a shard does not record them."""
        sizes = [shard.sizes for shard in self.shards]
        known = [size.total for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None

    def by_shard(self, documents: Int64s) -> Iterator[tuple[int, Int64s | slice]]:
        """The shards of some documents, each with the places of its documents in the argument.

        Args:
            documents: Indices over all shards. *Shape:* (documents,)
        """
        if len(self.shards) == 1:
            yield 0, slice(None)
            return
        order = np.argsort(documents, kind="stable")
        cuts = np.searchsorted(documents[order], self.bounds)
        for shard in np.flatnonzero(np.diff(cuts)).tolist():
            yield shard, order[cuts[shard] : cuts[shard + 1]]

    def lengths(self, documents: Int64s) -> Int64s:
        """Number of tokens of documents, by index over all shards. *Shape:* (documents,)"""
        found = np.zeros(len(documents), dtype=np.int64)
        for number, place in self.by_shard(documents):
            found[place] = self.shards[number].lengths(documents[place] - self.bounds[number])
        return found

    def lengths_between(self, start: int, end: int) -> Int64s:
        """Number of tokens of the documents from `start` to `end`. *Shape:* (end - start,)"""
        found = [np.zeros(0, np.int64)]
        for number, shard in enumerate(self.shards):
            first, stop = max(start, int(self.bounds[number])), min(end, int(self.bounds[number + 1]))
            if first < stop:
                found.append(shard.lengths(slice(first - self.bounds[number], stop - self.bounds[number])))
        return np.concatenate(found)
