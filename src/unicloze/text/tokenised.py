"""Token shards as sources, such as a folder written by datatrove: read in place, never copied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze.errors import UniclozeError
from unicloze.storage import is_url
from unicloze.text.columns import AT_ONCE, Stored
from unicloze.text.digests import Digests
from unicloze.text.documents import local_files_at
from unicloze.text.shards import TokenShard, open_column
from unicloze.text.tokenizers import Tokenizer

_OURS = "unicloze-"


def find_shards(corpus: str | Path) -> list[Path]:
    """The `.ds` files under a path, sorted; none for a URL, since they are memory-mapped."""
    return [] if is_url(corpus) else [file for file in local_files_at(corpus) if file.suffix == ".ds"]


def name_of(tokenizer: Tokenizer) -> str:
    """Name of a tokenizer in the metadata of our shards."""
    return _OURS + tokenizer.fingerprint[:16]


def documents(path: Path, tokenizer: Tokenizer) -> Iterator[npt.NDArray[np.unsignedinteger]]:
    """Token ids of each document of a shard. *Shape:* (tokens,) each"""
    shard, vocab_size = TokenShard.open(path), tokenizer.vocabulary.size
    if shard.tokenizer_name.startswith(_OURS) and shard.tokenizer_name != name_of(tokenizer):
        raise UniclozeError(
            f"{path} holds tokens of tokenizer {shard.tokenizer_name.removeprefix(_OURS)}, not "
            f"{tokenizer.fingerprint[:16]}: give --tokenizer.path the tokenizer of these shards."
        )
    for start, end in zip(shard.starts, shard.ends, strict=True):
        tokens = shard.tokens[start:end]
        check_ids(path, tokens, vocab_size)
        yield tokens


def write_selection(folder: Path, name: str, shards: list[tuple[Path, Path]], side: int) -> dict[str, Any]:
    """Record the documents of each shard that form a source, as one `NAME.I.documents` file of uint64 per shard."""
    counts = {"documents": 0, "tokens": 0}
    for i, (path, sides) in enumerate(shards):
        file, place = folder / f"{name}.{i}.documents", 0
        with sides.open("rb") as read, file.open("wb") as written:
            while raw := read.read(AT_ONCE):
                numbers = np.flatnonzero(np.frombuffer(raw, dtype=np.uint8) == side) + place
                written.write(numbers.astype("<u8").tobytes())
                place += len(raw)
        shard = TokenShard.open(path, documents=Stored.open(file))
        counts["documents"] += len(shard.ends)
        counts["tokens"] += shard.num_tokens
    return {**counts, "bytes": None}


def open_selection(
    folder: Path, name: str, paths: list[Path], digests: Digests | None = None
) -> tuple[TokenShard, ...]:
    """Open what `write_selection` recorded."""
    shards = []
    for i, path in enumerate(paths):
        file = folder / f"{name}.{i}.documents"
        if not file.is_file():
            raise UniclozeError(f"{file} is missing: remove the folder and prepare again.")
        shards.append(TokenShard.open(path, documents=open_column(file, digests), digests=digests))
    return tuple(shards)


def check_ids(path: Path, tokens: npt.NDArray[np.integer], vocab_size: int) -> None:
    """Refuse token ids of a shard that are not below the vocabulary size."""
    largest = int(tokens.max(initial=0))
    if largest >= vocab_size:
        raise UniclozeError(
            f"{path} holds token id {largest}, but the tokenizer has only {vocab_size} ids: give --tokenizer.path the "
            "tokenizer of these shards."
        )
