"""What waits is computed together, a long computation takes turns with others, and an error reaches only its cause."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Sequence
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from unicloze.serving.batching import ITEMS_AT_ONCE, STEPPING_AT_ONCE, Batcher, in_portions
from unicloze.serving.guard import Refused


def run(batcher: Batcher, *asked: Coroutine[Any, Any, Any]) -> list[Any]:
    """Results or errors of some requests, which all wait before the first is computed."""

    async def all_of_them() -> list[Any]:
        tasks = [asyncio.ensure_future(one) for one in asked]
        for _ in range(10):  # turns of the loop, in which all ask and the impatient give up
            await asyncio.sleep(0)
        batcher.start()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(batcher.stop)
        return found

    return asyncio.run(all_of_them())


def test_requests_with_equal_keys_are_computed_together() -> None:
    batcher, calls = Batcher(10), []

    def double(items: Sequence[int]) -> list[int]:
        calls.append(list(items))
        return [2 * item for item in items]

    found = run(batcher, batcher.ask("a", [1], double), batcher.ask("b", [2], double), batcher.ask("a", [3, 4], double))
    assert found == [[2], [4], [6, 8]]
    assert calls == [[1, 3, 4], [2]]


def test_a_batch_is_bounded_and_a_large_request_is_computed_whole() -> None:
    batcher, sizes = Batcher(10), []

    def count(items: Sequence[int]) -> Sequence[int]:
        sizes.append(len(items))
        return items

    large = ITEMS_AT_ONCE + 1
    run(batcher, *(batcher.ask("a", [0] * size, count) for size in (1, ITEMS_AT_ONCE - 1, 1, large)))
    assert sizes == [ITEMS_AT_ONCE, 1, large]


@pytest.mark.parametrize("stepwise", [False, True])
def test_an_error_reaches_only_the_request_that_caused_it(stepwise: bool) -> None:
    batcher = Batcher(10)

    def inverse(items: Sequence[int]) -> list[float]:
        return [1 / item for item in items]

    def later(items: Sequence[int]) -> Generator[None, None, list[float]]:
        yield None
        return inverse(items)

    work: Any = later if stepwise else inverse
    asked = (batcher.ask("a", [item], work, stepwise=stepwise) for item in (1, 0, 2))
    first, second, third = run(batcher, *asked)
    assert (first, third) == ([1.0], [0.5]) and isinstance(second, ZeroDivisionError)


def test_a_long_computation_takes_turns_with_others() -> None:
    batcher, order = Batcher(10), []

    def steps(items: Sequence[str]) -> Generator[None, None, Sequence[str]]:
        for _ in range(3):
            order.append(items[0])
            yield None
        return items

    def short(items: Sequence[str]) -> Sequence[str]:
        order.append("short")
        return items

    run(
        batcher,
        batcher.ask("a", ["a"], steps, stepwise=True),
        batcher.ask("b", ["b"], steps, stepwise=True),
        batcher.ask("c", ["c"], short),
    )
    assert sorted(order) == ["a"] * 3 + ["b"] * 3 + ["short"] and order.index("short") < 4
    assert order.index("b") < 3


def test_few_large_requests_take_turns_and_the_others_wait() -> None:
    batcher, begun, most = Batcher(10), set[int](), list[int]()

    def steps(items: Sequence[int]) -> Generator[None, None, Sequence[int]]:
        begun.add(items[0])
        most.append(len(begun))
        for _ in range(10):
            yield None
        begun.remove(items[0])
        return items

    large = (batcher.ask(number, [number], steps, size=ITEMS_AT_ONCE + 1) for number in range(STEPPING_AT_ONCE + 2))
    assert len(run(batcher, *large)) == STEPPING_AT_ONCE + 2 and max(most) == STEPPING_AT_ONCE


def test_a_stream_gives_pieces_and_then_the_result() -> None:
    batcher = Batcher(10)

    def spell(items: Sequence[str]) -> Generator[str, None, list[str]]:
        yield from items[0]
        return [items[0]]

    async def pieces() -> list[str]:
        return [piece async for piece in batcher.stream("abc", spell)]

    assert run(batcher, pieces()) == [["a", "b", "c", "abc"]]


def test_what_nobody_waits_for_is_not_computed() -> None:
    batcher, computed, closed = Batcher(10), [], []

    def endless(items: Sequence[str]) -> Generator[str, None, Sequence[str]]:
        try:
            while True:
                yield items[0]
        finally:
            closed.append(items[0])

    def seen(items: Sequence[str]) -> Sequence[str]:
        computed.extend(items)
        return items

    async def two_pieces() -> None:
        stream = batcher.stream("a", endless)
        assert [await anext(stream), await anext(stream)] == ["a", "a"]
        await stream.aclose()

    async def impatient() -> None:
        async with asyncio.timeout(0):
            await batcher.ask("b", ["b"], seen)

    _, late, last = run(batcher, two_pieces(), impatient(), batcher.ask("b", ["c"], seen))
    assert isinstance(late, TimeoutError) and last == ["c"]
    assert computed == ["c"] and closed == ["a"]


def test_a_full_queue_refuses() -> None:
    batcher = Batcher(2)
    *answered, refused = run(batcher, *(batcher.ask(number, [number], list) for number in range(3)))
    assert answered == [[0], [1]]
    assert isinstance(refused, Refused) and refused.status == 429


def test_stopping_computes_what_waits_and_refuses_what_comes() -> None:
    batcher = Batcher(10)

    async def stopped_early() -> list[Any]:
        first = asyncio.ensure_future(batcher.ask("a", [1], list))
        await asyncio.sleep(0)
        batcher.start()
        await asyncio.to_thread(batcher.stop)
        with pytest.raises(Refused, match="The server is stopping"):
            await batcher.ask("a", [2], list)
        return await first

    assert asyncio.run(stopped_early()) == [1]


def test_a_large_request_is_computed_in_portions_of_limited_size() -> None:
    batcher, calls = Batcher(10), []

    def seen(items: Sequence[int]) -> list[int]:
        calls.append(list(items))
        return [-item for item in items]

    (found,) = run(batcher, batcher.ask("a", [200, 50, 300, 100, 1], in_portions(seen, int)))
    assert found == [-200, -50, -300, -100, -1] and calls == [[200, 50], [300], [100, 1]]
