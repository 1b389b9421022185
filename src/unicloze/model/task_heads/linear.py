"""A linear output layer, after a dense layer or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from unicloze.example import TargetBatch
from unicloze.model.dropout import DropoutKey
from unicloze.model.recurrent.backbone import side_width
from unicloze.model.task_heads.pooling import pooled, pooled_width
from unicloze.model.task_heads.task_head import TaskHead, slots_of
from unicloze.model.task_heads.word_encoder import WordEncoder
from unicloze.settings import HeadName, HeadSettings, ModelSettings

ACTIVATIONS: Mapping[HeadName, Callable[[Tensor], Tensor]] = {
    "dense": torch.tanh,
    "dense_gelu": functional.gelu,
    "dense_relu": functional.relu,
}
"""Activation of the dense layer of each head that has one."""


class LinearHead(TaskHead):
    """Dropout and a linear layer, optionally after a dense layer (with tanh: Devlin et al. 2019, Section 4).

    A biLSTM over the predictions of a row may come first (Peters et al. 2018, Section 3.3). Arguments as of `TaskHead`.
    """

    def __init__(self, settings: ModelSettings, head: HeadSettings) -> None:
        super().__init__(settings, head)
        width = pooled_width(settings, head)
        self.encoder = WordEncoder(width, head.encoder_size, self.rate) if head.encoder_size else None
        if self.encoder is not None:
            width = 2 * head.encoder_size + (width if head.output_mix else 0)
        self.activation = ACTIVATIONS.get(head.name)
        self.dense = None if self.activation is None else nn.Linear(width, side_width(settings))
        self.output = nn.Linear(width if self.dense is None else side_width(settings), self.width)

    def outputs(self, hidden: Tensor, target: TargetBatch, dropout: DropoutKey | None) -> Tensor:
        """See `TaskHead.outputs`."""
        every, present = slots_of(hidden, target)
        mixes = every.chunk(2, dim=-1) if self.head.output_mix else (every,)
        if self.head.kind != "choice":
            mixes = tuple(pooled(mix, present, self.head) for mix in mixes)
        states = mixes[0]
        if self.encoder is not None:
            states = torch.cat([self.encoder(states, target, dropout), *mixes[1:]], dim=-1)
        if self.dense is not None and self.activation is not None:
            states = self.activation(self.dense(states))
        if dropout is not None:
            states = dropout(states, self.rate)
        with torch.autocast(states.device.type, enabled=False):  # bf16 is too coarse for scores and quantities
            outputs: Tensor = self.output(states.float())
        if self.head.kind != "choice":
            return outputs
        scores = outputs.squeeze(-1)
        return scores if present is None else scores.masked_fill(~present, -torch.inf)
