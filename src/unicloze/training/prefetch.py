"""Makes the rows of the next steps in a thread while a step is computed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Prefetch(Generic[T]):
    """Iterates over items that a thread makes ahead, in the same order; use it as a context manager.

    An error in the thread is raised in place of the item it was making.

    Args:
        items: The items.
        ahead: Maximum number of items that wait.
    """

    def __init__(self, items: Iterator[T], ahead: int) -> None:
        self._ahead = ahead
        self._start(items)

    def _start(self, items: Iterator[T]) -> None:
        self._maker = _Maker(items, self._ahead)

    def restart(self, items: Iterator[T]) -> None:
        """Continue with other items."""
        self._maker.end()
        self._start(items)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return self._maker.take()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._maker.end()


class _Maker(Generic[T]):
    """The thread."""

    def __init__(self, items: Iterator[T], ahead: int) -> None:
        self._items, self._room, self._ended = items, threading.Semaphore(ahead), False
        self._made: queue.SimpleQueue[tuple[T] | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._make, name="prefetch", daemon=True)
        self._thread.start()

    def _make(self) -> None:
        try:
            while self._room.acquire() and not self._ended:
                self._made.put((next(self._items),))
        except BaseException as error:  # raised by `take`
            self._made.put(error)

    def take(self) -> T:
        """The next item."""
        made = self._made.get()
        if isinstance(made, BaseException):
            self._made.put(StopIteration())  # for a later call
            try:
                raise made
            finally:
                del made  # it refers to this frame
        self._room.release()
        return made[0]

    def end(self) -> None:
        """End the thread, after the item it is making."""
        self._ended = True
        self._room.release()
        self._thread.join()
