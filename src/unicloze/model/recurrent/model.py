"""A recurrent language model behind the interface of `UnifiedModel`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import Tensor

from unicloze.example import Batch
from unicloze.model.dropout import DropoutKey
from unicloze.model.initialization import draw_lstms
from unicloze.model.model import TargetLoss, UnifiedModel
from unicloze.model.recurrent.backbone import Reading, RecurrentBackbone, states_at
from unicloze.model.recurrent.views import viewed


class RecurrentModel(UnifiedModel):
    """LSTMs in place of the Transformer, with the same heads and tied token embeddings; arguments as of `UnifiedModel`."""

    def initialize(self, seed: int) -> None:
        """Initialise the weights: embeddings uniform within the initializer range, LSTMs as `nn.LSTM` does, heads normal.

        Character convolutions start as in ELMo's released code.
        """
        super().initialize(seed)
        draw_lstms(self.backbone, self.settings.initializer_range, seed)

    def forward(self, batch: Batch, dropout: DropoutKey | None = None) -> Mapping[str, TargetLoss]:
        """Losses of every target in a batch; their gradients, but not their values, include AR and TAR.

        Args:
            batch: The rows.
            dropout: Dropout of this forward pass; none if None. Without it there is no regularisation either.
        """
        assert isinstance(self.backbone, RecurrentBackbone)
        reading = self.backbone.read(batch, dropout)
        losses = dict(self._losses(batch, self._seen(batch, reading), dropout))
        if reading.penalty is not None and losses:
            name, loss = next(iter(losses.items()))
            added = loss.weight * reading.penalty
            losses[name] = dataclasses.replace(loss, total=loss.total + (added - added.detach()))
        return losses

    def _selected(self, batch: Batch, dropout: DropoutKey | None) -> dict[str, Tensor]:
        assert isinstance(self.backbone, RecurrentBackbone)
        return self._seen(batch, self.backbone.read(batch, dropout))

    def _seen(self, batch: Batch, reading: Reading) -> dict[str, Tensor]:
        """States of the predicted slots by target; a task head with a view gets what it sees."""
        hidden = self._from_layers(batch, reading.by_layer)
        for name, target in batch.targets.items():
            view = self.task_head(name).head.view if name in self.task_heads else None
            if view is not None:
                hidden[name] = states_at(target.slots.flatten(1), viewed(reading.shown, view))
        return hidden
