"""Configures glibc to keep freed memory instead of returning it to the system after every tensor.

A CPU training step allocates and frees the same large blocks repeatedly. glibc returns such blocks to the kernel, so
every step pays for fresh zeroed pages, which was measured to cost as much as the arithmetic. Small blocks that stay allocated
between the large ones make such a heap grow with every step, so free memory is returned every `TRIMMED_EVERY` steps.
"""

from __future__ import annotations

import ctypes
import platform

TRIMMED_EVERY = 100
"""Number of steps after which free memory is returned."""

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8


def tune_allocator() -> bool:
    """Make glibc serve large blocks from one growing heap. Call it before torch allocates; elsewhere it does nothing."""
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
