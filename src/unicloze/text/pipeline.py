"""The passes of one preparation over a corpus: survey it, train or load the tokenizer, tokenise."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from unicloze.errors import UniclozeError, UsageError
from unicloze.settings import PYTHON_DOCS, DataSettings, TokenizerSettings
from unicloze.text import lineage, tokenised
from unicloze.text.dataset_source import DatasetSource, is_dataset
from unicloze.text.python_docs import write_python_docs
from unicloze.text.readers import SUFFIXES, Document, Tally, find_files, other_files, read_file
from unicloze.text.shards import ShardWriter
from unicloze.text.tokenizers import Tokenizer

TokenIds = npt.NDArray[np.int32]

_PIECE = 2**16
_BATCH = 2**21
_TRAINING_BYTES = 2**30
_SEEN = 2**20
_LEAST_HELDOUT = 2048
_DROP, _TRAIN, _HELDOUT, _CUT = range(4)
_CHANGED = "{} changed while it was read: run the command again when the file is complete."
_GAP = re.compile(r"\s\S")
_LONG_WORD = re.compile(r"(\S{256})(?=\S)")  # training a tokenizer takes the square of a word's length


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A piece of a document on its way to the tokenizer.

    Args:
        path: The document's file.
        text: The piece.
        is_heldout: Whether the document is held out.
        is_last: Whether the document ends here.
    """

    path: str
    text: str
    is_heldout: bool
    is_last: bool


