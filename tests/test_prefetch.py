"""Rows made ahead in a thread: the same rows in the same order, errors in their place, and no thread afterwards."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import pytest

from unicloze.errors import UniclozeError
from unicloze.training.batches import Prefetch


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.mark.parametrize("ahead", [1, 3, 20])
def test_items_come_in_order_and_then_end(ahead: int) -> None:
    with Prefetch(iter(range(10)), ahead) as items:
        assert [*items] == [*range(10)]
        assert next(items, None) is None
    assert not threads()


def test_an_error_comes_in_the_place_of_its_item() -> None:
    error = UniclozeError("shard.ds is damaged")

    def damaged() -> Iterator[int]:
        yield from range(3)
        raise error

    with pytest.raises(UniclozeError) as found, Prefetch(damaged(), 10) as items:
        assert [next(items) for _ in range(3)] == [0, 1, 2]
        next(items)
    assert found.value is error
    assert not threads()


def test_no_more_than_asked_is_made_ahead() -> None:
    made: list[int] = []
    third = threading.Event()

    def noted() -> Iterator[int]:
        for number in itertools.count():
            made.append(number)
            if number == 2:
                third.set()
            yield number

    with Prefetch(noted(), 2) as items:
        assert next(items) == 0
        assert third.wait(10)
        assert threads() == ["prefetch"]
    assert made == [0, 1, 2] and not threads()


def test_no_thread_survives_an_exception_or_a_restart() -> None:
    with pytest.raises(KeyboardInterrupt), Prefetch(itertools.count(), 2) as items:
        assert next(items) == 0
        items.restart(itertools.count(7))
        assert [next(items), next(items)] == [7, 8]
        assert len(threads()) == 1
        raise KeyboardInterrupt
    assert not threads()
