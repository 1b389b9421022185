"""Files on object storage and other file systems, named by URL and accessed through fsspec; needs the extra `storage`.

Recipes, ledgers and lineages record URLs, so a URL with credentials is refused: the protocol's package reads them from the
environment or from its configuration files.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import total_ordering
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from unicloze.errors import UniclozeError, UsageError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(::.*)?://")
_WRAPPERS = {
    "async_wrapper", "asynclocal", "asyncwrapper", "blockcache", "cached", "dask", "data", "dir", "filecache", "generic",
    "libarchive", "reference", "simplecache", "tar", "zip",
}  # fmt: skip
"""Protocols that open what a file or another URL tells them to."""
_MODIFIED = "LastModified", "last_modified", "mtime", "modified", "updated", "created"
_ETAGS = "ETag", "etag"
_MAGIC = re.compile(r"[*?\[]")
_AT_ONCE = 2**20
_SECRET = re.compile(r"://[^/@:\s\[]*:(?!\d+(?:/|$))\S*@")
"""A name with a secret, which may contain slashes (AWS), but no port."""
_LOGIN = re.compile(rf"{_SECRET.pattern}|://[^/]*@")


def is_url(name: object) -> bool:
    """Whether a name is a URL, such as `s3://bucket/texts`."""
    return _URL.match(str(name)) is not None


def shown(url: str) -> str:
    """A URL without user name, password and query."""
    return re.sub(r"\?[^/]*=.*", "", _LOGIN.sub("://", url))


def problem_with(url: str) -> str | None:
    """Why a URL is refused, as the rest of a sentence; None if it is not."""
    protocol = _URL.match(url)
    assert protocol is not None
    if "::" in url or protocol[1].lower() in _WRAPPERS:
        return "it opens one file system through another: give the URL of the files themselves"
    place, is_web = url.removeprefix(protocol[0]).split("/")[0], protocol[1].lower() in ("http", "https")
    login = place.rpartition("@")[0]
    if (
        ":" in login
        or (is_web and login)
        or _SECRET.search(url)
        or re.search(r"[?&][^/]*=", url)
        or (is_web and "?" in url)
    ):
        return (
            "it contains credentials or a query, and URLs are recorded: give credentials through the environment or the "
            "configuration of the protocol's package"
        )
    return None


@dataclass(frozen=True)
class Status:
    """What is known about the content of a stored file without reading it."""

    st_size: int  # its size in bytes
    st_mtime_ns: int  # when it was modified, in nanoseconds since 1970; 0 if unknown
    etag: str  # what the storage calls this version of the content; empty if it names none

    @classmethod
    def of(cls, url: str, info: Mapping[str, Any]) -> Status:
        """The status in fsspec's description of a file."""
        size = info.get("size")
        if not isinstance(size, int):
            raise UniclozeError(f"The storage does not tell the size of {url}: copy the file to a disk.")
        time = next((info[key] for key in _MODIFIED if info.get(key) is not None), 0)
        if isinstance(time, str):
            with contextlib.suppress(ValueError):
                time = datetime.datetime.fromisoformat(time)
        if isinstance(time, datetime.datetime):
            time = (time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).timestamp()
        nanoseconds = round(time * 1e9) if isinstance(time, int | float) else 0
        etag = next((str(info[key]) for key in _ETAGS if info.get(key)), "")
        return cls(size, max(0, nanoseconds), etag.removeprefix("W/").strip('"'))


@total_ordering
@dataclass(frozen=True)
class StoredFile:
    """A file on a file system of fsspec, with those methods of `Path` that readers use."""

    url: str  # its URL
    path: str = field(compare=False)  # its path on the file system
    system: Any = field(compare=False, repr=False)  # the file system
    known: Status | None = field(default=None, compare=False)  # its status, if it was listed just now

    def __str__(self) -> str:
        return self.url

    def __lt__(self, other: StoredFile) -> bool:
        return self.url < other.url

    @property
    def name(self) -> str:
        """The last part of its path."""
        return PurePosixPath(self.path).name

    @property
    def suffix(self) -> str:
        """The suffix of its name."""
        return PurePosixPath(self.path).suffix

    def is_file(self) -> bool:
        """Whether it still exists."""
        with explained(self.url):
            self.system.invalidate_cache()
            return bool(self.system.isfile(self.path))

    exists = is_file

    def stat(self) -> Status:
        """Its size and version, as listed, else as they are now."""
        if self.known is not None:
            return self.known
        with explained(self.url):
            self.system.invalidate_cache()
            return Status.of(self.url, self.system.info(self.path))

    def open(self, mode: Literal["rb"] = "rb", buffering: int = -1) -> io.BufferedReader:
        """Open it for reading."""
        with explained(self.url):
            raw = _Explained(self.url, self.system.open(self.path, mode))
        return io.BufferedReader(raw, _AT_ONCE)


