"""Sources that are token shards already, such as a folder that datatrove wrote: read where they lie, never copied."""

from __future__ import annotations

import glob
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze.errors import UniclozeError
from unicloze.text.shards import TokenShard, TokenSource

Numbers = npt.NDArray[np.int64]


def find_shards(corpus: str | Path) -> list[Path]:
    """The `.ds` files a path names (a file, a folder or a glob), sorted; none if it names something else."""
    place = Path(corpus).expanduser()
    if place.is_dir():
        return sorted(place.rglob("*.ds"))
    names = [place] if place.is_file() else [Path(name) for name in glob.glob(str(place), recursive=True)]
    return sorted(file for file in names if file.suffix == ".ds")


def split_shard(
    path: Path, *, share: float, seed: int, seen: npt.NDArray[np.uint64] | None, vocab_size: int
) -> tuple[Numbers, Numbers, int]:
    """Splits the documents of a shard by a hash of their tokens.

    Args:
        path: The `.ds` file.
        share: Share to hold out. If no document falls into it, the one with the smallest hash is taken, unless it is
            the only one.
        seed: Names the choice.
        seen: Table of the hashes seen before, to drop duplicates; None keeps them.
        vocab_size: Ids of the tokenizer.

    Returns:
        Numbers of the documents to train on, of those held out, and the number of duplicates.

    Raises:
        UniclozeError: The shard is damaged, or holds ids the tokenizer has not.
    """
    shard = TokenShard.open(path)
    train, heldout, duplicates = [], [], 0
    smallest: tuple[int, int] | None = None
    for number, (start, end) in enumerate(zip(shard.starts.tolist(), shard.ends.tolist(), strict=True)):
        tokens = shard.tokens[start:end]
        if end > start and int(tokens.max()) >= vocab_size:
            raise UniclozeError(
                f"{path} holds token id {tokens.max()}, the tokenizer only {vocab_size} ids: give --tokenizer.path the "
                "tokenizer of these shards."
            )
        digest = hashlib.blake2b(tokens.tobytes(), digest_size=8, salt=seed.to_bytes(8, "little", signed=True))
        value = int.from_bytes(digest.digest(), "little")
        if seen is not None:
            slot = value % len(seen)
            if int(seen[slot]) == value:
                duplicates += 1
                continue
            seen[slot] = value
        if value < int(share * 2**64):
            heldout.append(number)
        else:
            train.append(number)
            smallest = min(smallest or (value, number), (value, number))
    if share and not heldout and smallest and len(train) > 1:
        train.remove(smallest[1])
        heldout.append(smallest[1])
    return np.array(train, dtype=np.int64), np.array(heldout, dtype=np.int64), duplicates


def write_selection(folder: Path, name: str, selections: list[tuple[Path, Numbers]]) -> dict[str, Any]:
    """Notes which documents of which shards make up a source, one `NAME.I.documents` file of uint64 a shard."""
    tokens = 0
    for i, (path, numbers) in enumerate(selections):
        numbers.astype("<u8").tofile(folder / f"{name}.{i}.documents")
        shard = TokenShard.open(path, documents=numbers)
        tokens += int((shard.ends - shard.starts).sum())
    return {"documents": sum(len(numbers) for _, numbers in selections), "tokens": tokens, "bytes": None}


def open_selection(folder: Path, name: str, paths: list[Path]) -> TokenSource:
    """Opens what `write_selection` noted."""
    shards = []
    for i, path in enumerate(paths):
        numbers = np.fromfile(folder / f"{name}.{i}.documents", dtype="<u8").astype(np.int64)
        shards.append(TokenShard.open(path, documents=numbers))
    return TokenSource(name=name, shards=tuple(shards))
