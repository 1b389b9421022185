"""Reads from the environment which of torchrun's processes this one is."""

from __future__ import annotations

import os


def processes() -> int:
    """Number of processes that share the run; 1 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if {"RANK", "WORLD_SIZE"} <= os.environ.keys() else 1


def rank() -> int:
    """Number of this process; process 0 writes and prints."""
    return int(os.environ["RANK"]) if processes() > 1 else 0


def local_rank() -> int:
    """Number of this process on its machine, and of its device."""
    return int(os.environ.get("LOCAL_RANK", 0)) if processes() > 1 else 0
