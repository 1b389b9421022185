"""Carries a model's memory (XLNet, LSTMs) from window to window of a long text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from unicloze.decoding.embed import rows_to_encode
from unicloze.decoding.inputs import ReadWindow, by_length, one_segment
from unicloze.example import Memory, collate

if TYPE_CHECKING:
    from unicloze.training.loading import LoadedModel


def with_memories(
    model: LoadedModel, pieces: Sequence[ReadWindow], batch_size: int, *, fills: bool = False
) -> Iterator[tuple[list[int], Memory | None, Memory | None]]:
    """Yield groups of pieces of different texts, with the memory of the pieces before each.

    Every piece is yielded once, those of a text in order. Earlier pieces are read unmasked, by the caller or once more here.

    Args:
        model: A model with a memory.
        pieces: The pieces, those of each text in order.
        batch_size: Maximum number of texts at once and of rows per forward pass.
        fills: Whether the caller reads the pieces unmasked itself and fills the memory after them.

    Yields:
        Numbers of the pieces, the memory before them (None at the start), and the memory to fill, if the caller does.
    """
    of_text: dict[int, list[int]] = {}
    for number, piece in enumerate(pieces):
        of_text.setdefault(piece.text, []).append(number)
    texts = sorted(of_text.values(), key=lambda numbers: -len(numbers))
    for first in range(0, len(texts), batch_size):
        group = texts[first : first + batch_size]
        memory: Memory | None = None
        for place in range(len(group[0])):
            going = [numbers[place] for numbers in group if len(numbers) > place]
            memory = rows_of(memory, np.arange(len(going)))
            after = empty_memory(model, len(going)) if fills else None
            yield going, memory, after
            if after is not None:
                memory = after
            elif place + 1 < len(group[0]):
                memory = _remembered(model, [pieces[number] for number in going], memory, batch_size)


def empty_memory(model: LoadedModel, rows: int) -> Memory:
    """The memory of rows that no text precedes."""
    shape, device = model.model.settings.memory_shape(rows), model.compute.device
    return Memory(states=torch.zeros(shape, device=device), lengths=torch.zeros(rows, dtype=torch.long, device=device))


def rows_of(memory: Memory | None, rows: npt.NDArray[np.int64]) -> Memory | None:
    """The memory restricted to some rows."""
    if memory is None:
        return None
    chosen = torch.from_numpy(rows).to(memory.lengths.device)
    return Memory(states=memory.states[:, chosen], lengths=memory.lengths[chosen])


def put_rows(memory: Memory, rows: npt.NDArray[np.int64], of_rows: Memory) -> None:
    """Replace some rows of a memory."""
    chosen = torch.from_numpy(rows).to(memory.lengths.device)
    memory.states[:, chosen], memory.lengths[chosen] = of_rows.states, of_rows.lengths


@torch.inference_mode()
def _remembered(model: LoadedModel, pieces: Sequence[ReadWindow], before: Memory | None, batch_size: int) -> Memory:
    """The memory after reading each piece."""
    device, after = model.compute.device, empty_memory(model, len(pieces))
    former = before or after
    for block in by_length([len(piece) for piece in pieces], batch_size):
        windows = one_segment([pieces[i].tokens for i in block], model.tokenizer.vocabulary)
        examples = rows_to_encode(windows, model.recipe)
        memory = rows_of(former, block)
        assert memory is not None
        text = torch.from_numpy(examples.text_slots()).to(device=device, dtype=torch.long)
        batch = dataclasses.replace(collate(examples, device=device), memory=memory, text_slots=text)
        with model.compute.autocast():
            model.model.backbone(batch)
        put_rows(after, block, memory)
    return after
