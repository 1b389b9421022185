"""This machine: cores a process may use, how threads wait, how memory is kept, and which of torchrun's processes it is."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import signal
import sys
from pathlib import Path

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""The variables by which OpenMP's runtimes choose how threads wait. Each reads them once, when torch loads it."""
CGROUPS = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where Linux says how much memory a container may use."""


def usable_cores() -> int:
    """Logical cores in this process's CPU affinity mask, or all cores where the system has no such mask."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> float:
    """Memory in bytes that this process may use: that of the machine or the limit of its cgroup; infinite if unknown."""
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return math.inf
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in CGROUPS:
        said = file.read_text(encoding="utf-8").strip() if file.is_file() else "max"
        if said.isdecimal():
            found.append(int(said))
    return min(found)


def let_threads_sleep() -> None:
    """Let OpenMP's threads sleep soon at a barrier instead of spinning, unless the user has chosen how they wait.

    A spinning thread keeps a core from the thread it waits for: beside two busy programs training was fourteen times slower.
    libgomp's threads still spin for a fraction of a millisecond, since sleeping at once costs small models a tenth of their
    speed. If torch is loaded already, it has no effect, and the environment is left as it is.
    """
    if waiting() is None and "torch" not in sys.modules:
        os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "10000"}


def waiting() -> str | None:
    """How OpenMP's threads wait, as NAME=VALUE; None where nothing was chosen, so that they spin."""
    return next((f"{name}={os.environ[name]}" for name in WAITING if name in os.environ), None)


def processes() -> int:
    """Number of processes that share the run; 1 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if {"RANK", "WORLD_SIZE"} <= os.environ.keys() else 1


def rank() -> int:
    """Number of this process; process 0 writes and prints."""
    return int(os.environ["RANK"]) if processes() > 1 else 0


def local_rank() -> int:
    """Number of this process on its machine, and of its device."""
    return int(os.environ.get("LOCAL_RANK", 0)) if processes() > 1 else 0


def hangs_up() -> bool:
    """Whether a closed terminal stops this process: not under nohup, and Windows has no SIGHUP."""
    return hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN


TRIMMED_EVERY = 100
"""Number of steps after which free memory is returned."""

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8


def tune_allocator() -> bool:
    """Make glibc serve large blocks from one growing heap. Call it before torch allocates; elsewhere it does nothing.

    A training step on a CPU allocates and frees the same large blocks again and again. glibc returns them to the kernel, so
    that every step pays for fresh pages, which cost as much as the arithmetic. Small blocks between the large ones make such
    a heap grow, so free memory is returned every `TRIMMED_EVERY` steps.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(
        mallopt(option, value) for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_ARENA_MAX, 1))
    )


def return_free_memory() -> None:
    """Return free blocks to the system. Call it rarely: the next step pays for fresh pages."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
