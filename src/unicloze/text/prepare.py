"""Prepares a corpus as token shards, streaming: deduplicate, hold out, train or load a tokenizer, tokenise.

    FOLDER/tokenizer.json, tokenizer_config.json
    FOLDER/train/SOURCE.ds ...    FOLDER/heldout/SOURCE.ds ...
    FOLDER/digests.json           SHA-256 of each block of these files
    FOLDER/lineage.json           what the folder was made from, with its fingerprint
    FOLDER/index/                 sums over documents of large sources, counts of large texts, and vectors; added when needed

The folder is created atomically: it is written under a temporary name and renamed. An existing folder is reused only if
the corpus, the settings and the version of this code still yield its fingerprint. A large source is divided into portions,
each with a shard of its own (`unicloze.text.pipeline`).
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from unicloze.errors import UniclozeError, UsageError
from unicloze.files import BEGINNING, LINEAGE, TOKENIZER, TOKENIZER_CONFIG, at_home, hold, is_run, sync, write_file
from unicloze.progress import say
from unicloze.settings import DataSettings, TokenizerSettings
from unicloze.storage import is_url
from unicloze.text import lineage
from unicloze.text.digests import SEAL, Digests
from unicloze.text.documents import find_files
from unicloze.text.pipeline import Preparation
from unicloze.text.shards import TokenShard, TokenSource, shard_paths
from unicloze.text.sources import beginning, kind_of
from unicloze.text.tokenizers import Tokenizer

ENOUGH = 500_000
"""Number of characters to copy; a corpus of fewer bytes is used whole."""


def is_long(data: DataSettings) -> bool:
    """Whether a corpus of text, not yet prepared, is longer than a toy run needs."""
    kinds = {corpus: kind_of(corpus) for corpus in data.corpus}
    if data.prepared is not None or not kinds or {"dataset", "shards"} & set(kinds.values()):
        return False
    texts = (corpus for corpus, kind in kinds.items() if kind == "files")
    size = sum(file.stat().st_size for corpus in texts for file in find_files(corpus))
    return size >= ENOUGH or "built-in" in kinds.values()


def beginning_of(data: DataSettings, folder: Path) -> Path:
    """Write the beginnings of a corpus's sources, in equal shares, to one file in a folder."""
    lines = [
        json.dumps({data.text_field: text}, ensure_ascii=False) + "\n"
        for corpus in data.corpus
        for text in beginning(corpus, data.text_field, ENOUGH // len(data.corpus), least=200)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / BEGINNING
    write_file(file, "".join(lines), "the beginning of the corpus")
    return file


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """A prepared corpus.

    Args:
        folder: Its folder.
        tokenizer: Its tokenizer.
        train: Training text by source, in the order of `data.corpus`.
        heldout: Held-out text by source; sources without any are omitted.
        lineage: The content of `lineage.json`.
    """

    folder: Path
    tokenizer: Tokenizer
    train: tuple[TokenSource, ...]
    heldout: tuple[TokenSource, ...]
    lineage: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """Hash of corpus, settings and code version."""
        return cast(str, self.lineage["fingerprint"])

    def to_dict(self) -> dict[str, Any]:
        """Its size as a JSON-serialisable dictionary."""
        return {
            "folder": str(self.folder),
            "fingerprint": self.fingerprint,
            "vocabulary": len(self.tokenizer),
            "train": _amount(self.train),
            "heldout": _amount(self.heldout),
        }

    def __str__(self) -> str:
        both = {"to train on": _amount(self.train), "held out": _amount(self.heldout)}
        counts = [f"{of['documents']:,} documents and {of['tokens']:,} tokens {use}" for use, of in both.items()]
        return f"{self.folder}: {', '.join(counts)}, vocabulary {len(self.tokenizer):,}"

    @classmethod
    def load(cls, folder: str | Path, *, verify: bool = False, progress: bool = True) -> Prepared:
        """Open a prepared folder without checking the corpus.

        Files are verified up to 1 MiB now, and the rest of them block by block when it is read.

        Args:
            folder: The prepared folder.
            verify: Check all tokens now.
            progress: Show progress while a large corpus is indexed, which happens once for each length of a window.

        Raises:
            UniclozeError: It is not a prepared folder, it is damaged, or another version of the code made it.
        """
        folder = Path(folder)
        content = lineage.read_lineage(folder)
        digests = Digests.open(folder, content)
        digests.check(folder / TOKENIZER, folder / TOKENIZER_CONFIG)
        tokenizer = Tokenizer.load(folder / TOKENIZER)
        entries = content["sources"]
        train, heldout = (
            tuple(
                _open_source(folder, part, entry, content, digests, progress=progress)
                for entry in entries
                if part == "train" or entry[part]["documents"]
            )
            for part in ("train", "heldout")
        )
        for source in (*train, *heldout) if verify else ():
            for shard in source.shards:
                shard.check_all()
        return cls(folder=folder, tokenizer=tokenizer, train=train, heldout=heldout, lineage=content)


def _amount(sources: Sequence[TokenSource]) -> dict[str, int]:
    return {name: sum(getattr(source, f"num_{name}") for source in sources) for name in ("documents", "tokens")}


def open_or_prepare(
    data: DataSettings,
    tokenizer: TokenizerSettings,
    folder: str | Path,
    *,
    progress: bool = True,
    cure: str | None = None,
    verify: bool = False,
) -> Prepared:
    """Open `data.prepared` if it is set (the corpus need not exist then), else call `prepare_data`."""
    if data.prepared is None:
        return prepare_data(data, tokenizer, Path(folder), progress=progress, cure=cure, verify=verify)
    prepared = Prepared.load(data.prepared, verify=verify, progress=progress)
    if tokenizer.path is not None:
        wanted = Tokenizer.load(tokenizer.path).fingerprint
        if wanted != prepared.tokenizer.fingerprint:
            raise UniclozeError(
                f"{data.prepared} was prepared with tokenizer {prepared.tokenizer.fingerprint[:16]}, but {tokenizer.path} "
                f"is {wanted[:16]}: leave out --tokenizer.path or prepare again."
            )
    if progress and data.spans_field is not None and "data.spans_field" not in prepared.lineage["settings"]:
        say(f"{data.prepared} was prepared without data.spans_field, so its documents have no spans.")
    return prepared


_FULL = errno.ENOSPC, errno.EDQUOT


def prepare_data(
    data: DataSettings,
    tokenizer: TokenizerSettings,
    out: Path,
    *,
    progress: bool = True,
    cure: str | None = None,
    verify: bool = False,
    jobs: int = 1,
) -> Prepared:
    """Prepare a corpus in a folder, or open the folder if this corpus was already prepared there.

    Memory use does not grow with the corpus. Documents are duplicates if they are equal except for case and white space (for
    token shards: if their tokens are equal, or, mixed with texts, if they spell equal texts); the first copy is kept.
    Whether a document is held out depends on the hash of its text, see `unicloze.text.split`; each source keeps at least one
    document for training. A killed preparation is completed by the next one with the same settings.
    """
    if not 0 <= data.heldout_share < 1:
        raise UsageError(f"data.heldout_share is {data.heldout_share}: give a share from 0 to below 1.")
    if not data.corpus:
        raise UsageError("data.corpus is empty: give --data.corpus a file, folder or glob, or python-docs.")
    settings = lineage.describe_settings(data, tokenizer)
    if (out / LINEAGE).is_file():
        lineage.check_lineage(out, data, settings, cure=cure, verify=verify)
        return Prepared.load(out, verify=verify, progress=progress)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        holds = "is the folder of a run" if is_run(out) else "has files that `prepare` did not write"
        holds = holds if out.is_dir() else "is a file, not a folder"
        raise UniclozeError(f"{out} {holds}: give another --out.")
    for corpus in data.corpus:
        if not is_url(corpus) and at_home(corpus).is_dir() and out.resolve().is_relative_to(at_home(corpus).resolve()):
            why = f"is in data.corpus {corpus}, whose files are read again at the next start"
            raise UsageError(f"{out} {why}: give an --out elsewhere.")
    work = out.parent / f".{out.name}.partial"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with hold(work.with_name(f"{work.name}.lock"), out, "waiting until it is prepared", wait=True):
            if (out / LINEAGE).is_file():  # another process was faster
                lineage.check_lineage(out, data, settings, cure=cure)
            else:
                try:
                    _prepare(Preparation(data, tokenizer, settings, work, progress, jobs), out)
                except OSError as error:
                    if error.errno in _FULL:
                        shutil.rmtree(work, ignore_errors=True)
                    raise
    except OSError as error:
        if error.errno in _FULL:
            raise UniclozeError(f"The disk of {out.parent} is full: free some space and run it again.") from error
        unreadable = error.filename and Path(error.filename).is_file() and not os.access(error.filename, os.R_OK)
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM) and not unreadable:
            raise UniclozeError(f"{error.filename or out.parent} is not writable: give another --out.") from error
        raise
    return Prepared.load(out, progress=progress)


def _prepare(preparation: Preparation, out: Path) -> None:
    """Prepare in a folder beside `out`, which a killed preparation leaves and the next one completes, and rename it."""
    work = preparation.work
    for begun in ("data", "sides", "buckets", "cuts"):
        shutil.rmtree(work / begun, ignore_errors=True)
    work.mkdir(exist_ok=True)
    try:
        folder = preparation.run()
        for path in [*folder.rglob("*"), folder]:
            sync(path)
        os.replace(folder, out)
    except BaseException:
        if preparation.is_small:
            shutil.rmtree(work, ignore_errors=True)
        raise
    sync(out.parent)
    shutil.rmtree(work, ignore_errors=True)


def _open_source(
    folder: Path, part: str, entry: dict[str, Any], content: dict[str, Any], digests: Digests, *, progress: bool
) -> TokenSource:
    """Open a source as its lineage describes it."""
    name = entry["name"]
    if "shards" in entry:
        paths = [(Path(path), folder / part / f"{name}.{i}.documents") for i, path in enumerate(entry["shards"])]
        shards = [TokenShard.open(path, documents=chosen, digests=digests) for path, chosen in paths]
    else:
        shards = [TokenShard.open(path, digests=digests) for path in shard_paths(folder / part, entry)]
    return TokenSource(
        name=name,
        shards=tuple(shards),
        recorded_tokens=entry[part]["tokens"],
        index=folder / "index" / f"{part}-{name}-{content[SEAL][:16]}",
        show=progress,
    )
