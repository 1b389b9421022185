"""The passes of a preparation over a corpus: survey, train or load the tokenizer, tokenise.

Each pass is a job for each portion of the corpus, a range of files that any process can read, in any order. A job writes a
folder named after everything that its content depends on, which gets its name when it is complete: so a restarted preparation
finds the finished jobs, and the number of processes changes no byte.

    python -m unicloze.text.pipeline    does the job of one line of JSON on stdin, and answers with a line of JSON on stdout

Such a process ends when its stdin ends, even within a job, so that it does not outlive the preparation that started it.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import unicodedata
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from unicloze.arrays import Flags, Int32s, Int64s
from unicloze.errors import UniclozeError, UsageError
from unicloze.files import LINEAGE, TOKENIZER, at_home, digest, sync
from unicloze.progress import Progress, say
from unicloze.settings import PYTHON_DOCS, DataSettings, TokenizerSettings
from unicloze.storage import File, file_at, is_url
from unicloze.text import digests, documents, lineage, sources, split
from unicloze.text.digests import SEAL, Digests, digests_of, seal
from unicloze.text.documents import SUFFIXES, Document, Tally, find_files, pieces_of, read_file, utf8_size
from unicloze.text.python_docs import file_name, write_python_docs
from unicloze.text.shards import AT_ONCE, Marks, ShardWriter, files_beside, marks_of, shard_paths
from unicloze.text.sources import DatasetSource, Kind, kind_of, stored_text
from unicloze.text.split import CUT, DROP, HELDOUT, TRAIN, HeldoutSplit, NGrams, Spelling
from unicloze.text.tokenizers import Tokenizer

Report = Callable[[int], None]

PORTION = 2**24
"""Files are added to a portion until it has this many bytes, or a thousandth of a large corpus."""
MOST_PORTIONS = 1000
DONE, FOUND = "done.json", "found.npy"
CHANGED = "{} changed while it was being read: run the command again when the file is complete."
_COUNTED = "documents", "tokens", "bytes"
_BATCH = 2**21
_PART = 2**16
_TRAINING_BYTES = 2**30
_LONG_WORD = re.compile(r"(\S{256})(?=\S)")  # training time is quadratic in the length of a word


@dataclass(frozen=True, kw_only=True)
class Job:
    """A pass over one portion of a source, whose result is a folder."""

    # `survey` hashes the documents; `search` finds evaluation texts in them; `tokenise` writes their tokens
    what: Literal["survey", "search", "tokenise"]
    folder: str  # folder of the results of all jobs
    source: str  # name of the source
    corpus: str  # its entry of `data.corpus`
    kind: Kind  # its kind
    files: tuple[str, ...]  # paths of the files, of which one is a token shard; empty for a dataset
    identity: str  # changes with the files
    size: int  # roughly their bytes of text
    text_field: str  # field that holds the text
    spans_field: str | None  # field of .jsonl that holds the spans of a text
    mixed: bool  # the corpus has both texts and token shards
    hashed: tuple[str, ...] = ()  # hashes of the files as the survey found them; not for a survey
    tail: int = 0  # visible characters held out at the end of a document that is cut
    # Files that a job needs. `tokenizer`: for a survey only of token shards, or of texts beside them; `sides` of the
    # documents, see `unicloze.text.split`; `ngrams` to search for; `cuts`: the places to cut out of training documents
    needs: dict[str, str] = field(default_factory=dict)

    @property
    def out(self) -> Path:
        """The folder of the result, named after everything that determines its content."""
        fields = dataclasses.asdict(self) | {"folder": "", "size": 0}
        fields["needs"] = {name: lineage.file_hash(Path(file)) for name, file in self.needs.items()}
        return Path(self.folder) / f"{self.what}-{digest([lineage.CODE, fields])[:32]}"

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

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer it needs."""
        return Tokenizer.load(Path(self.needs["tokenizer"]))

    def read(self, tally: Tally, noted: list[dict[str, Any]]) -> Iterator[Document]:
        """The documents in order; adds a description of each file, with its hash, once it has been read."""
        if self.kind == "dataset":
            yield from DatasetSource.of(self.corpus).documents(self.text_field, tally)
            noted.append({"hash": tally.digest.hexdigest()})
        built_in = self.kind == "built-in"
        for name in self.files:
            file = file_at(name) if is_url(name) else Path(name)
            if not file.is_file():
                raise UniclozeError(CHANGED.format(self.corpus))
            note = lineage.describe_file(file, "")  # before reading, so that later changes are detected
            for document in read_file(file, "text" if built_in else self.text_field, tally, self.spans_field):
                yield replace(document, path=PYTHON_DOCS) if built_in else document
            noted.append(note | {"hash": tally.digest.hexdigest()} | ({"path": file.name} if built_in else {}))

    def documents(self) -> Iterator[Document]:
        """The documents of a surveyed portion."""
        noted: list[dict[str, Any]] = []
        checked = 0
        for document in itertools.chain(self.read(Tally(), noted), [None]):
            for note, surveyed in zip(noted[checked:], self.hashed[checked:], strict=False):
                if note["hash"] != surveyed:
                    raise UniclozeError(CHANGED.format(note.get("path", self.corpus)))
            checked = len(noted)
            if document is not None:
                yield document

    def split(self) -> Iterator[tuple[Document, bool]]:
        """The documents that are not dropped, and whether each is held out, with evaluation texts in place."""
        sides = np.fromfile(self.needs["sides"], dtype=np.uint8)
        for number, document in enumerate(self.documents()):
            if number >= len(sides):
                raise UniclozeError(CHANGED.format(document.path))
            if (side := int(sides[number])) == CUT:
                at = documents.last_visible(document.text, self.tail)
                yield document.part(0, at), False
                yield document.part(at, len(document.text)), True
            elif side != DROP:
                yield document, side == HELDOUT

    def kept(self, counts: Counter[str] | None = None) -> Iterator[tuple[Document, bool]]:
        """As `split`, with evaluation texts cut out of training documents, whose pieces are documents of their own."""
        counts = Counter() if counts is None else counts
        none = np.zeros((0, 3), dtype=np.int64)
        cuts = np.load(self.needs["cuts"], allow_pickle=False) if "cuts" in self.needs else none
        for number, (document, is_heldout) in enumerate(self.split()):
            first, end = np.searchsorted(cuts[:, 0], [number, number + 1])
            if first == end:
                yield document, is_heldout
                continue
            pieces = split.cut_out(document.text, cuts[first:end, 1:])
            counts["cut" if pieces else "dropped"] += 1
            yield from ((document.part(*piece), False) for piece in pieces)

    def hashes(self) -> Iterator[tuple[npt.NDArray[np.uint64], Int64s]]:
        """Hashes and sizes of the documents that a survey has found, in parts. *Shape:* (documents of the part,) each"""
        with (self.out / "hashes").open("rb") as hashes, (self.out / "sizes").open("rb") as sizes:
            while raw := hashes.read(8 * AT_ONCE):
                yield np.frombuffer(raw, dtype="<u8"), np.frombuffer(sizes.read(len(raw)), dtype="<i8")


