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

        In training a batch is normalised by its own statistics, unless it has one prediction. The running statistics for
        evaluation are the mean of the first ten batches, and follow the later ones with a momentum of 0.1. With that momentum
        from the start, the initial variance of 1 would hide that of narrow features for a hundred batches.
        """
        norm, momentum = self.norm, 0.1
        learning = self.training and len(x) > 1
        if learning:
            assert norm.num_batches_tracked is not None
            momentum = max(momentum, 1 / int(norm.num_batches_tracked.add_(1)))
        statistics = norm.running_mean, norm.running_var, norm.weight, norm.bias
        x = functional.batch_norm(x, *statistics, training=learning, momentum=momentum, eps=norm.eps)
        linear: Tensor = self.linear(x if dropout is None else dropout(x, self.rate))
        return linear
