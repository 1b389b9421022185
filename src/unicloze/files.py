"""Files: their names in a run, bounded reads of untrusted ones, content hashes, and atomic writes."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import math
import os
import re
import shutil
import socket
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from unicloze.errors import UniclozeError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


def digest(value: Any) -> str:
    """SHA-256 of a JSON-serialisable value, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def file_sha256(file: Path) -> str:
    """SHA-256 of a file's bytes."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def finite(data: Any) -> Any:
    """The data with non-finite floats, which JSON cannot represent, replaced by None."""
    if isinstance(data, Mapping):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


class Plain:
    """A dataclass whose fields are JSON-serialisable, for the output of `--json`."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as a JSON-serialisable dictionary."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]  # a dataclass
        return {field.name: _plain(getattr(self, field.name)) for field in fields}


T = TypeVar("T")


class PlainList(list[T]):
    """A list of such results."""

    def to_dict(self) -> list[dict[str, Any]]:
        """The fields of each as a JSON-serialisable dictionary."""
        return [_plain(each) for each in self]


def _plain(data: Any) -> Any:
    """The data for JSON: dataclasses by their fields, unless they say themselves how, and paths as text."""
    if dataclasses.is_dataclass(data):
        return data.to_dict() if isinstance(data, Plain) else Plain.to_dict(data)  # type: ignore[arg-type]
    if isinstance(data, Mapping):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    return str(data) if isinstance(data, Path) else data


LARGEST_FILE = 2**30
"""Largest file that is read whole, in bytes after decompression."""
LONGEST_LINE = 2**26
"""Longest line of JSON, in bytes."""
SPARE, RATIO = 2**25, 100
"""A compressed file may unpack to at most `SPARE` bytes plus `RATIO` times its own size; text needs a tenth of that."""
_OWN_PIPES = "/dev/fd/", "/dev/stdin", "/proc/self/fd/"
_AT_ONCE = 2**20


def require_file(path: Path) -> None:
    """Refuse a pipe, a device or a socket, which might never end; pipes of this process are allowed."""
    kind = path.stat().st_mode
    if stat.S_ISREG(kind) or stat.S_ISDIR(kind) or str(path).startswith(_OWN_PIPES):
        return
    raise UniclozeError(f"{path} is a pipe or a device: give a file.")


def leads_out(path: Path, folder: Path) -> bool:
    """Whether a file is a link out of its folder; a Hugging Face cache snapshot may link to its sibling `blobs` folder."""
    real, home = path.resolve(), folder.resolve()
    cached = home.parent.name == "snapshots" and real.parent == home.parent.parent / "blobs"
    return not (real.is_relative_to(home) or cached)


class Unpacked(io.RawIOBase):
    """The content of a compressed file, as a stream that rejects decompression bombs.

    It closes the decompressor and the compressed stream, of which `packed` returns the number of bytes read so far.
    """

    def __init__(self, path: object, stream: Any, raw: BinaryIO, packed: Callable[[], int]) -> None:
        self._path, self._stream, self._raw, self._packed, self._size = path, stream, raw, packed, 0

    def readable(self) -> bool:
        """Always true."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read, and check the total size so far."""
        found = self._stream.read(len(memoryview(buffer)))
        memoryview(buffer)[: len(found)] = found
        self._size += len(found)
        if self._size > SPARE + RATIO * self._packed():
            raise UniclozeError(
                f"{self._path} unpacks to more than {RATIO} times its size, which text never does: give another file."
            )
        return len(found)

    def close(self) -> None:
        """Close both streams."""
        self._stream.close()
        self._raw.close()
        super().close()


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading, decompressed if its name ends in .gz."""
    require_file(path)
    raw = path.open("rb")
    if path.suffix != ".gz":
        return raw
    return io.BufferedReader(Unpacked(path, gzip.GzipFile(fileobj=raw), raw, raw.tell), _AT_ONCE)


def read_bytes(path: Path, largest: int = LARGEST_FILE) -> bytes:
    """Read a whole file, decompressed if its name ends in .gz."""
    with open_bytes(path) as stream:
        raw = bytearray()
        while block := stream.read(_AT_ONCE):
            raw += block
            if len(raw) > largest:
                raise UniclozeError(f"{path} has more than {largest:,} bytes, the limit for this kind of file.")
    return bytes(raw)


def parse_json(text: str | bytes) -> Any:
    """Parse JSON."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except ValueError as error:
        if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
            raise
        raise ValueError("a number has thousands of digits") from error


