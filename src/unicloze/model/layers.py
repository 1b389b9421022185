"""One Transformer layer, around the attention that a reader computes, and weights that several modules use.

One of these modules owns the weights, so that each tensor has one name in a checkpoint.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

from torch import Tensor, nn
from torch.nn import functional

from unicloze.model.adapters import Adapter, project
from unicloze.model.attention import RelativeBias, SelfAttention
from unicloze.model.dropout import DropoutKey
from unicloze.model.encoder_decoder import CrossAttention, SourceReader
from unicloze.settings import ModelSettings

_OWNER = "_owner_of_borrowed"


def borrow(borrower: nn.Module, owner: nn.Module, names: Iterable[str]) -> None:
    """Let a module use submodules of another one, which stay registered there alone.

    They are among the owner's parameters, state and submodules and not among the borrower's. A copy of a model that holds
    both borrows from its own owner.

    Args:
        borrower: Uses them as attributes of the same names.
        owner: Has them.
        names: Which ones; none leaves the borrower as it is.
    """
    for name in names:
        borrower._modules.pop(name, None)
        # Past nn.Module, which would register them a second time.
        object.__setattr__(borrower, name, getattr(owner, name))
        object.__setattr__(borrower, _OWNER, owner)


def owners(model: nn.Module) -> list[nn.Module]:
    """The modules of a model that others borrow from.

    Their weights are needed outside their own forward pass. So whoever shards a model layer by layer keeps these gathered
    after it: `fully_shard(layer, reshard_after_forward=layer not in owners(model))`.
    """
    found = {id(owner): owner for module in model.modules() if (owner := vars(module).get(_OWNER)) is not None}
    return list(found.values())


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = dict(
    gelu=functional.gelu, gelu_tanh=functools.partial(functional.gelu, approximate="tanh"), relu=functional.relu
)


Norm: TypeAlias = nn.LayerNorm | nn.RMSNorm


def layer_norm(settings: ModelSettings, width: int | None = None) -> Norm:
    """Normalisation over the hidden size, or over another width, of the kind in the settings."""
    kind = nn.LayerNorm if settings.norm_kind == "layer" else nn.RMSNorm
    return kind(settings.hidden_size if width is None else width, eps=settings.layer_norm_eps)


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, optionally multiplied by a gate (Shazeer 2020)."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        width, inner = settings.hidden_size, settings.intermediate_size
        self.inner = nn.Linear(width, inner, bias=settings.biases)
        self.output = nn.Linear(inner, width, bias=settings.biases)
        self.gate = nn.Linear(width, inner, bias=settings.biases) if settings.gated else None
        self.activation = ACTIVATIONS[settings.activation]
        self.rate = settings.activation_dropout

    def forward(self, hidden: Tensor, dropout: DropoutKey | None = None) -> Tensor:
        """*Shape:* (..., hidden size) to the same."""
        activated = self.activation(project(self.inner, hidden, dropout))
        if self.gate is not None:
            activated = activated * project(self.gate, hidden, dropout)
        return project(self.output, activated if dropout is None else dropout(activated, self.rate), dropout)


SUBLAYERS: Mapping[str, Callable[[ModelSettings], nn.Module]] = dict(
    attention=SelfAttention, attention_norm=layer_norm, feed_forward=FeedForward, feed_forward_norm=layer_norm
)
"""The modules of a layer."""
READS_SOURCE: Mapping[str, Callable[[ModelSettings], nn.Module]] = dict(
    cross_attention=CrossAttention, cross_attention_norm=layer_norm
)
"""What a decoder's layers have as well."""

SHARED_SUBLAYERS: Mapping[str, frozenset[str]] = {
    "none": frozenset(),
    "attention": frozenset({"attention", "attention_norm", *READS_SOURCE}),
    "feed_forward": frozenset({"feed_forward", "feed_forward_norm"}),
    "all": frozenset({*SUBLAYERS, *READS_SOURCE}),
}
"""Modules shared by all layers under each `share_layers`; a normalisation is shared with its sublayer."""


