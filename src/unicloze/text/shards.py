"""Token shards in datatrove's layout: written as a stream, read by memory-mapping.

NAME.ds           token ids, document after document, little-endian uint16 (uint32 for more than 65,536 ids)
NAME.ds.index     end of each document, in tokens, uint64
NAME.ds.metadata  three lines: "tokenizer|bytes per token", number of tokens, that number in readable form
NAME.ds.bytes     bytes of text up to the end of each document, uint64 (ours; not in datatrove)
NAME.ds.lines     line of its file (row of a table) where each document begins, uint64, 0 if unknown (ours)
NAME.ds.spans     one byte per token, see `marks_of`; absent if no document gives spans (ours)
NAME.ds.json      source files of the documents (ours)

All numbers are running sums or grow with the documents, so that a mapped file is its own index: memory does not grow with the
corpus. What depends on how windows are cut is summed at first need and kept as `FOLDER/index/PART-SOURCE-SEAL-KIND.npz`.
"""

from __future__ import annotations

import json
import os
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze.arrays import Flags, Int64s
from unicloze.errors import UniclozeError
from unicloze.files import misfit, parse_json
from unicloze.progress import Progress
from unicloze.text.digests import Digests, Mapped
from unicloze.text.documents import KINDS, SpanKind, Spans

SCHEMA = 1
"""Schema version of the `.ds.json` files."""

_SHAPE = {"schema": int, "files": [{"path": str, "first_document": int}]}
AT_ONCE = 2**20
"""Documents whose numbers are read at once."""
FEW = 2**20
"""Sums over up to this many documents are not kept on disk, and the sum up to each is held in memory."""
STRIDE = 512
"""Documents per sum held in memory, of more documents."""
Marks = npt.NDArray[np.uint8]
"""One byte per token that records the phrases and entities of a document (ERNIE, Section 3.2)."""


