"""A linear layer after batch normalisation and dropout."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from unicloze.model.dropout import DropoutKey


class NormedLinear(nn.Module):
    """Batch normalisation, dropout and a linear layer (Howard and Ruder 2018, Section 3.3)."""

    def __init__(self, inputs: int, outputs: int, rate: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(inputs)
        self.linear = nn.Linear(inputs, outputs)
        self.rate = rate

    def forward(self, x: Tensor, dropout: DropoutKey | None) -> Tensor:
        """*Shape:* (predictions, inputs) to (predictions, outputs)

        In training a batch is normalised by its own statistics, which the running ones follow, unless it has one prediction.
        """
        norm = self.norm
        statistics = norm.running_mean, norm.running_var, norm.weight, norm.bias
        alone = len(x) < 2
        x = functional.batch_norm(x, *statistics, training=self.training and not alone, momentum=0.1, eps=norm.eps)
        linear: Tensor = self.linear(x if dropout is None else dropout(x, self.rate))
        return linear
