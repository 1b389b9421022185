"""What all task heads share: the slots of a prediction, the losses, and the interface to the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from unicloze.example import TargetBatch
from unicloze.model.dropout import DropoutKey
from unicloze.model.flops import linear_flops
from unicloze.model.heads import cross_entropy
from unicloze.model.soft_labels import mixed_losses
from unicloze.settings import HeadSettings, ModelSettings


class TaskHead(nn.Module, ABC):
    """A head of a task.

    Args:
        settings: Shape of the model.
        head: Settings of this head.
    """

    reads_embeddings: ClassVar[bool] = False
    """Whether it reads the embedding of a slot beside its last state."""

    def __init__(self, settings: ModelSettings, head: HeadSettings) -> None:
        super().__init__()
        self.head = head
        self.rate = settings.dropout if head.dropout is None else head.dropout
        self.width = 1 if head.kind == "choice" else head.outputs

    @abstractmethod
    def outputs(self, hidden: Tensor, target: TargetBatch, dropout: DropoutKey | None) -> Tensor:
        """Logits of the classes or of the slots to choose from (-inf where a slot is absent), or quantities.

        Args:
            hidden: States of the predicted slots, in the order of `predicted_slots`; with `output_mix`, both mixes; for a
                head that reads embeddings, they come before the states. *Shape:* (rows, predictions x slots of a prediction,
                width)
            target: The target.
            dropout: Dropout of this forward pass; none if None.

        Returns:
            *Shape:* (rows, predictions, outputs), or (rows, predictions, slots per prediction) for a choice
        """

    def flops(self, *, slots: int, predictions: int) -> int:
        """Forward operations of the products with weights.

        Args:
            slots: Number of slots of all predictions.
            predictions: Number of predictions.
        """
        return linear_flops(self) * (slots if self.head.kind == "choice" else predictions)

    def losses(self, hidden: Tensor, target: TargetBatch, dropout: DropoutKey | None) -> Tensor:
        """Loss of every prediction: cross-entropy in nats, or the mean squared error of its quantities.

        Where the target has soft labels, a share is their loss.

        Returns:
            *Shape:* (rows, predictions)
        """
        outputs = self.outputs(hidden, target, dropout)
        losses = self._hard_losses(outputs, target)
        if target.soft is None:
            return losses
        own = target.predicted()
        hard, chosen = losses.flatten().index_select(0, own), outputs.flatten(0, 1).index_select(0, own)
        mixed = mixed_losses(hard, chosen, target.soft, numbers=self.head.kind == "quantities")
        return losses.flatten().index_copy(0, own, mixed).view(losses.shape)

    def _hard_losses(self, outputs: Tensor, target: TargetBatch) -> Tensor:
        """Loss of every prediction with its own label. *Shape:* (rows, predictions)"""
        if self.head.kind == "quantities":
            return (outputs - target.labels[..., None]).square().mean(dim=-1)
        if self.head.kind == "choice":
            # A padded prediction has no slot to choose from: its -inf would make the gradient NaN.
            outputs = torch.where((target.weights > 0)[..., None], outputs, torch.zeros_like(outputs))
            return -functional.log_softmax(outputs, dim=-1).gather(2, target.labels[..., None]).squeeze(2)
        return cross_entropy(outputs.flatten(0, 1), target.labels.flatten()).view(target.labels.shape)


def slots_of(hidden: Tensor, target: TargetBatch) -> tuple[Tensor, Tensor | None]:
    """The states of each prediction's slots, of which there may be one in all rows, and which of them are present.

    Args:
        hidden: *Shape:* (rows, predictions x slots, width)
        target: The target.

    Returns:
        *Shape:* (rows, predictions, slots, width), and (rows, predictions, slots) or None if all are present
    """
    present, shape = target.present, target.slots.shape
    if len(shape) == 2:
        shape, present = torch.Size((*shape, 1)), None if present is None else present[..., None]
    return hidden.view(*shape, hidden.shape[-1]), present


def everywhere(found: Tensor, real: Tensor) -> Tensor:
    """Outputs of the real predictions in their places, with 0 for padding.

    Args:
        found: *Shape:* (real predictions, outputs)
        real: *Shape:* (rows, predictions)

    Returns:
        *Shape:* (rows, predictions, outputs)
    """
    return found.new_zeros(*real.shape, found.shape[1]).index_put(real.nonzero(as_tuple=True), found)
