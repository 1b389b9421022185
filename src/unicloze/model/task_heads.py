"""Task heads: hidden states of predicted slots to classes, quantities or choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from unicloze.example import TargetBatch
from unicloze.model.biattention import Biattention, Maxout
from unicloze.model.dropout import DropoutKey
from unicloze.model.heads import cross_entropy
from unicloze.model.normed_linear import NormedLinear
from unicloze.model.recurrent.backbone import side_width
from unicloze.model.recurrent.views import view_width
from unicloze.model.soft_labels import mixed_losses
from unicloze.model.word_encoder import WordEncoder
from unicloze.settings import HeadActivation, HeadSettings, ModelSettings

INNER, INNER_RATE = 50, 0.1
"""Units of the layer before the output layer with batch normalisation, and the dropout after it (ULMFiT's released code)."""
HEAD_ACTIVATIONS: Mapping[HeadActivation, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "relu": functional.relu,
}


def read_width(settings: ModelSettings) -> int:
    """Width of what a biattentive head reads of a slot: its embedding and its last state, side by side."""
    narrow = settings.embedding_size if settings.kind == "recurrent" else None
    return (narrow or settings.hidden_size) + settings.hidden_size


class TaskHead(nn.Module):
    """Dropout and a linear layer, optionally after a dense layer (with tanh: Devlin et al. 2019, Section 4) or ULMFiT's.

    A biLSTM over the predictions of a row may come first (Peters et al. 2018, Section 3.3).

    With `HeadSettings.texts` it is a biattentive classification network (McCann et al. 2017).

    Args:
        settings: Shape of the model.
        head: Settings of this head.
    """

    def __init__(self, settings: ModelSettings, head: HeadSettings) -> None:
        super().__init__()
        self.head = head
        self.rate = settings.dropout if head.dropout is None else head.dropout
        seen = settings.hidden_size if head.view is None else view_width(settings, head.view)
        width = seen * (3 if head.pooling == "concat" else head.directions)
        self.encoder = WordEncoder(width, head.encoder_size, self.rate) if head.encoder_size else None
        if self.encoder is not None:
            width = 2 * head.encoder_size + (width if head.output_mix else 0)
        outputs = 1 if head.kind == "choice" else head.outputs
        self.dense = nn.Linear(width, side_width(settings)) if head.dense else None
        self.inner = NormedLinear(width, INNER, self.rate) if head.batch_norm else None
        self.biattention = Biattention(read_width(settings), head.size, self.rate) if head.texts else None
        self.output: nn.Linear | NormedLinear | Maxout
        if self.biattention is not None:
            self.output = Maxout(self.biattention.outputs, outputs, self.rate)
        elif head.batch_norm:
            self.output = NormedLinear(INNER, outputs, INNER_RATE)
        else:
            self.output = nn.Linear(side_width(settings) if head.dense else width, outputs)

    def outputs(self, hidden: Tensor, target: TargetBatch, dropout: DropoutKey | None) -> Tensor:
        """Logits of the classes or of the slots to choose from (-inf where a slot is absent), or quantities.

        Args:
            hidden: States of the predicted slots, in the order of `predicted_slots`; with `output_mix`, both mixes.
                *Shape:* (rows, predictions x slots of a prediction, width): the hidden size, twice that with both mixes, or
                `read_width` for a biattentive head
            target: The target.
            dropout: Dropout of this forward pass; none if None.

        Returns:
            *Shape:* (rows, predictions, outputs), or (rows, predictions, slots per prediction) for a choice
        """
        shape, present = target.slots.shape, target.present
        if self.biattention is not None:
            return self._biattentive(hidden.view(*shape, -1), present, target.weights > 0, dropout)
        if self.head.kind == "choice" and len(shape) == 2:  # a single slot to choose from, in all rows
            shape, present = torch.Size((*shape, 1)), None if present is None else present[..., None]
        states = hidden.view(*shape, hidden.shape[-1])
        if self.head.pooling == "concat" and states.ndim == 3:  # a single slot in all rows
            states, present = states.unsqueeze(2), None if present is None else present[..., None]
        mixes = states.chunk(2, dim=-1) if self.head.output_mix else (states,)
        if self.head.kind != "choice" and states.ndim == 4:
            mixes = tuple(self._pooled(mix, present) for mix in mixes)
        states = mixes[0]
        if self.encoder is not None:
            states = torch.cat([self.encoder(states, target, dropout), *mixes[1:]], dim=-1)
        if self.inner is not None:
            return self._normed(states, target.weights > 0, dropout)
        if self.dense is not None:
            states = HEAD_ACTIVATIONS[self.head.activation](self.dense(states))
        if dropout is not None:
            states = dropout(states, self.rate)
        with torch.autocast(states.device.type, enabled=False):  # bf16 is too coarse for scores and quantities
            assert isinstance(self.output, nn.Linear)
            outputs: Tensor = self.output(states.float())
        if self.head.kind != "choice":
            return outputs
        scores = outputs.squeeze(-1)
        return scores if present is None else scores.masked_fill(~present, -torch.inf)

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

    def _normed(self, states: Tensor, real: Tensor, dropout: DropoutKey | None) -> Tensor:
        """Outputs by ULMFiT's layers, whose statistics are those of the real predictions; 0 for padding."""
        assert self.inner is not None and isinstance(self.output, NormedLinear)
        with torch.autocast(states.device.type, enabled=False):
            found = self.output(functional.relu(self.inner(states[real].float(), dropout)), dropout)
        outputs: Tensor = found.new_zeros(*real.shape, found.shape[1])
        return outputs.index_put(real.nonzero(as_tuple=True), found)

    def _biattentive(self, states: Tensor, present: Tensor | None, real: Tensor, dropout: DropoutKey | None) -> Tensor:
        """Outputs from the states of one text, or of two whose slots alternate; 0 for padded predictions."""
        assert self.biattention is not None and isinstance(self.output, Maxout)
        if states.ndim == 3:  # a single slot in all rows
            states, present = states.unsqueeze(2), None if present is None else present[..., None]
        there = torch.ones_like(states[..., 0], dtype=torch.bool) if present is None else present
        states, there = states[real].float(), there[real]
        if states.shape[1] % self.head.texts:  # the last slot of the second text is missing in all rows
            states, there = functional.pad(states, (0, 0, 0, 1)), functional.pad(there, (0, 1))
        texts = [states[:, number :: self.head.texts] for number in range(self.head.texts)]
        own = [there[:, number :: self.head.texts] for number in range(self.head.texts)]
        with torch.autocast(states.device.type, enabled=False):
            vector = self.biattention((texts[0], texts[-1]), (own[0], own[-1]), dropout)
            found = self.output(vector, dropout)
        outputs: Tensor = found.new_zeros(*real.shape, found.shape[1])
        return outputs.index_put(real.nonzero(as_tuple=True), found)

    def _pooled(self, states: Tensor, present: Tensor | None) -> Tensor:
        if self.head.directions == 1:
            return self._of_a_direction(states, present)
        there = torch.ones_like(states[..., 0], dtype=torch.bool) if present is None else present
        half = there.sum(dim=2, keepdim=True) // 2
        first = torch.arange(states.shape[2], device=states.device) < half
        return torch.cat([self._of_a_direction(states, part) for part in (there & first, there & ~first)], dim=-1)

    def _of_a_direction(self, states: Tensor, present: Tensor | None) -> Tensor:
        if self.head.pooling == "concat":
            if present is None:
                return torch.cat([states[:, :, -1], states.amax(dim=2), states.mean(dim=2)], dim=-1)
            count = present.sum(dim=2).clamp(min=1)
            last = states.gather(2, (count - 1)[..., None, None].expand(-1, -1, 1, states.shape[3])).squeeze(2)
            highest = states.masked_fill(~present[..., None], -torch.inf).amax(dim=2)
            highest = torch.where(
                highest.isinf(), torch.zeros_like(highest), highest
            )  # a padded prediction has no slots
            return torch.cat([last, highest, (states * present[..., None]).sum(dim=2) / count[..., None]], dim=-1)
        if present is None:
            return states.mean(dim=2) if self.head.pooling == "mean" else states.sum(dim=2)
        total = (states * present[..., None]).sum(dim=2)
        return total / present.sum(dim=2).clamp(min=1)[..., None] if self.head.pooling == "mean" else total
