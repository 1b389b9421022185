"""Entries of `data.corpus`: text files, token shards, Hugging Face datasets and the built-in text; estimates of a corpus.

A dataset is named `hf:NAME[:SPLIT[:COLUMN]]`. NAME is a folder written by `save_to_disk`, a folder of data files that
`datasets` can load, or a dataset on the Hub as OWNER/NAME or OWNER/NAME/CONFIG. SPLIT defaults to `train` or the only split,
COLUMN to `data.text_field`. Every pass of a preparation streams the dataset again, at the revision of the first pass. Needs
the extra `datasets`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import math
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from unicloze.errors import UniclozeError, UsageError
from unicloze.files import at_home
from unicloze.settings import PYTHON_DOCS, DataSettings
from unicloze.storage import File, is_url
from unicloze.text import python_docs
from unicloze.text.documents import (
    Document,
    Tally,
    find_files,
    local_files_at,
    mended_document,
    read_documents,
    read_file,
    unpacked,
)
from unicloze.text.shards import AT_ONCE, TokenShard
from unicloze.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from types import ModuleType

Kind = Literal["files", "shards", "dataset", "built-in"]
PREFIX = "hf:"
_ROWS_AT_ONCE = 64
_OURS = "unicloze-"


def kind_of(corpus: str | Path) -> Kind:
    """What an entry names."""
    if corpus == PYTHON_DOCS:
        return "built-in"
    if str(corpus).startswith(PREFIX) and not is_url(corpus):
        return "dataset"
    return "shards" if find_shards(corpus) else "files"


def find_shards(corpus: str | Path) -> list[Path]:
    """The `.ds` files under a path, sorted; none for a URL, since they are memory-mapped."""
    return [] if is_url(corpus) else [file for file in local_files_at(at_home(corpus)) if file.suffix == ".ds"]


def corpus_files(corpus: str) -> list[tuple[str, File | None, str]]:
    """What determines the content of an entry: a name, the file if it is one, and how it is read."""
    kind = kind_of(corpus)
    if kind == "dataset":
        return DatasetSource.of(corpus).described()
    if kind == "built-in":
        return [(name := python_docs.file_name(), None, read_as(Path(name)))]
    files = find_shards(corpus) if kind == "shards" else find_files(corpus)
    return [(str(file), file, read_as(file)) for file in files]


def read_as(file: File) -> str:
    """File suffix without compression."""
    return Path(file.name.removesuffix(".gz").removesuffix(".zst")).suffix


def documents_of(corpus: str, text_field: str) -> Iterator[Document]:
    """The documents of an entry of text."""
    kind = kind_of(corpus)
    if kind == "built-in":
        yield from python_docs.python_docs()
    elif kind == "dataset":
        yield from DatasetSource.of(corpus).documents(text_field, Tally())
    else:
        yield from read_documents(corpus, text_field)


def beginning(corpus: str, text_field: str, characters: int, least: int = 1) -> Iterator[str]:
    """The first characters of an entry of text, by document, of each at least some if it has them."""
    for document in documents_of(corpus, text_field):
        yield document.text[: max(characters, least)]
        characters -= len(document.text)
        if characters <= 0:
            return


@dataclass(frozen=True)
class DatasetSource:
    """A dataset named by an entry of `data.corpus`."""

    corpus: str  # the entry
    name: str  # folder, or OWNER/NAME on the Hub
    config: str | None  # configuration of a Hub dataset
    split: str | None  # default: `train` or the only split
    column: str | None  # default: `data.text_field`

    @classmethod
    def of(cls, corpus: str) -> DatasetSource:
        """Parse an entry."""
        parts = corpus.removeprefix(PREFIX).split(":")
        if not all(parts) or len(parts) > 3:
            raise UsageError(
                f"{corpus} is not a valid dataset name: give hf:NAME, hf:NAME:SPLIT or hf:NAME:SPLIT:COLUMN."
            )
        (name, split, column), config = [*parts, None, None][:3], None
        assert name is not None
        if not at_home(name).exists():
            if name.startswith((".", "/", "~")) or not 1 <= name.count("/") <= 2:
                raise UsageError(
                    f"There is no folder {name}, and datasets on the Hub are named OWNER/NAME or OWNER/NAME/CONFIG: correct "
                    f"{corpus}; plain text files need no hf: prefix."
                )
            owner, dataset, *rest = name.split("/")
            name, config = f"{owner}/{dataset}", rest[0] if rest else None
        return cls(corpus, name, config, split, column)

    @property
    def folder(self) -> Path | None:
        """Local folder of the dataset; None for one on the Hub."""
        place = at_home(self.name)
        if place.is_file():
            raise UsageError(
                f"{place} is a file: name its folder in {self.corpus}, or leave out the hf: if it is text."
            )
        return place if place.is_dir() else None

    def described(self) -> list[tuple[str, File | None, str]]:
        """`corpus_files`: its files, whose relative paths may determine the split, and the split and column taken."""
        taken, folder = f"(split {self.split or 'by default'}, column {self.column or 'data.text_field'})", self.folder
        if folder is None:
            name = "/".join(filter(None, (self.name, self.config)))
            return [(f"{PREFIX}{name}@{_builder(self).hash} {taken}", None, "")]
        inside = (file.relative_to(folder) for file in sorted(folder.rglob("*")) if file.is_file())
        shown = [path for path in inside if not any(part.startswith(".") for part in path.parts)]
        named = [(str(folder / path), folder / path, path.as_posix()) for path in shown]
        return [*named, (f"dataset {taken}", None, "")]

    def documents(self, text_field: str, tally: Tally) -> Iterator[Document]:
        """The documents in order; `tally.digest` is reset, and complete at the end."""
        tally.digest = hashlib.blake2b(digest_size=16)
        column, line = self.column or text_field, 0
        other = f"{PREFIX}{self.name}:{self.split or 'train'}:COLUMN"
        with _explained(self):
            dataset = _dataset(self)
            if dataset.column_names is not None and column in dataset.column_names:
                dataset = dataset.select_columns([column])
            for batch in dataset.iter(batch_size=_ROWS_AT_ONCE):
                if column not in batch:
                    raise UniclozeError(
                        f'{self.corpus} has no column "{column}": name one of its columns ({", ".join(batch)}) with {other} '
                        "or --data.text_field."
                    )
                for value in batch[column]:
                    line += 1
                    if value is not None and not isinstance(value, str):
                        raise UniclozeError(
                            f'{self.corpus}, row {line}: the column "{column}" holds {type(value).__name__}, not text: name '
                            f"another with {other}."
                        )
                    text = value or ""
                    tally.digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
                    yield from mended_document(text, self.corpus, line, tally)


def base_name(place: str) -> str:
    """Base name of a file, folder or entry; an entry of the Hub's form that is no folder here stays whole."""
    if not place.startswith(PREFIX) or is_url(place):
        return Path(place).name
    try:
        on_hub = DatasetSource.of(place).folder is None
    except UniclozeError:  # a folder that is not here, or the home of an unknown user
        on_hub = False
    return place if on_hub else Path(place.split(":")[1]).name


