"""Sources of documents other than text files: Hugging Face datasets, token shards; and estimates of a corpus.

A dataset is named `hf:NAME[:SPLIT[:COLUMN]]`. NAME is a folder written by `save_to_disk`, a folder of data files that
`datasets` can load, or a dataset on the Hub as OWNER/NAME or OWNER/NAME/CONFIG. SPLIT defaults to `train` or the only split,
COLUMN to `data.text_field`.

Every pass of a preparation streams the dataset again, at the revision of the first pass. Needs the extra `datasets`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from unicloze.errors import UniclozeError, UsageError
from unicloze.settings import PYTHON_DOCS, DataSettings
from unicloze.storage import is_url
from unicloze.text.columns import AT_ONCE, Stored
from unicloze.text.digests import Digests
from unicloze.text.documents import Document, Tally, find_files, local_files_at, mended_document, read_documents
from unicloze.text.python_docs import python_docs
from unicloze.text.shards import TokenShard, open_column
from unicloze.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from types import ModuleType

PREFIX = "hf:"

_ROWS_AT_ONCE = 64


def is_dataset(corpus: str | Path) -> bool:
    """Whether an entry of `data.corpus` names a dataset."""
    return str(corpus).startswith(PREFIX) and not is_url(corpus)


@dataclass(frozen=True, kw_only=True)
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
        name, config = parts[0], None
        if not all(parts) or len(parts) > 3:
            raise UsageError(
                f"{corpus} is not a valid dataset name: give hf:NAME, hf:NAME:SPLIT or hf:NAME:SPLIT:COLUMN."
            )
        if not Path(name).expanduser().exists():
            if name.startswith((".", "/", "~")) or not 1 <= name.count("/") <= 2:
                raise UsageError(
                    f"There is no folder {name}, and datasets on the Hub are named OWNER/NAME or OWNER/NAME/CONFIG: correct "
                    f"{corpus}; plain text files need no hf: prefix."
                )
            owner, dataset, *rest = name.split("/")
            name, config = f"{owner}/{dataset}", rest[0] if rest else None
        return cls(
            corpus=corpus,
            name=name,
            config=config,
            split=parts[1] if len(parts) > 1 else None,
            column=parts[2] if len(parts) > 2 else None,
        )

    @property
    def folder(self) -> Path | None:
        """Local folder of the dataset; None for one on the Hub."""
        place = Path(self.name).expanduser()
        if place.is_file():
            raise UsageError(
                f"{place} is a file: name its folder in {self.corpus}, or leave out the hf: if it is text."
            )
        return place if place.is_dir() else None

    def described(self) -> list[tuple[str, Path | None]]:
        """What determines its content: its files with their local paths, and the split and column taken."""
        taken = f"(split {self.split or 'by default'}, column {self.column or 'data.text_field'})"
        folder = self.folder
        if folder is None:
            name = "/".join(filter(None, (self.name, self.config)))
            return [(f"{PREFIX}{name}@{_builder(self).hash} {taken}", None)]
        files = sorted(
            file for file in folder.rglob("*") if file.is_file() and not _is_hidden(file.relative_to(folder))
        )
        return [*((str(file), file) for file in files), (f"dataset {taken}", None)]

    def documents(self, text_field: str, tally: Tally) -> Iterator[Document]:
        """The documents in order; `tally.digest` is reset, and complete at the end."""
        tally.digest = hashlib.blake2b(digest_size=16)
        column, line = self.column or text_field, 0
        with _explained(self):
            dataset = _dataset(self)
            names = dataset.column_names
            if names is not None:
                _check_column(self, column, names)
                dataset = dataset.select_columns([column])
            for batch in dataset.iter(batch_size=_ROWS_AT_ONCE):
                _check_column(self, column, list(batch))
                for value in batch[column]:
                    line += 1
                    if value is not None and not isinstance(value, str):
                        raise UniclozeError(
                            f'{self.corpus}, row {line}: the column "{column}" holds {type(value).__name__}, not text: name '
                            f"another with {PREFIX}{self.name}:{self.split or 'train'}:COLUMN."
                        )
                    text = value or ""
                    tally.digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
                    yield from mended_document(text, self.corpus, line, tally)


def _check_column(source: DatasetSource, column: str, names: list[str]) -> None:
    if column not in names:
        raise UniclozeError(
            f'{source.corpus} has no column "{column}": name one of its columns ({", ".join(names)}) with '
            f"{PREFIX}{source.name}:{source.split or 'train'}:COLUMN or --data.text_field."
        )


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


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
        splits = _builder(source).as_streaming_dataset()
    names = [str(name) for name in splits]
    wanted = source.split or ("train" if "train" in names or len(names) > 1 else names[0])
    if wanted not in names:
        raise UniclozeError(f"{source.corpus} has no split {wanted}: name one of its splits, {', '.join(names)}.")
    return splits[wanted]


def _builder(source: DatasetSource) -> Any:
    """Dataset builder of a local folder or of a Hub dataset, whose revision is fixed for this process."""
    return _load_builder(source) if source.folder is not None else _pinned_builder(source)


def _load_builder(source: DatasetSource) -> Any:
    with _explained(source):
        return _library().load_dataset_builder(
            source.name if source.folder is None else str(source.folder), source.config
        )


_pinned_builder = functools.cache(_load_builder)

SAMPLE = 200_000
"""Characters to read of each source."""
COMPRESSED = 3
"""Assumed ratio of text to compressed bytes."""
LONGEST_MEAN_WORD = 20
"""Mean characters between spaces above which a script is taken to be written without them."""


@dataclass(frozen=True)
class Survey:
    """What a look at a corpus tells."""

    size: int | None  # estimated number of characters; None if unknown
    spaced: bool  # whether words are separated by spaces


def survey(data: DataSettings) -> Survey:
    """Look at a corpus."""
    sizes = [None if is_dataset(corpus) else _characters(corpus, data.text_field) for corpus in data.corpus]
    texts = [text for corpus in data.corpus for text in _beginning(corpus, data.text_field)]
    words = sum(len(text.split()) for text in texts)
    known = [size for size in sizes if size is not None]
    spaced = not words or sum(map(len, texts)) / words <= LONGEST_MEAN_WORD
    return Survey(sum(known) if len(known) == len(sizes) else None, spaced)


def _characters(corpus: str, text_field: str) -> int | None:
    """Estimated characters of a source; None if it holds tokens."""
    if corpus == PYTHON_DOCS:
        return sum(len(document.text) for document in python_docs())
    if find_shards(corpus):
        return None
    sample = "".join(_beginning(corpus, text_field))
    of_a_byte = len(sample) / max(1, len(sample.encode()))
    plain = sum(
        file.stat().st_size * (COMPRESSED if file.suffix in {".gz", ".zst", ".parquet"} else 1)
        for file in find_files(corpus)
    )
    return round(plain * of_a_byte)


def _beginning(corpus: str, text_field: str) -> Iterator[str]:
    if is_dataset(corpus) or (corpus != PYTHON_DOCS and find_shards(corpus)):
        return
    room = SAMPLE
    for document in python_docs() if corpus == PYTHON_DOCS else read_documents(corpus, text_field):
        yield document.text[:room]
        room -= len(document.text)
        if room <= 0:
            return


_OURS = "unicloze-"


def find_shards(corpus: str | Path) -> list[Path]:
    """The `.ds` files under a path, sorted; none for a URL, since they are memory-mapped."""
    return [] if is_url(corpus) else [file for file in local_files_at(corpus) if file.suffix == ".ds"]


def name_of(tokenizer: Tokenizer) -> str:
    """Name of a tokenizer in the metadata of our shards."""
    return _OURS + tokenizer.fingerprint[:16]


def documents(path: Path, tokenizer: Tokenizer) -> Iterator[npt.NDArray[np.unsignedinteger]]:
    """Token ids of each document of a shard. *Shape:* (tokens,) each"""
    shard, vocab_size = TokenShard.open(path), tokenizer.vocabulary.size
    if shard.tokenizer_name.startswith(_OURS) and shard.tokenizer_name != name_of(tokenizer):
        raise UniclozeError(
            f"{path} holds tokens of tokenizer {shard.tokenizer_name.removeprefix(_OURS)}, not "
            f"{tokenizer.fingerprint[:16]}: give --tokenizer.path the tokenizer of these shards."
        )
    for start, end in zip(shard.starts, shard.ends, strict=True):
        tokens = shard.tokens[start:end]
        check_ids(path, tokens, vocab_size)
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
        shard = TokenShard.open(path, documents=Stored.open(file))
        counts["documents"] += len(shard.ends)
        counts["tokens"] += shard.num_tokens
    return {**counts, "bytes": None}


def open_selection(
    folder: Path, name: str, paths: list[Path], digests: Digests | None = None
) -> tuple[TokenShard, ...]:
    """Open what `write_selection` recorded."""
    shards = []
    for i, path in enumerate(paths):
        file = folder / f"{name}.{i}.documents"
        if not file.is_file():
            raise UniclozeError(f"{file} is missing: remove the folder and prepare again.")
        shards.append(TokenShard.open(path, documents=open_column(file, digests), digests=digests))
    return tuple(shards)


def check_ids(path: Path, tokens: npt.NDArray[np.integer], vocab_size: int) -> None:
    """Refuse token ids of a shard that are not below the vocabulary size."""
    largest = int(tokens.max(initial=0))
    if largest >= vocab_size:
        raise UniclozeError(
            f"{path} holds token id {largest}, but the tokenizer has only {vocab_size} ids: give --tokenizer.path the "
            "tokenizer of these shards."
        )
