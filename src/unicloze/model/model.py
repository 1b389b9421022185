"""The model a recipe describes: backbone and heads, a batch in, summed losses out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unicloze.example import Batch
from unicloze.model.backbone import Backbone
from unicloze.model.dropout import DropoutKey
from unicloze.model.heads import TokenHead, cross_entropy
from unicloze.settings import ModelSettings


@dataclass(frozen=True)
class TargetLoss:
    """What a batch's predictions of one target cost.

    Args:
        total: Sum of weight times cross-entropy; divide by the weight of the whole global batch. *Shape:* ()
        weight: Sum of the weights. *Shape:* ()
    """

    total: Tensor
    weight: Tensor


class UnifiedModel(nn.Module):
    """One Transformer with tied token embeddings, pre-trained on any target that predicts tokens.

    Args:
        settings: Its shape.
        vocab_size: Rows of the token table.
        max_positions: Rows of the position table.
    """

    def __init__(self, settings: ModelSettings, *, vocab_size: int, max_positions: int) -> None:
        super().__init__()
        self.settings = settings
        self.vocab_size = vocab_size
        self.max_positions = max_positions
        self.backbone = Backbone(settings, vocab_size=vocab_size, max_positions=max_positions)
        self.token_head = TokenHead(settings, vocab_size=vocab_size)

    def initialize(self, seed: int) -> None:
        """Draw the weights: normal with the initializer range, zero biases, unit normalisations."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.LayerNorm):
                    module.weight.fill_(1)
                    module.bias.zero_()
                    continue
                for name, parameter in module.named_parameters(recurse=False):
                    if name == "bias":
                        parameter.zero_()
                    else:
                        parameter.normal_(0, self.settings.initializer_range, generator=generator)

    def forward(self, batch: Batch, dropout: DropoutKey | None = None) -> Mapping[str, TargetLoss]:
        """Losses of every target of a batch.

        Args:
            batch: The rows.
            dropout: Dropout of this forward pass; none if None.
        """
        hidden = self.backbone(batch, select=True, dropout=dropout)[-1]
        weights = torch.cat([target.weights for target in batch.targets.values()], dim=1)
        labels = torch.cat([target.labels for target in batch.targets.values()], dim=1)
        predicted = weights.flatten().nonzero().squeeze(1)
        logits = self.token_head(
            hidden.flatten(0, 1).index_select(0, predicted), self.backbone.embeddings.tokens.weight
        )
        losses = cross_entropy(logits, labels.flatten().index_select(0, predicted))
        spread = torch.zeros(weights.numel(), dtype=losses.dtype, device=losses.device)
        weighted = spread.index_copy(0, predicted, losses).view(weights.shape) * weights
        sizes = [target.slots.shape[1] for target in batch.targets.values()]
        return {
            name: TargetLoss(total=part.sum(), weight=weight.sum())
            for name, part, weight in zip(batch.targets, weighted.split(sizes, 1), weights.split(sizes, 1), strict=True)
        }

    def logits(self, batch: Batch) -> Mapping[str, Tensor]:
        """Logits of every prediction by target, without dropout. *Shape:* (rows, predictions, vocabulary) each."""
        hidden = self.backbone(batch, select=True)[-1]
        sizes = [target.slots.shape[1] for target in batch.targets.values()]
        table = self.backbone.embeddings.tokens.weight
        return {
            name: self.token_head(part, table) for name, part in zip(batch.targets, hidden.split(sizes, 1), strict=True)
        }

    def num_parameters(self) -> int:
        """Number of weights, tied ones counted once."""
        return sum(parameter.numel() for parameter in self.parameters())


def step_flops(settings: ModelSettings, *, slots: int, predictions: int, keys: float, vocab_size: int) -> float:
    """Floating-point operations of a training step (forward and backward) that the model needs, none that it skips.

    Args:
        settings: The model's shape.
        slots: Slots in all rows.
        predictions: Predicted slots in all rows.
        keys: Keys a slot attends to on average.
        vocab_size: Rows of the output matrix.
    """
    width, inner = settings.hidden_size, settings.intermediate_size
    full = 2 * slots * (4 * width * width + 2 * width * inner) + 4 * slots * keys * width
    last = (
        2 * (slots * 2 + predictions * 2) * width * width
        + 4 * predictions * width * inner
        + 4 * predictions * keys * width
    )
    head = 2 * predictions * width * (width + vocab_size)
    return 3.0 * ((settings.num_layers - 1) * full + last + head)


def perplexity(total: float, weight: float) -> float:
    """exp of the mean negative log-likelihood; infinite where it overflows."""
    mean = total / max(weight, 1e-9)
    return math.exp(mean) if mean < 700 else math.inf
