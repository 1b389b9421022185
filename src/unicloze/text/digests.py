"""Arrays in files, mapped into memory and verified block by block, so that damaged text is never trained on.

    FOLDER/digests.json   SHA-256 of each 1 MiB block of each file; shards outside the folder by full path

`lineage.json` holds the digest of that file and a digest of itself. A file is verified up to `SMALL` bytes when it is opened,
the rest block by block when first read, so that a large corpus need not be read before the first step.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze.arrays import Int64s
from unicloze.errors import UniclozeError
from unicloze.files import digest

FILE = "digests.json"
SCHEMA = 1
"""Schema version of `digests.json` and `lineage.json`."""
BLOCK = 2**20
"""Size of a block in bytes."""
SMALL = 2**20
"""Bytes of each file that are verified when it is opened."""
SEAL = "seal"
"""Key in `lineage.json` of the digest of its other entries."""


class Digests:
    """The digests of a prepared folder.

    Args:
        folder: The folder.
        files: SHA-256 of each block, by file name.
    """

    def __init__(self, folder: Path, files: Mapping[str, list[str]]) -> None:
        self._folder, self._files = folder, files

    @staticmethod
    def make(folder: Path, elsewhere: Iterable[Path] = (), known: Mapping[Path, list[str]] | None = None) -> str:
        """Write `digests.json` for all files of a folder and some files outside it; returns the digest of `digests.json`."""
        inside = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != FILE)
        named = {file.relative_to(folder).as_posix(): file for file in inside} | {str(file): file for file in elsewhere}
        known = known or {}
        files = {name: known.get(file) or list(digests_of(file)) for name, file in named.items()}
        text = json.dumps({"schema": SCHEMA, "block": BLOCK, "files": files}, indent=1) + "\n"
        (folder / FILE).write_text(text, encoding="utf-8")
        return hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def open(cls, folder: Path, lineage: Mapping[str, Any]) -> Digests:
        """Open the digests of a folder."""
        file = folder / FILE
        raw = file.read_bytes() if file.is_file() else b""
        if hashlib.sha256(raw).hexdigest() != lineage["digests"]:
            raise UniclozeError(f"{file} is missing or damaged: remove {folder} and prepare again.")
        content = json.loads(raw)
        if (content["schema"], content["block"]) != (SCHEMA, BLOCK):
            raise UniclozeError(f"{file} does not have schema {SCHEMA}: remove {folder} and prepare again.")
        gone = next((name for name in content["files"] if not (folder / name).is_file()), None)
        if gone is not None:
            raise UniclozeError(f"{folder / gone} is missing: remove {folder} and prepare again.")
        return cls(folder, content["files"])

    def of(self, path: Path) -> list[str]:
        """SHA-256 of each block of a file."""
        name = path.relative_to(self._folder).as_posix() if path.is_relative_to(self._folder) else str(path)
        if name not in self._files:
            raise UniclozeError(f"{path} did not exist when {self._folder} was prepared: {self.cure}")
        return self._files[name]

    def check(self, *paths: Path) -> None:
        """Verify whole files, ignoring missing ones."""
        for path in (path for path in paths if path.is_file()):
            Mapped(path, "u1", self).check_all()

    @property
    def cure(self) -> str:
        """Advice in error messages."""
        return f"remove {self._folder} and prepare again."


class Mapped:
    """The numbers of a file, each block verified when it is first read.

    Args:
        path: The file.
        dtype: Type of the numbers.
        digests: Digests of the file; None if there are none.
    """

    def __init__(self, path: Path, dtype: str, digests: Digests | None = None) -> None:
        size, width = path.stat().st_size, np.dtype(dtype).itemsize
        if size % width:
            raise UniclozeError(
                f"{path} has {size} bytes, not a multiple of {width}: remove the folder and prepare again."
            )
        self.values: npt.NDArray[Any] = np.asarray(np.memmap(path, dtype, "r")) if size else np.zeros(0, dtype)
        self._path, self._cure = path, "" if digests is None else digests.cure
        self._digests = None if digests is None else digests.of(path)
        if self._digests is not None:
            if -(-size // BLOCK) != len(self._digests):
                raise UniclozeError(
                    f"{path} has {size:,} bytes, a different size than when it was prepared: {self._cure}"
                )
            self._unread = np.ones(len(self._digests), dtype=bool)
            self.ranges(np.zeros(1, np.int64), np.array([SMALL // width]))

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Int64s) -> npt.NDArray[Any]:
        """Some of the numbers. *Shape:* that of `index`"""
        return self.ranges(index, index + 1)[index]

    def with_before(self, index: Int64s) -> tuple[Int64s, Int64s]:
        """The numbers before some numbers, 0 before the first, and these themselves. *Shape:* that of `index`, each"""
        return (np.where(index > 0, self[np.maximum(index - 1, 0)], 0) if len(self) else index), self[index]

    def ranges(self, starts: Int64s, ends: Int64s) -> npt.NDArray[Any]:
        """Verify ranges of the numbers and return all numbers, of which only those ranges may be used.

        Args:
            starts: First number of each range. *Shape:* (ranges,)
            ends: End of each range; may exceed the number of numbers. *Shape:* (ranges,)
        """
        if self._digests is not None and self._unread.any():
            width, size = self.values.itemsize, self.values.nbytes
            first, last = starts * width // BLOCK, (np.minimum(ends * width, size) - 1) // BLOCK
            touched = np.zeros(len(self._digests) + 1, dtype=bool)
            touched[first], touched[last] = True, True
            for start, end in zip(first[last - first > 1].tolist(), last[last - first > 1].tolist(), strict=True):
                touched[start:end] = True
            for block in np.flatnonzero(touched[:-1] & self._unread).tolist():
                start, end = block * BLOCK, min(size, (block + 1) * BLOCK)
                if hashlib.sha256(self.values.view(np.uint8)[start:end].data).hexdigest() != self._digests[block]:
                    raise UniclozeError(f"{self._path} is damaged between bytes {start:,} and {end:,}: {self._cure}")
                self._unread[block] = False
        return self.values

    def check_all(self) -> None:
        """Verify every block, including those already verified."""
        if self._digests is not None:
            self._unread[:] = True
            self.ranges(np.zeros(1, np.int64), np.array([len(self)]))


def digests_of(file: Path) -> Iterable[str]:
    """SHA-256 of each block of a file, in hexadecimal."""
    with file.open("rb") as stream:
        while block := stream.read(BLOCK):
            yield hashlib.sha256(block).hexdigest()


def seal(lineage: Mapping[str, Any]) -> str:
    """Digest of a lineage, excluding its seal."""
    return digest({name: value for name, value in lineage.items() if name != SEAL})
