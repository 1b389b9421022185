"""A thread that computes what several requests ask for together."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from unicloze.serving.guard import Refused

Steps = Generator[Any, None, Sequence[Any]]
Compute = Callable[[Sequence[Any]], Sequence[Any] | Steps]
"""Results of some items, one per item and in their order."""
Event = tuple[Literal["piece", "result", "error"], Any]

ITEMS_AT_ONCE = 256
"""Short items of several requests that are computed together; a single request may have more."""
STEPPING_AT_ONCE = 4
"""Long computations that take turns; further ones wait."""


# A computation either returns its results at once, or is a generator that works in steps; generators take turns, so
# that a long text being generated does not keep other requests waiting.


@dataclass(eq=False)
class _Job:
    """A request's computation."""

    key: Hashable  # jobs with equal keys may be computed together
    items: Sequence[Any]  # what to compute
    compute: Compute  # computes items of jobs with this key
    stepwise: bool  # whether it takes long, so that only a few of these take turns
    size: int  # about what it costs, in short items
    loop: asyncio.AbstractEventLoop  # the loop of the request
    # receives the results, or pieces of a single item followed by its result
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    abandoned: bool = False  # whether nobody waits for it any more

    def tell(self, event: Event) -> None:
        """Pass an event to the request's loop, from the thread that computes."""
        if not self.abandoned:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self.events.put_nowait, event)


@dataclass(eq=False)
class _Running:
    jobs: list[_Job]
    steps: Steps


class Batcher:
    """A thread that computes, and the requests that wait for it.

    Args:
        waiting: Requests that may wait; more are refused.
    """

    def __init__(self, waiting: int) -> None:
        self._most = waiting
        self._jobs: deque[_Job] = deque()
        self._running: list[_Running] = []
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="unicloze-serve", daemon=True)

    def start(self) -> None:
        """Start computing."""
        self._thread.start()

    def stop(self) -> None:
        """Compute what waits, then end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return sum(not job.abandoned for job in list(self._jobs))

    async def ask(
        self, key: Hashable, items: Sequence[Any], compute: Compute, *, stepwise: bool = False, size: int | None = None
    ) -> list[Any]:
        """Results of some items, computed together with those of other requests with the same key.

        `size` is about what they cost, in short items; default: their number.
        """
        size = len(items) if size is None else size
        async with contextlib.aclosing(self._events(key, items, compute, stepwise, size)) as events:
            *_, (_, value) = [event async for event in events]
        return list(value)

    async def stream(self, item: Any, compute: Compute) -> AsyncIterator[Any]:
        """The pieces that a generator yields for an item, and its result as the last piece."""
        async with contextlib.aclosing(self._events(object(), [item], compute, True, 1)) as events:
            async for kind, value in events:
                yield value if kind == "piece" else value[0]

    async def _events(
        self, key: Hashable, items: Sequence[Any], compute: Compute, stepwise: bool, size: int
    ) -> AsyncGenerator[Event]:
        job = _Job(key, items, compute, stepwise or size > ITEMS_AT_ONCE, size, asyncio.get_running_loop())
        with self._changed:
            if self._stopping:
                raise Refused(503, "The server is stopping: send the request to another one.")
            if self.waiting >= self._most:
                said = f"{self._most} requests are waiting already: send this one again later."
                raise Refused(429, said, {"Retry-After": "1"})
            self._jobs.append(job)
            self._changed.notify()
        try:
            kind = "piece"
            while kind == "piece":
                kind, value = await job.events.get()
                if kind == "error":
                    raise value
                yield kind, value
        finally:
            job.abandoned = True

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (self._jobs or self._running or self._stopping):
                    self._changed.wait()
                if not (self._jobs or self._running):
                    return
                together = self._next()
            if together:
                self._begin(together)
            for running in list(self._running):
                self._advance(running)

    def _next(self) -> list[_Job]:
        """Take the first job that may start, and those that can be computed with it."""
        full = len(self._running) >= STEPPING_AT_ONCE
        waiting = [job for job in self._jobs if not job.abandoned]
        first = next((job for job in waiting if not (full and job.stepwise)), None)
        taken: list[_Job] = []
        count = 0
        for job in waiting if first is not None else ():
            if first is not None and job.key == first.key and (not taken or count + job.size <= ITEMS_AT_ONCE):
                taken.append(job)
                count += job.size
        self._jobs = deque(job for job in waiting if job not in taken)
        return taken

    def _begin(self, jobs: list[_Job]) -> None:
        try:
            found = jobs[0].compute([item for job in jobs for item in job.items])
        except Exception as error:
            self._fail(jobs, error)
            return
        if isinstance(found, Generator):
            self._running.append(_Running(jobs, found))
        else:
            _share(jobs, found)

    def _advance(self, running: _Running) -> None:
        """One step of a generator."""
        if all(job.abandoned for job in running.jobs):
            self._running.remove(running)
            running.steps.close()
            return
        try:
            piece = next(running.steps)
        except StopIteration as end:
            self._running.remove(running)
            _share(running.jobs, end.value)
        except Exception as error:
            self._running.remove(running)
            self._fail(running.jobs, error)
        else:
            if piece is not None:
                for job in running.jobs:
                    job.tell(("piece", piece))

    def _fail(self, jobs: list[_Job], error: Exception) -> None:
        """Report an error to the request that caused it: of several, each is computed alone."""
        if len(jobs) == 1:
            jobs[0].tell(("error", error))
            return
        for job in jobs:
            self._begin([job])


def in_portions(compute: Callable[[Sequence[Any]], Sequence[Any]], size_of: Callable[[Any], int]) -> Compute:
    """A computation that takes a portion of its items per step."""

    def steps(items: Sequence[Any]) -> Steps:
        found: list[Any] = []
        first = 0
        while first < len(items):
            last, room = first + 1, ITEMS_AT_ONCE - size_of(items[first])
            while last < len(items) and (room := room - size_of(items[last])) >= 0:
                last += 1
            found += compute(items[first:last])
            first = last
            if first < len(items):
                yield None
        return found

    return steps


def _share(jobs: Sequence[_Job], found: Sequence[Any]) -> None:
    first = 0
    for job in jobs:
        job.tell(("result", found[first : first + len(job.items)]))
        first += len(job.items)
