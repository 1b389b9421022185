"""Finds the first copy of every document of a corpus by its hash, exactly and in bounded memory.

Hashes are spread over buckets on disk by their value, and each bucket is searched in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

BUCKET = 2**22
"""Documents of a bucket, on average; those of a smaller corpus are searched at once."""
_MOST_BUCKETS = 512
_ENTRY = np.dtype([("hash", "<u8"), ("place", "<i8")])


def first_copies(parts: Iterable[Hashes], count: int, folder: Path) -> Flags:
    """Whether each document is the first of its hash."""
    buckets = min(_MOST_BUCKETS, -(-count // BUCKET))
    if buckets <= 1:
        entries = np.concatenate([np.zeros(0, np.uint64), *parts])
        first = np.zeros(count, dtype=bool)
        first[np.unique(entries, return_index=True)[1]] = True
        return first
    folder.mkdir(parents=True, exist_ok=True)
    first = np.memmap(folder / "first", dtype=bool, mode="w+", shape=count)
    with ExitStack() as stack:
        files = [stack.enter_context((folder / f"{number}").open("wb", 2**16)) for number in range(buckets)]
        for entries in _placed(parts):
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


def _placed(parts: Iterable[Hashes]) -> Iterator[np.ndarray[tuple[int], np.dtype[np.void]]]:
    place = 0
    for part in parts:
        entries = np.empty(len(part), dtype=_ENTRY)
        entries["hash"], entries["place"] = part, np.arange(place, place + len(part))
        place += len(part)
        yield entries