class ShardWriter(ExitStack):
    """Writes one shard as a stream; use it as a context manager.

    Args:
        path: The `.ds` file; the other files are written next to it.
        vocab_size: Determines the width of a token.
        tokenizer_name: Recorded in the metadata.
    """

    def __init__(self, path: Path, *, vocab_size: int, tokenizer_name: str) -> None:
        super().__init__()
        self._path = path
        self._dtype = np.dtype("<u2" if vocab_size <= 2**16 else "<u4")
        self._tokenizer_name = tokenizer_name
        self._files: list[dict[str, str | int]] = []
        self._open = {end: self._opened(end) for end in ("", ".index", ".bytes", ".lines")}
        self.tokens = self.bytes = self.documents = 0

    def _opened(self, end: str) -> Any:
        return self.enter_context(beside(self._path, end).open("wb", 2**20))

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
        if ".spans" not in self._open and marks is not None and marks.any():
            self._open[".spans"] = self._opened(".spans")
            for start in range(0, self.tokens, AT_ONCE):
                self._open[".spans"].write(bytes(min(AT_ONCE, self.tokens - start)))
        if ".spans" in self._open:
            self._open[".spans"].write(bytes(len(token_ids)) if marks is None else marks.tobytes())
        self._open[""].write(token_ids.astype(self._dtype).tobytes())
        self.tokens += len(token_ids)
        self.bytes += size
        if ends_document:
            self.documents += 1
            for end, number in ((".index", self.tokens), (".bytes", self.bytes), (".lines", line)):
                self._open[end].write(number.to_bytes(8, "little"))

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if error[0] is None:
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
    return [folder / (f"{name}.ds" if portions == 1 else f"{name}.{number:05d}.ds") for number in range(portions)]


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenShard:
    """An open shard, or some of its documents.

    Args:
        path: The `.ds` file.
        tokens: Token ids of all documents of the file.
        ends: End of each document of the file, in tokens.
        chosen: Index of each of these documents within the file; None for all documents of the file.
        sizes: Bytes of text up to the end of each document of the file; None if unknown.
        lines: Line of its file where each document of the file begins, 0 if unknown; None if unknown for all.
        marks: Bytes of the spans of all documents of the file, one for each token; None if no document gives spans.
        files: Name of each source file and the index of its first document.
        tokenizer_name: Name of the tokenizer in the metadata; empty without metadata.
    """

    path: Path
    tokens: Mapped
    ends: Mapped
    chosen: Mapped | None
    sizes: Mapped | None
    lines: Mapped | None
    marks: Mapped | None
    files: tuple[tuple[str, int], ...]
    tokenizer_name: str

    @classmethod
    def open(cls, path: Path, *, documents: Path | None = None, digests: Digests | None = None) -> TokenShard:
        """Open a shard written by us or by datatrove.

        Args:
            path: The `.ds` file.
            documents: File with the indices of the documents to select, sorted, as uint64; default: all.
            digests: Digests of the prepared folder.
        """
        index, cure = beside(path, ".index"), "remove the folder and prepare again"
        for file in (path, index, documents or path):
            if not file.is_file():
                raise UniclozeError(f"{file} is missing: {cure} (datatrove: with save_index).")
        columns: dict[str, Mapped | None] = {}
        for end in (".index", ".bytes", ".lines"):
            file = beside(path, end)
            if file.is_file() and (file.stat().st_size != index.stat().st_size or index.stat().st_size % 8):
                raise UniclozeError(f"{file} does not fit {index}: {cure}.")
            columns[end] = Mapped(file, "<i8", digests) if file.is_file() else None
        ends, size = columns[".index"], path.stat().st_size
        assert ends is not None
        total = int(ends.values[-1]) if len(ends) else 0
        if total * 2 != size != total * 4:
            raise UniclozeError(f"{path} ({size} bytes) does not fit {index.name} ({total} tokens): {cure}.")
        spans = beside(path, ".spans")
        if spans.is_file() and spans.stat().st_size != total:
            raise UniclozeError(f"{spans} does not fit {index.name}: {cure}.")
        if digests is not None:
            digests.check(beside(path, ".json"), beside(path, ".metadata"))
        chosen = None if documents is None else Mapped(documents, "<i8", digests)
        if chosen is not None and len(chosen) and (last := int(chosen.values[-1])) >= len(ends):
            raise UniclozeError(
                f"{path} has {len(ends)} documents, but had at least {last + 1} when it was prepared: prepare again."
            )
        return cls(
            path=path,
            tokens=Mapped(path, "<u2" if total * 2 == size else "<u4", digests),
            ends=ends,
            chosen=chosen,
            sizes=columns[".bytes"],
            lines=columns[".lines"],
            marks=Mapped(spans, "u1", digests) if spans.is_file() else None,
            files=_files(path),
            tokenizer_name=_tokenizer_name(beside(path, ".metadata")),
        )

    def __len__(self) -> int:
        return len(self.ends if self.chosen is None else self.chosen)

    def numbers(self, documents: Int64s) -> Int64s:
        """Indices of some documents within the file. *Shape:* that of `documents`"""
        return documents if self.chosen is None else self.chosen[documents]

    def bounds(self, documents: Int64s) -> tuple[Int64s, Int64s]:
        """First token and end of some documents. *Shape:* that of `documents`, each"""
        starts, ends = self.ends.with_before(self.numbers(documents))
        if (ends < starts).any():
            raise UniclozeError(f"{beside(self.path, '.index')} is damaged: remove the folder and prepare again.")
        return starts, ends

    def lengths(self, documents: Int64s) -> Int64s:
        """Number of tokens of some documents. *Shape:* that of `documents`"""
        starts, ends = self.bounds(documents)
        return ends - starts

    def documents(self) -> Iterator[npt.NDArray[np.unsignedinteger]]:
        """Token ids of each document. *Shape:* (tokens,) each"""
        for part in parts_of(len(self)):
            starts, ends = self.bounds(part)
            tokens = self.tokens.ranges(starts, ends)
            yield from (tokens[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True))

    @cached_property
    def num_tokens(self) -> int:
        """Number of tokens in all documents."""
        return len(self.tokens) if self.chosen is None else _total(self, self.ends)

    @property
    def num_bytes(self) -> int | None:
        """Bytes of text in all documents; None if unknown."""
        return None if self.sizes is None else _total(self, self.sizes)

    @cached_property
    def sums(self) -> Sums:
        """Sums of the lengths of the documents."""
        return Sums(self.lengths, len(self))

    def check_all(self) -> None:
        """Verify every block of the tokens and of the numbers of the documents."""
        for column in (self.tokens, self.ends, self.chosen, self.sizes, self.lines, self.marks):
            if column is not None:
                column.check_all()


def _total(shard: TokenShard, ends: Mapped) -> int:
    """Sum over the documents of a shard of what a column of running sums counts."""
    if shard.chosen is None:
        return int(ends.values[-1]) if len(ends) else 0
    parts = (ends.with_before(shard.numbers(part)) for part in parts_of(len(shard)))
    return sum(int((after - before).sum()) for before, after in parts)


