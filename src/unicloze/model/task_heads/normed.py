"""A head with batch normalisation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from unicloze.example import TargetBatch
from unicloze.model.dropout import DropoutKey
from unicloze.model.task_heads.normed_linear import NormedLinear
from unicloze.model.task_heads.pooling import pooled, pooled_width
from unicloze.model.task_heads.task_head import TaskHead, everywhere, slots_of
from unicloze.settings import HeadSettings, ModelSettings

INNER, INNER_RATE = 50, 0.1
"""Units of the layer before the output layer, and the dropout after it (ULMFiT's released code)."""


class NormedHead(TaskHead):
    """Batch normalisation before each of two layers with ReLU between them (Howard and Ruder 2018, Section 3.3).

    The statistics are those of the real predictions. Arguments as of `TaskHead`.
    """

    def __init__(self, settings: ModelSettings, head: HeadSettings) -> None:
        super().__init__(settings, head)
        self.inner = NormedLinear(pooled_width(settings, head), INNER, self.rate)
        self.output = NormedLinear(INNER, self.width, INNER_RATE)

    def outputs(self, hidden: Tensor, target: TargetBatch, dropout: DropoutKey | None) -> Tensor:
        """See `TaskHead.outputs`; 0 for padded predictions."""
        states, real = pooled(*slots_of(hidden, target), self.head), target.weights > 0
        with torch.autocast(states.device.type, enabled=False):
            found = self.output(functional.relu(self.inner(states[real].float(), dropout)), dropout)
        return everywhere(found, real)
