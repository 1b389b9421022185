"""Streams documents from .txt, .jsonl and .parquet files; memory use does not grow with the corpus.

In .txt files blank lines separate documents. Compressed files (.gz, .zst) are read directly.
"""

from __future__ import annotations

import bisect
import fnmatch
import glob
import gzip
import hashlib
import io
import itertools
import os
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

from unicloze.errors import UniclozeError
from unicloze.files import LONGEST_LINE, RATIO, SPARE, Unpacked, at_home, parse_json
from unicloze.storage import File, is_url, stored_files

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

PIECE = 2**16
"""Smallest number of characters in a piece; texts longer than twice that are cut."""
_LONGEST = 16
_PLACES = (
    re.compile(r"() (?<=\w )(?=\w)"),
    re.compile(r"()[ \t\r\n](?<=\w.)[ \t\r\n]*(?=\w)", re.DOTALL),
    re.compile(r"()[ \t\r\n](?<=\S.)[ \t\r\n]*(?=\S)", re.DOTALL),
)
"""Places to cut, best first. Tokenizers disagree about others: BERT's drop a form feed, which joins the words around it;
some attach punctuation to the following line break; some keep a trailing space as a token."""
_PUNCTUATION = re.compile("[,;:.!?\u3001\u3002\uff0c\uff1b\uff1a\uff0e\uff01\uff1f]()(?=\\w)")
_JOINER = "\u200d"
_GAP = re.compile(r"\s\S")
_NEAR = 64
"""Characters that are always near; else a quarter of what is to be cut off."""


def pieces_of(text: str) -> Iterator[str]:
    """Cut a text into pieces: 64 Ki characters up to the next place where a cut changes no token, at most 1 Mi characters.

    Without such a place it is cut after punctuation, else between two characters, never before a combining mark.
    """
    start = 0
    while len(text) - start > 2 * PIECE:
        first, last = start + PIECE, min(len(text), start + _LONGEST * PIECE)
        places = _PLACES if last == len(text) else (*_PLACES, _PUNCTUATION)
        found = (place.search(text, first, last) for place in places)
        end = next((match.start(1) for match in found if match), None) or between_characters(text, first, last)
        yield text[start:end]
        start = end
    if start < len(text) or not text:
        yield text[start:]