def _tokenizer_name(metadata: Path) -> str:
    if not metadata.is_file():
        return ""
    return metadata.read_text(encoding="utf-8", errors="replace").split("\n")[0].rpartition("|")[0]


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


def parts_of(count: int) -> Iterator[Int64s]:
    """Consecutive parts of the numbers below `count`, few enough to be held in memory."""
    return (np.arange(start, min(start + AT_ONCE, count)) for start in range(0, count, AT_ONCE))


class Sums:
    """Running sums of a number per document.

    Of more than `FEW` documents, memory holds one sum for each `STRIDE` of them, and the numbers of a stride are read again.

    Args:
        values: The numbers of some documents, by their sorted indices.
        count: Number of documents.
        kept: Where to keep the sums of many documents; default: nowhere.
        what: Label of the progress shown while they are computed; default: none is shown.
    """

    def __init__(
        self, values: Callable[[Int64s], Int64s], count: int, *, kept: Path | None = None, what: str = ""
    ) -> None:
        self._values, self._count, self._what = values, count, what
        self._stride = 1 if count <= FEW else STRIDE
        known = kept_arrays(kept if count > FEW else None, lambda: {"sums": self._computed()})
        self._sums: Int64s = known["sums"]
        self.total = int(self._sums[-1])

    def find(self, positions: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """The documents whose values contain some positions.

        Returns:
            The documents, the sums before them, and their values. *Shape:* that of `positions`, each
        """
        blocks = np.searchsorted(self._sums, positions, side="right") - 1
        base = self._sums[blocks]
        if self._stride == 1:
            return blocks, base, self._sums[blocks + 1] - base
        unique, place = np.unique(blocks, return_inverse=True)
        values = self._of_blocks(unique)
        sums = np.cumsum(values, axis=1)
        columns = (sums[place] <= (positions - base)[:, None]).sum(axis=1)
        value = values[place, columns]
        return blocks * self._stride + columns, base + sums[place, columns] - value, value

    def before(self, documents: Int64s) -> Int64s:
        """Sum of the values before each document; for `count`, the total. *Shape:* that of `documents`"""
        blocks, within = np.divmod(documents, self._stride)
        rest = np.arange(self._stride) < within[:, None]
        sums: Int64s = self._sums[blocks] + (self._of_blocks(blocks) * rest).sum(axis=1)
        return sums

    def _of_blocks(self, blocks: Int64s) -> Int64s:
        """Values of the documents of some sorted blocks, 0 after the last document. *Shape:* (blocks, stride)"""
        documents = (blocks[:, None] * self._stride + np.arange(self._stride)).reshape(-1)
        inside = documents < self._count
        values = np.zeros(len(documents), dtype=np.int64)
        values[inside] = self._values(documents[inside])
        return values.reshape(len(blocks), self._stride)

    def _computed(self) -> Int64s:
        """The sum before each stride of documents, and the total. *Shape:* (strides + 1,)"""
        sums = np.zeros(-(-self._count // self._stride) + 1, dtype=np.int64)
        with Progress(self._what, self._count, "documents", show=bool(self._what) and self._count > FEW) as bar:
            for part in parts_of(self._count):
                values = np.add.reduceat(self._values(part), np.arange(0, len(part), self._stride))
                first = int(part[0]) // self._stride
                sums[first + 1 : first + 1 + len(values)] = np.cumsum(values) + sums[first]
                bar.update(len(part))
        return sums


def kept_arrays(file: Path | None, make: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Arrays that depend on all of a corpus, kept in a file if its folder is writable and made again if that is damaged.

    Args:
        file: The file, whose name identifies what the arrays are made from; None to keep nothing.
        make: Makes the arrays.
    """
    if file is None:
        return make()
    damage = OSError, EOFError, ValueError, KeyError, RuntimeError, zipfile.BadZipFile
    with suppress(*damage), file.open("rb") as stream, np.load(stream, allow_pickle=False) as known:
        return dict(known)
    made = make()
    temporary = file.with_name(f".{file.name}-{uuid.uuid4().hex[:8]}")
    try:
        file.parent.mkdir(exist_ok=True)
        with temporary.open("xb") as new:
            np.savez(new, **made)
        os.replace(temporary, file)
    except OSError:  # where the folder is not writable, they are made at each opening
        with suppress(OSError):
            temporary.unlink()
    return made


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenSource:
    """One tokenised entry of `data.corpus`.

    Args:
        name: Its name.
        shards: Its shards.
        recorded_tokens: Number of tokens recorded when it was prepared; default: they are counted.
        index: Beginning of the names of the files in which sums over many documents are kept; None to keep none.
        show: Show progress while such sums are computed.
    """

    name: str
    shards: tuple[TokenShard, ...]
    recorded_tokens: int | None = None
    index: Path | None = None
    show: bool = False

    @property
    def num_documents(self) -> int:
        """Number of documents in all shards."""
        return int(self.bounds[-1])

    @cached_property
    def bounds(self) -> Int64s:
        """Number of documents before each shard, and of all. *Shape:* (shards + 1,)"""
        return np.cumsum([0, *map(len, self.shards)], dtype=np.int64)

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all documents."""
        if self.recorded_tokens is not None:
            return self.recorded_tokens
        return sum(shard.num_tokens for shard in self.shards)

    @property
    def num_bytes(self) -> int | None:
        """Bytes of text in all documents; None if a shard does not record them."""
        known = [size for shard in self.shards if (size := shard.num_bytes) is not None]
        return sum(known) if len(known) == len(self.shards) else None

    def by_shard(self, documents: Int64s) -> Iterator[tuple[TokenShard, Int64s | slice, Int64s]]:
        """The shards of some documents, each with the places of its documents in the argument and their indices in it.

        Args:
            documents: Indices over all shards. *Shape:* (documents,)
        """
        if len(self.shards) == 1:
            yield self.shards[0], slice(None), documents
            return
        order = np.argsort(documents, kind="stable")
        cuts = np.searchsorted(documents[order], self.bounds)
        for number in np.flatnonzero(np.diff(cuts)).tolist():
            mine = order[cuts[number] : cuts[number + 1]]
            yield self.shards[number], mine, documents[mine] - self.bounds[number]

    def lengths(self, documents: Int64s) -> Int64s:
        """Number of tokens of documents, by index over all shards. *Shape:* (documents,)"""
        lengths = np.zeros(len(documents), dtype=np.int64)
        for shard, place, inside in self.by_shard(documents):
            lengths[place] = shard.lengths(inside)
        return lengths

    def sums(self, kind: str, of_length: Callable[[Int64s], Int64s]) -> Sums:
        """Sums of a function of the lengths of the documents.

        Args:
            kind: Identifies the function in the name of the file.
            of_length: The function.
        """
        kept = None if self.index is None else self.index.with_name(f"{self.index.name}-{kind}.npz")
        what = f"indexing {self.name}" if self.show else ""
        return Sums(lambda documents: of_length(self.lengths(documents)), self.num_documents, kept=kept, what=what)


_JOINS = {"phrase": 1, "entity": 2}
_GIVES = {"phrase": 4, "entity": 8}


def marks_of(spans: Spans, offsets: npt.NDArray[np.integer]) -> Marks:
    """The byte of each token of a text.

    A token belongs to the first span of a kind that it shares a character with.

    Args:
        spans: The spans of the text.
        offsets: First character and end of each token. *Shape:* (tokens, 2)
    """
    marks = np.full(len(offsets), sum(_GIVES[kind] for kind in spans.gives), dtype=np.uint8)
    for kind in KINDS if len(offsets) else ():
        bounds = np.array([span[:2] for span in spans.found if span[2] == kind], dtype=np.int64).reshape(-1, 2)
        if not len(bounds):
            continue
        span = np.minimum(np.searchsorted(bounds[:, 1], offsets[:, 0], side="right"), len(bounds) - 1)
        inside = (bounds[span, 0] < offsets[:, 1]) & (bounds[span, 1] > offsets[:, 0])
        joined = inside.copy()
        joined[1:] &= inside[:-1] & (span[1:] == span[:-1])
        joined[0] &= bounds[span[0], 0] < 0
        marks |= joined.astype(np.uint8) * np.uint8(_JOINS[kind])
    return marks


def joined_by(marks: Marks, kind: SpanKind) -> tuple[Flags, Flags]:
    """Whether tokens belong to the same span as the token before, and whether their documents give spans of the kind.

    Args:
        marks: *Shape:* (rows, window)
        kind: The kind of the spans.

    Returns:
        *Shape:* (rows, window) each.
    """
    return (marks & _JOINS[kind]) > 0, (marks & _GIVES[kind]) > 0
