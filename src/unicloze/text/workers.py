"""Runs jobs on portions of a corpus, here or in worker processes.

    python -m unicloze.text.workers    reads one job per line from stdin and answers with lines of JSON on stdout

A worker ends when its stdin ends, even within a job, so that it does not outlive the preparation that started it.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from unicloze.errors import UniclozeError, UsageError
from unicloze.text.portions import Job, Report

_EVERY = 2**22


def run_jobs(jobs: Sequence[Job], processes: int, report: Report) -> None:
    """Run all jobs that are not done."""
    left = [job for job in jobs if job.result() is None]
    if min(processes, len(left)) <= 1:
        for job in left:
            job.run(report)
        return
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in left:
        waiting.put(job)
    heard: queue.SimpleQueue[tuple[_Worker, dict[str, Any]]] = queue.SimpleQueue()
    workers = [_Worker(heard) for _ in range(min(processes, len(left)))]
    try:
        for worker in workers:
            worker.give(waiting.get())
        busy = len(workers)
        while busy:
            worker, said = heard.get()
            if "bytes" in said:
                report(said["bytes"])
            elif "done" not in said:
                raise _error(said)
            elif waiting.empty():
                busy -= 1
            else:
                worker.give(waiting.get())
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """A worker process; what it says is put into a queue."""

    def __init__(self, heard: queue.SimpleQueue[tuple[_Worker, dict[str, Any]]]) -> None:
        single = {name: "1" for name in ("RAYON_NUM_THREADS", "OMP_NUM_THREADS")}
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "unicloze.text.workers"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **single, "PYTHONPATH": paths},
        )  # fmt: skip
        self._ended = False
        threading.Thread(target=self._listen, args=(heard,), daemon=True).start()

    def give(self, job: Job) -> None:
        """Start a job."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(job.to_json().encode() + b"\n")
            self._process.stdin.flush()
        except OSError:  # it was killed, which the listener notices too
            return

    def end(self) -> None:
        """Stop the process and wait for it."""
        self._ended = True
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError:
            return

    def _listen(self, heard: queue.SimpleQueue[tuple[_Worker, dict[str, Any]]]) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                heard.put((self, json.loads(line)))
        if not self._ended:
            heard.put((self, {"status": self._process.wait()}))


def _error(said: dict[str, Any]) -> Exception:
    """The exception a worker reported, or that it ended."""
    if "errno" in said:
        return OSError(said["errno"], said["text"], said["file"])
    if "text" in said:
        return (UsageError if said["usage"] else UniclozeError)(said["text"])
    status = said["status"]
    how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    return UniclozeError(
        f"A process of the preparation {how}: run the same command again, which keeps what the others finished, with "
        "fewer --jobs if memory was short."
    )


def main() -> None:
    """Run the jobs given on stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the first process stops the others
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            jobs.put(line)
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        job, unreported = Job.from_json(jobs.get()), 0

        def report(size: int) -> None:
            nonlocal unreported
            unreported += size
            if unreported >= _EVERY:
                _say({"bytes": unreported})
                unreported = 0

        try:
            job.run(report)
        except UniclozeError as error:
            _say({"text": str(error), "usage": isinstance(error, UsageError)})
        except OSError as error:
            _say({"errno": error.errno, "text": error.strerror, "file": error.filename})
        else:
            _say({"bytes": unreported})
            _say({"done": True})


def _say(content: dict[str, Any]) -> None:
    print(json.dumps(content), flush=True)


if __name__ == "__main__":
    main()