def misfit(value: Any, shape: Any, place: str = "") -> str | None:
    """Path of the first part of a structure that does not match its schema; None if all of it matches.

    Args:
        value: The parsed value.
        shape: The schema: a type or a tuple of types; `[shape]` for a list of such values; `{key: shape}` for a mapping with
            at least these keys, where a key ending in "?" is optional. Integers must be from 0 to 2**63 - 1, and strings
            must not contain NUL.
        place: Path of the value itself.
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


RECIPE = "recipe.yaml"
"""All settings."""
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
LEDGER = "ledger.jsonl"
"""Events of the run, one per line."""
LOCK, HOLDER = "lock", "lock.holder"
"""Lock file of a run, and the file naming its holder, which remains as a sign that the folder is a run."""
CHECKPOINTS = "checkpoints"
BEST = "best"
"""Folder of the checkpoints of the best evaluation."""
AVERAGED = "averaged"
"""Folder of the weights at the last evaluations, whose mean is evaluated."""
MANIFEST = "manifest.json"
"""SHA-256 sums of a checkpoint's files; written last."""
WEIGHTS = "model.safetensors"
BASELINES = "baselines.json"
"""What a pre-training is compared with, and the held-out sentences whose content words it is asked for."""
BEGINNING = "toy.jsonl"
"""The beginning of the corpus, which a toy run reads."""
RESULTS = "results.json"
"""Scores of a fine-tuning over its seeds."""
DEV_PREDICTIONS = "dev_predictions.jsonl"
"""Predictions of the best checkpoint, with references."""
DEV_SAMPLES = "dev_samples.jsonl"
"""A sample of these predictions with their records, for inspection."""
LINEAGE = "lineage.json"
"""Origin of prepared text; written last."""

_BEGINNING = 2**16
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a temporary file next to `path`, sync it and rename it into place.

    A symbolic link keeps pointing to its file, which is replaced; devices and pipes are written to directly.
    """
    content = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(content)
        return
    path = real_place(path)
    temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.is_file():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's entries, are on the disk."""
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):
        return  # Windows does not open folders
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)  # Windows syncs no file opened to read
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_run(folder: Path) -> bool:
    """Whether a run holds a folder or wrote to it."""
    return any((folder / name).exists() for name in (LEDGER, LOCK, HOLDER))


class InUse(UniclozeError):
    """Another process holds a lock."""


@contextmanager
def hold(lock: Path, place: Path, cure: str, *, keep: bool = False, wait: bool = False) -> Iterator[None]:
    """Hold a lock file for this process; it is released when the process ends, even if killed."""
    from filelock import FileLock, Timeout

    from unicloze.progress import say

    holder, held = lock.with_name(f"{lock.name}.holder"), FileLock(lock)
    try:
        held.acquire(timeout=0)
    except Timeout:
        known = ""
        with suppress(FileNotFoundError):  # the other process has just ended
            known = holder.read_text(encoding="utf-8").strip()
        error = InUse(f"{place} is in use by {known or 'another process'}: {cure}")
        if not wait:
            raise error from None
        say(str(error))
        held.acquire()
    try:
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        holder.write_text(f"process {os.getpid()} on {socket.gethostname()} since {started}", encoding="utf-8")
        yield
    finally:
        if keep:
            holder.write_text("", encoding="utf-8")
        else:
            holder.unlink(missing_ok=True)
            with suppress(PermissionError):  # Windows removes no open file
                lock.unlink(missing_ok=True)  # while it is held, so that no other process holds what is removed
        held.release()
        if not keep and os.name == "nt":
            with suppress(PermissionError):  # another process has it by now
                lock.unlink(missing_ok=True)


def is_utf8(name: str) -> bool:
    """Whether a name can be written to a file; Python reads a byte that is not UTF-8 as half of a surrogate pair."""
    return not _SURROGATE.search(name)


def at_home(path: str | Path) -> Path:
    """A path with the folder of the user in place of a leading `~`, or of the one named after it."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UniclozeError(f"{path} names the home of an unknown user: correct the path.") from error


def as_umask_says(file: Path) -> None:
    """Give a file the default mode of new files; some libraries create theirs readable only by the owner."""
    mask = os.umask(0)
    os.umask(mask)
    file.chmod(0o666 & ~mask)


def real_place(path: Path) -> Path:
    """The target of a symbolic link, or the path itself."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def begins_like(file: Path, *patterns: bytes) -> bool:
    """Whether a file is blank, or the beginning of it matches one of these patterns after white space."""
    with file.open("rb") as opened:
        found = opened.read(_BEGINNING).lstrip()
    return not found or any(re.match(pattern, found, re.DOTALL) for pattern in patterns)


def write_file(path: Path, content: str | bytes, what: str = "it", cure: str = "run the same command again") -> None:
    """`replace_file`, with a `UniclozeError` on failure."""
    try:
        replace_file(path, content)
    except OSError as error:
        raise UniclozeError(f"{path}: cannot write {what}: {error.strerror}; {cure}.") from error
