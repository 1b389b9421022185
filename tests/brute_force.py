"""Slot-by-slot definitions written from the papers, as a reference for the fast code."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Slot:
    """A slot in the papers' terms: its group ("C", "O", "P", "M", "Q", "memory", ...), its index in the group, its step."""

    group: str
    place: int
    step: int = -1


def matrix(queries: list[Slot], keys: list[Slot], reads) -> npt.NDArray[np.bool_]:  # type: ignore[no-untyped-def]
    """Evaluate a rule on every pair."""
    return np.array([[bool(reads(q, k)) for k in keys] for q in queries], dtype=bool).reshape(len(queries), len(keys))


def by_step(group: str, steps: list[int]) -> list[Slot]:
    """Slots of a group that is ordered by step."""
    slots, place = [], 0
    for step, size in enumerate(steps):
        for _ in range(size):
            slots.append(Slot(group, place, step))
            place += 1
    return slots


def group(name: str, size: int) -> list[Slot]:
    """Slots of a group without steps."""
    return [Slot(name, place) for place in range(size)]


def pseudo_masked(q: Slot, k: Slot) -> bool:
    """UniLMv2, Section 3.2 and Figure 5."""
    if k.group == "C":
        return True
    if q.group == "C":
        return False
    if q.group == "O":
        return k.group == "O" and k.step <= q.step
    return k.step < q.step if k.group == "O" else k.step == q.step


def permuted(q: Slot, k: Slot) -> bool:
    """XLNet: two streams, memory, query stream never a key."""
    if k.group in ("memory", "C"):
        return True
    if k.group == "P" or q.group == "C":
        return False
    return k.step <= q.step if q.group == "O" else k.step < q.step


def compensated(q: Slot, k: Slot) -> bool:
    """MPNet: at every step a query reads all n positions, each as a token or as its mask."""
    if k.group == "Q":
        return False
    if k.group == "C":
        return True
    if q.group in ("C", "M"):
        return k.group == "M"
    if q.group == "O":
        return k.step <= q.step if k.group == "O" else k.step > q.step
    return k.step < q.step if k.group == "O" else k.step >= q.step


def block_diffusion(q: Slot, k: Slot) -> bool:
    """BD3-LM: clean blocks in order, a noised block over the clean ones before it."""
    if k.group == "clean":
        return k.step <= q.step if q.group == "clean" else k.step < q.step
    return q.group == "noised" and k.step == q.step


def source_and_target(q: Slot, k: Slot) -> bool:
    """T5, Section 3.2, "prefix LM": the source reads the source, the target also itself up to each of its tokens."""
    return k.group == "source" or (q.group == "target" and k.place <= q.place)


def text(visibility: str, source: int = 0, width: float = math.inf) -> Callable[[Slot, Slot], bool]:
    """UniLM v1, Section 2.3, token by token, of a text whose first segment has `source` slots; GPT-3's local layers."""

    def reads(q: Slot, k: Slot) -> bool:
        if visibility == "prefix" and k.place < source:
            return True
        if visibility == "bidirectional" or (visibility == "prefix" and q.place < source):
            return visibility == "bidirectional"
        distance = k.place - q.place if visibility == "right_to_left" else q.place - k.place
        return 0 <= distance <= width

    return reads
