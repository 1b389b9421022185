"""Corpus to token shards: drop duplicates, hold documents out, train or load a tokenizer, tokenise; all as a stream.

    FOLDER/tokenizer.json, tokenizer_config.json
    FOLDER/train/SOURCE.ds ...    FOLDER/heldout/SOURCE.ds ...
    FOLDER/lineage.json           what it was made from, with the fingerprint

The folder appears as a whole or not at all: it is written beside its place and renamed. An old folder is opened only if the
corpus, the settings and the version of this code still give its fingerprint.
"""

from __future__ import annotations

import dataclasses
import errno
import gzip
import hashlib
import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

import numpy as np
from tqdm import tqdm

from unicloze.errors import UniclozeError, UsageError
from unicloze.settings import PYTHON_DOCS, DataSettings, TokenizerSettings
from unicloze.text import python_docs
from unicloze.text.readers import Document, Tally, find_files, read_file
from unicloze.text.shards import ShardWriter, TokenShard, TokenSource
from unicloze.text.tokenizers import Tokenizer

SCHEMA = 1
"""Version of `lineage.json`."""
CODE = 1
"""Version of the rules by which text becomes shards; part of the fingerprint."""

_PIECE = 2**16
_BATCH = 2**21
_TRAINING_BYTES = 2**30
_SEEN = 2**20
_LEAST_HELDOUT = 2048
_DROP, _TRAIN, _HELDOUT, _CUT = range(4)
_GAP = re.compile(r"\s\S")
_WORD_LIMIT = 2**64


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """A prepared corpus.

    Args:
        folder: Where it lies.
        tokenizer: Its tokenizer.
        train: The sources to train on, in the order of `data.corpus`.
        heldout: What is held out of each source; sources of which nothing is held out are left out.
        lineage: The content of `lineage.json`.
    """

    folder: Path
    tokenizer: Tokenizer
    train: tuple[TokenSource, ...]
    heldout: tuple[TokenSource, ...]
    lineage: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """Names corpus, settings and code version."""
        return cast(str, self.lineage["fingerprint"])

    @classmethod
    def load(cls, folder: str | Path) -> Prepared:
        """Opens a prepared folder without looking at the corpus.

        Raises:
            UniclozeError: It is not one, it is damaged, or another version of the code made it.
        """
        folder = Path(folder)
        lineage = _read_lineage(folder)
        tokenizer = Tokenizer.load(folder / "tokenizer.json")
        if tokenizer.fingerprint != lineage["tokenizer"]["fingerprint"]:
            raise UniclozeError(
                f"{folder / 'tokenizer.json'} has fingerprint {tokenizer.fingerprint[:16]}, not "
                f"{lineage['tokenizer']['fingerprint'][:16]} as in lineage.json: remove the folder and prepare again."
            )
        parts: dict[str, list[TokenSource]] = {"train": [], "heldout": []}
        for part, sources in parts.items():
            for entry in lineage["sources"]:
                if entry[part]["documents"] or part == "train":
                    sources.append(_open_source(folder / part, entry))
        return cls(
            folder=folder,
            tokenizer=tokenizer,
            train=tuple(parts["train"]),
            heldout=tuple(parts["heldout"]),
            lineage=lineage,
        )


def open_or_prepare(
    data: DataSettings, tokenizer: TokenizerSettings, folder: str | Path, *, progress: bool = True, seed: int = 0
) -> Prepared:
    """Opens `data.prepared` or `folder` if it is prepared, else prepares it. See `prepare_data`."""
    if data.prepared is not None:
        prepared = Prepared.load(data.prepared)
        if tokenizer.path is not None:
            wanted = Tokenizer.load(tokenizer.path, lowercase=tokenizer.lowercase)
            if wanted.fingerprint != prepared.tokenizer.fingerprint:
                raise UniclozeError(
                    f"{data.prepared} was prepared with tokenizer {prepared.tokenizer.fingerprint[:16]}, "
                    f"{tokenizer.path} is {wanted.fingerprint[:16]}: leave --tokenizer.path out or prepare again."
                )
        return prepared
    return prepare_data(data, tokenizer, Path(folder), progress=progress, seed=seed)


