"""Segment recurrence: memories passed from the rows of one step to those of the next (Dai et al. 2019, Section 3.2).

Rows of micro-batch j of a step are continued by micro-batch j of the next step, where `Windows.continues` is true; in an
evaluation, those of a block by the next block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from unicloze.arrays import Flags, Int32s
from unicloze.example import Batch, Memory
from unicloze.settings import ModelSettings
from unicloze.training.batches import MicroBatch

Memories = Mapping[int, Memory]
"""Memories by index of the micro-batch."""


def with_memory(batch: Batch, micro_batch: MicroBatch, former: Memory | None, settings: ModelSettings) -> Batch:
    """Attach the memory of the preceding text to a batch; unchanged if the model has no memory.

    Args:
        batch: Made from the micro-batch.
        micro_batch: Says which rows continue from the previous step; the others read no memory.
        former: Memory left by the same micro-batch of the previous step; None at the start. Not modified.
        settings: Model shape.
    """
    if not settings.memory or micro_batch.windows is None:
        return batch
    rows, device = len(micro_batch.windows), batch.input_ids.device
    continues = micro_batch.windows.continues
    shape = settings.memory_shape(rows)
    if former is None or continues is None or former.states.shape != shape:
        memory = Memory(
            states=torch.zeros(shape, device=device), lengths=torch.zeros(rows, dtype=torch.long, device=device)
        )
    else:
        memory = Memory(states=former.states, lengths=former.lengths * torch.from_numpy(continues).to(device))
    if micro_batch.windows.backward is not None:
        memory.backward = torch.from_numpy(micro_batch.windows.backward).to(device)
    slots = micro_batch.examples.text_slots()
    if micro_batch.windows.new is not None:
        slots = _only(slots, micro_batch.windows.new)
    text = torch.from_numpy(slots).to(device=device, dtype=torch.long)
    return dataclasses.replace(batch, memory=memory, text_slots=text)


def _only(slots: Int32s, chosen: Flags) -> Int32s:
    """The slots of some tokens of the text, in text order; -1 after their end.

    Args:
        slots: Slot of each token of the text. *Shape:* (rows, tokens)
        chosen: The tokens. *Shape:* (rows, window)
    """
    chosen = chosen[:, : slots.shape[1]] & (slots >= 0)
    order = np.argsort(~chosen, axis=1, kind="stable")
    kept = np.where(
        np.arange(slots.shape[1]) < chosen.sum(axis=1)[:, None], np.take_along_axis(slots, order, axis=1), -1
    )
    return kept.astype(np.int32)


def pack(memories: Memories) -> dict[str, Tensor]:
    """Memories as named tensors, for a checkpoint."""
    packed: dict[str, Tensor] = {}
    for number, memory in memories.items():
        packed |= {f"{number}.states": memory.states, f"{number}.lengths": memory.lengths}
    return packed


def unpack(tensors: Mapping[str, Tensor], device: torch.device | str) -> dict[int, Memory]:
    """Memories from the tensors of a checkpoint."""
    numbers = sorted({int(name.split(".")[0]) for name in tensors})
    return {
        number: Memory(states=tensors[f"{number}.states"].to(device), lengths=tensors[f"{number}.lengths"].to(device))
        for number in numbers
    }