def _library() -> ModuleType:
    try:
        import datasets
    except ImportError as error:
        raise UsageError(f'{PREFIX} needs the package datasets: in the clone, pip install -e ".[datasets]"') from error
    library: ModuleType = datasets
    return library


@contextlib.contextmanager
def _explained(source: DatasetSource) -> Iterator[None]:
    """Convert the library's exceptions to a `UniclozeError`."""
    known = (OSError, ValueError, RuntimeError, _library().exceptions.DatasetsError)
    try:
        yield
    except known as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UniclozeError(
            f"{source.corpus} cannot be read ({reason}): correct the name, or repair the dataset."
        ) from error


def _dataset(source: DatasetSource) -> Any:
    """The rows of one split, loaded lazily."""
    folder = source.folder
    if folder is not None and any((folder / name).is_file() for name in ("dataset_dict.json", "state.json")):
        saved = _library().load_from_disk(str(folder))
        splits = saved if isinstance(saved, dict) else {str(saved.split or "train"): saved}
    else:
        # The files of a folder may change; the revision of a dataset on the Hub is fixed for this process.
        builder = _builder(source) if folder is None else _builder.__wrapped__(source)
        splits = builder.as_streaming_dataset()
    names = [str(name) for name in splits]
    wanted = source.split or ("train" if "train" in names or len(names) > 1 else names[0])
    if wanted not in names:
        raise UniclozeError(f"{source.corpus} has no split {wanted}: name one of its splits, {', '.join(names)}.")
    return splits[wanted]


@functools.cache
def _builder(source: DatasetSource) -> Any:
    """Dataset builder of a local folder or of a Hub dataset."""
    with _explained(source):
        return _library().load_dataset_builder(str(source.folder or source.name), source.config)


SAMPLE, FILES_SEEN = 200_000, 8
"""Characters to read of each source, and of how many files at most."""
COMPRESSED = 3
"""Assumed ratio of text to compressed bytes."""
CODECS = {".gz": "gzip", ".zst": "zstd"}
"""How files with a suffix are compressed."""
LONGEST_MEAN_WORD = 20
"""Mean characters between spaces above which a text is taken to be written without them."""
UNSPACED = "CJK ", "HIRAGANA ", "KATAKANA", "THAI ", "LAO ", "KHMER ", "MYANMAR ", "TIBETAN "
"""Beginnings of the Unicode names of letters that are written without spaces between words."""
MOST_UNSPACED = 0.1
"""Largest share of such letters in a text written with spaces. With a tenth of Japanese letters in English text, BPE writes
both languages in fewer tokens than WordPiece, without [UNK]."""


def stored_text(file: File) -> int:
    """Roughly the bytes of text of a file, to divide work and to show progress."""
    return file.stat().st_size * (COMPRESSED if file.suffix in {*CODECS, ".parquet"} else 1)


@dataclass(frozen=True)
class Survey:
    """What a look at a corpus tells."""

    size: int | None  # estimated number of characters; None if unknown
    spaced: bool  # whether words are separated by spaces
    characters: int = 0  # number of the most frequent characters that make up 99.9 % of the text


