"""Prepares a corpus as token shards, streaming: deduplicate, hold out, train or load a tokenizer, tokenise.

    FOLDER/tokenizer.json, tokenizer_config.json
    FOLDER/train/SOURCE.ds ...    FOLDER/heldout/SOURCE.ds ...
    FOLDER/digests.json           SHA-256 of each block of these files
    FOLDER/lineage.json           what the folder was made from, with its fingerprint

The folder is created atomically: it is written under a temporary name and renamed. An existing folder is reused only if
the corpus, the settings and the version of this code still yield its fingerprint.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from filelock import FileLock, Timeout

from unicloze.errors import UniclozeError, UsageError
from unicloze.run_files import LEDGER, LINEAGE, TOKENIZER, TOKENIZER_CONFIG
from unicloze.settings import DataSettings, TokenizerSettings
from unicloze.text import lineage, tokenised
from unicloze.text.digests import Digests
from unicloze.text.pipeline import Preparation
from unicloze.text.shards import TokenShard, TokenSource
from unicloze.text.tokenizers import Tokenizer

_LOCK = "lock"
_ABANDONED = 24 * 60 * 60
"""Seconds without a change after which an unlocked folder of a process on another machine is removed."""


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
            **{
                use: {"documents": documents, "tokens": tokens}
                for use, (documents, tokens) in zip(("train", "heldout"), self._amounts, strict=True)
            },
        }

    @property
    def _amounts(self) -> list[tuple[int, int]]:
        return [
            (sum(source.num_documents for source in sources), sum(source.num_tokens for source in sources))
            for sources in (self.train, self.heldout)
        ]

    def __str__(self) -> str:
        counts = [
            f"{documents:,} documents and {tokens:,} tokens {use}"
            for use, (documents, tokens) in zip(("to train on", "held out"), self._amounts, strict=True)
        ]
        return f"{self.folder}: {', '.join(counts)}, vocabulary {len(self.tokenizer):,}"

    @classmethod
    def load(cls, folder: str | Path, *, verify: bool = False) -> Prepared:
        """Open a prepared folder without checking the corpus.

        Files other than tokens are verified whole; of each token file the first block now, the others when read.

        Args:
            folder: The prepared folder.
            verify: Check all tokens now.

        Raises:
            UniclozeError: It is not a prepared folder, it is damaged, or another version of the code made it.
        """
        folder = Path(folder)
        content = lineage.read_lineage(folder)
        digests = Digests.open(folder, content, required=verify)
        if digests is not None:
            digests.check(folder / TOKENIZER, folder / TOKENIZER_CONFIG)
        tokenizer = Tokenizer.load(folder / TOKENIZER)
        recorded = content["tokenizer"]["fingerprint"]
        if tokenizer.fingerprint != recorded:
            raise UniclozeError(
                f"{folder / 'tokenizer.json'} has fingerprint {tokenizer.fingerprint[:16]}, but lineage.json records "
                f"{recorded[:16]}: remove the folder and prepare again."
            )
        entries = content["sources"]
        train = tuple(_open_source(folder, "train", entry, digests) for entry in entries)
        heldout = tuple(
            _open_source(folder, "heldout", entry, digests) for entry in entries if entry["heldout"]["documents"]
        )
        for shard in (shard for source in (*train, *heldout) for shard in source.shards):
            shard.check_all() if verify else shard.check_first()
        return cls(folder=folder, tokenizer=tokenizer, train=train, heldout=heldout, lineage=content)


def open_or_prepare(
    data: DataSettings,
    tokenizer: TokenizerSettings,
    folder: str | Path,
    *,
    progress: bool = True,
    seed: int = 0,
    cure: str | None = None,
    verify: bool = False,
) -> Prepared:
    """Open `data.prepared` if it is set (the corpus need not exist then), else call `prepare_data`.

    Raises:
        UniclozeError: As `Prepared.load` and `prepare_data`, or `data.prepared` was made with another tokenizer.
    """
    if data.prepared is None:
        return prepare_data(data, tokenizer, Path(folder), progress=progress, seed=seed, cure=cure, verify=verify)
    prepared = Prepared.load(data.prepared, verify=verify)
    if tokenizer.path is not None:
        wanted = Tokenizer.load(tokenizer.path).fingerprint
        if wanted != prepared.tokenizer.fingerprint:
            raise UniclozeError(
                f"{data.prepared} was prepared with tokenizer {prepared.tokenizer.fingerprint[:16]}, but {tokenizer.path} "
                f"is {wanted[:16]}: leave out --tokenizer.path or prepare again."
            )
    return prepared


def prepare_data(
    data: DataSettings,
    tokenizer: TokenizerSettings,
    out: Path,
    *,
    progress: bool = True,
    seed: int = 0,
    cure: str | None = None,
    verify: bool = False,
) -> Prepared:
    """Prepare a corpus in a folder, or open the folder if this corpus was already prepared there.

    Memory use does not grow with the corpus. Documents are duplicates if they are equal except for case and white space (for
    token shards: if their tokens are equal, or, mixed with texts, if they spell equal texts); a duplicate is found unless
    about a million other documents come between. Whether a document is held out depends on the hash of its text, see
    `unicloze.text.split`; each source keeps at least one document for training.

    Args:
        data: `corpus`, `text_field`, `heldout_share` and `deduplicate` are used. An entry of the corpus may also be
            datatrove token shards, which are read in place.
        tokenizer: The tokenizer to train or load.
        out: The folder.
        progress: Show progress on stderr.
        seed: Key for the choice of held-out documents.
        cure: Advice if the folder was made from something else; default: use another folder or remove it.
        verify: If this corpus was already prepared there, read all of it and of the folder again.

    Raises:
        UsageError: A setting is invalid.
        UniclozeError: The corpus cannot be read, the folder was made from something else, or the disk is full.
    """
    if not 0 <= data.heldout_share < 1:
        raise UsageError(f"data.heldout_share is {data.heldout_share}: give a share from 0 to below 1.")
    if not data.corpus:
        raise UsageError("data.corpus is empty: give --data.corpus a file, folder or glob, or python-docs.")
    settings = lineage.describe_settings(data, tokenizer, seed)
    if (out / LINEAGE).is_file():
        lineage.check_lineage(out, data, settings, cure=cure, verify=verify)
        return Prepared.load(out, verify=verify)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        holds = "is the folder of a run" if (out / LEDGER).is_file() else "has files that `prepare` did not write"
        raise UniclozeError(f"{out} {holds}: give another --out.")
    work = out.parent / f".{out.name}.partial-{socket.gethostname()}-{os.getpid()}"
    try:
        shutil.rmtree(work, ignore_errors=True)  # left by a killed process with the same process id
        work.mkdir(parents=True)
        with FileLock(work / _LOCK):
            _adopt(work, out)
            Preparation(data, tokenizer, settings, work, progress, seed).run()
            (work / _LOCK).unlink()
        _sync(work)
        os.replace(work, out)
        _sync_folder(out.parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UniclozeError(f"The disk of {out.parent} is full: free some space and run it again.") from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise UniclozeError(f"{error.filename or out.parent} is not writable: give another --out.") from error
        if not (out / LINEAGE).is_file():
            raise
        lineage.check_lineage(out, data, settings, cure=cure)  # another process finished first
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Prepared.load(out)


def _open_source(folder: Path, part: str, entry: dict[str, Any], digests: Digests | None) -> TokenSource:
    """Open a source as its lineage describes it.

    Raises:
        UniclozeError: It is damaged, or another one: an older version sometimes gave two sources the same name.
    """
    name = entry["name"]
    if "shards" in entry:
        source = tokenised.open_selection(folder / part, name, [Path(path) for path in entry["shards"]], digests)
    else:
        source = TokenSource(name=name, shards=(TokenShard.open(folder / part / f"{name}.ds", digests=digests),))
    found, recorded = (source.num_documents, source.num_tokens), (entry[part]["documents"], entry[part]["tokens"])
    if found != recorded:
        raise UniclozeError(
            f"{folder / part / name} has {found[0]:,} documents of {found[1]:,} tokens, but lineage.json records "
            f"{recorded[0]:,} of {recorded[1]:,}: remove the folder and prepare again."
        )
    return source


def _adopt(work: Path, out: Path) -> None:
    """Remove leftovers of killed runs, keeping a built-in corpus that they had already parsed; warn about doubtful ones."""
    prefix = f".{out.name}.partial-"
    for left in [folder for folder in out.parent.iterdir() if folder.name.startswith(prefix) and folder != work]:
        host, _, process = left.name.removeprefix(prefix).rpartition("-")
        if not process.isdigit() or _locked(left / _LOCK):
            continue
        here = host == socket.gethostname()
        if (here and not _alive(int(process))) or ((left / _LOCK).is_file() and _age(left) > _ABANDONED):
            for file in left.glob("python-docs-*.jsonl.gz"):
                file.replace(work / file.name)
            shutil.rmtree(left, ignore_errors=True)
        elif not here:
            warnings.warn(
                f"{left} belongs to a preparation on {host}, which is still running or was killed: remove the folder if "
                "none is running",
                stacklevel=2,
            )


def _locked(file: Path) -> bool:
    """Whether another process holds a lock. Locks of other machines are not visible on every file system."""
    if not file.is_file():
        return False
    try:
        with FileLock(file, timeout=0):
            return False
    except Timeout:
        return True


def _age(folder: Path) -> float:
    """Seconds since anything in a folder last changed."""
    return time.time() - max(path.lstat().st_mtime for path in [folder, *folder.rglob("*")])


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _sync(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        if path.is_dir():
            _sync_folder(path)
        else:
            with path.open("rb") as opened:
                os.fsync(opened.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
