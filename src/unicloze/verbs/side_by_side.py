"""Starts further processes for the runs of a comparison, see `compare_helper`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from unicloze import plugins
from unicloze.cores import usable_cores
from unicloze.progress import say

PATIENCE = 60.0
"""Seconds to wait for a process to exit by itself."""


@contextlib.contextmanager
def helpers(arguments: Mapping[str, Any], count: int, *, quiet: bool) -> Iterator[None]:
    """Let further processes do runs of a comparison within this context.

    Args:
        arguments: Arguments of `compare`; those that JSON cannot represent are sent as text.
        count: Number of the processes.
        quiet: Show no progress.
    """
    sent = json.dumps({"plugins": plugins.registered(), "arguments": {**arguments, "quiet": quiet}}, default=str)
    started = [_Helper(number, sent, count + 1, quiet=quiet) for number in range(1, count + 1)]
    try:
        yield
    except BaseException:
        for helper in started:
            helper.stop()
        raise
    finally:
        for helper in started:
            helper.wait()


def threads_of_each(processes: int) -> int | None:
    """Number of threads of each of several processes; None where `OMP_NUM_THREADS` sets it, or for a single process."""
    return None if processes == 1 or "OMP_NUM_THREADS" in os.environ else max(1, usable_cores() // processes)


class _Helper:
    """One of the processes.

    Args:
        number: Its number, from 1; the process that starts them is 0.
        sent: What it reads from stdin.
        processes: Number of all processes.
        quiet: Whether to hide what it shows.
    """

    def __init__(self, number: int, sent: str, processes: int, *, quiet: bool) -> None:
        self._number, self._quiet, self._stopped = number, quiet, False
        paths = os.pathsep.join(path for path in sys.path if path)
        threads = threads_of_each(processes)
        environment = {**os.environ, **({} if threads is None else {"OMP_NUM_THREADS": str(threads)})}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "unicloze.verbs.compare_helper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            env={**environment, "PYTHONPATH": paths, "PYTHONIOENCODING": "utf-8", **_device(number)},
            start_new_session=True,  # Ctrl-C reaches only the first process, which stops the others
        )
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it was killed, which the listener notices too
            self._process.stdin.write(sent + "\n")
            self._process.stdin.flush()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if not self._quiet and line.strip():
                say(f"[{self._number}] {line.rstrip()}")
        if (status := self._process.wait()) and not self._stopped:
            say(f"[{self._number}] ended with status {status}; another process takes over its run")

    def stop(self) -> None:
        """Ask it to save and exit."""
        self._stopped = True
        self._process.terminate()

    def wait(self) -> None:
        """Wait until it exits."""
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._stopped = True
            self._process.kill()
            self._process.wait()
        self._listener.join()
        for stream in (self._process.stdin, self._process.stderr):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()


def _device(number: int) -> dict[str, str]:
    """Environment variables that give a process a GPU of its own, as long as there are enough."""
    import torch

    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    return {"CUDA_VISIBLE_DEVICES": visible[number % len(visible)]} if count > 1 else {}
