"""The passes of a preparation over a corpus: survey, train or load the tokenizer, tokenise."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import shutil
import unicodedata
import uuid
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from unicloze.errors import UniclozeError, UsageError
from unicloze.files import LINEAGE, TOKENIZER, digest
from unicloze.progress import Progress, say
from unicloze.settings import PYTHON_DOCS, DataSettings, TokenizerSettings
from unicloze.text import digests, lineage, sources
from unicloze.text.columns import AT_ONCE
from unicloze.text.digests import SEAL, Digests, seal
from unicloze.text.documents import SUFFIXES, files_at, find_files, other_files, pieces_of
from unicloze.text.portions import CHANGED, FOUND, PORTION, Job, Portion, divide, tail_of
from unicloze.text.python_docs import write_python_docs
from unicloze.text.shards import files_beside, shard_paths
from unicloze.text.sources import DatasetSource, is_dataset
from unicloze.text.split import COMMON, CUT, DROP, HELDOUT, TRAIN, HeldoutSplit, NGrams, evaluation_texts, first_copies
from unicloze.text.tokenizers import Tokenizer
from unicloze.text.workers import run_jobs

_TRAINING_BYTES = 2**30
_LONG_WORD = re.compile(r"(\S{256})(?=\S)")  # training time is quadratic in the length of a word


def _refuse_texts_beside(corpus: str) -> None:
    """Reject a folder or glob that holds both token shards and texts, since only one kind would be read.

    Folders written by `prepare` are exempt.
    """
    place = Path(corpus).expanduser()
    if (place / LINEAGE).is_file():
        return
    files = files_at(place)
    text = next((file for file in files if file.name.endswith(SUFFIXES) and file.name != "vocab.txt"), None)
    if text is not None:
        tokens = sources.find_shards(place)[0]
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
        jobs: int = 1,
    ) -> None:
        self.data, self.tokenizer_settings, self.settings = data, tokenizer, settings
        self.work, self.folder, self.progress, self.seed = folder, folder / "data", progress, seed
        self.jobs = 1 if any(corpus.startswith("memory:") for corpus in data.corpus) else jobs  # of this process only
        self.entries: list[dict[str, Any]] = [
            {"name": name, "corpus": corpus, "files": []}
            for name, corpus in zip(_source_names(data.corpus), data.corpus, strict=True)
        ]
        self.tokenised = [
            entry for entry in self.entries if entry["corpus"] != PYTHON_DOCS and sources.find_shards(entry["corpus"])
        ]
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
        self.scratch.mkdir(exist_ok=True)
        for part in ("train", "heldout"):
            (self.folder / part).mkdir(parents=True)
        path, tokenizer = self.tokenizer_settings.path, None
        if path is not None:
            tokenizer = Tokenizer.load(path)
            tokenizer.save(self.folder)
        surveyed = self._survey(tokenizer)
        tail = self._decide(surveyed)
        texts = [self._reading(one, tail) for one in surveyed if one.job.portion.kind != "shard"]
        texts, decontamination = self._decontaminated(texts)
        if tokenizer is None:
            tokenizer = self._trained(texts)
            tokenizer.save(self.folder)
        known = self._tokenise(texts, tokenizer, decontamination)
        self._select([one for one in surveyed if one.job.portion.kind == "shard"])
        self._check_files()
        for entry in self.text:
            if entry["corpus"] == PYTHON_DOCS:
                _place(self.work / entry["files"][0]["path"], self.folder / entry["files"][0]["path"])
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

    def _survey(self, tokenizer: Tokenizer | None) -> list[_Surveyed]:
        """Hash files and documents: those of the texts, then those of the token shards."""
        mixed = bool(self.text and self.tokenised)
        jobs: list[Job] = []
        for entry in (*self.text, *self.tokenised):
            built_in = write_python_docs(self.work) if entry["corpus"] == PYTHON_DOCS else self.work
            for portion in divide(entry["name"], entry["corpus"], built_in):
                job = self._job("survey", portion, mixed=mixed)
                if tokenizer is not None and (mixed or portion.kind == "shard"):
                    job = replace(job, tokenizer=str(self.folder), tokenizer_print=tokenizer.fingerprint)
                jobs.append(job)
        self._planned = sum(PORTION if job.portion.kind == "dataset" else job.portion.size for job in jobs)
        with self.bar("reading", None) as bar:
            run_jobs(jobs, self.jobs, bar.update)
        surveyed = [
            _Surveyed(job=job, result=_result(job), sides=self.work / "sides" / str(place))
            for place, job in enumerate(jobs)
        ]
        for entry in (*self.text, *self.tokenised):
            self._note(entry, [one.result for one in surveyed if one.job.portion.source == entry["name"]])
        return surveyed

    def _job(self, what: Literal["survey", "tokenise"], portion: Portion, *, mixed: bool = False) -> Job:
        return Job(
            what=what,
            portion=portion,
            folder=str(self.scratch),
            text_field=self.data.text_field,
            spans_field=self.data.spans_field,
            seed=self.seed,
            mixed=mixed,
        )

    def _note(self, entry: dict[str, Any], results: list[dict[str, Any]]) -> None:
        """Record what a survey found in a source."""
        counted = ("documents", "empty") if entry in self.tokenised else ("documents", "empty", "replaced", "nul")
        entry |= {name: sum(result[name] for result in results) for name in counted} | {"duplicates": 0}
        entry["files"] = [file for result in results for file in result["files"]]
        if entry in self.tokenised:
            entry["shards"] = [str(path.resolve()) for path in sources.find_shards(entry["corpus"])]
            return
        if is_dataset(entry["corpus"]):
            entry["files"] = lineage.describe_dataset(DatasetSource.of(entry["corpus"]))
        _note_left_out(entry)
        bad = next((result["first_bad"] for result in results if result["first_bad"]), None)
        if bad:
            say(
                f"{entry['corpus']}: replaced {entry['replaced']} invalid UTF-8 sequences with U+FFFD and dropped "
                f"{entry['nul']} NUL characters, the first at {bad}."
            )
        if not entry["documents"]:
            raise UniclozeError(f"{entry['corpus']} holds no text, since its files are empty: add some text.")

    def _decide(self, surveyed: list[_Surveyed]) -> int:
        """Drop duplicates, decide the split, and write the side of each document of each portion."""
        split = HeldoutSplit(self.data.heldout_share, sources=len(self.entries))
        count = sum(one.count for one in surveyed)
        parts = (hashes for one in surveyed for hashes, _ in one.parts())
        first = first_copies(parts, count, self.work / "buckets") if self.data.deduplicate else None
        entries = {entry["name"]: entry for entry in self.entries}
        place = 0
        for one in surveyed:
            entry, is_text = entries[one.job.portion.source], one.job.portion.kind != "shard"
            for hashes, sizes in one.parts():
                kept = _kept(sizes, first, place)
                entry["duplicates"] += int((sizes > 0).sum() - kept.sum())
                split.add(entry["name"], hashes[kept], sizes[kept], is_text=is_text)
                self.total_bytes += int(sizes[kept].sum()) if is_text else 0
                place += len(hashes)
        split.decide()
        (self.work / "sides").mkdir()
        place, cut = 0, None
        for one in surveyed:
            with one.sides.open("wb") as file:
                for hashes, sizes in one.parts():
                    sides = np.where(_kept(sizes, first, place), split.sides(hashes), np.uint8(DROP))
                    sides.tofile(file)
                    cut = one if cut is None and (sides == CUT).any() else cut
                    place += len(hashes)
        return 0 if cut is None else tail_of(self._reading(cut), split.cut_size)

    def _reading(self, surveyed: _Surveyed, tail: int = 0) -> Job:
        """A job that reads the kept documents of a portion of text."""
        job = self._job("tokenise", surveyed.job.portion)
        return replace(job, sides=str(surveyed.sides), tail=tail, files=tuple(surveyed.result["files"]))

    def _decontaminated(self, jobs: list[Job]) -> tuple[list[Job], dict[str, Any] | None]:
        """Find evaluation texts in the training documents, for the jobs to cut them out."""
        data = self.data
        if not data.decontaminate:
            return jobs, None
        folder, cuts = self.work / "ngrams", self.work / "cuts"
        for made in (folder, cuts):
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir()
        files = list(evaluation_texts(data.decontaminate))
        ngrams, of_texts = NGrams.of((text for _, texts in files for text in texts), data.decontaminate_ngram)
        ngrams.save(folder)
        searches = [replace(job, what="search", ngrams=str(folder)) for job in jobs]
        with self.bar("searching for evaluation texts", self.total_bytes) as bar:
            run_jobs(searches, self.jobs, bar.update)
        found = [np.load(job.out / FOUND, allow_pickle=False) for job in searches if _result(job) is not None]
        documents = np.zeros(len(ngrams.rows), dtype=np.int64)
        for finds in found:
            documents += np.bincount(np.unique(finds[:, :2], axis=0)[:, 1], minlength=len(documents))
        left = documents > COMMON
        cutting = []
        for place, (job, finds) in enumerate(zip(jobs, found, strict=True)):
            places = finds[~left[finds[:, 1]]][:, [0, 2, 3]]
            np.save(cuts / f"{place}.npy", places)
            cutting.append(replace(job, cuts=str(cuts / f"{place}.npy")))
        report, start = [], 0
        for file, texts in files:
            mine, start = of_texts[start : start + len(texts)], start + len(texts)
            counted = {
                "path": str(file),
                "texts": len(texts),
                "too_short": sum(not len(one) for one in mine),
                "found": sum(bool((documents[one] > 0).any()) for one in mine),
                "only_common": sum(
                    bool((documents[one] > 0).any() and left[one][documents[one] > 0].all()) for one in mine
                ),
            }
            report.append(counted)
            say(
                f"{file}: {counted['found']:,} of {len(texts):,} texts share {data.decontaminate_ngram} words with the "
                f"training text ({counted['only_common']:,} only common phrases, which are left); "
                f"{counted['too_short']:,} are shorter."
            )
        return cutting, {
            "names": data.decontaminate,
            "ngram": data.decontaminate_ngram,
            "files": report,
        }

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

    def _tokenise(
        self, jobs: list[Job], tokenizer: Tokenizer, decontamination: dict[str, Any] | None
    ) -> dict[Path, list[str]]:
        """Tokenise the texts and put the shards of their portions together."""
        print_ = tokenizer.fingerprint
        jobs = [replace(job, tokenizer=str(self.folder), tokenizer_print=print_) for job in jobs]
        with self.bar("tokenising", self.total_bytes) as bar:
            run_jobs(jobs, self.jobs, bar.update)
        if decontamination is not None:
            every = [_result(job) for job in jobs]
            cut, dropped = (sum(result.get(name, 0) for result in every) for name in ("cut", "dropped"))
            decontamination |= {"documents_cut": cut, "documents_dropped": dropped}
            say(f"Evaluation texts: cut out of {cut:,} training documents; {dropped:,} more were dropped.")
        known: dict[Path, list[str]] = {}
        for entry in self.text:
            mine = [job for job in jobs if job.portion.source == entry["name"]]
            results = [_result(job) for job in mine]
            if len(mine) > 1:
                entry["portions"] = len(mine)
            for part in ("train", "heldout"):
                entry[part] = {name: sum(r[part][name] for r in results) for name in ("documents", "tokens", "bytes")}
                for job, result, path in zip(mine, results, shard_paths(self.folder / part, entry), strict=True):
                    for name, hashes in result["digests"].items():
                        if name.startswith(f"{part}.ds"):
                            file = path.with_name(path.name + name.removeprefix(f"{part}.ds"))
                            _place(job.out / name, file)
                            known[file] = hashes
        return known

    def _select(self, surveyed: list[_Surveyed]) -> None:
        """Record which documents of the token shards are on which side."""
        for entry in self.tokenised:
            mine = [one for one in surveyed if one.job.portion.source == entry["name"]]
            for part, side in (("train", TRAIN), ("heldout", HELDOUT)):
                chosen = [(Path(one.job.portion.files[0]), one.sides) for one in mine]
                entry[part] = sources.write_selection(self.folder / part, entry["name"], chosen, side)

    def _check_files(self) -> None:
        """Refuse a corpus that has gained or lost files since the survey."""
        for entry in self.text:
            if entry["corpus"] != PYTHON_DOCS and not is_dataset(entry["corpus"]):
                now = [str(file) for file in find_files(entry["corpus"])]
                if now != [file["path"] for file in entry["files"]]:
                    raise UniclozeError(CHANGED.format(entry["corpus"]))


@dataclass(frozen=True, kw_only=True)
class _Surveyed:
    """A portion whose survey is done."""

    job: Job  # the survey
    result: dict[str, Any]  # what it recorded
    sides: Path  # file for the side of each document

    @property
    def count(self) -> int:
        """Number of documents."""
        return (self.job.out / "hashes").stat().st_size // 8

    def parts(self) -> Iterator[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]]:
        """Hashes and sizes of the documents, in parts. *Shape:* (documents of the part,) each"""
        with (self.job.out / "hashes").open("rb") as hashes, (self.job.out / "sizes").open("rb") as sizes:
            while raw := hashes.read(8 * AT_ONCE):
                yield np.frombuffer(raw, dtype="<u8"), np.frombuffer(sizes.read(len(raw)), dtype="<i8")


def _kept(sizes: npt.NDArray[np.int64], first: npt.NDArray[np.bool_] | None, place: int) -> npt.NDArray[np.bool_]:
    """Documents of a part that are neither empty nor duplicates. *Shape:* (documents,)"""
    kept = sizes > 0
    return kept if first is None else kept & first[place : place + len(sizes)]


def _result(job: Job) -> dict[str, Any]:
    """What a finished job recorded."""
    result = job.result()
    if result is None:
        raise UniclozeError(CHANGED.format(job.portion.corpus))
    return result


def _place(file: Path, target: Path) -> None:
    """Put a result into the prepared folder, keeping it for a restart where the file system has hard links."""
    try:
        os.link(file, target)
    except OSError:
        shutil.move(file, target)


class _TrainingTexts:
    """The training documents in pieces, for several passes; evenly subsampled above 1 GiB."""

    def __init__(self, preparation: Preparation, jobs: list[Job]) -> None:
        self._preparation, self._jobs = preparation, jobs

    def __iter__(self) -> Iterator[str]:
        preparation = self._preparation
        share = min(1.0, _TRAINING_BYTES / max(1, preparation.total_bytes))
        taken = 0.0
        with preparation.bar("training the tokenizer", preparation.total_bytes) as bar:
            for job in self._jobs:
                for document, is_heldout in job.kept():
                    bar.update(len(document.text))
                    taken += share
                    if not is_heldout and taken >= 1 - 1e-9:
                        taken -= 1
                        yield from (_LONG_WORD.sub(r"\1 ", piece) for piece in pieces_of(document.text))


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
