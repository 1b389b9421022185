"""Portions of a corpus: ranges of files that any process can survey and tokenise, in any order.

A job reads one portion and writes a folder of its own, named after everything its content depends on. The folder gets its
name when it is complete, so a restarted preparation finds the finished jobs, and the number of processes changes no byte.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from unicloze.errors import UniclozeError
from unicloze.files import digest, sync
from unicloze.settings import PYTHON_DOCS
from unicloze.storage import File, file_at, is_url
from unicloze.text import lineage, sources
from unicloze.text.digests import digests_of
from unicloze.text.documents import (
    Document,
    Tally,
    find_files,
    last_visible,
    pieces_of,
    read_file,
    tail_start,
    utf8_size,
    visible,
)
from unicloze.text.marks import Marks, marks_of
from unicloze.text.python_docs import file_name
from unicloze.text.shards import ShardWriter
from unicloze.text.sources import DatasetSource, is_dataset
from unicloze.text.split import CUT, DROP, HELDOUT, NGrams, Spelling, cut_out, text_hash, tokens_hash
from unicloze.text.tokenizers import Tokenizer

TokenIds = npt.NDArray[np.int32]
Encoded = tuple[TokenIds, Marks | None]
Report = Callable[[int], None]

PORTION = 2**24
"""Files are added to a portion until it has this many bytes, or a thousandth of a large corpus."""
_PACKED, _RATIO = (".gz", ".zst", ".parquet"), 3
"""Compressed files, and how many times their size counts."""
MOST_PORTIONS = 1000
DONE, FOUND = "done.json", "found.npy"
CHANGED = "{} changed while it was being read: run the command again when the file is complete."
_BATCH = 2**21
_PART = 2**16


@dataclass(frozen=True, kw_only=True)
class Portion:
    """Some consecutive files of a source."""

    source: str  # name of the source
    corpus: str  # its entry of `data.corpus`
    # text files, the built-in text, the rows of a dataset, or one token shard
    kind: Literal["files", "built-in", "dataset", "shard"]
    files: tuple[str, ...]  # paths of the files; empty for a dataset
    identity: str  # changes with the files
    size: int = 0  # roughly their bytes of text

    def documents(
        self,
        text_field: str,
        tally: Tally,
        noted: list[dict[str, Any]],
        *,
        spans_field: str | None = None,
        again: bool = False,
    ) -> Iterator[Document]:
        """The documents in order."""
        if self.kind == "dataset":
            source = DatasetSource.of(self.corpus)
            yield from source.documents(text_field, tally)
            found = {"rows": tally.digest.hexdigest()}
            if not again:
                noted.append(found)
            elif noted != [found]:
                raise UniclozeError(CHANGED.format(self.corpus))
            return
        for place, name in enumerate(self.files):
            file = file_at(name) if is_url(name) else Path(name)
            if not file.is_file():
                raise UniclozeError(CHANGED.format(self.corpus))
            found = lineage.describe_file(file, "")  # before reading, so that later changes are detected
            for document in read_file(file, "text" if self.kind == "built-in" else text_field, tally, spans_field):
                yield replace(document, path=PYTHON_DOCS) if self.kind == "built-in" else document
            found["hash"] = tally.digest.hexdigest()
            if self.kind == "built-in":
                found["path"] = file.name
            if not again:
                noted.append(found)
            elif found["hash"] != noted[place]["hash"]:
                raise UniclozeError(CHANGED.format(file))


def divide(source: str, corpus: str, built_in: Path) -> list[Portion]:
    """Divide a source into portions."""
    if corpus == PYTHON_DOCS:
        name = file_name()
        return [Portion(source=source, corpus=corpus, kind="built-in", files=(str(built_in),), identity=name)]
    if is_dataset(corpus):
        identity = digest([list(map(str, entry)) for entry in DatasetSource.of(corpus).described()])
        return [Portion(source=source, corpus=corpus, kind="dataset", files=(), identity=identity)]
    shards = sources.find_shards(corpus)
    if shards:
        return [_portion(source, corpus, "shard", [shard]) for shard in shards]
    files = find_files(corpus)
    sizes = [_size(file) for file in files]
    enough = max(PORTION, sum(sizes) // MOST_PORTIONS)
    portions: list[Portion] = []
    taken: list[File] = []
    size = 0
    for file, bytes_of_file in zip(files, sizes, strict=True):
        taken.append(file)
        size += bytes_of_file
        if size >= enough:
            portions.append(_portion(source, corpus, "files", taken))
            taken, size = [], 0
    return [*portions, _portion(source, corpus, "files", taken)] if taken else portions


def _size(file: File) -> int:
    """Roughly the bytes of text of a file."""
    return file.stat().st_size * (_RATIO if file.name.endswith(_PACKED) else 1)


def _portion(source: str, corpus: str, kind: Literal["files", "shard"], files: Sequence[File]) -> Portion:
    identity = digest([[str(file), *lineage.version(file).values()] for file in files])
    size = sum(map(_size, files))
    return Portion(source=source, corpus=corpus, kind=kind, files=tuple(map(str, files)), identity=identity, size=size)


@dataclass(frozen=True, kw_only=True)
class Job:
    """Work on one portion, whose result is a folder."""

    # `survey` hashes the documents; `search` finds evaluation texts in them; `tokenise` writes their tokens
    what: Literal["survey", "search", "tokenise"]
    portion: Portion  # the portion
    folder: str  # folder of the results of all jobs
    text_field: str  # field that holds the text
    seed: int  # salt of the hashes
    tokenizer: str | None = None  # folder of the tokenizer; for a survey only of token shards, or of texts beside them
    tokenizer_print: str = ""  # fingerprint of the tokenizer
    mixed: bool = False  # the corpus has both texts and token shards
    sides: str | None = None  # file with the side of each document, see `unicloze.text.split`; not for a survey
    tail: int = 0  # visible characters held out at the end of a document that is cut
    files: tuple[dict[str, Any], ...] = ()  # descriptions of the files as the survey found them; not for a survey
    ngrams: str | None = None  # folder of the n-grams to search for
    cuts: str | None = None  # file with the places to cut out of training documents
    spans_field: str | None = None  # field of .jsonl that holds the spans of a text

    @property
    def out(self) -> Path:
        """The folder of the result, named after everything that determines its content."""
        parts = [self.portion.identity, self.portion.kind, self.text_field, self.seed, self.tokenizer_print, self.mixed]
        if self.sides is not None:
            parts += [self.tail, lineage.file_hash(Path(self.sides)), [file.get("hash") for file in self.files]]
        if self.ngrams is not None:
            parts += [lineage.file_hash(file) for file in sorted(Path(self.ngrams).iterdir())]
        if self.cuts is not None:
            parts.append(lineage.file_hash(Path(self.cuts)))
        if self.spans_field is not None:
            parts.append(["spans", self.spans_field])
        return Path(self.folder) / f"{self.what}-{digest([lineage.CODE, *parts])[:32]}"

    def result(self) -> dict[str, Any] | None:
        """What the finished job recorded; None if it is not finished."""
        mark = self.out / DONE
        return json.loads(mark.read_bytes()) if mark.is_file() else None

    def run(self, report: Report) -> None:
        """Do the work unless it is done."""
        out = self.out
        if (out / DONE).is_file():
            return
        work = out.with_name(f"{out.name}-{uuid.uuid4().hex[:8]}")
        work.mkdir(parents=True)
        try:
            do = {"survey": _survey, "search": _search, "tokenise": _tokenise}[self.what]
            result = do(self, work, report)
            (work / DONE).write_text(json.dumps(result), encoding="utf-8")
            for file in work.iterdir():
                sync(file)
            if not out.exists():  # a process that outlived a killed preparation may have finished the same job
                os.replace(work, out)
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def to_json(self) -> str:
        """The job as a line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Job:
        """The job of a line of JSON."""
        content = json.loads(line)
        portion = Portion(**{**content["portion"], "files": tuple(content["portion"]["files"])})
        return cls(**{**content, "portion": portion, "files": tuple(content["files"])})

    def kept(self, counts: Counter[str] | None = None) -> Iterator[tuple[Document, bool]]:
        """The documents of a surveyed portion that are not dropped, and whether each is held out.

        Evaluation texts are cut out of training documents, whose pieces are documents of their own.
        """
        if self.cuts is None:
            yield from self.split()
            return
        counts = Counter() if counts is None else counts
        cuts = np.load(self.cuts, allow_pickle=False)
        for number, (document, is_heldout) in enumerate(self.split()):
            first, end = np.searchsorted(cuts[:, 0], [number, number + 1])
            if first == end:
                yield document, is_heldout
                continue
            pieces = cut_out(document.text, cuts[first:end, 1:])
            counts["cut" if pieces else "dropped"] += 1
            yield from ((document.part(*piece), False) for piece in pieces)

    def split(self) -> Iterator[tuple[Document, bool]]:
        """As `kept`, with evaluation texts in place."""
        assert self.sides is not None
        sides = np.fromfile(self.sides, dtype=np.uint8)
        documents = self.documents_again()
        for number, document in enumerate(documents):
            if number >= len(sides):
                raise UniclozeError(CHANGED.format(document.path))
            side = int(sides[number])
            if side == CUT:
                at = last_visible(document.text, self.tail)
                yield document.part(0, at), False
                yield document.part(at, len(document.text)), True
            elif side != DROP:
                yield document, side == HELDOUT

    def documents_again(self) -> Iterator[Document]:
        """All documents of a surveyed portion."""
        files, spans_field = list(self.files), self.spans_field
        return self.portion.documents(self.text_field, Tally(), files, spans_field=spans_field, again=True)