class LayerReader(Protocol):
    """Supplies keys, values, masks and biases in a layer, and computes its attention."""

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


class Reader(Protocol):
    """What all layers read.

    `unicloze.model.readers` has one for whole rows, one for slots after our cache, and one for a caller's own cache.
    """

    def start(self, hidden: Tensor, relative: RelativeBias | None, visibility: Sequence[str]) -> None:
        """Prepare what all layers share.

        Args:
            hidden: The embedded slots. *Shape:* (rows, slots, hidden size)
            relative: The relative position bias, if the model has one.
            visibility: Name of the visibility of each layer.
        """

    def at(self, number: int) -> LayerReader:
        """What the layer of this number reads."""


class Layer(nn.Module):
    """Self-attention and a feed-forward network, each with a residual, and normalised before or after it.

    A decoder's layer has cross-attention between the two.

    Args:
        settings: Model shape.
        number: Index of the layer, from 0.
        first: The layer that owns the shared weights; None for that layer itself.
        decodes: Whether this is a decoder's layer.
    """

    attention: SelfAttention
    attention_norm: Norm
    cross_attention: CrossAttention
    cross_attention_norm: Norm
    feed_forward: FeedForward
    feed_forward_norm: Norm

    def __init__(
        self, settings: ModelSettings, number: int = 0, first: Layer | None = None, *, decodes: bool = False
    ) -> None:
        super().__init__()
        shared = SHARED_SUBLAYERS[settings.share_layers] if first is not None else frozenset()
        sublayers = {**SUBLAYERS, **READS_SOURCE} if decodes else SUBLAYERS
        for name, build in sublayers.items():
            if name not in shared:
                setattr(self, name, build(settings))
        if first is not None:
            borrow(self, first, shared & sublayers.keys())
        self.decodes = decodes
        self.attention_adapter = Adapter(settings) if settings.adapter_size else None
        self.cross_attention_adapter = Adapter(settings) if settings.adapter_size and decodes else None
        self.feed_forward_adapter = Adapter(settings) if settings.adapter_size else None
        self.number = number
        self.norm_first = settings.norm == "pre"
        self.rate = settings.dropout

    def forward(
        self, hidden: Tensor, reader: LayerReader, dropout: DropoutKey | None, source: SourceReader | None = None
    ) -> Tensor:
        """Run the layer and return the states of the slots the reader computes.

        Args:
            hidden: *Shape:* (rows, slots, hidden size)
            reader: Supplies keys and values, and computes attention.
            dropout: Dropout of this forward pass; none if None.
            source: What a decoder's layer reads of the source.

        Returns:
            *Shape:* (rows, computed slots, hidden size)
        """
        computed = reader.computed(self, hidden)
        update = reader.attend(self, self.before_attention(hidden))
        attended = self._add(computed, update, self.attention_norm, dropout, self.attention_adapter)
        if self.decodes:
            assert source is not None
            update = source.attend(self.cross_attention, self.number, self._before(self.cross_attention_norm, attended))
            attended = self._add(attended, update, self.cross_attention_norm, dropout, self.cross_attention_adapter)
        update = self.feed_forward(self._before(self.feed_forward_norm, attended), dropout)
        return self._add(attended, update, self.feed_forward_norm, dropout, self.feed_forward_adapter)

    def before_attention(self, hidden: Tensor) -> Tensor:
        """The input of the query, key and value projections. *Shape:* (rows, slots, hidden size) to the same"""
        return self._before(self.attention_norm, hidden)

    def _before(self, norm: Norm, hidden: Tensor) -> Tensor:
        normed: Tensor = norm(hidden) if self.norm_first else hidden
        return normed

    def _add(
        self, residual: Tensor, update: Tensor, norm: Norm, dropout: DropoutKey | None, adapter: Adapter | None
    ) -> Tensor:
        kept = update if dropout is None else dropout(update, self.rate)
        added = residual + (kept if adapter is None else adapter(kept))
        return added if self.norm_first else norm(added)
