"""A layer of the Transformer: what happens to each slot, around the attention that a reader computes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor, nn
from torch.nn import functional

from unicloze.model.attention import SelfAttention
from unicloze.model.dropout import DropoutKey
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

    def forward(self, hidden: Tensor) -> Tensor:
        """*Shape:* (..., hidden size) to the same."""
        projected: Tensor = self.output(self.activation(self.inner(hidden)))
        return projected


PARTS: Mapping[str, Callable[[ModelSettings], nn.Module]] = {
    "attention": SelfAttention,
    "attention_norm": layer_norm,
    "feed_forward": FeedForward,
    "feed_forward_norm": layer_norm,
}
"""What a layer is made of."""

SHARED_PARTS: Mapping[str, frozenset[str]] = {
    "none": frozenset(),
    "attention": frozenset({"attention", "attention_norm"}),
    "feed_forward": frozenset({"feed_forward", "feed_forward_norm"}),
    "all": frozenset(PARTS),
}
"""What all layers have in common under each `share_layers`: a normalisation goes with what it normalises."""


class Reader(Protocol):
    """Gives the slots of a forward pass what they read: keys and values, masks and biases, in every layer.

    `unicloze.model.readers` has one for whole rows, one for slots behind a cache and one for a caller's own cache.
    """

    def start(self, hidden: Tensor, relative: RelativeBias | None, visibility: Sequence[str]) -> None:
        """Prepare what all layers have in common.

        Args:
            hidden: The embedded slots. *Shape:* (rows, slots, hidden size)
            relative: The relative position bias, if the model has one.
            visibility: Name of the visibility of each layer.
        """

    def computed(self, layer: Layer, hidden: Tensor) -> Tensor:
        """Of a layer's input those slots whose states it computes: all, or in the last layer the selected ones."""

    def attend(self, layer: Layer, normed: Tensor) -> Tensor:
        """What those slots read, projected.

        Args:
            layer: Has the weights.
            normed: The layer's input, normalised if the layer does that first. *Shape:* (rows, slots, hidden size)

        Returns:
            *Shape:* (rows, computed slots, hidden size)
        """


class Layer(nn.Module):
    """Self-attention and feed-forward network, each with a residual and a normalisation before or after it.

    Args:
        settings: Its shape.
        number: Its place among the layers, from 0.
        first: The layer that holds the weights all layers share; None for that layer itself.
    """

    attention: SelfAttention
    attention_norm: nn.LayerNorm
    feed_forward: FeedForward
    feed_forward_norm: nn.LayerNorm

    def __init__(self, settings: ModelSettings, number: int = 0, first: Layer | None = None) -> None:
        super().__init__()
        shared = SHARED_PARTS[settings.share_layers] if first is not None else frozenset()
        for name, build in PARTS.items():
            if name not in shared:
                setattr(self, name, build(settings))
        if first is not None:
            borrow(self, first, shared)
        self.number = number
        self.norm_first = settings.norm == "pre"
        self.rate = settings.dropout

    def forward(self, hidden: Tensor, reader: Reader, dropout: DropoutKey | None) -> Tensor:
        """The hidden states after the layer of the slots that the reader computes.

        Args:
            hidden: *Shape:* (rows, slots, hidden size)
            reader: Gives what the slots read.
            dropout: Dropout of this forward pass; none if None.

        Returns:
            *Shape:* (rows, computed slots, hidden size)
        """
        computed = reader.computed(self, hidden)
        return self.complete(computed, reader.attend(self, self.before_attention(hidden)), dropout)

    def before_attention(self, hidden: Tensor) -> Tensor:
        """What is projected to queries, keys and values. *Shape:* (rows, slots, hidden size) to the same"""
        normed: Tensor = self.attention_norm(hidden) if self.norm_first else hidden
        return normed

    def complete(self, residual: Tensor, update: Tensor, dropout: DropoutKey | None) -> Tensor:
        """What follows attention: its residual and the feed-forward network. *Shape:* (rows, queries, hidden size)"""
        attended = self._add(residual, update, dropout)
        if self.norm_first:
            return self._add(attended, self.feed_forward(self.feed_forward_norm(attended)), dropout)
        attended = self.attention_norm(attended)
        normalised: Tensor = self.feed_forward_norm(self._add(attended, self.feed_forward(attended), dropout))
        return normalised

    def _add(self, residual: Tensor, update: Tensor, dropout: DropoutKey | None) -> Tensor:
        return residual + (update if dropout is None else dropout(update, self.rate))
