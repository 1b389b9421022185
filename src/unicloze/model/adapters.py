"""Bottleneck adapters after the sub-layers of a layer (Houlsby et al. 2019, Section 2.1)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from unicloze.settings import ModelSettings

DEVIATION = 1e-3
"""Standard deviation of the initial weights, as in the released code; the paper finds any value up to 1e-2 as good."""


class Adapter(nn.Module):
    """Projects down, applies GELU, projects up and adds the input, so that it starts near the identity."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.down = nn.Linear(settings.hidden_size, settings.adapter_size)
        self.up = nn.Linear(settings.adapter_size, settings.hidden_size)

    def forward(self, update: Tensor) -> Tensor:
        """*Shape:* (..., hidden size) to the same"""
        adapted: Tensor = update + self.up(functional.gelu(self.down(update)))
        return adapted
