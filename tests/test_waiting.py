"""What a run waits for: the first process as long as that lives and no longer, and all that was begun in the background."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
from torch._C._distributed_c10d import HashStore

from unicloze.errors import UniclozeError
from unicloze.training import meeting
from unicloze.training.checkpoint import Background
from unicloze.training.parallel import SIGNS, SILENCE, Group


class FirstProcess:
    """A store, and the first process as it looks from there: asked every 10 s, it gives signs of life and then its result."""

    def __init__(self, patch: pytest.MonkeyPatch, *, signs: int, done_after: int) -> None:
        self.store, self._looks = HashStore(), itertools.count(1)
        self._signs, self._done_after = signs, done_after
        patch.setattr(time, "monotonic", self._time)
        patch.setattr(time, "sleep", lambda _: None)
        self.now = 0.0

    def _time(self) -> float:
        look = next(self._looks)
        if look <= self._signs:
            self.store.add(SIGNS, 1)
        if look == self._done_after:
            self.store.set("turn-1", '"prepared"')
        self.now += 10.0
        return self.now


def test_a_slow_first_process_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    first = FirstProcess(monkeypatch, signs=1000, done_after=1000)
    assert Group(first.store, 1, 2, patience=1.0).only_first(lambda: "") == "prepared"
    assert first.now >= 10_000 > SILENCE


def test_a_first_process_that_ended_is_named_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    first = FirstProcess(monkeypatch, signs=100, done_after=1000)
    with pytest.raises(UniclozeError, match=r"process 0 of 2 ended.*the same command resumes from the last checkpoint"):
        Group(first.store, 1, 2, patience=1.0).only_first(lambda: "")
    assert 1_000 + SILENCE <= first.now <= 1_000 + SILENCE + 30


def test_a_first_process_that_takes_the_store_with_it_is_noticed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(HashStore(), 1, 2, patience=1.0)

    def gone(*_: object) -> bool:
        raise RuntimeError("Connection reset by peer")

    monkeypatch.setattr(HashStore, "check", gone)
    with pytest.raises(UniclozeError, match="another process of the run ended"):
        group.only_first(lambda: "")


def test_only_the_first_process_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "WATCH", 1e-3)
    stores = [HashStore() for _ in range(2)]
    with meeting._watched(stores[0], 0), meeting._watched(stores[1], 1):
        while stores[0].add(SIGNS, 0) < 3:
            pass
    assert stores[1].add(SIGNS, 0) == 0


def test_nothing_goes_on_in_the_background_once_a_failure_is_known() -> None:
    """So that the lock of the run is not released while something is written."""
    background, begun, done = Background(), threading.Event(), list[str]()

    def fail() -> None:
        begun.wait()
        raise UniclozeError("the disk is full")

    background.start(fail, lambda: done.append("noted"))
    background.start(lambda: done.append("copied"))
    threading.Timer(0.01, begun.set).start()
    with pytest.raises(UniclozeError, match="the disk is full"):
        background.finish()
    assert done == ["copied"]
    background.finish()
