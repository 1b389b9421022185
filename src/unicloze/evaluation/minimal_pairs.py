"""Reads BLiMP's minimal pairs from a folder or an archive of .jsonl files."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from unicloze.errors import UniclozeError
from unicloze.records.line_files import jsonl
from unicloze.records.plain_files import decoded

LARGEST_FILE = 64 * 2**20
"""Maximum size of a set in bytes; BLiMP's have half a megabyte."""
LARGEST_ARCHIVE = 2**30
"""Maximum total size in bytes of an archive's members, unpacked."""
_CHUNK_BYTES = 2**20
_COMPRESSIONS: Mapping[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
"""Functions to open compressed files, by their first bytes."""

_FIELDS = "sentence_good", "sentence_bad", "UID", "field", "linguistics_term"
_AS_PUBLISHED = {"syntax/semantics": "syntax_semantics", "s-selection": "argument_structure"}
"""Names in the files that differ from the paper, which has four fields and twelve phenomena."""


@dataclass(frozen=True, kw_only=True)
class PairSet:
    """A set of minimal pairs of one kind."""

    name: str  # its UID
    field: str  # field of linguistics, such as `morphology`
    term: str  # the phenomenon, such as `anaphor_agreement`
    pairs: Sequence[tuple[str, str]]  # pairs of an acceptable and an unacceptable sentence
    filtered: int = 0  # number of pairs removed by a filter


def read_pairs(path: str | Path) -> list[PairSet]:
    """The sets of a folder of .jsonl files, a .tar archive of them (also .gz, .bz2, .xz), or one file, sorted by name.

    An archive is read as a stream and never unpacked to disk; members other than regular .jsonl files are ignored.
    """
    place = Path(path).expanduser()
    raw: Iterable[tuple[str, bytes]]
    if place.is_dir():
        files = sorted(file for file in place.iterdir() if _is_set(file.name) and file.is_file())
        raw = ((str(file), _read(file)) for file in files)
    elif place.is_file():
        raw = [(str(place), _read(place))] if _is_set(place.name) else _members(place)
    else:
        raise UniclozeError(
            f"There is no file or folder {place}: name the folder of BLiMP's .jsonl files, or an archive of them."
        )
    sets: dict[str, PairSet] = {}
    for name, content in raw:
        one = _parse(name, content)
        if one.name in sets:
            raise UniclozeError(f"{name} is a second file of the set {one.name}: remove one of them.")
        sets[one.name] = one
    if not sets:
        raise UniclozeError(f"{place} has no .jsonl files: name the folder of BLiMP's sets, or an archive of them.")
    return [sets[name] for name in sorted(sets)]


def _is_set(name: str) -> bool:
    return name.endswith(".jsonl") and not name.startswith(".")


def _read(file: Path) -> bytes:
    if file.stat().st_size > LARGEST_FILE:
        raise UniclozeError(f"{file} has more than {LARGEST_FILE // 2**20} MB: a set of minimal pairs has far less.")
    return file.read_bytes()


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of each set of an archive."""
    total = 0
    try:
        with archive.open("rb") as raw:
            start = raw.read(8)
        unpack = next((opener for magic, opener in _COMPRESSIONS.items() if start.startswith(magic)), open)
        with unpack(archive, "rb") as unpacked, tarfile.open(fileobj=unpacked, mode="r|") as stream:
            for member in stream:
                total += member.size
                wanted = member.isreg() and _is_set(PurePosixPath(member.name).name)
                if total > LARGEST_ARCHIVE or (wanted and member.size > LARGEST_FILE):
                    raise UniclozeError(
                        f"{archive} unpacks to far more than BLiMP, at {member.name}: name another archive."
                    )
                if not wanted:
                    continue
                content = stream.extractfile(member)
                assert content is not None  # it is a regular file
                yield f"{archive}:{member.name}", content.read()
            for _ in range(LARGEST_ARCHIVE // _CHUNK_BYTES):  # the checksum at the end reveals damage
                if not unpacked.read(_CHUNK_BYTES):
                    break
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UniclozeError(f"{archive} is not an archive, or is damaged ({error}): fetch it again.") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise UniclozeError(f"{archive} is not an archive, or is damaged ({error}): fetch it again.") from error


def _parse(name: str, content: bytes) -> PairSet:
    kind: tuple[str, str, str] | None = None
    pairs = []
    for number, record in jsonl(decoded(content, name), name):
        place = f"{name}, line {number}"
        good, bad, uid, field, term = _texts(record, place)
        if kind is not None and kind != (uid, field, term):
            raise UniclozeError(
                f"{place} belongs to the set {uid}, but the lines before it to {kind[0]}: fix the line."
            )
        kind = uid, field, term
        pairs.append((good, bad))
    if kind is None:
        raise UniclozeError(f"{name} has no pairs: remove it, or fetch it again.")
    uid, field, term = kind
    return PairSet(name=uid, field=_AS_PUBLISHED.get(field, field), term=_AS_PUBLISHED.get(term, term), pairs=pairs)


def _texts(record: Mapping[str, Any], place: str) -> list[str]:
    """The fields of a line."""
    values = [record.get(field) for field in _FIELDS]
    for field, value in zip(_FIELDS, values, strict=True):
        if not isinstance(value, str) or not value.strip():
            raise UniclozeError(f'{place} has no text in the field "{field}": fix or remove the line.')
    return values  # type: ignore[return-value]  # they are all texts
