"""What strangers wrote, read within bounds: files that are files, of a size that memory holds, and JSON of any shape."""

from __future__ import annotations

import gzip
import io
import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from unicloze.errors import UniclozeError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

LARGEST_FILE = 2**30
"""Most bytes of a file that is read whole, unpacked."""
LONGEST_LINE = 2**26
"""Most bytes of a line of JSON."""
SPARE, RATIO = 2**25, 100
"""A compressed file may unpack to so many bytes, and to so many times its own size beyond that; text needs a tenth of it."""
_OWN_PIPES = "/dev/fd/", "/dev/stdin", "/proc/self/fd/"
_AT_ONCE = 2**20


def require_file(path: Path) -> None:
    """Refuse a pipe, a device or a socket, which might never end; a pipe of this process may be read.

    Raises:
        UniclozeError: It is one.
        OSError: It is not there, or links lead in a circle.
    """
    kind = path.stat().st_mode
    if stat.S_ISREG(kind) or stat.S_ISDIR(kind) or str(path).startswith(_OWN_PIPES):
        return
    raise UniclozeError(f"{path} is a pipe or a device: give a file.")


def leads_out(path: Path, folder: Path) -> bool:
    """Whether a file of a folder is a link to elsewhere, but for the blobs beside a snapshot of Hugging Face's cache."""
    real, home = path.resolve(), folder.resolve()
    cached = home.parent.name == "snapshots" and real.parent == home.parent.parent / "blobs"
    return not (real.is_relative_to(home) or cached)


class Unpacked(io.RawIOBase):
    """The content of a compressed file, refused where it is far more than text would be.

    Args:
        path: The file.
        stream: What unpacks it.
        raw: What it unpacks, closed with this.
        packed: Says how many bytes of the file were read so far.
    """

    def __init__(self, path: Path, stream: Any, raw: BinaryIO, packed: Callable[[], int]) -> None:
        self._path, self._stream, self._raw, self._packed, self._size = path, stream, raw, packed, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read and count."""
        found = self._stream.read(len(memoryview(buffer)))
        memoryview(buffer)[: len(found)] = found
        self._size += len(found)
        if self._size > SPARE + RATIO * self._packed():
            raise UniclozeError(
                f"{self._path} unpacks to more than {RATIO} times its size, as no text does: it is not read further."
            )
        return len(found)

    def close(self) -> None:
        """Close both streams."""
        self._stream.close()
        self._raw.close()
        super().close()


def open_bytes(path: Path) -> BinaryIO:
    """A file to read, unpacked if its name ends in .gz.

    Raises:
        UniclozeError: It is a pipe or a device. Reading raises it where a compressed file unpacks to far too much.
        OSError: It cannot be read.
    """
    require_file(path)
    raw = path.open("rb")
    if path.suffix != ".gz":
        return raw
    return io.BufferedReader(Unpacked(path, gzip.GzipFile(fileobj=raw), raw, raw.tell), _AT_ONCE)


def read_bytes(path: Path, largest: int = LARGEST_FILE) -> bytes:
    """A whole file, unpacked if its name ends in .gz.

    Raises:
        UniclozeError: It is a pipe or a device, or larger than `largest`.
        OSError: It cannot be read.
        EOFError: It is compressed and cut off.
        zlib.error: It is compressed and damaged.
    """
    with open_bytes(path) as stream:
        raw = bytearray()
        while block := stream.read(_AT_ONCE):
            raw += block
            if len(raw) > largest:
                raise UniclozeError(f"{path} has more than {largest:,} bytes, too many for a file of this kind.")
    return bytes(raw)


def parse_json(text: str | bytes) -> Any:
    """What a text says in JSON.

    Raises:
        ValueError: It is none, is nested too deep, or holds a number of thousands of digits.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def misfit(value: Any, shape: Any, place: str = "") -> str | None:
    """Where a structure is not what it should be; None if it is.

    Args:
        value: What was read.
        shape: A type or several; a list of one shape for a list of such; a mapping of shapes by key for a mapping that has
            these keys and maybe more. A key that ends in "?" may be missing. Whole numbers have 63 bits and no sign,
            and no text has a NUL character.
        place: Name of the value, for the answer.
    """
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return place or "all of it"
        found = ((key.removesuffix("?"), inner, key.endswith("?")) for key, inner in shape.items())
        parts = [(value.get(key), inner, f"{place}.{key}") for key, inner, may in found if key in value or not may]
    elif isinstance(shape, list):
        if not isinstance(value, list):
            return place or "all of it"
        parts = [(inner, shape[0], f"{place}.{number}") for number, inner in enumerate(value)]
    else:
        allowed = shape if isinstance(shape, tuple) else (shape,)
        fits = type(value) in allowed and (type(value) is not int or 0 <= value < 2**63)
        return None if fits and "\0" not in str(value) else place or "all of it"
    return next((said for one in parts if (said := misfit(*one)) is not None), None)
