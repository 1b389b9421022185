"""The passes of a preparation over a corpus: survey, train or load the tokenizer, tokenise."""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from unicloze.arrays import Int64s
from unicloze.errors import UniclozeError, UsageError
from unicloze.progress import Progress, say
from unicloze.run_files import LINEAGE
from unicloze.settings import PYTHON_DOCS, DataSettings, TokenizerSettings
from unicloze.text import lineage, tokenised
from unicloze.text.cutting import last_visible, pieces_of, tail_start, visible
from unicloze.text.dataset_source import DatasetSource, is_dataset
from unicloze.text.digests import SEAL, Digests, seal
from unicloze.text.documents import SUFFIXES, Document, Tally, files_at, find_files, other_files, read_file
from unicloze.text.python_docs import write_python_docs
from unicloze.text.shards import ShardWriter, TokenShard, files_beside
from unicloze.text.split import CUT, HELDOUT, TRAIN, HeldoutSplit, Spelling, text_hash, tokens_hash
from unicloze.text.tokenizers import Tokenizer

TokenIds = npt.NDArray[np.int32]

_BATCH = 2**21
_TRAINING_BYTES = 2**30
_PART = 2**16
_CHANGED = "{} changed while it was being read: run the command again when the file is complete."
_LONG_WORD = re.compile(r"(\S{256})(?=\S)")  # training time is quadratic in the length of a word


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A piece of a document on its way to the tokenizer.

    Args:
        document: The document, or its training or held-out part.
        text: The piece.
        is_heldout: Whether the document is held out.
        is_last: Whether the document ends here.
    """

    document: Document
    text: str
    is_heldout: bool
    is_last: bool


def _refuse_texts_beside(corpus: str) -> None:
    """Reject a folder or glob that holds both token shards and texts, since only one kind would be read.

    Folders written by `prepare` are exempt.

    Raises:
        UsageError: It holds both.
    """
    place = Path(corpus).expanduser()
    if (place / LINEAGE).is_file():
        return
    files = files_at(place)
    text = next((file for file in files if file.name.endswith(SUFFIXES) and file.name != "vocab.txt"), None)
    if text is not None:
        tokens = tokenised.find_shards(place)[0]
        only = f"'{corpus}/**/*.ds'" if place.is_dir() else "a pattern that ends in .ds"
        raise UsageError(
            f"{corpus} holds tokens ({tokens}) and texts ({text}): use separate folders, or {only} for the tokens only."
        )


class Preparation:
    """One preparation: survey the corpus, then train or load the tokenizer, then tokenise."""

    def __init__(
        self,
        data: DataSettings,
        tokenizer: TokenizerSettings,
        settings: dict[str, Any],
        folder: Path,
        progress: bool,
        seed: int,
    ) -> None:
        self.data, self.tokenizer_settings, self.settings = data, tokenizer, settings
        self.folder, self.progress, self.seed = folder, progress, seed
        self.entries: list[dict[str, Any]] = [
            {"name": name, "corpus": corpus, "files": []}
            for name, corpus in zip(_source_names(data.corpus), data.corpus, strict=True)
        ]
        self.tokenised = [
            entry for entry in self.entries if entry["corpus"] != PYTHON_DOCS and tokenised.find_shards(entry["corpus"])
        ]
        self.text = [entry for entry in self.entries if entry not in self.tokenised]
        for entry in self.tokenised:
            _refuse_texts_beside(entry["corpus"])
        self.digests: dict[str, bytes] = {}
        self.hashes = folder / "hashes"
        self.split = HeldoutSplit(data.heldout_share, deduplicate=data.deduplicate, sources=len(self.entries))
        self.total_bytes = 0
        self._tail: int | None = None
        if self.tokenised and tokenizer.path is None:
            raise UsageError(
                f"{self.tokenised[0]['corpus']} holds token shards: set --tokenizer.path to their tokenizer."
            )

    def run(self) -> None:
        """Fill the folder; `lineage.json` is written last."""
        for part in ("train", "heldout"):
            (self.folder / part).mkdir()
        path, tokenizer = self.tokenizer_settings.path, None
        if path is not None:
            tokenizer = Tokenizer.load(path)
        self._survey(tokenizer)
        tokenizer = tokenizer or Tokenizer.train(_TrainingTexts(self), self.tokenizer_settings)
        tokenizer.save(self.folder)
        self._tokenise(tokenizer)
        self._select()
        self.hashes.unlink()
        content = {
            "schema": lineage.SCHEMA,
            "fingerprint": lineage.fingerprint(self.settings, self.entries),
            "settings": self.settings,
            "tokenizer": {"fingerprint": tokenizer.fingerprint, "vocab_size": tokenizer.vocabulary.size},
            "sources": self.entries,
        }
        for entry in self.entries:
            if not entry["train"]["tokens"]:
                reason = "earlier sources hold the same documents" if entry["duplicates"] else "it holds no tokens"
                warnings.warn(f"{entry['corpus']} has no training text: {reason}", stacklevel=2)
        shards = [Path(shard) for entry in self.tokenised for shard in entry["shards"]]
        content["digests"] = Digests.make(self.folder, (file for s in shards for file in (s, *files_beside(s))))
        content[SEAL] = seal(content)
        (self.folder / LINEAGE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def bar(self, what: str, total: int | None) -> Progress:
        """Progress bar in bytes of text."""
        return Progress(what, total, "bytes", show=self.progress)

    def _documents(self, entry: dict[str, Any], tally: Tally, *, first: bool = False) -> Iterator[Document]:
        """Documents of a source; its files are recorded in the first pass and must not change later."""
        if is_dataset(entry["corpus"]):
            yield from self._rows(entry, DatasetSource.of(entry["corpus"]), tally, first=first)
            return
        built_in = entry["corpus"] == PYTHON_DOCS
        files = [write_python_docs(self.folder)] if built_in else find_files(entry["corpus"])
        if not first and len(files) != len(entry["files"]):
            raise UniclozeError(_CHANGED.format(entry["corpus"]))
        for i, file in enumerate(files):
            noted = lineage.describe_file(file, "")  # before reading, so that later changes are detected
            for document in read_file(file, "text" if built_in else self.data.text_field, tally):
                yield replace(document, path=PYTHON_DOCS) if built_in else document
            noted["hash"] = tally.digest.hexdigest()
            if built_in:
                noted["path"] = file.name
            if first:
                entry["files"].append(noted)
            elif noted["hash"] != entry["files"][i]["hash"]:
                raise UniclozeError(_CHANGED.format(file))

    def _rows(self, entry: dict[str, Any], source: DatasetSource, tally: Tally, *, first: bool) -> Iterator[Document]:
        """Documents of a dataset, whose text must be the same in every pass."""
        if first:
            entry["files"] = lineage.describe_dataset(source)
        yield from source.documents(self.data.text_field, tally)
        if self.digests.setdefault(entry["name"], tally.digest.digest()) != tally.digest.digest():
            raise UniclozeError(_CHANGED.format(entry["corpus"]))

    def _survey(self, tokenizer: Tokenizer | None) -> None:
        """First pass: hash files and documents and decide the split.

        Writes the file `hashes`: 64 bits per document, 0 for a dropped one.
        """
        hashers = _Hashers(self.seed, tokenizer, mixed=bool(self.text and self.tokenised))
        with self.hashes.open("wb", 2**16) as hashes, self.bar("reading", None) as bar:
            for entry in self.entries:
                entry |= {"documents": 0, "empty": 0, "duplicates": 0}
            for entry in self.text:
                tally = Tally()
                for value, size in hashers.of_texts(self._documents(entry, tally, first=True)):
                    self.total_bytes += self._note(entry, value, size, hashes, is_text=True)
                    bar.update(size)
                entry |= {"empty": tally.empty, "replaced": tally.replaced, "nul": tally.nul}
                _note_left_out(entry)
                if tally.first_bad:
                    say(
                        f"{entry['corpus']}: replaced {tally.replaced} invalid UTF-8 sequences with U+FFFD and dropped "
                        f"{tally.nul} NUL characters, the first at {tally.first_bad}."
                    )
                if not tally.documents:
                    raise UniclozeError(f"{entry['corpus']} holds no text, its files are empty: add some text.")
            for entry in self.tokenised:
                entry["shards"] = []
                for path in tokenised.find_shards(entry["corpus"]):
                    for value, size in hashers.of_shard(path):
                        self._note(entry, value, size, hashes, is_text=False)
                    entry["shards"].append(str(path.resolve()))
                    entry["files"].append(lineage.describe_file(path, lineage.file_hash(path)))
        self.split.decide()

    def _note(self, entry: dict[str, Any], value: int, size: int, hashes: BinaryIO, *, is_text: bool) -> int:
        """Count a document and write its hash; returns its size, 0 if it is dropped."""
        kept = self.split.add(entry["name"], value, size, is_text=is_text) if size else 0
        hashes.write(kept.to_bytes(8, "little"))
        entry["documents" if size else "empty"] += 1
        entry["duplicates"] += bool(size and not kept)
        return size if kept else 0

    def kept(self, entry: dict[str, Any], hashes: BinaryIO) -> Iterator[tuple[Document, bool]]:
        """The kept documents, and whether each is held out."""
        for document in self._documents(entry, Tally()):
            value, text = hashes.read(8), document.text
            if not value:
                raise UniclozeError(_CHANGED.format(document.path))
            side = self.split.side(int.from_bytes(value, "little"))
            if side in (TRAIN, HELDOUT):
                yield document, side == HELDOUT
            elif side == CUT:
                at = self._tail_start(text)
                yield replace(document, text=text[:at]), False
                yield replace(document, text=text[at:]), True

    def _tail_start(self, text: str) -> int:
        """Where to cut the document whose end is held out: at the same word in all copies, even if white space differs."""
        if self._tail is None:
            self._tail = visible(text[tail_start(text, self.split.cut_size) :])
        return last_visible(text, self._tail)

    def _select(self) -> None:
        """Record which documents of the token shards are on which side."""
        with self.hashes.open("rb") as hashes:
            hashes.seek(8 * sum(entry["documents"] for entry in self.text))
            for entry in self.tokenised:
                parts: dict[str, list[tuple[Path, Int64s]]] = {"train": [], "heldout": []}
                for path in tokenised.find_shards(entry["corpus"]):
                    count = len(TokenShard.open(path).ends)
                    sides = self.split.sides(np.frombuffer(hashes.read(8 * count), dtype="<u8"))
                    for part, side in (("train", TRAIN), ("heldout", HELDOUT)):
                        parts[part].append((path, np.flatnonzero(sides == side)))
                for part, selections in parts.items():
                    entry[part] = tokenised.write_selection(self.folder / part, entry["name"], selections)

    def _tokenise(self, tokenizer: Tokenizer) -> None:
        # One thread waits for the tokenizer while this one writes the previous batch and reads the next.
        bar = self.bar("tokenising", self.total_bytes)
        with self.hashes.open("rb") as hashes, ThreadPoolExecutor(1) as waiter, bar:
            for entry in self.text:
                with (
                    _writer(self.folder / "train", entry["name"], tokenizer) as train,
                    _writer(self.folder / "heldout", entry["name"], tokenizer) as heldout,
                ):
                    writers = {False: train, True: heldout}
                    pending: tuple[list[Piece], Future[list[TokenIds]]] | None = None
                    for batch in batches(self.kept(entry, hashes)):
                        encoded = waiter.submit(tokenizer.encode_batch, [piece.text for piece in batch])
                        if pending:
                            bar.update(_write(writers, pending[0], pending[1].result()))
                        pending = batch, encoded
                    if pending:
                        bar.update(_write(writers, pending[0], pending[1].result()))
                for part, writer in (("train", train), ("heldout", heldout)):
                    entry[part] = {"documents": writer.documents, "tokens": writer.tokens, "bytes": writer.bytes}


class _Hashers:
    """Hashes and sizes that identify equal documents.

    Texts are compared without case and white space, token shards by their tokens; in a corpus of both, documents are equal if
    their tokens spell the same text.
    """

    def __init__(self, seed: int, tokenizer: Tokenizer | None, *, mixed: bool) -> None:
        self._seed, self._tokenizer = seed, tokenizer
        self._spelling = Spelling(tokenizer) if mixed and tokenizer else None

    def of_texts(self, documents: Iterable[Document]) -> Iterator[tuple[int, int]]:
        """Hash and size of each text, in bytes."""
        if self._tokenizer is None or self._spelling is None:
            yield from (text_hash(document.text, self._seed) for document in documents)
            return
        parts: list[TokenIds] = []
        for batch in batches((document, False) for document in documents):
            for piece, token_ids in zip(
                batch, self._tokenizer.encode_batch([piece.text for piece in batch]), strict=True
            ):
                parts.append(token_ids)
                if piece.is_last:
                    yield self._spelling.hash(parts, self._seed)
                    parts = []

    def of_shard(self, path: Path) -> Iterator[tuple[int, int]]:
        """Hash and size of each document of a shard, in tokens or in bytes of spelled text; an empty document has size 0."""
        assert self._tokenizer is not None
        size = self._tokenizer.vocabulary.size
        for tokens in tokenised.documents(path, self._tokenizer):
            if self._spelling is not None and len(tokens):
                value, spelled = self._spelling.hash(np.split(tokens, range(_PART, len(tokens), _PART)), self._seed)
                yield value, max(1, spelled)
            else:
                yield tokens_hash(tokens, self._seed, size), len(tokens)


class _TrainingTexts:
    """The training documents in pieces, for several passes; evenly subsampled above 1 GiB."""

    def __init__(self, preparation: Preparation) -> None:
        self._preparation = preparation

    def __iter__(self) -> Iterator[str]:
        preparation = self._preparation
        share = min(1.0, _TRAINING_BYTES / max(1, preparation.total_bytes))
        taken = 0.0
        bar = preparation.bar("training the tokenizer", preparation.total_bytes)
        with preparation.hashes.open("rb") as hashes, bar:
            for entry in preparation.text:
                for document, is_heldout in preparation.kept(entry, hashes):
                    bar.update(len(document.text))
                    taken += share
                    if not is_heldout and taken >= 1 - 1e-9:
                        taken -= 1
                        yield from (_LONG_WORD.sub(r"\1 ", piece) for piece in pieces_of(document.text))


def batches(documents: Iterable[tuple[Document, bool]]) -> Iterator[list[Piece]]:
    """Pieces of documents with their held-out flag, in batches of about 2 Mi characters."""
    batch: list[Piece] = []
    size = 0
    for document, is_heldout in documents:
        left = len(document.text)
        for piece in pieces_of(document.text):
            left -= len(piece)
            batch.append(Piece(document=document, text=piece, is_heldout=is_heldout, is_last=not left))
            size += len(piece)
            if size >= _BATCH:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _write(writers: dict[bool, ShardWriter], batch: list[Piece], encoded: list[TokenIds]) -> int:
    """Write a batch; returns its bytes of text."""
    total = 0
    for piece, token_ids in zip(batch, encoded, strict=True):
        size = len(piece.text.encode())
        for writer in writers.values():
            writer.begin_file(piece.document.path)
        writers[piece.is_heldout].write(token_ids, size, line=piece.document.line, ends_document=piece.is_last)
        total += size
    return total


def _note_left_out(entry: dict[str, Any]) -> None:
    """Count the ignored files of a source and warn about them."""
    if entry["corpus"] == PYTHON_DOCS or is_dataset(entry["corpus"]):
        return
    others = other_files(entry["corpus"])
    if others:
        entry["left_out"] = others
        total = sum(others.values())
        kinds = ", ".join(f"{count:,} {ending}" for ending, count in others.items())
        said = "1 file of another kind is" if total == 1 else f"{total:,} files of other kinds are"
        warnings.warn(f"{entry['corpus']}: {said} ignored: {kinds}", stacklevel=2)


def _writer(folder: Path, name: str, tokenizer: Tokenizer) -> ShardWriter:
    size = tokenizer.vocabulary.size
    return ShardWriter(folder / f"{name}.ds", vocab_size=size, tokenizer_name=tokenised.name_of(tokenizer))


def _source_names(corpus: Iterable[str]) -> list[str]:
    """File name for each source, distinct even on case-insensitive file systems."""
    names: list[str] = []
    taken: set[str] = set()
    for path in corpus:
        base = re.sub(r"[^\w-]+", "-", Path(path).name.split(".")[0]).strip("-") or "text"
        numbered = itertools.chain([base], (f"{base}-{number}" for number in itertools.count(len(names))))
        name = next(name for name in numbered if _folded(name) not in taken)
        names.append(name)
        taken.add(_folded(name))
    return names


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()