def tail_of(job: Job, size: int) -> int:
    """Visible characters in the last `size` bytes or so of the first document of a portion that is cut.

    All copies of the document are cut before as many visible characters, even if their white space differs.
    """
    assert job.sides is not None
    number = int(np.flatnonzero(np.fromfile(job.sides, dtype=np.uint8) == CUT)[0])
    text = next(document.text for place, document in enumerate(job.documents_again()) if place == number)
    return visible(text[tail_start(text, size) :])


def _survey(job: Job, work: Path, report: Report) -> dict[str, Any]:
    """Hash the documents of a portion and the bytes of its files."""
    tokenizer = None if job.tokenizer is None else _loaded(job.tokenizer, job.tokenizer_print)
    hashers = _Hashers(job.seed, tokenizer, mixed=job.mixed)
    tally, noted = Tally(), list[dict[str, Any]]()
    counts = {"documents": 0, "empty": 0, "bytes": 0}
    is_shard = job.portion.kind == "shard"
    found = (
        hashers.of_shard(Path(job.portion.files[0]))
        if is_shard
        else hashers.of_texts(job.portion.documents(job.text_field, tally, noted, spans_field=job.spans_field))
    )
    with (work / "hashes").open("wb", 2**20) as hashes, (work / "sizes").open("wb", 2**20) as sizes:
        for value, size in found:
            hashes.write((value if size else 0).to_bytes(8, "little"))
            sizes.write(size.to_bytes(8, "little"))
            counts["documents" if size else "empty"] += 1
            counts["bytes"] += size
            report(size)
    if is_shard:
        shard = Path(job.portion.files[0])
        noted = [lineage.describe_file(shard, lineage.file_hash(shard))]
    return {
        **counts,
        "empty": counts["empty"] + tally.empty,
        "read": tally.documents,
        "replaced": tally.replaced,
        "nul": tally.nul,
        "first_bad": tally.first_bad,
        "files": noted,
    }


