"""The head that reads a text, or two that attend to each other, with a network of its own."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from unicloze.example import TargetBatch
from unicloze.model.dropout import DropoutKey
from unicloze.model.flops import linear_flops
from unicloze.model.task_heads.biattention import Biattention, Maxout
from unicloze.model.task_heads.task_head import TaskHead, everywhere, slots_of
from unicloze.settings import HeadSettings, ModelSettings


def read_width(settings: ModelSettings) -> int:
    """Width of what the head reads of a slot: its embedding and its last state, side by side."""
    narrow = settings.embedding_size if settings.kind == "recurrent" else None
    return (narrow or settings.hidden_size) + settings.hidden_size


class BiattentiveHead(TaskHead):
    """A biattentive classification network (McCann et al. 2017), whose maxout units are the output layer's too.

    The slots of the two texts of a prediction alternate. Arguments as of `TaskHead`.
    """

    reads_embeddings = True

    def __init__(self, settings: ModelSettings, head: HeadSettings) -> None:
        super().__init__(settings, head)
        self.biattention = Biattention(read_width(settings), head.size, self.rate)
        self.output = Maxout(self.biattention.outputs, self.width, self.rate)

    def outputs(self, hidden: Tensor, target: TargetBatch, dropout: DropoutKey | None) -> Tensor:
        """See `TaskHead.outputs`; 0 for padded predictions."""
        states, present = slots_of(hidden, target)
        real, count = target.weights > 0, self.head.texts
        there = torch.ones_like(states[..., 0], dtype=torch.bool) if present is None else present
        states, there = states[real].float(), there[real]
        if states.shape[1] % count:  # the last slot of the second text is missing in all rows
            states, there = functional.pad(states, (0, 0, 0, 1)), functional.pad(there, (0, 1))
        texts = [states[:, number::count] for number in range(count)]
        own = [there[:, number::count] for number in range(count)]
        with torch.autocast(states.device.type, enabled=False):
            vector = self.biattention((texts[0], texts[-1]), (own[0], own[-1]), dropout)
            found = self.output(vector, dropout)
        return everywhere(found, real)

    def flops(self, *, slots: int, predictions: int) -> int:
        """See `TaskHead.flops`."""
        own = self.biattention.flops(slots=slots, texts=self.head.texts, predictions=predictions)
        return own + linear_flops(self.output) * predictions
