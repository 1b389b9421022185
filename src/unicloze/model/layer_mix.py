"""The mix of a network's layers that a task reads in place of the last one (ELMo, Section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class LayerMix(nn.Module):
    """gamma times the mean of the embeddings and all layers, weighted by softmax(s) (Peters et al. 2018, equation 1).

    At the start all weights are equal and gamma is 1.

    Args:
        layers: Number of layers.
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.s = nn.Parameter(torch.zeros(layers + 1))
        self.gamma = nn.Parameter(torch.ones(()))

    def initialize(self) -> None:
        """Set all weights equal and gamma to 1."""
        with torch.no_grad():
            self.s.zero_()
            self.gamma.fill_(1)

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """Mix the embeddings and the output of each layer. *Shape:* (..., width) each, to (..., width)"""
        weights = self.gamma * self.s.softmax(dim=0)
        mixed: Tensor = torch.stack([weight * state for weight, state in zip(weights, states, strict=True)]).sum(dim=0)
        return mixed