def _refuse_texts_beside(corpus: Path) -> None:
    """Refuse a folder of tokens and texts, of which one would be left out; one that `prepare` wrote holds what it needs.

    Raises:
        UsageError: It is one.
    """
    if not corpus.is_dir() or (corpus / "lineage.json").is_file():
        return
    files = (file for file in sorted(corpus.rglob("*")) if file.name.endswith(SUFFIXES) and file.name != "vocab.txt")
    text = next(files, None)
    if text is not None:
        tokens = tokenised.find_shards(corpus)[0]
        raise UsageError(
            f"{corpus} holds tokens ({tokens}) and texts ({text}): give a folder of each, or '{corpus}/**/*.ds' for the "
            "tokens."
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
            _refuse_texts_beside(Path(entry["corpus"]).expanduser())
        self.digests: dict[str, bytes] = {}
        self.decisions = folder / "decisions"
        self.cut_bytes = self.total_bytes = 0
        if self.tokenised and tokenizer.path is None:
            raise UsageError(f"{self.tokenised[0]['corpus']} holds tokens: set --tokenizer.path to their tokenizer.")

    def run(self) -> None:
        """Fills the folder; `lineage.json` comes last."""
        for part in ("train", "heldout"):
            (self.folder / part).mkdir()
        self._survey()
        if self.tokenizer_settings.path is not None:
            tokenizer = Tokenizer.load(self.tokenizer_settings.path)
        else:
            tokenizer = Tokenizer.train(_TrainingTexts(self), self.tokenizer_settings)
        tokenizer.save(self.folder)
        self._select(tokenizer)
        self._tokenise(tokenizer)
        self.decisions.unlink()
        content = {
            "schema": lineage.SCHEMA,
            "fingerprint": lineage.fingerprint(self.settings, self.entries),
            "settings": self.settings,
            "tokenizer": {"fingerprint": tokenizer.fingerprint, "vocab_size": tokenizer.vocabulary.size},
            "sources": self.entries,
        }
        (self.folder / "lineage.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def bar(self, what: str, total: int | None) -> tqdm[Any]:
        """Progress in bytes of text."""
        hidden = not self.progress
        return tqdm(total=total, desc=what, unit="B", unit_scale=True, disable=hidden, file=sys.stderr, mininterval=0.5)

    def _documents(self, entry: dict[str, Any], tally: Tally, *, first: bool = False) -> Iterator[Document]:
        """Documents of a source; the first time its files are noted, later they must be the same."""
        if is_dataset(entry["corpus"]):
            yield from self._rows(entry, DatasetSource.of(entry["corpus"]), tally, first=first)
            return
        built_in = entry["corpus"] == PYTHON_DOCS
        files = [write_python_docs(self.folder)] if built_in else find_files(entry["corpus"])
        for i, file in enumerate(files):
            noted = lineage.describe_file(file, "")  # before it is read: a later change is noticed
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
        """Documents of a dataset; every time it must give the same text as the first time."""
        if first:
            entry["files"] = [
                lineage.describe_name(name) if file is None else lineage.describe_file(file, lineage.file_hash(file))
                for name, file in source.described()
            ]
        yield from source.documents(self.data.text_field, tally)
        if self.digests.setdefault(entry["name"], tally.digest.digest()) != tally.digest.digest():
            raise UniclozeError(_CHANGED.format(entry["corpus"]))

    def _survey(self) -> None:
        """Hashes files and documents and decides on each document: one byte of the file `decisions`."""
        seen = np.zeros(_SEEN, dtype=np.uint64)
        smallest: tuple[int, int, int] | None = None
        heldout = kept = number = 0
        limit = int(self.data.heldout_share * 2**64)
        with self.decisions.open("wb", 2**16) as decisions, self.bar("reading", None) as bar:
            for entry in self.text:
                tally, duplicates = Tally(), 0
                for document in self._documents(entry, tally, first=True):
                    size, value = _measure(document.text, self.seed)
                    decision = _HELDOUT if value < limit else _TRAIN
                    if self.data.deduplicate:
                        if int(seen[value % _SEEN]) == value:
                            decision = _DROP
                            duplicates += 1
                        seen[value % _SEEN] = value
                    decisions.write(bytes([decision]))
                    if decision != _DROP:
                        kept += 1
                        heldout += decision == _HELDOUT
                        self.total_bytes += size
                        smallest = min(smallest or (value, number, size), (value, number, size))
                    number += 1
                    bar.update(size)
                entry |= {"documents": tally.documents, "empty": tally.empty, "duplicates": duplicates}
                entry |= {"replaced": tally.replaced, "nul": tally.nul}
                _note_left_out(entry)
                if tally.first_bad:
                    tqdm.write(
                        f"{entry['corpus']}: replaced {tally.replaced} places that are no UTF-8 by U+FFFD and dropped "
                        f"{tally.nul} NUL characters, the first at {tally.first_bad}.",
                        file=sys.stderr,
                    )
                if not tally.documents:
                    raise UniclozeError(f"{entry['corpus']} holds no text, its files are empty: put some there.")
        if smallest and limit and heldout in (0, kept):
            _, number, size = smallest
            want = max(int(self.data.heldout_share * self.total_bytes), _LEAST_HELDOUT)
            self.cut_bytes = min(want, size // 2)
            whole = heldout == 0 and kept > 1 and size <= 4 * want
            with self.decisions.open("r+b") as decisions:
                decisions.seek(number)
                decisions.write(bytes([_HELDOUT if whole else _CUT]))

    def kept(self, entry: dict[str, Any], decisions: BinaryIO) -> Iterator[tuple[str, str, bool]]:
        """The documents to keep: file, text, and whether it is held out."""
        for document in self._documents(entry, Tally()):
            decision, text = decisions.read(1), document.text
            if not decision:
                raise UniclozeError(_CHANGED.format(document.path))
            if decision[0] in (_TRAIN, _HELDOUT):
                yield document.path, text, decision[0] == _HELDOUT
            elif decision[0] == _CUT:
                at = len(text) - max(1, self.cut_bytes * len(text) // len(text.encode()))
                gap = _GAP.search(text, at)
                at = gap.start() + 1 if gap else at
                yield document.path, text[:at], False
                yield document.path, text[at:], True

    def _select(self, tokenizer: Tokenizer) -> None:
        """Splits the sources that are token shards already."""
        for entry in self.tokenised:
            seen = np.zeros(_SEEN, dtype=np.uint64) if self.data.deduplicate else None
            parts: dict[str, list[tuple[Path, tokenised.Numbers]]] = {"train": [], "heldout": []}
            entry |= {"documents": 0, "duplicates": 0, "shards": []}
            for path in tokenised.find_shards(entry["corpus"]):
                train, heldout, duplicates = tokenised.split_shard(
                    path,
                    share=self.data.heldout_share,
                    seed=self.seed,
                    seen=seen,
                    vocab_size=tokenizer.vocabulary.size,
                )
                parts["train"].append((path, train))
                parts["heldout"].append((path, heldout))
                entry["documents"] += len(train) + len(heldout) + duplicates
                entry["duplicates"] += duplicates
                entry["shards"].append(str(path.resolve()))
                entry["files"].append(lineage.describe_file(path, lineage.file_hash(path)))
            for part, selections in parts.items():
                entry[part] = tokenised.write_selection(self.folder / part, entry["name"], selections)

    def _tokenise(self, tokenizer: Tokenizer) -> None:
        # One thread waits for the tokenizer while this one writes the last batch and reads the next.
        bar = self.bar("tokenising", self.total_bytes)
        with self.decisions.open("rb") as decisions, ThreadPoolExecutor(1) as waiter, bar:
            for entry in self.text:
                with (
                    _writer(self.folder / "train", entry["name"], tokenizer) as train,
                    _writer(self.folder / "heldout", entry["name"], tokenizer) as heldout,
                ):
                    writers = {False: train, True: heldout}
                    pending: tuple[list[Piece], Future[list[TokenIds]]] | None = None
                    for batch in batches(self.kept(entry, decisions)):
                        encoded = waiter.submit(tokenizer.encode_batch, [piece.text for piece in batch])
                        if pending:
                            bar.update(_write(writers, pending[0], pending[1].result()))
                        pending = batch, encoded
                    if pending:
                        bar.update(_write(writers, pending[0], pending[1].result()))
                for part, writer in (("train", train), ("heldout", heldout)):
                    entry[part] = {"documents": writer.documents, "tokens": writer.tokens, "bytes": writer.bytes}


class _TrainingTexts:
    """The train documents in pieces, to be read several times; evenly thinned out above 1 GiB."""

    def __init__(self, preparation: Preparation) -> None:
        self._preparation = preparation

    def __iter__(self) -> Iterator[str]:
        preparation = self._preparation
        share = min(1.0, _TRAINING_BYTES / max(1, preparation.total_bytes))
        taken = 0.0
        bar = preparation.bar("training the tokenizer", preparation.total_bytes)
        with preparation.decisions.open("rb") as decisions, bar:
            for entry in preparation.text:
                for _, text, is_heldout in preparation.kept(entry, decisions):
                    bar.update(len(text))
                    taken += share
                    if not is_heldout and taken >= 1 - 1e-9:
                        taken -= 1
                        yield from (_LONG_WORD.sub(r"\1 ", piece) for piece in _cut(text))


def _cut(text: str) -> Iterator[str]:
    """Pieces of about 64 Ki characters, cut where white space meets a word, so that no token changes."""
    start = 0
    while len(text) - start > 2 * _PIECE:
        gap = _GAP.search(text, start + _PIECE, start + 16 * _PIECE)
        end = gap.start() if gap else min(len(text), start + 16 * _PIECE)
        yield text[start:end]
        start = end
    if start < len(text) or not text:
        yield text[start:]


def batches(documents: Iterable[tuple[str, str, bool]]) -> Iterator[list[Piece]]:
    """Pieces of documents, about 2 MB at a time."""
    batch: list[Piece] = []
    size = 0
    for path, text, is_heldout in documents:
        left = len(text)
        for piece in _cut(text):
            left -= len(piece)
            batch.append(Piece(path=path, text=piece, is_heldout=is_heldout, is_last=not left))
            size += len(piece)
            if size >= _BATCH:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _write(writers: dict[bool, ShardWriter], batch: list[Piece], encoded: list[TokenIds]) -> int:
    """Writes a batch and returns its bytes of text."""
    total = 0
    for piece, token_ids in zip(batch, encoded, strict=True):
        size = len(piece.text.encode())
        for writer in writers.values():
            writer.begin_file(piece.path)
        writers[piece.is_heldout].write(token_ids, size, ends_document=piece.is_last)
        total += size
    return total


def _note_left_out(entry: dict[str, Any]) -> None:
    """Counts the files of a source that are of no known kind, and says so."""
    if entry["corpus"] == PYTHON_DOCS or is_dataset(entry["corpus"]):
        return
    others = other_files(entry["corpus"])
    if others:
        entry["left_out"] = others
        total = sum(others.values())
        kinds = ", ".join(f"{count:,} {ending}" for ending, count in others.items())
        said = "1 file of another kind is" if total == 1 else f"{total:,} files of other kinds are"
        warnings.warn(f"{entry['corpus']}: {said} left out: {kinds}", stacklevel=2)


def _measure(text: str, seed: int) -> tuple[int, int]:
    """The bytes of a text, and 64 bits that are equal for texts equal up to case and white space."""
    digest = hashlib.blake2b(digest_size=8, salt=seed.to_bytes(8, "little", signed=True))
    size = 0
    for piece in _cut(text):
        size += len(piece.encode())
        digest.update(" ".join(piece.lower().split()).encode())
        digest.update(b" ")
    return size, int.from_bytes(digest.digest(), "little")


def _writer(folder: Path, name: str, tokenizer: Tokenizer) -> ShardWriter:
    words = f"unicloze-{tokenizer.fingerprint[:16]}"
    return ShardWriter(folder / f"{name}.ds", vocab_size=tokenizer.vocabulary.size, tokenizer_name=words)


def _source_names(corpus: Iterable[str]) -> list[str]:
    names: list[str] = []
    for path in corpus:
        name = re.sub(r"[^\w-]+", "-", Path(path).name.split(".")[0]).strip("-") or "text"
        names.append(name if name not in names else f"{name}-{len(names)}")
    return names
