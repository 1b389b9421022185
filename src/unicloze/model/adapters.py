"""Small weights beside frozen ones: low-rank updates (LoRA, Hu et al. 2021) and bottleneck adapters (Houlsby et al. 2019)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from unicloze.devices import widest_float
from unicloze.model.dropout import DropoutKey
from unicloze.settings import ModelSettings


class LowRankLinear(nn.Module):
    """W x + b + alpha/r B A x, where only A and B learn. B starts at zero, so the layer starts as the one it replaces.

    Several projections may be stacked in W, such as query, key and value; each has its own A and B, or none.

    Args:
        linear: The layer to replace, whose parameters are taken over.
        updated: Which of the equal blocks of outputs have an update.
        rank: Rank r of an update.
        alpha: An update is scaled by alpha / r.
        rate: Dropout of the input of the updates.
    """

    def __init__(self, linear: nn.Linear, updated: Sequence[bool], *, rank: int, alpha: float, rate: float) -> None:
        super().__init__()
        outputs, inputs = linear.weight.shape
        self.weight, self.bias = linear.weight, linear.bias
        self.updated, self.size = tuple(updated), outputs // len(updated)
        self.scale, self.rate = alpha / rank, rate
        count, device = sum(self.updated), linear.weight.device
        self.down = nn.Parameter(torch.empty(count, rank, inputs, device=device))
        self.up = nn.Parameter(torch.empty(count, self.size, rank, device=device))

    def draw(self, generator: torch.Generator) -> None:
        """Initialise the updates: A normal, as in the paper, with the deviation of the released code; B zero."""
        with torch.no_grad():
            self.down.normal_(0, 1 / math.sqrt(3 * self.down.shape[2]), generator=generator)
            self.up.zero_()

    def forward(
        self, hidden: Tensor, dropout: DropoutKey | None = None, first: int = 0, last: int | None = None
    ) -> Tensor:
        """The outputs from `first` to `last`, which bound blocks. *Shape:* (..., inputs) to (..., outputs)"""
        last = len(self.weight) if last is None else last
        bias = None if self.bias is None else self.bias[first:last]
        projected = functional.linear(hidden, self.weight[first:last], bias)
        blocks = range(first // self.size, last // self.size)
        numbers = [sum(self.updated[:block]) for block in blocks if self.updated[block]]
        if not numbers:
            return projected
        asked = hidden if dropout is None else dropout(hidden, self.rate)
        low = functional.linear(asked, self.down[numbers[0] : numbers[-1] + 1].flatten(0, 1))
        return projected + functional.linear(low, self._wide(blocks, numbers))

    def _wide(self, blocks: range, numbers: Sequence[int]) -> Tensor:
        """The scaled B of each block in the columns of its A. *Shape:* (outputs of the blocks, updates x rank)"""
        rank = self.up.shape[2]
        left = 0
        rows = []
        for block in blocks:
            if self.updated[block]:
                right = len(numbers) * rank - left - rank
                rows.append(functional.pad(self.up[numbers[left // rank]] * self.scale, (left, right)))
                left += rank
            else:
                rows.append(self.up.new_zeros(self.size, len(numbers) * rank))
        return torch.cat(rows)

    def merged_weight(self) -> Tensor:
        """W + alpha/r B A, rounded once from float64 and the same on every machine. *Shape:* (outputs, inputs)"""
        with torch.no_grad():
            exact = widest_float(self.weight.device)
            weight, number = self.weight.to(exact, copy=True), 0
            for block, learned in enumerate(self.updated):
                if not learned:
                    continue
                rows = weight[block * self.size : (block + 1) * self.size]
                for column, row in zip(self.up[number].to(exact).T, self.down[number].to(exact), strict=True):
                    rows += self.scale * (column[:, None] * row)
                number += 1
            return weight.to(self.weight.dtype)


def project(
    layer: nn.Module, hidden: Tensor, dropout: DropoutKey | None = None, first: int = 0, last: int | None = None
) -> Tensor:
    """Apply a linear layer, or some rows of it.

    Args:
        layer: An `nn.Linear` or a `LowRankLinear`; for all outputs also a packed layer of a model for inference.
        hidden: *Shape:* (..., inputs)
        dropout: Dropout of this forward pass, for the updates; none if None.
        first: First output.
        last: End of the outputs; default: all.
    """
    if isinstance(layer, LowRankLinear):
        return layer.forward(hidden, dropout, first, last)
    if first == 0 and last is None:
        projected: Tensor = layer(hidden)
        return projected
    assert isinstance(layer, nn.Linear)
    return functional.linear(hidden, layer.weight[first:last], None if layer.bias is None else layer.bias[first:last])


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
