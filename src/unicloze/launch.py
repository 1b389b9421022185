"""Which of the processes that torchrun started this one is, as its environment says."""

from __future__ import annotations

import os


def processes() -> int:
    """How many processes share one run; 1 where nothing started several."""
    return int(os.environ["WORLD_SIZE"]) if {"RANK", "WORLD_SIZE"} <= os.environ.keys() else 1


def rank() -> int:
    """The number of this one among them; 0 is the one that writes and prints."""
    return int(os.environ["RANK"]) if processes() > 1 else 0


def local_rank() -> int:
    """Its number among those of this machine, which is that of its device."""
    return int(os.environ.get("LOCAL_RANK", 0)) if processes() > 1 else 0