def _search(job: Job, work: Path, report: Report) -> dict[str, Any]:
    """Find evaluation texts in the training documents of a portion."""
    assert job.ngrams is not None
    ngrams = NGrams.load(Path(job.ngrams))
    found = [np.zeros((0, 4), dtype=np.int64)]
    for number, (document, is_heldout) in enumerate(job.split()):
        report(len(document.text))
        if not is_heldout and len(places := ngrams.find(document.text)):
            found.append(np.column_stack([np.full(len(places), number), places]))
    np.save(work / FOUND, np.concatenate(found))
    return {}


def _tokenise(job: Job, work: Path, report: Report) -> dict[str, Any]:
    """Write the tokens of the documents of a portion, with digests of the files."""
    assert job.tokenizer is not None
    tokenizer, cut = _loaded(job.tokenizer, job.tokenizer_print), Counter[str]()
    # One thread waits for the tokenizer while this one writes the previous batch and reads the next.
    with (
        ThreadPoolExecutor(1) as waiter,
        _writer(work / "train.ds", tokenizer) as train,
        _writer(work / "heldout.ds", tokenizer) as heldout,
    ):
        writers = {False: train, True: heldout}
        pending: tuple[list[Piece], Future[list[Encoded]]] | None = None
        for batch in batches(job.kept(cut)):
            encoded = waiter.submit(_encoded, tokenizer, batch)
            if pending:
                report(_write(writers, pending[0], pending[1].result()))
            pending = batch, encoded
        if pending:
            report(_write(writers, pending[0], pending[1].result()))
    counts = {
        part: {"documents": writer.documents, "tokens": writer.tokens, "bytes": writer.bytes}
        for part, writer in (("train", train), ("heldout", heldout))
    }
    return {**counts, **cut, "digests": {file.name: list(digests_of(file)) for file in sorted(work.iterdir())}}


