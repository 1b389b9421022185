"""The biattentive classification network (McCann et al. 2017, Section 5): two texts that attend to each other."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from unicloze.model.dropout import DropoutKey
from unicloze.model.task_heads.normed_linear import NormedLinear

POOL = 4
"""Number of linear maps; a maxout unit is the largest of them."""
POOLINGS = 4
"""Number of ways to pool a text: maximum, mean, minimum, and the mean weighted by its own attention."""


class Biattention(nn.Module):
    """All layers but the output layer: from the states of two texts to a vector.

    A feed-forward layer with ReLU and a bidirectional LSTM read each text. With X and Y the results and A = X Y^T, the
    summary of Y for each token of X is C = softmax(A) Y, and an LSTM reads [X; X - C; X * C]; likewise for Y, with another
    LSTM. Both results are pooled in four ways, and two maxout layers with batch normalisation follow. A single text stands
    for both. Padding changes nothing.

    Args:
        inputs: Width of the states.
        size: Width of the feed-forward layer and cells of every LSTM in each direction; the maxout layers have four and two
            times as many units.
        rate: Dropout before every feed-forward layer.
    """

    def __init__(self, inputs: int, size: int, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.feed = nn.Linear(inputs, size)
        self.encoder = nn.LSTM(size, size, batch_first=True, bidirectional=True)
        self.integrators = nn.ModuleList(
            [nn.LSTM(6 * size, size, batch_first=True, bidirectional=True) for _ in range(2)]
        )
        self.attentions = nn.ModuleList([nn.Linear(2 * size, 1) for _ in range(2)])
        widths = [2 * POOLINGS * 2 * size, 4 * size, 2 * size]
        self.maxouts = nn.ModuleList([Maxout(before, after, rate) for before, after in itertools.pairwise(widths)])
        self.outputs = widths[-1]

    def initialize(self, generator: torch.Generator) -> None:
        """Draw the weights as AllenNLP's network of this kind does; the paper does not say how.

        Those of linear layers and the LSTMs' for their inputs are normal (Glorot and Bengio 2010), the recurrent ones of
        each gate orthogonal; biases are 0, those of forget gates 1. So the difference between two texts, which passes
        through two LSTMs, stays above the noise of dropout.
        """
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.Linear):
                    nn.init.xavier_normal_(module.weight, generator=generator)
                    module.bias.zero_()
                elif isinstance(module, nn.LSTM):
                    _draw(module, generator)

    def forward(self, texts: tuple[Tensor, Tensor], real: tuple[Tensor, Tensor], dropout: DropoutKey | None) -> Tensor:
        """Read pairs of texts.

        Args:
            texts: States of either text. *Shape:* (pairs, slots, inputs) each
            real: Which of its slots are not padding: one or more leading ones. *Shape:* (pairs, slots) each
            dropout: Dropout of this forward pass; none if None.

        Returns:
            *Shape:* (pairs, outputs)
        """
        encoded = []
        for text, own in zip(texts[: 1 if texts[0] is texts[1] else 2], real, strict=False):
            fed = functional.relu(self.feed(text if dropout is None else dropout(text, self.rate)))
            encoded.append(_read(self.encoder, fed, own))
        encoded = [encoded[0], encoded[-1]]
        affinity = encoded[0] @ encoded[1].transpose(1, 2)
        pooled = []
        for side, (x, other) in enumerate((encoded, encoded[::-1])):
            scores = affinity if side == 0 else affinity.transpose(1, 2)
            shares = scores.masked_fill(~real[1 - side][:, None], -torch.inf).softmax(dim=2)
            summary = shares @ other
            seen = torch.cat([x, x - summary, x * summary], dim=2)
            integrator, attention = self.integrators[side], self.attentions[side]
            assert isinstance(integrator, nn.LSTM) and isinstance(attention, nn.Linear)
            read = _read(integrator, seen, real[side])
            pooled.append(_pooled(read, attention(read).squeeze(2), real[side]))
        vector = torch.cat(pooled, dim=1)
        for maxout in self.maxouts:
            vector = maxout(vector, dropout)
        return vector

    def flops(self, *, slots: int, texts: int, predictions: int) -> int:
        """Forward operations of the products with weights, for texts of so many slots altogether."""
        sizes = {
            part: 2 * sum(weight.numel() for weight in self.get_submodule(part).parameters() if weight.ndim == 2)
            for part in ("feed", "encoder", "integrators", "maxouts")
        }
        sides = (sizes["integrators"] // 2) * (2 // texts)
        return slots * (sizes["feed"] + sizes["encoder"] + sides) + predictions * sizes["maxouts"]


class Maxout(nn.Module):
    """Batch normalisation, dropout, and units that are each the largest of several linear maps (Goodfellow et al. 2013)."""

    def __init__(self, inputs: int, outputs: int, rate: float) -> None:
        super().__init__()
        self.normed = NormedLinear(inputs, outputs * POOL, rate)

    def forward(self, x: Tensor, dropout: DropoutKey | None) -> Tensor:
        """*Shape:* (predictions, inputs) to (predictions, outputs)"""
        maps: Tensor = self.normed(x, dropout)
        return maps.view(len(x), -1, POOL).amax(dim=2)


def _draw(lstm: nn.LSTM, generator: torch.Generator) -> None:
    for name, parameter in lstm.named_parameters():
        gates = parameter.chunk(4)  # input, forget, cell, output
        if name.startswith("bias"):
            parameter.zero_()
            if name.startswith("bias_ih"):
                gates[1].fill_(1)
            continue
        for gate in gates:
            draw = nn.init.orthogonal_ if name.startswith("weight_hh") else nn.init.xavier_normal_
            draw(gate, generator=generator)


def _read(lstm: nn.LSTM, x: Tensor, real: Tensor) -> Tensor:
    """Outputs of an LSTM at the real slots, 0 at padding. *Shape:* (texts, slots, width)"""
    lengths = real.sum(dim=1).cpu()
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    padded = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=x.shape[1])
    output: Tensor = padded[0]
    return output


def _pooled(x: Tensor, scores: Tensor, real: Tensor) -> Tensor:
    """Maximum, mean, minimum and attentive mean of the real slots side by side. *Shape:* (texts, 4 x width)"""
    padding = ~real[..., None]
    shares = scores.masked_fill(~real, -torch.inf).softmax(dim=1)
    return torch.cat(
        [
            x.masked_fill(padding, -torch.inf).amax(dim=1),
            (x * real[..., None]).sum(dim=1) / real.sum(dim=1)[:, None],
            x.masked_fill(padding, torch.inf).amin(dim=1),
            (shares[..., None] * x).sum(dim=1),
        ],
        dim=1,
    )
