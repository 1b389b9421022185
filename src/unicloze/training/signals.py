"""Turns signals that stop a run into a flag."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Interruption:
    """Whether SIGTERM, SIGINT or SIGHUP asked the run to stop."""

    signal: int = 0  # the signal this process received; 0 if none
    agreed: int | None = None  # the signal all processes of the run stop for; 0 if none, None in a single process

    @property
    def heeded(self) -> int:
        """The signal to stop for."""
        return self.signal if self.agreed is None else self.agreed


def hangs_up() -> bool:
    """Whether a closed terminal stops this process: not under nohup, and Windows has no SIGHUP."""
    return hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN


@contextmanager
def stop_when_asked() -> Iterator[Interruption]:
    """Turn SIGTERM, SIGINT and SIGHUP into a flag checked after each micro-batch; a second Ctrl-C stops at once.

    A second SIGTERM, as schedulers send, is ignored because the checkpoint is being written. SIGHUP, which a closed terminal
    sends, stays ignored if it already is, as under nohup.
    """
    interruption = Interruption()

    def note(number: int, _frame: Any) -> None:
        interruption.signal = number
        if number == signal.SIGINT:
            signal.signal(number, before[signal.SIGINT])

    asked = [signal.SIGTERM, signal.SIGINT]
    if hangs_up():
        asked.append(signal.SIGHUP)
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in asked}
    in_main_thread = threading.current_thread() is threading.main_thread()  # other threads get no signals
    if in_main_thread:
        for number in before:
            signal.signal(number, note)
    try:
        yield interruption
    finally:
        if in_main_thread:
            for number, handler in before.items():
                signal.signal(number, handler)
