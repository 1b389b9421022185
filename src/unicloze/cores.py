"""Number of CPU cores this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Logical cores in this process's CPU affinity mask, or all cores where the system has no such mask."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
