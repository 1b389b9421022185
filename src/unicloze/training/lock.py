"""Locks a run directory for one process, and protects files that no run wrote."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from unicloze.errors import UniclozeError
from unicloze.files import (
    DEV_PREDICTIONS,
    DEV_SAMPLES,
    LEDGER,
    LINEAGE,
    RECIPE,
    RESULTS,
    TOKENIZER,
    TOKENIZER_CONFIG,
    release_and_remove,
)
from unicloze.progress import say
from unicloze.training.world import World

LOCK, HOLDER = "lock", "lock.holder"
"""Lock file, and the file naming its holder, which remains as a sign that the folder is a run."""
WRITTEN = (
    RECIPE, TOKENIZER, TOKENIZER_CONFIG, RESULTS, DEV_PREDICTIONS, DEV_SAMPLES, "baselines.json", "scores.json",
    "phrases/phrases.txt",
)  # fmt: skip
"""Files that runs replace, with names that people also use for their own files."""


@contextmanager
def hold_run(folder: Path, world: World | None = None) -> Iterator[None]:
    """Lock the directory of a run for this process, and create it if it does not exist."""
    if world is not None and not world.first:
        yield
        return
    if not any((folder / name).exists() for name in (LEDGER, HOLDER, LOCK)):
        if (folder / LINEAGE).is_file():
            raise UniclozeError(
                f"{folder} holds a prepared corpus, not a run: give another --out (to train on it: "
                f"`unicloze pretrain --data.prepared {folder}`)"
            )
        foreign = next((name for name in WRITTEN if (folder / name).exists()), None)
        if foreign is not None:
            raise UniclozeError(
                f"{folder / foreign} was not written by a run, but this run would replace it: give another --out, or move it"
            )
    folder.mkdir(parents=True, exist_ok=True)
    with hold(folder / LOCK, folder, "wait for it, stop it, or give this run another --out", keep=True):
        yield


class InUse(UniclozeError):
    """Another process holds a lock."""


@contextmanager
def hold(lock: Path, place: Path, cure: str, *, keep: bool = False, wait: bool = False) -> Iterator[None]:
    """Hold a lock file for this process; it is released when the process ends, even if killed."""
    holder, held = lock.with_name(f"{lock.name}.holder"), FileLock(lock)
    try:
        held.acquire(timeout=0)
    except Timeout:
        known = holder.read_text(encoding="utf-8").strip() if holder.is_file() else ""
        error = InUse(f"{place} is in use by {known or 'another process'}: {cure}")
        if not wait:
            raise error from None
        say(str(error))
        held.acquire()
    try:
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        holder.write_text(f"process {os.getpid()} on {socket.gethostname()} since {started}", encoding="utf-8")
        yield
    finally:
        holder.write_text("", encoding="utf-8")
        if keep:
            held.release()
        else:
            holder.unlink()
            release_and_remove(held)