@functools.lru_cache(maxsize=1)
def _loaded(place: str, _fingerprint: str) -> Tokenizer:
    """The tokenizer of a preparation, which every process loads once."""
    return Tokenizer.load(Path(place))


def _writer(path: Path, tokenizer: Tokenizer) -> ShardWriter:
    return ShardWriter(path, vocab_size=tokenizer.vocabulary.size, tokenizer_name=sources.name_of(tokenizer))


def _encoded(tokenizer: Tokenizer, batch: list[Piece]) -> list[Encoded]:
    """Tokens of each piece, and the bytes of its spans if its document gives any."""
    texts = [piece.text for piece in batch]
    if not any(piece.document.spans.gives for piece in batch):
        return [(token_ids, None) for token_ids in tokenizer.encode_batch(texts)]
    return [
        (token_ids, marks_of(piece.document.spans.part(piece.start, piece.start + len(piece.text)), offsets))
        for piece, (token_ids, offsets) in zip(batch, tokenizer.encode_batch_with_offsets(texts), strict=True)
    ]


def _write(writers: dict[bool, ShardWriter], batch: list[Piece], encoded: list[Encoded]) -> int:
    """Write a batch; returns its bytes of text."""
    total = 0
    for piece, (token_ids, marks) in zip(batch, encoded, strict=True):
        size = utf8_size(piece.text)
        for writer in writers.values():
            writer.begin_file(piece.document.path)
        line, ends = piece.document.line, piece.is_last
        writers[piece.is_heldout].write(token_ids, size, line=line, ends_document=ends, marks=marks)
        total += size
    return total


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
        for tokens in sources.documents(path, self._tokenizer):
            if self._spelling is not None and len(tokens):
                value, spelled = self._spelling.hash(np.split(tokens, range(_PART, len(tokens), _PART)), self._seed)
                yield value, max(1, spelled)
            else:
                yield tokens_hash(tokens, self._seed, size), len(tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A piece of a document on its way to the tokenizer."""

    document: Document  # the document, or its training or held-out part
    text: str  # the piece
    start: int  # its first character in the document
    is_heldout: bool  # whether the document is held out
    is_last: bool  # whether the document ends here


def batches(documents: Iterable[tuple[Document, bool]]) -> Iterator[list[Piece]]:
    """Pieces of documents with their held-out flag, in batches of about 2 Mi characters."""
    batch: list[Piece] = []
    size = 0
    for document, is_heldout in documents:
        start = 0
        for piece in pieces_of(document.text):
            is_last = start + len(piece) == len(document.text)
            batch.append(Piece(document=document, text=piece, start=start, is_heldout=is_heldout, is_last=is_last))
            start += len(piece)
            size += len(piece)
            if size >= _BATCH:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch
