"""One process per run directory."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path
from types import TracebackType

from unicloze.errors import UniclozeError


class RunLock:
    """Holds a run directory for this process; the system lets go of it when the process ends, however it ends.

    Raises:
        UniclozeError: Another process holds it; the message says which.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"

    def __enter__(self) -> RunLock:
        self._file = self._path.open("a+", encoding="utf8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().strip() or "another process"
            self._file.close()
            raise UniclozeError(
                f"{self._path.parent} is in use by {holder}; wait for it, stop it, or give this run another --out"
            ) from None
        self._file.truncate(0)
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        self._file.write(f"process {os.getpid()} on {socket.gethostname()} since {started}")
        self._file.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.truncate(0)
        self._file.close()