def tail_start(text: str, size: int) -> int:
    """Approximate start of the last `size` bytes of a text, moved to the beginning of a word if one is near."""
    at = len(text) - max(1, size * len(text) // len(text.encode()))
    gap = _GAP.search(text, at, at + max(_NEAR, (len(text) - at) // 4))
    return gap.start() + 1 if gap else between_characters(text, 0, at)


def utf8_size(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def visible(text: str) -> int:
    """Number of characters that are not white space."""
    return len("".join(text.split()))


def last_visible(text: str, count: int) -> int:
    """Start of the last `count` characters of a text, not counting white space."""
    return bisect.bisect_right(range(len(text)), -count, key=lambda at: -visible(text[at:])) - 1


def between_characters(text: str, first: int, last: int) -> int:
    """The last cut in (first, last] that separates no character from its marks; `last` if there is none."""
    place = last
    while first < place < len(text):
        left, right = text[place - 1], text[place]
        joined = _JOINER in (left, right) or "\u1160" <= right <= "\u11ff"  # emoji, parts of a Korean syllable
        if not joined and not unicodedata.category(right).startswith("M"):
            break
        place -= 1
    return place if place > first else last


# Spans of a document that its record marks as phrases or entities (ERNIE, Section 3.2).

SpanKind = Literal["phrase", "entity"]
Span = tuple[int, int, str]
"""First character, end and kind."""

KINDS: tuple[SpanKind, ...] = ("phrase", "entity")


@dataclass(frozen=True, kw_only=True, slots=True)
class Spans:
    """The spans of a document or of a part of it."""

    # Spans in order; those of one kind do not overlap. In a part, a span may begin before the part or end after it.
    found: tuple[Span, ...] = ()
    gives: frozenset[str] = frozenset()  # kinds of the spans of the whole document

    def part(self, start: int, end: int) -> Spans:
        """The spans of the characters from `start` to `end`, counted from `start`."""
        inside = (span for span in self.found if span[0] < end and span[1] > start)
        return Spans(found=tuple((first - start, stop - start, kind) for first, stop, kind in inside), gives=self.gives)

    def without(self, text: str, character: str) -> Spans:
        """The spans after each occurrence of a character is removed from the text."""
        moved = ((a - text.count(character, 0, a), b - text.count(character, 0, b), kind) for a, b, kind in self.found)
        return Spans(found=tuple(span for span in moved if span[0] < span[1]), gives=self.gives)


NO_SPANS = Spans()


def read_spans(value: Any, text: str, place: str, field: str) -> Spans:
    """The spans that a record gives for its text."""
    if value is None:
        return NO_SPANS
    if not isinstance(value, list):
        raise UniclozeError(
            f'{place}: the field "{field}" is not a list of spans such as [[0, 5], [9, 14, "phrase"]]: fix the line, or name '
            "another field with --data.spans_field."
        )
    found = sorted(_span(entry, text, place, field) for entry in value)
    for kind in KINDS:
        for one, other in itertools.pairwise(span for span in found if span[2] == kind):
            if other[0] < one[1]:
                raise UniclozeError(
                    f'{place}: {list(one[:2])} and {list(other[:2])} in the field "{field}" overlap and are both of kind '
                    f"{kind}: keep one of them."
                )
    return Spans(found=tuple(found), gives=frozenset(span[2] for span in found))


def _span(entry: Any, text: str, place: str, field: str) -> Span:
    """One span without the white space at its ends."""
    kind = entry[2] if isinstance(entry, list) and len(entry) == 3 else "entity"
    if not isinstance(entry, list) or len(entry) not in (2, 3) or any(type(at) is not int for at in entry[:2]):
        problem = "is not a list of two whole numbers and optionally a kind"
    elif kind not in KINDS:
        problem = f"has a kind other than {' and '.join(KINDS)}"
    elif not 0 <= entry[0] < entry[1] <= len(text):
        problem = f"is not within the {len(text):,} characters of the text, first character before the end"
    elif not (covered := text[entry[0] : entry[1]]).strip():
        problem = "covers only white space"
    else:
        first = entry[0] + len(covered) - len(covered.lstrip())
        return first, first + len(covered.strip()), kind
    raise UniclozeError(f'{place}: {str(entry)[:60]} in the field "{field}" {problem}: fix or remove it.')


SUFFIXES = ".txt", ".txt.gz", ".txt.zst", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"
"""Suffixes of the files that are read; other files in a folder are ignored."""
LONGEST_DOCUMENT = 64 * 2**20
"""Largest .txt document in bytes. Longer ones are cut at a line end, else at a space, else between two characters, so that
memory use is bounded."""
MOST_REPLACED = 0.1
"""Largest share of invalid characters at the beginning of a text that is read."""
LEAST_JUDGED = 256
"""Bytes of a text from which on that share tells another encoding from damage."""
_CHUNK_BYTES = 2**20
_BLANK_LINE = re.compile(rb"\r?\n[ \t\r]*\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_TEXT_TYPES = {"string", "large_string", "string_view", "binary", "large_binary", "binary_view"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A text and its location."""

    text: str  # not empty, without NUL characters, encodable as UTF-8
    path: str  # file, or name of a built-in text
    line: int  # line of the file (row of a .parquet file), from 1
    spans: Spans = NO_SPANS  # phrases and entities that its record marks

    def part(self, start: int, end: int) -> Document:
        """The document of the characters from `start` to `end`."""
        return replace(self, text=self.text[start:end], spans=self.spans.part(start, end))


@dataclass(kw_only=True)
class Tally:
    """Counts of documents and repairs, and the hash of the last file."""

    documents: int = 0  # documents yielded
    empty: int = 0  # documents without text, dropped
    replaced: int = 0  # invalid UTF-8 sequences (or unpaired surrogates in .jsonl), each replaced by U+FFFD
    nul: int = 0  # NUL characters, dropped
    first_bad: str | None = None  # file and line of the first repair
    # hash of the raw bytes of a file, complete once the whole file is read
    digest: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=16))


def files_at(path: str | Path) -> Sequence[File]:
    """All files a path or URL names, sorted: a file, everything below a folder, or the matches of a glob (`**` allowed).

    Links are followed. Hidden files and folders are ignored unless named explicitly.
    """
    if is_url(path):
        return stored_files(str(path))
    return local_files_at(at_home(path))


def local_files_at(path: Path) -> list[Path]:
    """`files_at` of a path."""
    return [file for file in _names_at(path) if file.is_file()]


def _names_at(place: Path, *, hidden: bool = False) -> list[Path]:
    """`files_at` including broken links; with `hidden`, only the hidden files in folders."""
    if place.is_file():
        return [] if hidden else [place]
    if place.is_dir():
        return sorted(_names_below(place, hidden))
    found = _matching(place)
    below = {name for folder in found if folder.is_dir() for name in _names_below(folder, hidden)}
    return sorted(below.union([] if hidden else (name for name in found if not name.is_dir())))


def _matching(place: Path) -> list[Path]:
    """The matches of a glob; below `**` each folder is visited once, even with circular or repeated links."""
    parts = place.parts
    if "**" not in parts:
        return [Path(name) for name in glob.glob(str(place))]
    cut = parts.index("**")
    tops = [Path(name) for name in glob.glob(str(Path(*parts[:cut])))] if cut else [Path()]
    found = []
    for top in filter(Path.is_dir, tops):
        below: set[Path] = set(_names_below(top, hidden=False))
        below.update(folder for name in [*below] for folder in name.parents if top in folder.parents)
        found += [name for name in below if _fits(name.relative_to(top).parts, parts[cut:])]
    return found


def _fits(names: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Whether the parts of a path match those of a glob, where `**` matches any number of folders."""
    if not pattern:
        return not names
    if pattern[0] == "**":
        return any(_fits(names[skipped:], pattern[1:]) for skipped in range(len(names) + 1))
    return bool(names) and fnmatch.fnmatchcase(names[0], pattern[0]) and _fits(names[1:], pattern[1:])


def _names_below(place: Path, hidden: bool) -> Iterator[Path]:
    """Everything below a folder except folders, each once."""

    def refuse(error: OSError) -> None:
        raise UniclozeError(
            f"The folder {error.filename} is not readable: change its permissions, or name another folder."
        )

    seen = set()
    for folder, folders, names in os.walk(place, followlinks=True, onerror=refuse):
        if (real := os.path.realpath(folder)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if hidden or not name.startswith("."))
        is_hidden = any(part.startswith(".") for part in Path(folder).relative_to(place).parts)
        yield from (Path(folder, name) for name in names if hidden == (is_hidden or name.startswith(".")))


def find_files(path: str | Path) -> Sequence[File]:
    """The text files among those a path names, sorted."""
    place, known = at_home(path), ", ".join(SUFFIXES)
    files = files_at(path)
    found = [file for file in files if file.name.endswith(SUFFIXES)]
    if found:
        return found
    if is_url(path) and any(file.suffix == ".ds" for file in files):
        raise UniclozeError(f"{path} holds token shards, which are read in place: copy them to a disk.")
    if not is_url(path) and place.is_file():
        raise UniclozeError(f"{place} is not of a known file type: rename or convert it to one of {known}.")
    if not is_url(path) and place.is_dir():
        raise UniclozeError(f"The folder {place} holds no text files: add files that end in one of {known}.")
    where = path if is_url(path) else place
    raise UniclozeError(f"There is no text file at {where}: name a file, folder or glob of {known}.")


def other_files(path: str | Path) -> dict[str, int]:
    """Number of files in a folder or glob that `find_files` ignores, by suffix, most frequent first.

    Broken links count as `broken link`, pipes and devices as `pipe or device`, hidden text files as `hidden`.
    """
    kinds = []
    place = at_home(path)
    shown: Sequence[File] = stored_files(str(path)) if is_url(path) else [] if place.is_file() else _names_at(place)
    hidden = stored_files(str(path), hidden=True) if is_url(path) else _names_at(place, hidden=True)
    for file in shown:
        if isinstance(file, Path) and not file.exists():
            kinds.append("broken link")
        elif isinstance(file, Path) and not file.is_file():
            kinds.append("pipe or device")
        elif not file.name.endswith(SUFFIXES):
            kinds.append(file.suffix or "without an ending")
    texts = (file for file in hidden if file.name.endswith(SUFFIXES))
    kinds += ["hidden" for file in texts if not isinstance(file, Path) or file.is_file()]
    return dict(Counter(kinds).most_common())


def read_documents(path: str | Path, text_field: str = "text", *, tally: Tally | None = None) -> Iterator[Document]:
    """The documents of a file, folder or glob, in order."""
    tally = tally if tally is not None else Tally()
    for file in find_files(path):
        yield from read_file(file, text_field, tally)


def read_file(
    file: File, text_field: str, tally: Tally, spans_field: str | None = None, field_option: str = "--data.text_field"
) -> Iterator[Document]:
    """The documents of one file; `tally.digest` is reset for each file."""
    tally.digest = hashlib.blake2b(digest_size=16)
    name = file.name.removesuffix(".gz").removesuffix(".zst")
    try:
        if name.endswith(".parquet"):
            yield from _read_parquet(file, text_field, tally, spans_field, field_option)
        else:
            with unpacked(file, tally) as stream:
                if name.endswith(".txt"):
                    yield from _read_text(file, stream, tally)
                else:
                    yield from _read_jsonl(file, stream, text_field, tally, spans_field, field_option)
    except PermissionError as error:
        raise UniclozeError(f"{file} is not readable: change its permissions.") from error
    except (EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UniclozeError(f"{file} is truncated or damaged ({error}): download or write it again.") from error


class _Hashing(io.RawIOBase):
    """A file that hashes its raw bytes as they are read."""

    def __init__(self, file: File, digest: Any) -> None:
        self._file = file.open("rb", buffering=0)
        self._digest = digest
        self.size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        count = self._file.readinto(buffer) or 0
        self._digest.update(memoryview(buffer)[:count])
        self.size += count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def unpacked(file: File, tally: Tally) -> BinaryIO:
    """The content of a file that may be compressed."""
    if file.suffix in (".gz", ".zst") and not file.stat().st_size:
        raise EOFError("it is empty")
    hashing = _Hashing(file, tally.digest)
    raw = io.BufferedReader(hashing, _CHUNK_BYTES)
    stream: Any = gzip.GzipFile(fileobj=raw) if file.suffix == ".gz" else None
    if file.suffix == ".zst":
        import pyarrow

        stream = pyarrow.CompressedInputStream(raw, "zstd")
    return raw if stream is None else io.BufferedReader(Unpacked(file, stream, raw, lambda: hashing.size), _CHUNK_BYTES)


def _text(raw: bytes, place: str, tally: Tally) -> str:
    """Decode a document; invalid UTF-8 becomes U+FFFD."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        text = raw.decode(errors="replace")
        tally.replaced += text.count("\ufffd") - raw.count("\ufffd".encode())
        tally.first_bad = tally.first_bad or f"{place}, byte {error.start} of the text"
    return _mended(text, place, tally)


def _mended(text: str, place: str, tally: Tally) -> str:
    """A text in which unpaired surrogates become U+FFFD, without NUL characters."""
    before = text
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        tally.replaced += text.count("\ufffd") - before.count("\ufffd")
    if "\0" in text:
        tally.nul += text.count("\0")
        text = text.replace("\0", "")
    if text != before:
        tally.first_bad = tally.first_bad or place
    return text


def _document(text: str, path: File | str, line: int, tally: Tally, spans: Spans = NO_SPANS) -> Iterator[Document]:
    if not text or text.isspace():
        tally.empty += 1
        return
    tally.documents += 1
    yield Document(text=text, path=str(path), line=line, spans=spans)


def _read_text(file: File, stream: BinaryIO, tally: Tally) -> Iterator[Document]:
    line, pending, searched = 1, bytearray(), 0
    first = True

    def document(raw: bytes | bytearray) -> Iterator[Document]:
        return _document(_text(bytes(raw.replace(b"\r\n", b"\n")), f"{file}:{line}", tally), file, line, tally)

    while block := stream.read(_CHUNK_BYTES):
        if first:
            first = False
            if block.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise UniclozeError(f"{file} is UTF-16: convert it with `iconv -f UTF-16 -t UTF-8`.")
            block = block.removeprefix(_BYTE_ORDER_MARK)
            _refuse_other_bytes(file, block)
        pending += block
        start = 0
        for blank in _BLANK_LINE.finditer(pending, searched):
            if blank.start() > start and (raw := pending[start : blank.start()]).strip():
                yield from document(raw)
            line += pending.count(b"\n", start, blank.end())
            start = blank.end()
        del pending[:start]
        # The end of the block may split a blank line.
        searched = max(0, len(pending.rstrip(b" \t\r\n")) - 1)
        while len(pending) > LONGEST_DOCUMENT:
            line_end = pending.rfind(b"\n", LONGEST_DOCUMENT // 2, LONGEST_DOCUMENT)
            cut = (line_end if line_end > 0 else pending.rfind(b" ", 0, LONGEST_DOCUMENT)) + 1
            cut = cut or _start_of_a_character(pending, LONGEST_DOCUMENT)
            yield from document(pending[:cut])
            line += pending.count(b"\n", 0, cut)
            del pending[:cut]
            searched = 0
    if pending.strip():
        yield from document(pending)


def _refuse_other_bytes(file: File, beginning: bytes) -> None:
    """Refuse a file whose beginning is not text, or in another encoding; a few invalid bytes are repaired."""
    try:
        beginning.decode()
    except UnicodeDecodeError:
        text = beginning.decode(errors="replace")
        share = text.count("\ufffd") / len(text)
        if share > MOST_REPLACED and len(beginning) >= LEAST_JUDGED:
            raise UniclozeError(
                f"{file} is not text in UTF-8: {share:.0%} of the characters at its beginning are invalid; convert it with "
                "`iconv -f ENCODING -t UTF-8`, or leave it out."
            ) from None


def _start_of_a_character(raw: bytearray, cut: int) -> int:
    """The last start of a UTF-8 character up to `cut`; `cut` itself if the bytes are not UTF-8."""
    starts = (place for place in range(cut, cut - 4, -1) if raw[place] & 0xC0 != 0x80)
    return next(starts, cut)


def _read_jsonl(
    file: File, stream: BinaryIO, text_field: str, tally: Tally, spans_field: str | None, field_option: str
) -> Iterator[Document]:
    line = 0
    _refuse_other_bytes(file, cast(io.BufferedReader, stream).peek(_CHUNK_BYTES)[:_CHUNK_BYTES])
    while raw := stream.readline(LONGEST_LINE + 1):
        line += 1
        place = f"{file}:{line}"
        if len(raw) > LONGEST_LINE:
            raise UniclozeError(
                f"{place} is longer than {LONGEST_LINE:,} bytes: cut the line, or give the text as .txt."
            )
        while line == 1 and raw.startswith(_BYTE_ORDER_MARK):
            raw = raw.removeprefix(_BYTE_ORDER_MARK)
        if not raw.strip():
            continue
        try:
            record = parse_json(_text(raw, place, tally))
        except ValueError as error:
            raise UniclozeError(f"{place} is not JSON ({error}): fix or remove the line.") from error
        if not isinstance(record, dict):
            raise UniclozeError(f'{place} is not a JSON object such as {{"text": "..."}}: fix or remove the line.')
        text = record.get(text_field)
        if not isinstance(text, str):
            if text is None and text_field in record:
                tally.empty += 1
                continue
            strings = ", ".join(name for name, value in record.items() if isinstance(value, str))
            problem = "no field" if text_field not in record else "no text in the field"
            raise UniclozeError(
                f'{place} has {problem} "{text_field}": set {field_option} to one of its text fields '
                f'({strings or "it has none"}), or rename one to "{text_field}".'
            )
        spans = NO_SPANS if spans_field is None else read_spans(record.get(spans_field), text, place, spans_field)
        yield from mended_document(text, str(file), line, tally, spans)


def mended_document(text: str, path: str, line: int, tally: Tally, spans: Spans = NO_SPANS) -> Iterator[Document]:
    """Make a document of decoded text, unless it is empty: unpaired surrogates become U+FFFD, NUL characters are dropped."""
    if "\0" in text:
        spans = spans.without(text, "\0")
    yield from _document(_mended(text, f"{path}:{line}", tally), path, line, tally, spans)


def _read_parquet(
    file: File, text_field: str, tally: Tally, spans_field: str | None, field_option: str
) -> Iterator[Document]:
    import pyarrow
    import pyarrow.parquet

    with file.open("rb") as raw:
        while block := raw.read(_CHUNK_BYTES):
            tally.digest.update(block)
    try:
        with file.open("rb") as raw, pyarrow.parquet.ParquetFile(file if isinstance(file, Path) else raw) as table:
            if text_field not in table.schema_arrow.names:
                names = ", ".join(table.schema_arrow.names)
                raise UniclozeError(
                    f'{file} has no column "{text_field}": set {field_option} to one of its columns ({names}).'
                )
            if spans_field in table.schema_arrow.names:
                raise UniclozeError(
                    f'{file} has a column "{spans_field}", but spans are read from .jsonl only: convert the file, or set '
                    "--data.spans_field null."
                )
            kind = table.schema_arrow.field(text_field).type
            is_dictionary = pyarrow.types.is_dictionary(kind)
            if str(kind.value_type if is_dictionary else kind) not in _TEXT_TYPES:
                raise UniclozeError(
                    f'The column "{text_field}" of {file} holds {kind}, not text: set {field_option} to another column.'
                )
            _refuse_bomb(file, table.metadata, text_field)
            line = 0
            for batch in table.iter_batches(batch_size=64, columns=[text_field]):
                column = batch.column(0)
                for value in (column.dictionary_decode() if is_dictionary else column).cast(pyarrow.large_binary()):
                    line += 1
                    content = value.as_py() or b""
                    yield from _document(_text(content, f"{file}:{line}", tally), file, line, tally)
    except pyarrow.ArrowInvalid as error:
        raise UniclozeError(f"{file} is truncated or damaged ({error}): download or write it again.") from error


def _refuse_bomb(file: File, metadata: Any, text_field: str) -> None:
    """Refuse a table whose text column unpacks to far more than text would; whole pages are unpacked at once."""
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            most = SPARE + RATIO * column.total_compressed_size
            if column.path_in_schema == text_field and column.total_uncompressed_size > most:
                raise UniclozeError(
                    f"{file} unpacks to more than {RATIO} times its size, which text never does: give another file."
                )