File = Path | StoredFile
"""A file on a disk or in a storage."""


class _Explained(io.RawIOBase):
    """An opened file whose failures are one sentence each."""

    def __init__(self, url: str, stream: Any) -> None:
        self._url, self._stream = url, stream

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._stream.seekable())

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer)
        with explained(self._url):
            found = self._stream.read(len(view))
        view[: len(found)] = found
        return len(found)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        with explained(self._url):
            return int(self._stream.seek(offset, whence))

    def tell(self) -> int:
        return int(self._stream.tell())

    def close(self) -> None:
        self._stream.close()
        super().close()


def opened(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path on it."""
    problem = problem_with(url)
    if problem is not None:
        raise UsageError(f"{shown(url)} cannot be used: {problem}.")
    try:
        from fsspec.core import url_to_fs
        from fsspec.registry import known_implementations
    except ImportError as error:
        raise UsageError(f'{url} needs the package fsspec: in the clone, pip install -e ".[storage]"') from error
    protocol = urlsplit(url).scheme
    with explained(url):
        try:
            system, path = url_to_fs(url)
        except ImportError as error:
            cure = known_implementations.get(protocol, {}).get("err") or str(error)
            raise UsageError(
                f'{url} needs a package that is not installed: {cure} (besides pip install -e ".[storage]" in the clone).'
            ) from error
        except ValueError as error:
            if "Protocol not known" not in str(error):
                raise
            raise UsageError(
                f"No installed package knows {protocol}://: correct {url}, or install the fsspec package of this protocol."
            ) from error
    return system, str(path)


def file_at(url: str) -> StoredFile:
    """The file of a URL, which may not exist."""
    system, path = opened(url)
    return StoredFile(url, path, system)


def stored_files(url: str, *, hidden: bool = False) -> list[StoredFile]:
    """All files that a URL names, sorted: a file, everything below a folder, or the matches of a glob (`**` allowed)."""
    system, path = opened(url)
    files: dict[str, Mapping[str, Any]] = {}
    with explained(url):
        system.invalidate_cache()
        if _MAGIC.search(path):
            found = system.glob(path, detail=True)
        else:
            try:
                found = {path: system.info(path)}
            except FileNotFoundError:
                found = {}
        for name, info in found.items():
            if info.get("type") == "file":
                files[name] = info
            elif info.get("type") == "directory":
                files |= {below: each for below, each in system.find(name, detail=True).items()}
    named = _MAGIC.split(path)[0].rstrip("/") if _MAGIC.search(path) else path.rstrip("/")
    return sorted(
        StoredFile(_url_of(url, system, name), name, system, Status.of(name, info))
        for name, info in files.items()
        if info.get("type") == "file" and hidden == ("/." in name.removeprefix(named))
    )


def _url_of(given: str, system: Any, path: str) -> str:
    """The URL of a path on the file system of a given URL."""
    parts = urlsplit(given)
    if "host" in type(system)._get_kwargs_from_urls(given) or "@" in parts.netloc:  # the path has no server
        inside = path if path.startswith("/") else "/" + path.partition("/")[2]
        return f"{parts.scheme}://{parts.netloc}{inside}"
    return str(system.unstrip_protocol(path))


@contextlib.contextmanager
def explained(url: str) -> Iterator[None]:
    """Convert what a file system raises, which each does in its own way, to a `UniclozeError`."""
    try:
        yield
    except UniclozeError:
        raise
    except Exception as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        reason = (
            re.sub(r"\?\S*|//[^/\s]*@", "", _LOGIN.sub("://", " ".join(said.split())))[:200] or type(error).__name__
        )
        raise UniclozeError(
            f"{shown(url)} cannot be used ({reason}): check the name, the network and your credentials."
        ) from error
