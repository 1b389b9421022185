"""How many processes or threads this machine has room for."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Logical cores this process may use, where the system says so; else all there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
