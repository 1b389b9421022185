"""Memory that glibc keeps: it is returned between steps and not needed again."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

import test_loop
from unicloze.settings import TrainingSettings
from unicloze.training import loop

FRAGMENTS = """
import numpy as np
from unicloze.cores import return_free_memory, tune_allocator

def megabytes():
    line = next(line for line in open("/proc/self/status") if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024

assert tune_allocator()
large, small = [], []
for _ in range(100):
    large.append(np.ones(2**20, np.uint8))
    small.append(np.ones(2**12, np.uint8))
large.clear()
before = megabytes()
return_free_memory()
print(before - megabytes() > 80, sum(int(block.sum()) for block in small) == 100 * 2**12)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc" or sys.platform != "linux", reason="needs glibc on Linux")
def test_free_memory_between_blocks_in_use_is_returned() -> None:
    done = subprocess.run([sys.executable, "-c", FRAGMENTS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


def test_training_returns_free_memory_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    at: list[int] = []
    monkeypatch.setattr(loop, "TRIMMED_EVERY", 2)
    monkeypatch.setattr(loop, "return_free_memory", lambda: at.append(state.step))
    settings = TrainingSettings(steps=5, warmup_steps=0, save_every=0)
    state = test_loop.state_of(settings)
    loop.fit(state, test_loop.steps_of(), settings, test_loop.CPU, test_loop.nothing())
    assert at == [2, 4]
