"""Token shards in datatrove's layout: written as a stream, read by memory-mapping.

NAME.ds           token ids, document after document, little-endian uint16 (uint32 for more than 65,536 ids)
NAME.ds.index     end of each document, in tokens, uint64
NAME.ds.metadata  three lines: "tokenizer|bytes per token", number of tokens, that number in readable form
NAME.ds.bytes     bytes of text up to the end of each document, uint64 (ours; not in datatrove)
NAME.ds.lines     line of its file (row of a table) where each document begins, uint64, 0 if unknown (ours)
NAME.ds.json      source files of the documents (ours)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from unicloze.bounded import misfit, parse_json
from unicloze.errors import UniclozeError
from unicloze.text.digests import Blocks, Digests

SCHEMA = 1
"""Schema version of the `.ds.json` files."""

_SHAPE = {"schema": int, "files": [{"path": str, "first_document": int}]}
Ends = npt.NDArray[np.uint64]


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
        self.tokens = self.bytes = self.documents = 0

    def begin_file(self, name: str) -> None:
        """Set the source file of the following documents."""
        if self._files and self._files[-1]["path"] == name:
            return
        if self._files and self._files[-1]["first_document"] == self.documents:
            self._files.pop()
        self._files.append({"path": name, "first_document": self.documents})

    def write(
        self, token_ids: npt.NDArray[np.integer], size: int, *, line: int = 0, ends_document: bool = True
    ) -> None:
        """Write a document, or a piece of one.

        Args:
            token_ids: Its tokens. *Shape:* (tokens,)
            size: Bytes of text.
            line: Line of the file where the document begins, from 1; 0 if unknown.
            ends_document: Whether the document ends with this piece.
        """
        tokens_file, index_file, bytes_file, lines_file = self._open
        tokens_file.write(token_ids.astype(self._dtype).tobytes())
        self.tokens += len(token_ids)
        self.bytes += size
        if not ends_document:
            return
        self.documents += 1
        index_file.write(self.tokens.to_bytes(8, "little"))
        bytes_file.write(self.bytes.to_bytes(8, "little"))
        lines_file.write(line.to_bytes(8, "little"))

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
    ends = ".index", ".metadata", ".bytes", ".lines", ".json"
    return [file for file in (beside(path, end) for end in ends) if file.is_file()]


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenShard:
    """An open shard, or some of its documents.

    Args:
        path: The `.ds` file.
        tokens: Token ids of all documents. *Shape:* (tokens of the file,)
        starts: First token of each document. *Shape:* (documents,)
        ends: End of each document. *Shape:* (documents,)
        sizes: Bytes of text of each document; None if unknown. *Shape:* (documents,)
        lines: Line of its file where each document begins; 0 if unknown. *Shape:* (documents,)
        numbers: Index of each document within the `.ds` file. *Shape:* (documents,)
        files: Name of each source file and the index of its first document.
        tokenizer_name: Name of the tokenizer in the metadata; empty without metadata.
        blocks: Digests of the tokens; None without digests.
    """

    path: Path
    tokens: npt.NDArray[np.unsignedinteger]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64] | None
    lines: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    files: tuple[tuple[str, int], ...]
    tokenizer_name: str = ""
    blocks: Blocks | None = None

    @classmethod
    def open(
        cls, path: Path, *, documents: npt.NDArray[np.int64] | None = None, digests: Digests | None = None
    ) -> TokenShard:
        """Open a shard written by us or by datatrove.

        Args:
            path: The `.ds` file.
            documents: Indices of the documents to select, sorted; default: all.
            digests: Digests of the prepared folder. All files but the tokens are checked now.

        Raises:
            UniclozeError: A file is missing, truncated, damaged or inconsistent with the others.
        """
        if digests is not None:
            digests.check(*files_beside(path))
        index = beside(path, ".index")
        for file in (path, index):
            if not file.is_file():
                raise UniclozeError(
                    f"{file} is missing: remove the folder and prepare again (datatrove: with save_index)."
                )
        ends = np.fromfile(index, dtype="<u8").astype(np.int64)
        total, size = int(ends[-1]) if len(ends) else 0, path.stat().st_size
        if index.stat().st_size % 8 or total * 2 != size != total * 4 or (np.diff(ends, prepend=0) < 0).any():
            raise UniclozeError(
                f"{path} ({size} bytes) does not fit {index.name} ({total} tokens): remove the folder and prepare again."
            )
        width = "<u2" if total * 2 == size else "<u4"
        tokens: npt.NDArray[np.unsignedinteger] = (
            np.memmap(path, dtype=width, mode="r") if size else np.zeros(0, dtype=width)
        )
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])[: len(ends)]
        bounds, lines = (_beside_documents(path, end, index) for end in (".bytes", ".lines"))
        sizes = None if bounds is None else np.diff(bounds, prepend=np.int64(0))
        lines = np.zeros(len(ends), dtype=np.int64) if lines is None else lines
        files: tuple[tuple[str, int], ...] = ((str(path), 0),)
        if (file := beside(path, ".json")).is_file():
            try:
                sidecar = parse_json(file.read_bytes())
            except ValueError as error:
                raise UniclozeError(f"{file} is damaged: remove the folder and prepare again.") from error
            if misfit(sidecar, _SHAPE) is not None or sidecar["schema"] != SCHEMA:
                raise UniclozeError(f"{file} does not have schema {SCHEMA}: remove the folder and prepare again.")
            files = tuple((entry["path"], entry["first_document"]) for entry in sidecar["files"])
        numbers = np.arange(len(ends), dtype=np.int64)
        if documents is not None:
            if len(documents) and int(documents.max()) >= len(ends):
                raise UniclozeError(
                    f"{path} has {len(ends)} documents, but had at least {int(documents.max()) + 1} when it was prepared: "
                    "prepare again."
                )
            numbers, starts, ends = documents, starts[documents], ends[documents]
            sizes, lines = None if sizes is None else sizes[documents], lines[documents]
        return cls(
            path=path,
            tokens=tokens,
            starts=starts,
            ends=ends,
            sizes=sizes,
            lines=lines,
            numbers=numbers,
            files=files,
            tokenizer_name=_tokenizer_name(beside(path, ".metadata")),
            blocks=None if digests is None else digests.blocks(path),
        )

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

    def check_first(self) -> None:
        """Verify the first block.

        Raises:
            UniclozeError: It is damaged.
        """
        self.read(np.zeros(min(1, len(self.tokens)), np.int64), np.ones(min(1, len(self.tokens)), np.int64))

    def check_all(self) -> None:
        """Verify every block.

        Raises:
            UniclozeError: One is damaged.
        """
        if self.blocks is not None:
            self.blocks.check_all(self._bytes())

    def _bytes(self) -> npt.NDArray[np.uint8]:
        return np.asarray(self.tokens).view(np.uint8)


def _tokenizer_name(metadata: Path) -> str:
    if not metadata.is_file():
        return ""
    return metadata.read_text(encoding="utf-8", errors="replace").split("\n")[0].rpartition("|")[0]


def _beside_documents(path: Path, end: str, index: Path) -> npt.NDArray[np.int64] | None:
    """Values per document from an optional file of a shard; None without that file."""
    file = beside(path, end)
    if not file.is_file():
        return None
    if file.stat().st_size != index.stat().st_size:
        raise UniclozeError(f"{file} does not fit {index}: remove the folder and prepare again.")
    return np.fromfile(file, dtype="<u8").astype(np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenSource:
    """One tokenised entry of `data.corpus`.

    Args:
        name: Its name.
        shards: Its shards.
    """

    name: str
    shards: tuple[TokenShard, ...]

    @property
    def num_documents(self) -> int:
        """Number of documents in all shards."""
        return sum(len(shard.ends) for shard in self.shards)

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all documents."""
        return sum(int((shard.ends - shard.starts).sum()) for shard in self.shards)

    @property
    def num_bytes(self) -> int | None:
        """Bytes of text in all documents; None if a shard does not record them."""
        sizes = [shard.sizes for shard in self.shards]
        known = [int(size.sum()) for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None