def divide(first: Job, built_in: Path) -> list[Job]:
    """Divide the job on a source into jobs on portions of it."""
    if first.kind == "built-in":
        return [replace(first, files=(str(built_in),), identity=file_name())]
    if first.kind == "dataset":
        described = sources.corpus_files(first.corpus)
        versions = [[name, *(lineage.version(file).values() if file else ())] for name, file, _ in described]
        return [replace(first, identity=digest(versions), size=PORTION)]
    files = sources.find_shards(first.corpus) if first.kind == "shards" else find_files(first.corpus)
    sizes = [stored_text(file) for file in files]
    enough = 0 if first.kind == "shards" else max(PORTION, sum(sizes) // MOST_PORTIONS)
    portions: list[list[File]] = []
    size = enough
    for file, more in zip(files, sizes, strict=True):
        if size >= enough:
            portions.append([])
            size = 0
        portions[-1].append(file)
        size += more
    return [
        replace(
            first,
            files=tuple(map(str, portion)),
            identity=digest([list(lineage.version(file).values()) for file in portion]),
            size=sum(map(stored_text, portion)),
        )
        for portion in portions
    ]


def tail_of(job: Job, size: int) -> int:
    """Visible characters in the last `size` bytes or so of the first document of a portion that is cut.

    All copies of the document are cut before as many visible characters, even if their white space differs.
    """
    number = int(np.flatnonzero(np.fromfile(job.needs["sides"], dtype=np.uint8) == CUT)[0])
    text = next(itertools.islice(job.documents(), number, None)).text
    return documents.visible(text[documents.tail_start(text, size) :])


def _survey(job: Job, work: Path, report: Report) -> dict[str, Any]:
    """Hash the documents of a portion and the bytes of its files."""
    tally, noted = Tally(), list[dict[str, Any]]()
    counts = {"documents": 0, "empty": 0, "bytes": 0}
    with (work / "hashes").open("wb", 2**20) as hashes, (work / "sizes").open("wb", 2**20) as sizes:
        for value, size in _hashed(job, tally, noted):
            hashes.write((value if size else 0).to_bytes(8, "little"))
            sizes.write(size.to_bytes(8, "little"))
            counts["documents" if size else "empty"] += 1
            counts["bytes"] += size
            report(size)
    if job.kind == "shards":
        noted = [lineage.describe_file(shard := Path(job.files[0]), lineage.file_hash(shard))]
    repaired = {"replaced": tally.replaced, "nul": tally.nul, "first_bad": tally.first_bad}
    return {**counts, "empty": counts["empty"] + tally.empty, **repaired, "files": noted}


def _hashed(job: Job, tally: Tally, noted: list[dict[str, Any]]) -> Iterator[tuple[int, int]]:
    """Hash and size of each document, 0 for an empty one, that identify equal documents.

    Texts are compared without case and white space, token shards by their tokens; in a corpus of both, documents are equal if
    their tokens spell the same text.
    """
    tokenizer = job.tokenizer if "tokenizer" in job.needs else None
    spelling = Spelling(tokenizer) if job.mixed and tokenizer else None
    if job.kind == "shards":
        assert tokenizer is not None
        for tokens in sources.shard_documents(Path(job.files[0]), tokenizer):
            if spelling and len(tokens):
                value, size = spelling.hash(np.split(tokens, range(_PART, len(tokens), _PART)))
                yield value, max(1, size)
            else:
                yield split.tokens_hash(tokens, tokenizer.vocabulary.size), len(tokens)
        return
    for document in job.read(tally, noted):
        if spelling and tokenizer:
            pieces = (tokenizer.encode_batch([piece])[0] for piece in pieces_of(document.text))
            yield spelling.hash(pieces)
        else:
            yield split.text_hash(document.text)


def _search(job: Job, work: Path, report: Report) -> dict[str, Any]:
    """Find evaluation texts in the training documents of a portion."""
    ngrams = NGrams.load(Path(job.needs["ngrams"]))
    found = [np.zeros((0, 4), dtype=np.int64)]
    for number, (document, is_heldout) in enumerate(job.split()):
        report(len(document.text))
        if not is_heldout and len(places := ngrams.find(document.text)):
            found.append(np.column_stack([np.full(len(places), number), places]))
    np.save(work / FOUND, np.concatenate(found))
    return {}


def _tokenise(job: Job, work: Path, report: Report) -> dict[str, Any]:
    """Write the tokens of the documents of a portion, with digests of the files."""
    tokenizer, cut = job.tokenizer, Counter[str]()
    name, size = sources.name_of(tokenizer), tokenizer.vocabulary.size
    # One thread waits for the tokenizer while this one writes the previous batch and reads the next.
    with (
        ThreadPoolExecutor(1) as waiter,
        ShardWriter(work / "train.ds", vocab_size=size, tokenizer_name=name) as train,
        ShardWriter(work / "heldout.ds", vocab_size=size, tokenizer_name=name) as heldout,
    ):
        pending: tuple[list[Piece], Future[list[tuple[Int32s, Marks | None]]]] | None = None
        for batch in itertools.chain(batches(job.kept(cut)), [[]]):
            encoded = waiter.submit(_encoded, tokenizer, batch)
            for piece, (token_ids, marks) in zip(pending[0], pending[1].result(), strict=True) if pending else ():
                document, written = piece.document, utf8_size(piece.text)
                for writer in (train, heldout):
                    writer.begin_file(document.path)
                writer = heldout if piece.is_heldout else train
                writer.write(token_ids, written, line=document.line, ends_document=piece.is_last, marks=marks)
                report(written)
            pending = batch, encoded
    written_by = {"train": train, "heldout": heldout}.items()
    counts = {part: {name: getattr(each, name) for name in _COUNTED} for part, each in written_by}
    return {**counts, **cut, "digests": {file.name: list(digests_of(file)) for file in sorted(work.iterdir())}}


def _encoded(tokenizer: Tokenizer, batch: list[Piece]) -> list[tuple[Int32s, Marks | None]]:
    """Tokens of each piece, and the bytes of its spans if its document gives any."""
    texts = [piece.text for piece in batch]
    if not any(piece.document.spans.gives for piece in batch):
        return [(token_ids, None) for token_ids in tokenizer.encode_batch(texts)]
    return [
        (token_ids, marks_of(piece.document.spans.part(piece.start, piece.start + len(piece.text)), offsets))
        for piece, (token_ids, offsets) in zip(batch, tokenizer.encode_batch_with_offsets(texts), strict=True)
    ]


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


def run_jobs(jobs: Sequence[Job], processes: int, report: Report) -> list[dict[str, Any]]:
    """Run all jobs that are not done, here or in other processes; returns the results of all."""
    left = [job for job in jobs if job.result() is None]
    if min(processes, len(left)) <= 1:
        for job in left:
            job.run(report)
    else:
        running: list[subprocess.Popen[bytes]] = []
        pool = ThreadPoolExecutor(processes)
        try:
            for done in as_completed([pool.submit(_run_elsewhere, job, running) for job in left]):
                report(done.result())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.kill()
            pool.shutdown()
    results = [job.result() for job in jobs]
    for job, result in zip(jobs, results, strict=True):
        if result is None:
            raise UniclozeError(CHANGED.format(job.corpus))
    return [result for result in results if result is not None]


def _run_elsewhere(job: Job, running: list[subprocess.Popen[bytes]]) -> int:
    """Run a job in a process of its own; returns its bytes of text."""
    with _start() as process:
        running.append(process)
        assert process.stdin is not None and process.stdout is not None
        with suppress(BrokenPipeError):  # it was killed
            process.stdin.write(json.dumps(dataclasses.asdict(job)).encode() + b"\n")
            process.stdin.flush()
        answer, status = process.stdout.read(), process.wait()
        with suppress(BrokenPipeError):
            process.stdin.close()
    if not answer:
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        raise UniclozeError(
            f"A process of the preparation {how}: run the same command again, which keeps what the others finished, with "
            "fewer --jobs if memory was short."
        )
    said = json.loads(answer)
    if "errno" in said:
        raise OSError(said["errno"], said["text"], said["file"])
    if "text" in said:
        raise (UsageError if said["usage"] else UniclozeError)(said["text"])
    return int(said["bytes"])


def _start() -> subprocess.Popen[bytes]:
    """A process that does a job. `multiprocessing` would rerun a script without a main guard."""
    one = {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "unicloze.text.pipeline"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | one)


def main() -> None:
    """Do the job on stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the first process stops the others
    line = sys.stdin.readline()
    if not line:
        sys.exit(1)

    def end_with_stdin() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=end_with_stdin, daemon=True).start()
    done: list[int] = []
    try:
        fields: Any = json.loads(line)
        Job(**fields | {name: tuple(fields[name]) for name in ("files", "hashed")}).run(done.append)
    except UniclozeError as error:
        said: dict[str, Any] = {"text": str(error), "usage": isinstance(error, UsageError)}
    except OSError as error:
        said = {"errno": error.errno, "text": error.strerror, "file": error.filename}
    else:
        said = {"bytes": sum(done)}
    print(json.dumps(said), flush=True)


class Preparation:
    """One preparation: survey the corpus, then train or load the tokenizer, then tokenise."""

    def __init__(
        self,
        data: DataSettings,
        tokenizer: TokenizerSettings,
        settings: dict[str, Any],
        folder: Path,
        progress: bool,
        jobs: int = 1,
    ) -> None:
        self.data, self.tokenizer_settings, self.settings = data, tokenizer, settings
        self.work, self.folder, self.progress = folder, folder / "data", progress
        self.jobs = 1 if any(corpus.startswith("memory:") for corpus in data.corpus) else jobs  # of this process only
        self.entries: list[dict[str, Any]] = [
            {"name": name, "corpus": corpus, "files": []}
            for name, corpus in zip(_source_names(data.corpus), data.corpus, strict=True)
        ]
        self.kinds: dict[str, Kind] = {entry["name"]: kind_of(entry["corpus"]) for entry in self.entries}
        self.tokenised = [entry for entry in self.entries if self.kinds[entry["name"]] == "shards"]
        self.text = [entry for entry in self.entries if entry not in self.tokenised]
        for entry in self.tokenised:
            _refuse_texts_beside(entry["corpus"])
        self.total_bytes = self._planned = 0
        if self.tokenised and tokenizer.path is None:
            raise UsageError(
                f"{self.tokenised[0]['corpus']} holds token shards: set --tokenizer.path to their tokenizer."
            )
        if self.tokenised and data.decontaminate:
            raise UsageError(
                f"data.decontaminate searches texts, but {self.tokenised[0]['corpus']} holds token shards: leave it out, or "
                "give the texts they were made from."
            )

    def run(self) -> Path:
        """Make the folder; `lineage.json` is written last."""
        for part in ("train", "heldout"):
            (self.folder / part).mkdir(parents=True)
        path, tokenizer = self.tokenizer_settings.path, None
        if path is not None:
            tokenizer = Tokenizer.load(path)
            tokenizer.save(self.folder)
        surveys = self._survey(tokenizer)
        tail = self._decide(surveys)
        texts = [self._reading(job, tail) for job in surveys if job.kind != "shards"]
        texts, decontamination = self._decontaminated(texts)
        if tokenizer is None:
            tokenizer = self._trained(texts)
            tokenizer.save(self.folder)
        known = self._tokenise(texts, decontamination)
        for entry in self.tokenised:
            mine = [(Path(job.files[0]), self._sides(job)) for job in surveys if job.source == entry["name"]]
            for part, side in (("train", TRAIN), ("heldout", HELDOUT)):
                entry[part] = sources.write_selection(self.folder / part, entry["name"], mine, side)
        for entry in self.text:
            kind, described = self.kinds[entry["name"]], [file["path"] for file in entry["files"]]
            if kind == "files" and described != [str(file) for file in find_files(entry["corpus"])]:
                raise UniclozeError(CHANGED.format(entry["corpus"]))
            if kind == "built-in":
                _place(self.work / described[0], self.folder / described[0])
        content = {
            "schema": digests.SCHEMA,
            "fingerprint": lineage.fingerprint(self.settings, self.entries),
            "settings": self.settings,
            "tokenizer": {"fingerprint": tokenizer.fingerprint, "vocab_size": tokenizer.vocabulary.size},
            "sources": self.entries,
        }
        if decontamination is not None:
            content["decontamination"] = decontamination
        for entry in self.entries:
            if not entry["train"]["tokens"]:
                reason = "earlier sources hold the same documents" if entry["duplicates"] else "it holds no tokens"
                warnings.warn(f"{entry['corpus']} has no training text: {reason}", stacklevel=2)
        shards = [Path(shard) for entry in self.tokenised for shard in entry["shards"]]
        elsewhere = (file for shard in shards for file in (shard, *files_beside(shard)))
        content["digests"] = Digests.make(self.folder, elsewhere, known)
        content[SEAL] = seal(content)
        (self.folder / LINEAGE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        return self.folder

    @property
    def is_small(self) -> bool:
        """Whether so little was to do that what is done of it need not be kept for the next preparation."""
        return self._planned < PORTION

    @property
    def scratch(self) -> Path:
        """Folder of the results of the jobs."""
        return self.work / "jobs"

    def bar(self, what: str, total: int | None) -> Progress:
        """Progress bar in bytes of text."""
        return Progress(what, total, "bytes", show=self.progress)

    def _survey(self, tokenizer: Tokenizer | None) -> list[Job]:
        """Hash files and documents: those of the texts, then those of the token shards."""
        mixed = bool(self.text and self.tokenised)
        jobs: list[Job] = []
        for entry in (*self.text, *self.tokenised):
            kind = self.kinds[entry["name"]]
            of_tokens = tokenizer is not None and (mixed or kind == "shards")
            first = Job(
                what="survey",
                folder=str(self.scratch),
                source=entry["name"],
                corpus=entry["corpus"],
                kind=kind,
                files=(),
                identity="",
                size=0,
                text_field=self.data.text_field,
                spans_field=self.data.spans_field,
                mixed=mixed,
                needs={"tokenizer": str(self.folder / TOKENIZER)} if of_tokens else {},
            )
            jobs += divide(first, write_python_docs(self.work) if kind == "built-in" else self.work)
        self._planned = sum(job.size for job in jobs)
        with self.bar("reading", None) as bar:
            results = run_jobs(jobs, self.jobs, bar.update)
        for entry in (*self.text, *self.tokenised):
            self._note(entry, [r for job, r in zip(jobs, results, strict=True) if job.source == entry["name"]])
        return jobs

    def _note(self, entry: dict[str, Any], results: list[dict[str, Any]]) -> None:
        """Record what a survey found in a source."""
        kind, corpus = self.kinds[entry["name"]], entry["corpus"]
        counted = ("documents", "empty") if kind == "shards" else ("documents", "empty", "replaced", "nul")
        entry |= {name: sum(result[name] for result in results) for name in counted} | {"duplicates": 0}
        entry["files"] = [file for result in results for file in result["files"]]
        if kind == "shards":
            entry["shards"] = [str(path.resolve()) for path in sources.find_shards(corpus)]
            return
        if kind == "dataset":
            entry["files"] = lineage.describe_dataset(corpus)
        if kind == "files" and (others := documents.other_files(corpus)):
            entry["left_out"] = others
            total = sum(others.values())
            kinds = ", ".join(f"{count:,} {ending}" for ending, count in others.items())
            said = "1 file of another kind is" if total == 1 else f"{total:,} files of other kinds are"
            warnings.warn(f"{corpus}: {said} ignored: {kinds}", stacklevel=2)
        bad = next((result["first_bad"] for result in results if result["first_bad"]), None)
        if bad:
            say(
                f"{corpus}: replaced {entry['replaced']} invalid UTF-8 sequences with U+FFFD and dropped "
                f"{entry['nul']} NUL characters, the first at {bad}."
            )
        if not entry["documents"]:
            raise UniclozeError(f"{corpus} holds no text, since its files are empty: add some text.")

    def _sides(self, survey: Job) -> Path:
        """File of the side of each document of a portion."""
        return self.work / "sides" / survey.out.name

    def _decide(self, surveys: list[Job]) -> int:
        """Drop duplicates, decide the split, and write the side of each document; returns the `tail` of those cut."""
        heldout = HeldoutSplit(self.data.heldout_share, sources=len(self.entries))
        ends = list(itertools.accumulate((job.out / "hashes").stat().st_size // 8 for job in surveys))
        parts = (hashes for job in surveys for hashes, _ in job.hashes())
        first = split.first_copies(parts, ends[-1], self.work / "buckets") if self.data.deduplicate else None

        def parts_of(job: Job, place: int) -> Iterator[tuple[Any, Any, Flags]]:
            """Hashes, sizes, and which documents are neither empty nor duplicates."""
            for hashes, sizes in job.hashes():
                yield hashes, sizes, (sizes > 0) & (first is None or first[place : place + len(sizes)])
                place += len(hashes)

        entries, starts = {entry["name"]: entry for entry in self.entries}, [0, *ends[:-1]]
        for job, place in zip(surveys, starts, strict=True):
            for hashes, sizes, kept in parts_of(job, place):
                entries[job.source]["duplicates"] += int((sizes > 0).sum() - kept.sum())
                heldout.add(job.source, hashes[kept], sizes[kept], is_text=job.kind != "shards")
                self.total_bytes += int(sizes[kept].sum()) if job.kind != "shards" else 0
        heldout.decide()
        (self.work / "sides").mkdir()
        cut = None
        for job, place in zip(surveys, starts, strict=True):
            with self._sides(job).open("wb") as file:
                for hashes, _, kept in parts_of(job, place):
                    sides = np.where(kept, heldout.sides(hashes), np.uint8(DROP))
                    sides.tofile(file)
                    cut = job if cut is None and (sides == CUT).any() else cut
        return 0 if cut is None else tail_of(self._reading(cut, 0), heldout.cut_size)

    def _reading(self, survey: Job, tail: int) -> Job:
        """The job that tokenises the kept documents of a portion of text, as yet without the tokenizer."""
        result = survey.result()
        assert result is not None
        hashed = tuple(file["hash"] for file in result["files"])
        return replace(survey, what="tokenise", hashed=hashed, tail=tail, needs={"sides": str(self._sides(survey))})

    def _decontaminated(self, jobs: list[Job]) -> tuple[list[Job], dict[str, Any] | None]:
        """Find evaluation texts in the training documents, for the jobs to cut them out."""
        data = self.data
        if not data.decontaminate:
            return jobs, None
        (cuts := self.work / "cuts").mkdir()
        files = list(split.evaluation_texts(data.decontaminate))
        ngrams, of_texts = NGrams.of((text for _, texts in files for text in texts), data.decontaminate_ngram)
        ngrams.save(cuts / "ngrams.npz")
        searches = [replace(job, what="search", needs=job.needs | {"ngrams": str(cuts / "ngrams.npz")}) for job in jobs]
        with self.bar("searching for evaluation texts", self.total_bytes) as bar:
            run_jobs(searches, self.jobs, bar.update)
        found = [np.load(job.out / FOUND, allow_pickle=False) for job in searches]
        documents = np.zeros(len(ngrams.rows), dtype=np.int64)
        for finds in found:
            documents += np.bincount(np.unique(finds[:, :2], axis=0)[:, 1], minlength=len(documents))
        left = documents > split.COMMON
        cutting = []
        for place, (job, finds) in enumerate(zip(jobs, found, strict=True)):
            file = cuts / f"{place}.npy"
            np.save(file, finds[~left[finds[:, 1]]][:, [0, 2, 3]])
            cutting.append(replace(job, needs=job.needs | {"cuts": str(file)}))
        report, start = [], 0
        for file_of_texts, texts in files:
            mine, start = of_texts[start : start + len(texts)], start + len(texts)
            hits = [one[documents[one] > 0] for one in mine]
            counted = {
                "path": str(file_of_texts),
                "texts": len(texts),
                "too_short": sum(not len(one) for one in mine),
                "found": sum(bool(len(hit)) for hit in hits),
                "only_common": sum(bool(len(hit) and left[hit].all()) for hit in hits),
            }
            report.append(counted)
            say(
                f"{file_of_texts}: {counted['found']:,} of {len(texts):,} texts share {data.decontaminate_ngram} words with "
                f"the training text ({counted['only_common']:,} only common phrases, which are left); "
                f"{counted['too_short']:,} are shorter."
            )
        return cutting, {"names": data.decontaminate, "ngram": data.decontaminate_ngram, "files": report}

    def _trained(self, jobs: list[Job]) -> Tokenizer:
        """The tokenizer trained on the kept documents, which a restarted preparation finds again."""
        key = digest([dataclasses.asdict(self.tokenizer_settings), _TRAINING_BYTES, [job.out.name for job in jobs]])
        known = self.scratch / f"tokenizer-{key[:32]}"
        if not (known / TOKENIZER).is_file():
            tokenizer = Tokenizer.train(_TrainingTexts(self, jobs), self.tokenizer_settings)
            work = known.with_name(f"{known.name}-{uuid.uuid4().hex[:8]}")
            work.mkdir()
            tokenizer.save(work)
            os.replace(work, known)
        return Tokenizer.load(known)

    def _tokenise(self, jobs: list[Job], decontamination: dict[str, Any] | None) -> dict[Path, list[str]]:
        """Tokenise the texts and put the shards of their portions together; returns the digests of the files."""
        jobs = [replace(job, needs=job.needs | {"tokenizer": str(self.folder / TOKENIZER)}) for job in jobs]
        with self.bar("tokenising", self.total_bytes) as bar:
            results = run_jobs(jobs, self.jobs, bar.update)
        if decontamination is not None:
            cut, dropped = (sum(result.get(name, 0) for result in results) for name in ("cut", "dropped"))
            decontamination |= {"documents_cut": cut, "documents_dropped": dropped}
            say(f"Evaluation texts: cut out of {cut:,} training documents; {dropped:,} more were dropped.")
        known: dict[Path, list[str]] = {}
        for entry in self.text:
            mine = [both for both in zip(jobs, results, strict=True) if both[0].source == entry["name"]]
            if len(mine) > 1:
                entry["portions"] = len(mine)
            for part in ("train", "heldout"):
                entry[part] = {name: sum(r[part][name] for _, r in mine) for name in _COUNTED}
                for (job, result), path in zip(mine, shard_paths(self.folder / part, entry), strict=True):
                    for name, hashes in result["digests"].items():
                        if name.startswith(f"{part}.ds"):
                            file = path.with_name(path.name + name.removeprefix(f"{part}.ds"))
                            _place(job.out / name, file)
                            known[file] = hashes
        return known


def _refuse_texts_beside(corpus: str) -> None:
    """Reject a folder or glob that holds both token shards and texts, since only one kind would be read.

    Folders written by `prepare` are exempt.
    """
    place = at_home(corpus)
    if (place / LINEAGE).is_file():
        return
    files = documents.files_at(place)
    text = next((file for file in files if file.name.endswith(SUFFIXES) and file.name != "vocab.txt"), None)
    if text is not None:
        tokens = sources.find_shards(place)[0]
        only = f"'{corpus}/**/*.ds'" if place.is_dir() else "a pattern that ends in .ds"
        raise UsageError(
            f"{corpus} holds tokens ({tokens}) and texts ({text}): use separate folders, or {only} for the tokens only."
        )


def _place(file: Path, target: Path) -> None:
    """Put a result into the prepared folder, keeping it for a restart; some file systems have no hard links."""
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)


class _TrainingTexts:
    """The training documents in pieces, for several passes; evenly subsampled above 1 GiB."""

    def __init__(self, preparation: Preparation, jobs: list[Job]) -> None:
        self._preparation, self._jobs = preparation, jobs

    def __iter__(self) -> Iterator[str]:
        preparation = self._preparation
        share = min(1.0, _TRAINING_BYTES / max(1, preparation.total_bytes))
        taken = 0.0
        with preparation.bar("training the tokenizer", preparation.total_bytes) as bar:
            for document, is_heldout in itertools.chain.from_iterable(job.kept() for job in self._jobs):
                bar.update(len(document.text))
                taken += share
                if not is_heldout and taken >= 1 - 1e-9:
                    taken -= 1
                    yield from (_LONG_WORD.sub(r"\1 ", piece) for piece in pieces_of(document.text))


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


if __name__ == "__main__":
    main()
