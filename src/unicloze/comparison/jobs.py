"""Shares the runs of a comparison among processes: each run is done by the process that holds its lock.

The processes may be on several machines that share the folder. A run whose process ended early is free again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from unicloze.comparison.contestants import Contestant
from unicloze.training.lock import InUse, hold

T = TypeVar("T")

LOCK = "job.lock"
"""Lock file of a run while a process trains, measures and fine-tunes it."""
POLL = 1.0
"""Seconds between two attempts to lock the runs of other processes."""


@dataclass(frozen=True)
class Job:
    """One contestant with one seed."""

    contestant: Contestant  # what to train
    seed: int  # with which seed
    run: Path  # directory of the run
    label: str  # what it is called in messages


def do_all(jobs: Sequence[Job], do: Callable[[Job], T], say: Callable[[str], None]) -> list[T]:
    """The results of all jobs, in order; `do` must return those of a finished job without repeating it."""
    found: dict[int, T] = {}
    waited: set[int] = set()
    while len(found) < len(jobs):
        before, in_use = len(found), dict[int, InUse]()
        for number, job in enumerate(jobs):
            if number in found:
                continue
            with contextlib.ExitStack() as stack:
                try:
                    job.run.mkdir(parents=True, exist_ok=True)
                    stack.enter_context(hold(job.run / LOCK, job.run, "waiting for it", keep=True))
                except InUse as error:
                    in_use[number] = error
                    continue
                say(job.label)
                found[number] = do(job)
        if len(found) == before:
            for number in sorted(in_use.keys() - waited):
                say(str(in_use[number]))
            waited |= in_use.keys()
            time.sleep(POLL)
    return [found[number] for number in range(len(jobs))]