def survey(data: DataSettings) -> Survey:
    """Look at a corpus."""
    sizes: list[int | None] = []
    texts: list[str] = []
    for corpus in data.corpus:
        kind = kind_of(corpus)
        sample = [] if kind == "shards" else [*beginning(corpus, data.text_field, SAMPLE)]
        size = None
        if kind == "built-in":
            size = sum(len(document.text) for document in python_docs.python_docs())
        elif kind == "files" and (size := sum(map(len, sample))) >= SAMPLE:
            files = find_files(corpus)
            size, sample = _characters(files, data.text_field), [*sample, *_of_several(files, data.text_field)]
        texts, sizes = texts + sample, [*sizes, size]
    known, text = [size for size in sizes if size is not None], "\n".join(texts)
    return Survey(sum(known) if len(known) == len(sizes) else None, _spaced(text), _frequent(text))


def _of_several(files: Sequence[File], text_field: str) -> Iterator[str]:
    """The beginnings of some of the files, which may differ in language."""
    seen = files[:: math.ceil(len(files) / FILES_SEEN)]
    for file in seen:
        left = SAMPLE // len(seen)
        for document in read_file(file, text_field, Tally()):
            yield document.text[:left]
            if (left := left - len(document.text)) <= 0:
                break


def _characters(files: Sequence[File], text_field: str) -> int:
    """Estimated number of characters of files."""
    alike: dict[tuple[str, str], list[File]] = {}
    for file in files:
        alike.setdefault((read_as(file), file.suffix), []).append(file)
    return round(sum(_estimated(some, text_field) for some in alike.values()))


def _estimated(files: Sequence[File], text_field: str) -> float:
    """Number of characters of files of one format, as their first documents have characters for each stored byte."""
    characters, stored = 0, 0.0
    for file in files:
        found, size = _stored(file, text_field, SAMPLE - characters)
        characters, stored = characters + found, stored + size
        if characters >= SAMPLE:
            break
    return characters * sum(file.stat().st_size for file in files) / max(1, stored)


def _stored(file: File, text_field: str, most: int) -> tuple[int, float]:
    """Characters of the first documents of a file, at least so many if it has them, and the bytes that store them."""
    import pyarrow
    import pyarrow.parquet

    characters = line = 0
    for document in read_file(file, text_field, Tally()):
        characters, line = characters + len(document.text), document.line
        if characters >= most:
            break
    if read_as(file) == ".parquet":
        with file.open("rb") as raw, pyarrow.parquet.ParquetFile(raw) as table:
            return characters, file.stat().st_size * line / max(1, table.metadata.num_rows)
    with unpacked(file, Tally()) as stream:
        stored = b"".join(itertools.islice(stream, line)) if read_as(file) == ".jsonl" else stream.read(SAMPLE)
    if read_as(file) != ".jsonl":
        characters = len(stored.decode(errors="ignore"))
    codec = CODECS.get(file.suffix)
    return characters, len(pyarrow.compress(stored, codec) if codec else stored)


def _spaced(text: str) -> bool:
    letters = Counter(filter(str.isalpha, text))
    unspaced = sum(count for one, count in letters.items() if unicodedata.name(one, "").startswith(UNSPACED))
    return unspaced <= MOST_UNSPACED * letters.total() and len(text) <= LONGEST_MEAN_WORD * max(1, len(text.split()))


def _frequent(text: str) -> int:
    counts = Counter("".join(text.split()))
    covered = itertools.accumulate(count for _, count in counts.most_common())
    return sum(count < 0.999 * counts.total() for count in covered) + bool(counts)


def name_of(tokenizer: Tokenizer) -> str:
    """Name of a tokenizer in the metadata of our shards."""
    return _OURS + tokenizer.fingerprint[:16]


def shard_documents(path: Path, tokenizer: Tokenizer) -> Iterator[npt.NDArray[np.unsignedinteger]]:
    """Token ids of each document of a shard. *Shape:* (tokens,) each"""
    shard = TokenShard.open(path)
    if shard.tokenizer_name.startswith(_OURS) and shard.tokenizer_name != name_of(tokenizer):
        raise UniclozeError(
            f"{path} holds tokens of tokenizer {shard.tokenizer_name.removeprefix(_OURS)}, not "
            f"{tokenizer.fingerprint[:16]}: give --tokenizer.path the tokenizer of these shards."
        )
    for tokens in shard.documents():
        check_ids(path, tokens, tokenizer.vocabulary.size)
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
        shard = TokenShard.open(path, documents=file)
        counts["documents"] += len(shard)
        counts["tokens"] += shard.num_tokens
    return {**counts, "bytes": None}


def check_ids(path: Path, tokens: npt.NDArray[np.integer], vocab_size: int) -> None:
    """Refuse token ids of a shard that are not below the vocabulary size."""
    largest = int(tokens.max(initial=0))
    if largest >= vocab_size:
        raise UniclozeError(
            f"{path} holds token id {largest}, but the tokenizer has only {vocab_size} ids: give --tokenizer.path the "
            "tokenizer of these shards."
        )
