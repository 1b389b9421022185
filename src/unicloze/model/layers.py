"""One Transformer layer, around the attention that a reader computes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor, nn
from torch.nn import functional

from unicloze.model.adapters import Adapter
from unicloze.model.attention import SelfAttention
from unicloze.model.dropout import DropoutKey
from unicloze.model.low_rank import project
from unicloze.model.relative_bias import RelativeBias
from unicloze.model.sharing import borrow
from unicloze.settings import ModelSettings

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": functools.partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}


def layer_norm(settings: ModelSettings, width: int | None = None) -> nn.LayerNorm:
    """Layer normalisation over the hidden size, or over another width."""
    return nn.LayerNorm(settings.hidden_size if width is None else width, eps=settings.layer_norm_eps)


class FeedForward(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.inner = nn.Linear(settings.hidden_size, settings.intermediate_size)
        self.output = nn.Linear(settings.intermediate_size, settings.hidden_size)
        self.activation = ACTIVATIONS[settings.activation]

    def forward(self, hidden: Tensor, dropout: DropoutKey | None = None) -> Tensor:
        """*Shape:* (..., hidden size) to the same."""
        return project(self.output, self.activation(project(self.inner, hidden, dropout)), dropout)


SUBLAYERS: Mapping[str, Callable[[ModelSettings], nn.Module]] = {
    "attention": SelfAttention,
    "attention_norm": layer_norm,
    "feed_forward": FeedForward,
    "feed_forward_norm": layer_norm,
}
"""The modules of a layer."""

SHARED_SUBLAYERS: Mapping[str, frozenset[str]] = {
    "none": frozenset(),
    "attention": frozenset({"attention", "attention_norm"}),
    "feed_forward": frozenset({"feed_forward", "feed_forward_norm"}),
    "all": frozenset(SUBLAYERS),
}
"""Modules shared by all layers under each `share_layers`; a normalisation is shared with its sublayer."""


class Reader(Protocol):
    """Supplies keys, values, masks and biases in every layer, and computes attention.

    `unicloze.model.readers` has one for whole rows, one for slots after our cache, and one for a caller's own cache.
    """

    def start(self, hidden: Tensor, relative: RelativeBias | None, visibility: Sequence[str]) -> None:
        """Prepare what all layers share.

        Args:
            hidden: The embedded slots. *Shape:* (rows, slots, hidden size)
            relative: The relative position bias, if the model has one.
            visibility: Name of the visibility of each layer.
        """

    def computed(self, layer: Layer, hidden: Tensor) -> Tensor:
        """The layer input at the slots whose states are computed: all slots, or in the last layer the selected ones."""

    def attend(self, layer: Layer, normed: Tensor) -> Tensor:
        """Attention output at those slots, projected.

        Args:
            layer: The layer, which holds the weights.
            normed: Layer input, normalised in pre-norm layers. *Shape:* (rows, slots, hidden size)

        Returns:
            *Shape:* (rows, computed slots, hidden size)
        """


class Layer(nn.Module):
    """Self-attention and a feed-forward network, each with a residual, and normalised before or after it.

    Args:
        settings: Model shape.
        number: Index of the layer, from 0.
        first: The layer that owns the shared weights; None for that layer itself.
    """

    attention: SelfAttention
    attention_norm: nn.LayerNorm
    feed_forward: FeedForward
    feed_forward_norm: nn.LayerNorm

    def __init__(self, settings: ModelSettings, number: int = 0, first: Layer | None = None) -> None:
        super().__init__()
        shared = SHARED_SUBLAYERS[settings.share_layers] if first is not None else frozenset()
        for name, build in SUBLAYERS.items():
            if name not in shared:
                setattr(self, name, build(settings))
        if first is not None:
            borrow(self, first, shared)
        self.attention_adapter = Adapter(settings) if settings.adapter_size else None
        self.feed_forward_adapter = Adapter(settings) if settings.adapter_size else None
        self.number = number
        self.norm_first = settings.norm == "pre"
        self.rate = settings.dropout

    def forward(self, hidden: Tensor, reader: Reader, dropout: DropoutKey | None) -> Tensor:
        """Run the layer and return the states of the slots the reader computes.

        Args:
            hidden: *Shape:* (rows, slots, hidden size)
            reader: Supplies keys and values, and computes attention.
            dropout: Dropout of this forward pass; none if None.

        Returns:
            *Shape:* (rows, computed slots, hidden size)
        """
        computed = reader.computed(self, hidden)
        return self.complete(computed, reader.attend(self, self.before_attention(hidden)), dropout)

    def before_attention(self, hidden: Tensor) -> Tensor:
        """The input of the query, key and value projections. *Shape:* (rows, slots, hidden size) to the same"""
        normed: Tensor = self.attention_norm(hidden) if self.norm_first else hidden
        return normed

    def complete(self, residual: Tensor, update: Tensor, dropout: DropoutKey | None) -> Tensor:
        """Residual after attention, then the feed-forward network. *Shape:* (rows, queries, hidden size)"""
        attended = self._add(residual, update, dropout, self.attention_adapter)
        adapter = self.feed_forward_adapter
        if self.norm_first:
            normed = self.feed_forward_norm(attended)
            return self._add(attended, self.feed_forward(normed, dropout), dropout, adapter)
        attended = self.attention_norm(attended)
        completed = self._add(attended, self.feed_forward(attended, dropout), dropout, adapter)
        normalised: Tensor = self.feed_forward_norm(completed)
        return normalised

    def _add(self, residual: Tensor, update: Tensor, dropout: DropoutKey | None, adapter: Adapter | None) -> Tensor:
        kept = update if dropout is None else dropout(update, self.rate)
        return residual + (kept if adapter is None else adapter(kept))