def prepare_data(
    data: DataSettings, tokenizer: TokenizerSettings, out: Path, *, progress: bool = True, seed: int = 0
) -> Prepared:
    """Prepares a corpus in a folder, or opens the folder if this corpus was prepared there before.

    Memory does not grow with the corpus. Documents are duplicates if they are equal up to case and white space; those
    repeats are found that lie within about a million documents. A document is held out if the hash of its text says so.
    If that is none, the document with the smallest hash is held out; if it holds more than four times the share asked
    for, or is the only one, only its end is, cut off at white space.

    Args:
        data: `corpus`, `text_field`, `heldout_share`, `deduplicate` are used.
        tokenizer: What to train or load.
        out: The folder.
        progress: Show progress on stderr.
        seed: Names the choice of held-out documents.

    Raises:
        UsageError: A setting cannot be.
        UniclozeError: The corpus cannot be read, or the folder was made from another one.
    """
    if not 0 <= data.heldout_share < 1:
        raise UsageError(f"data.heldout_share is {data.heldout_share}: give a share from 0 to below 1.")
    if not data.corpus:
        raise UsageError("data.corpus is empty: give --data.corpus a file, folder or glob, or python-docs.")
    settings = _settings(data, tokenizer, seed)
    if (out / "lineage.json").is_file():
        _check(out, data, settings)
        return Prepared.load(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UniclozeError(f"{out} exists and was not prepared here: give another --out or remove it.")
    out.parent.mkdir(parents=True, exist_ok=True)
    work = out.parent / f".{out.name}.partial-{socket.gethostname()}-{os.getpid()}"
    cached = _clean(out)
    try:
        work.mkdir()
        for file in cached:
            file.rename(work / file.name)
        _Preparation(data, tokenizer, settings, work, progress, seed).run()
        _sync(work)
        os.replace(work, out)
        _sync_folder(out.parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UniclozeError(f"The disk of {out.parent} is full: free some space and run the command again.") from error
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Prepared.load(out)


class _Preparation:
    """One run over the corpus: survey, then train the tokenizer, then tokenise."""

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
        self.names = _source_names(data.corpus)
        self.entries: list[dict[str, Any]] = []
        self.decisions = folder / "decisions"
        self.cut_bytes = self.total_bytes = 0

    def run(self) -> None:
        self._survey()
        tokenizer = self._tokenizer()
        tokenizer.save(self.folder)
        self._tokenise(tokenizer)
        self.decisions.unlink()
        lineage = {
            "schema": SCHEMA,
            "fingerprint": fingerprint(self.settings, self.entries),
            "settings": self.settings,
            "tokenizer": {"fingerprint": tokenizer.fingerprint, "vocab_size": tokenizer.vocabulary.size},
            "sources": self.entries,
        }
        (self.folder / "lineage.json").write_text(json.dumps(lineage, indent=1) + "\n", encoding="utf-8")

    def _bar(self, what: str, total: int | None) -> tqdm[Any]:
        return tqdm(total=total, desc=what, unit="B", unit_scale=True, disable=not self.progress, file=sys.stderr, mininterval=0.5)

    def _documents(self, corpus: str, entry: dict[str, Any] | None = None) -> Iterator[Document]:
        """Documents of one source, in order; fills in the entry's account of its files."""
        tally = Tally()
        for file in [_python_docs_file(self.folder)] if corpus == PYTHON_DOCS else find_files(corpus):
            yield from read_file(file, "text" if corpus == PYTHON_DOCS else self.data.text_field, tally)
            if entry is not None:
                entry["files"].append(_file_entry(file, corpus, tally.digest.hexdigest()))
        if entry is not None:
            entry |= {"empty": tally.empty, "replaced": tally.replaced, "nul": tally.nul}
            if tally.first_bad and self.progress:
                tqdm.write(
                    f"{corpus}: {tally.replaced} places that are no UTF-8 replaced by U+FFFD and {tally.nul} NUL characters "
                    f"dropped, the first at {tally.first_bad}.",
                    file=sys.stderr,
                )

    def _survey(self) -> None:
        """Hashes files and documents and decides on each document."""
        seen = np.zeros(_SEEN, dtype=np.uint64)
        smallest: tuple[int, int, int, int] | None = None
        heldout = kept = number = 0
        limit = int(self.data.heldout_share * _WORD_LIMIT)
        with self.decisions.open("wb", 2**16) as decisions, self._bar("reading", None) as bar:
            for corpus, name in zip(self.data.corpus, self.names, strict=True):
                entry: dict[str, Any] = {"name": name, "corpus": corpus, "files": [], "documents": 0, "duplicates": 0}
                self.entries.append(entry)
                for document in self._documents(corpus, entry):
                    size = len(document.text.encode())
                    value = _hash(document.text, self.seed)
                    entry["documents"] += 1
                    decision = _HELDOUT if value < limit else _TRAIN
                    if self.data.deduplicate:
                        slot = value % _SEEN
                        if int(seen[slot]) == value:
                            decision = _DROP
                            entry["duplicates"] += 1
                        seen[slot] = value
                    decisions.write(bytes([decision]))
                    if decision != _DROP:
                        kept += 1
                        heldout += decision == _HELDOUT
                        self.total_bytes += size
                        if smallest is None or value < smallest[0]:
                            smallest = value, number, size, decision
                    number += 1
                    bar.update(size)
                if not entry["documents"]:
                    raise UniclozeError(f"{corpus} holds no text: its files are empty; give --data.corpus one with text.")
        if smallest and limit and (not heldout or heldout == kept):
            _, number, size, _ = smallest
            want = max(int(self.data.heldout_share * self.total_bytes), _LEAST_HELDOUT)
            self.cut_bytes = min(want, size // 2)
            with self.decisions.open("r+b") as decisions:
                decisions.seek(number)
                decisions.write(bytes([_HELDOUT if kept > 1 and size <= 4 * want and not heldout else _CUT]))

    def _decided(self, entry: dict[str, Any], decisions: Any) -> Iterator[tuple[Document, str, bool]]:
        """Documents to keep: the document, its text, and whether it is held out."""
        for document in self._documents(entry["corpus"]):
            match decisions.read(1)[0]:
                case decision if decision in (_TRAIN, _HELDOUT):
                    yield document, document.text, decision == _HELDOUT
                case decision if decision == _CUT:
                    at = len(document.text) - self.cut_bytes * len(document.text) // len(document.text.encode())
                    gap = _GAP.search(document.text, at)
                    at = gap.start() + 1 if gap else at
                    yield document, document.text[:at], False
                    yield document, document.text[at:], True

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer_settings.path is not None:
            return Tokenizer.load(self.tokenizer_settings.path, lowercase=self.tokenizer_settings.lowercase)
        return Tokenizer.train(_TrainingTexts(self), self.tokenizer_settings)

    def _tokenise(self, tokenizer: Tokenizer) -> None:
        writers: dict[bool, ShardWriter] = {}
        for part in ("train", "heldout"):
            (self.folder / part).mkdir()
        with self.decisions.open("rb") as decisions, self._bar("tokenising", self.total_bytes) as bar:
            for entry, name in zip(self.entries, self.names, strict=True):
                with (
                    _writer(self.folder / "train", name, tokenizer) as train,
                    _writer(self.folder / "heldout", name, tokenizer) as held,
                ):
                    writers = {False: train, True: held}
                    place = ""
                    for batch in _batches(self._decided(entry, decisions)):
                        encoded = iter(tokenizer.encode_batch([piece for _, pieces, _ in batch for piece in pieces]))
                        for document, pieces, is_heldout in batch:
                            if document.path != place:
                                place = document.path
                                for writer in writers.values():
                                    writer.begin_file(place)
                            size = sum(len(piece.encode()) for piece in pieces)
                            writers[is_heldout].write(np.concatenate([next(encoded) for _ in pieces]), size)
                            bar.update(size)
                for part, writer in (("train", train), ("heldout", held)):
                    entry[part] = {"documents": writer.documents, "tokens": writer.tokens, "bytes": writer.bytes}


class _TrainingTexts:
    """The train documents in pieces, to be read several times; evenly thinned out above 1 GiB."""

    def __init__(self, preparation: _Preparation) -> None:
        self._preparation = preparation

    def __iter__(self) -> Iterator[str]:
        preparation = self._preparation
        share = min(1.0, _TRAINING_BYTES / max(1, preparation.total_bytes))
        taken = 0.0
        with (
            preparation.decisions.open("rb") as decisions,
            preparation._bar("training the tokenizer", preparation.total_bytes) as bar,
        ):
            for entry in preparation.entries:
                for _, text, is_heldout in preparation._decided(entry, decisions):
                    bar.update(len(text))
                    taken += share
                    if not is_heldout and taken >= 1 - 1e-9:
                        taken -= 1
                        yield from _cut(text)


def _cut(text: str) -> Iterator[str]:
    """Pieces of about 64 Ki characters, cut where white space meets a word, so that no token changes."""
    start = 0
    while len(text) - start > 2 * _PIECE:
        gap = _GAP.search(text, start + _PIECE, start + 16 * _PIECE)
        end = gap.start() if gap else start + _PIECE
        yield text[start:end]
        start = end
    yield text[start:]


def _batches(
    documents: Iterable[tuple[Document, str, bool]],
) -> Iterator[list[tuple[Document, list[str], bool]]]:
    batch: list[tuple[Document, list[str], bool]] = []
    size = 0
    for document, text, is_heldout in documents:
        batch.append((document, list(_cut(text)), is_heldout))
        size += len(text)
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _hash(text: str, seed: int) -> int:
    """64 bits that are equal for texts equal up to case and white space."""
    digest = hashlib.blake2b(digest_size=8, salt=seed.to_bytes(8, "little", signed=True))
    for piece in _cut(text):
        digest.update(" ".join(piece.lower().split()).encode())
        digest.update(b" ")
    return int.from_bytes(digest.digest(), "little")


def _writer(folder: Path, name: str, tokenizer: Tokenizer) -> ShardWriter:
    return ShardWriter(
        folder / f"{name}.ds", vocab_size=tokenizer.vocabulary.size, tokenizer_name=f"unicloze-{tokenizer.fingerprint[:16]}"
    )


def _open_source(folder: Path, entry: dict[str, Any]) -> TokenSource:
    return TokenSource(name=entry["name"], shards=(TokenShard.open(folder / f"{entry['name']}.ds"),))


def _source_names(corpus: Iterable[str]) -> list[str]:
    names: list[str] = []
    for path in corpus:
        stem = re.sub(r"[^\w.-]+", "-", Path(path).name).strip("-.") or "text"
        name = stem.split(".")[0] or "text"
        names.append(name if name not in names else f"{name}-{len(names)}")
    return names


def _python_docs_file(folder: Path) -> Path:
    """The built-in corpus as a file of the folder, made unless it is there."""
    path = folder / f"python-docs-{python_docs.versions()}.jsonl.gz"
    if not path.is_file():
        partial = path.with_suffix(".partial")
        with partial.open("wb") as raw, gzip.GzipFile("", "wb", 5, raw, 0) as compressed:
            for document in python_docs.python_docs():
                compressed.write((json.dumps({"text": document.text, "name": document.path}) + "\n").encode())
        partial.rename(path)
    return path


def _file_entry(file: Path, corpus: str, digest: str) -> dict[str, Any]:
    status = file.stat()
    name = file.name if corpus == PYTHON_DOCS else str(file)
    return {"path": name, "size": status.st_size, "mtime_ns": status.st_mtime_ns, "hash": digest}


def _settings(data: DataSettings, tokenizer: TokenizerSettings, seed: int) -> dict[str, Any]:
    """The settings that decide on the content of the folder."""
    described = dataclasses.asdict(tokenizer)
    if tokenizer.path is not None:
        described = {"loaded": Tokenizer.load(tokenizer.path, lowercase=tokenizer.lowercase).fingerprint}
    described.pop("path", None)
    return {
        "code": CODE,
        "data.text_field": data.text_field,
        "data.heldout_share": data.heldout_share,
        "data.deduplicate": data.deduplicate,
        "seed": seed,
        **{f"tokenizer.{name}": value for name, value in described.items()},
    }


def fingerprint(settings: dict[str, Any], entries: Iterable[dict[str, Any]]) -> str:
    """Names the settings and the content of the files, wherever they lie."""
    content = [[file["hash"] for file in entry["files"]] for entry in entries]
    return hashlib.sha256(json.dumps([settings, content], sort_keys=True).encode()).hexdigest()


def _read_lineage(folder: Path) -> dict[str, Any]:
    path = folder / "lineage.json"
    if not path.is_file():
        raise UniclozeError(f"{folder} is no prepared corpus (it has no lineage.json): run `unicloze prepare --out {folder}`.")
    try:
        lineage = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UniclozeError(f"{path} is damaged ({error}): remove the folder and prepare again.") from error
    if lineage.get("schema") != SCHEMA:
        raise UniclozeError(f"{path} has schema {lineage.get('schema')}, not {SCHEMA}: remove the folder and prepare again.")
    return cast(dict[str, Any], lineage)


def _check(folder: Path, data: DataSettings, settings: dict[str, Any]) -> None:
    """Refuses a folder made from something else."""
    lineage = _read_lineage(folder)
    entries, changes = [], []
    for position, corpus in enumerate(data.corpus):
        old = lineage["sources"][position]["files"] if position < len(lineage["sources"]) else []
        if corpus == PYTHON_DOCS:
            name = f"python-docs-{python_docs.versions()}.jsonl.gz"
            entries.append({"files": [file if file["path"] == name else {"hash": name} for file in old or [{"path": ""}]]})
            if [file["path"] for file in old] != [name]:
                changes.append(f"{PYTHON_DOCS} is now {name.removesuffix('.jsonl.gz')}")
            continue
        known = {file["path"]: file for file in old}
        files = []
        for file in find_files(corpus):
            before, status = known.pop(str(file), None), file.stat()
            if before and (before["size"], before["mtime_ns"]) == (status.st_size, status.st_mtime_ns):
                files.append(before)
                continue
            files.append({"hash": _file_hash(file)})
            if before is None:
                changes.append(f"{file} is new")
            elif before["hash"] != files[-1]["hash"]:
                changes.append(f"{file} has changed")
        changes += [f"{path} is gone" for path in known]
        entries.append({"files": files})
    if len(lineage["sources"]) != len(data.corpus):
        changes.append(f"data.corpus has {len(data.corpus)} sources instead of {len(lineage['sources'])}")
    for name in sorted(settings.keys() | lineage["settings"].keys()):
        old_value, value = lineage["settings"].get(name), settings.get(name)
        if old_value != value:
            changes.append(f"{name} is {value} instead of {old_value}")
    now = fingerprint(settings, entries)
    if now != lineage["fingerprint"]:
        what = "; ".join(changes[:3]) + (f"; and {len(changes) - 3} more" if len(changes) > 3 else "")
        raise UniclozeError(
            f"{folder} was prepared with fingerprint {lineage['fingerprint'][:16]}, this corpus and these settings have "
            f"{now[:16]} ({what or 'the order of the files differs'}): give another --out or remove {folder}."
        )


def _file_hash(file: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with file.open("rb") as raw:
        while block := raw.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _clean(out: Path) -> list[Path]:
    """Removes what killed runs of this machine left beside `out`; their copies of the built-in corpus are kept."""
    kept: dict[str, Path] = {}
    prefix = f".{out.name}.partial-{socket.gethostname()}-"
    for left in out.parent.glob(f"{glob_escape(prefix)}*"):
        owner = left.name.removeprefix(prefix)
        if not owner.isdigit() or _alive(int(owner)):
            continue
        for file in left.glob("python-docs-*.jsonl.gz"):
            kept[file.name] = file.rename(out.parent / f".{file.name}.{os.getpid()}")
        shutil.rmtree(left, ignore_errors=True)
    return list(kept.values())


def glob_escape(name: str) -> str:
    """The name as a pattern that matches it alone."""
    return re.sub(r"([*?[])", r"[\1]", name)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _sync(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
    for inner in [*(path for path in folder.rglob("*") if path.is_dir()), folder]:
        _sync_folder(inner)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_ = TextIO
