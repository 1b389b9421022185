"""Work in the background, while the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait


class Background:
    """A thread that does one job after the other.

    The next `finish` raises what made a job fail. The jobs of a process that is killed are lost.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="background")
        self._jobs: list[tuple[Future[None], Callable[[], None]]] = []

    def start(self, job: Callable[[], None], then: Callable[[], None] = lambda: None) -> None:
        """Do a job after those before it; `finish` calls `then` if it succeeded."""
        self._jobs.append((self._thread.submit(job), then))

    def finish(self) -> None:
        """Wait for all jobs, also for those after one that failed.

        Raises:
            UniclozeError: A job failed.
        """
        jobs, self._jobs = self._jobs, []
        wait([future for future, _ in jobs])
        for future, then in jobs:
            future.result()
            then()
