"""One process per place, and no place that is somebody else's."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from unicloze.errors import UniclozeError

LOCK, HOLDER = "lock", "lock.holder"
"""Files of a run: what the system locks, and who holds it, which stays behind as a sign that the run is ours."""
LEDGER = "ledger.jsonl"
WRITTEN = (
    "recipe.yaml", "tokenizer.json", "tokenizer_config.json", "results.json", "dev_predictions.jsonl", "dev_samples.jsonl",
    "baselines.json", "scores.json", "phrases/phrases.txt",
)  # fmt: skip
"""Names of files that runs replace, and that people give to files of their own."""


@contextmanager
def hold_run(folder: Path) -> Iterator[None]:
    """Hold the directory of a run for this process, and make it if it is not there.

    Raises:
        UniclozeError: Another process holds it, or it holds files that no run of ours wrote and a run would replace.
    """
    if not any((folder / name).exists() for name in (LEDGER, HOLDER, LOCK)):
        foreign = next((name for name in WRITTEN if (folder / name).exists()), None)
        if foreign is not None:
            raise UniclozeError(
                f"{folder / foreign} was not written by a run, which would replace it: give another --out, or move it away"
            )
    folder.mkdir(parents=True, exist_ok=True)
    with hold(folder / LOCK, folder, "wait for it, stop it, or give this run another --out", keep=True):
        yield


@contextmanager
def hold(lock: Path, place: Path, cure: str, *, keep: bool = False) -> Iterator[None]:
    """Hold a lock file for this process; it is free again when the process ends, however it ends.

    Args:
        lock: The file that is locked; beside it stands who holds it.
        place: What it stands for, for messages.
        cure: What to do if another process holds it.
        keep: Leave both files behind.

    Raises:
        UniclozeError: Another process holds it; the message says which.
    """
    holder, held = lock.with_name(f"{lock.name}.holder"), FileLock(lock)
    try:
        held.acquire(timeout=0)
    except Timeout:
        known = holder.read_text(encoding="utf-8").strip() if holder.is_file() else ""
        raise UniclozeError(f"{place} is in use by {known or 'another process'}: {cure}") from None
    try:
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        holder.write_text(f"process {os.getpid()} on {socket.gethostname()} since {started}", encoding="utf-8")
        yield
    finally:
        holder.write_text("", encoding="utf-8")
        if not keep:
            holder.unlink()
            lock.unlink(missing_ok=True)
        held.release()
