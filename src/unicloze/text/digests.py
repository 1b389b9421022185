"""Digests of the files of a prepared folder, to detect damage before training on it.

    FOLDER/digests.json   SHA-256 of each 1 MiB block of each file; shards outside the folder by full path

`lineage.json` holds the digest of that file and a digest of itself. Small files are checked whole when they are opened; token
files block by block when first read, so that a large corpus need not be read before the first step.
"""

from __future__ import annotations

import hashlib
import json
import warnings
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
"""Schema version of `digests.json`."""
BLOCK = 2**20
"""Size of a block in bytes."""
SEAL = "seal"
"""Key in `lineage.json` of the digest of its other entries."""


class Blocks:
    """The blocks of one file, each verified when it is first read.

    Args:
        path: The file.
        digests: SHA-256 of each block, in hexadecimal.
        cure: Advice in error messages.
    """

    def __init__(self, path: Path, digests: list[str], cure: str) -> None:
        self._path, self._digests, self._cure = path, digests, cure
        self._unread = np.ones(len(digests), dtype=bool)

    def check(self, content: npt.NDArray[np.uint8], starts: Int64s, ends: Int64s) -> None:
        """Verify the blocks that contain the given byte ranges, unless already verified.

        Args:
            content: The bytes of the file. *Shape:* (bytes,)
            starts: First byte of each range. *Shape:* (ranges,)
            ends: End of each range, exclusive. *Shape:* (ranges,)

        Raises:
            UniclozeError: A block has changed; the message names its bytes.
        """
        if -(-len(content) // BLOCK) != len(self._digests):
            raise UniclozeError(
                f"{self._path} has {len(content):,} bytes, a different size than when it was prepared: {self._cure}"
            )
        if not len(starts) or not self._unread.any():
            return
        first, last = starts // BLOCK, (ends - 1) // BLOCK
        touched = np.concatenate([first, last, *(np.arange(a, b) for a, b in _long(first, last))])
        for block in np.unique(touched[self._unread[touched]]).tolist():
            start, end = block * BLOCK, min(len(content), (block + 1) * BLOCK)
            if hashlib.sha256(content[start:end].data).hexdigest() != self._digests[block]:
                raise UniclozeError(f"{self._path} is damaged between bytes {start:,} and {end:,}: {self._cure}")
            self._unread[block] = False

    def check_all(self, content: npt.NDArray[np.uint8]) -> None:
        """Verify every block, including those already verified."""
        self._unread[:] = True
        size = min(1, len(content))
        self.check(content, np.zeros(size, np.int64), np.full(size, len(content), np.int64))


def _long(first: Int64s, last: Int64s) -> Iterable[tuple[int, int]]:
    """Blocks strictly between the first and last block of each range, as (start, end), where there are any."""
    long = last - first > 1
    return zip((first[long] + 1).tolist(), last[long].tolist(), strict=True)


class Digests:
    """The digests of a prepared folder.

    Args:
        folder: The folder.
        files: SHA-256 of each block, by file name.
    """

    def __init__(self, folder: Path, files: Mapping[str, list[str]]) -> None:
        self._folder, self._files = folder, files
        self._cure = f"remove {folder} and prepare again."

    @classmethod
    def make(cls, folder: Path, elsewhere: Iterable[Path] = (), known: Mapping[Path, list[str]] | None = None) -> str:
        """Write `digests.json` for all files of a folder and some files outside it; returns the digest of `digests.json`."""
        inside = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != FILE)
        named = {file.relative_to(folder).as_posix(): file for file in inside} | {str(file): file for file in elsewhere}
        known = known or {}
        files = {name: known.get(file) or list(digests_of(file)) for name, file in named.items()}
        text = json.dumps({"schema": SCHEMA, "block": BLOCK, "files": files}, indent=1) + "\n"
        (folder / FILE).write_text(text, encoding="utf-8")
        return hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def open(cls, folder: Path, lineage: Mapping[str, Any], *, required: bool) -> Digests | None:
        """Open the digests of a folder; None, with a warning, if an older version prepared it and they are not required."""
        if "digests" not in lineage and required:
            raise UniclozeError(
                f"{folder} was prepared by an older version, without digests to verify: remove it and prepare again, or use "
                "it unverified with --data.prepared."
            )
        if "digests" not in lineage:
            warnings.warn(
                f"{folder} was prepared by an older version, without digests, so that damage to it may go unnoticed: prepare "
                "it again to add them",
                stacklevel=2,
            )
            return None
        file = folder / FILE
        raw = file.read_bytes() if file.is_file() else b""
        if hashlib.sha256(raw).hexdigest() != lineage["digests"]:
            raise UniclozeError(f"{file} is missing or damaged: remove {folder} and prepare again.")
        content = json.loads(raw)
        if (content["schema"], content["block"]) != (SCHEMA, BLOCK):
            raise UniclozeError(f"{file} does not have schema {SCHEMA}: remove {folder} and prepare again.")
        return cls(folder, content["files"])

    def blocks(self, path: Path) -> Blocks:
        """The blocks of a file."""
        inside = path.is_relative_to(self._folder)
        name = path.relative_to(self._folder).as_posix() if inside else str(path)
        if name not in self._files:
            raise UniclozeError(f"{path} did not exist when {self._folder} was prepared: {self._cure}")
        return Blocks(path, self._files[name], self._cure)

    def check(self, *paths: Path) -> None:
        """Verify whole files, ignoring missing ones."""
        for path in (path for path in paths if path.is_file()):
            self.blocks(path).check_all(np.fromfile(path, dtype=np.uint8))


def digests_of(file: Path) -> Iterable[str]:
    """SHA-256 of each block of a file, in hexadecimal."""
    with file.open("rb") as stream:
        while block := stream.read(BLOCK):
            yield hashlib.sha256(block).hexdigest()


def seal(lineage: Mapping[str, Any]) -> str:
    """Digest of a lineage, excluding its seal."""
    return digest({name: value for name, value in lineage.items() if name != SEAL})


"""Schema version of `lineage.json`."""
