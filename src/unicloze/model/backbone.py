"""The Transformer backbone: embeddings and layers, with visibility as input data."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from unicloze.errors import UsageError
from unicloze.example import Batch
from unicloze.model.attention import Backend, RelativeBias, SelfAttention, predicted_slots
from unicloze.model.dropout import DropoutKey
from unicloze.model.encoder_decoder import (
    CrossAttention,
    SourceReader,
    SourceStates,
    for_planning,
    in_row_order,
    source_part,
    target_part,
)
from unicloze.model.layers import FeedForward, Layer, LayerReader, Reader, borrow, layer_norm
from unicloze.model.readers import FullRows
from unicloze.model.transformer_xl import sinusoids
from unicloze.settings import ModelSettings


def embedding_width(settings: ModelSettings) -> int:
    """Width of the embedding tables."""
    return settings.embedding_size or settings.hidden_size


SHARED_EMBEDDINGS = "tokens", "projection"
"""What an encoder and its decoder share."""


class Embeddings(nn.Module):
    """Sum of token, position and segment embeddings, normalised (paper Section 2.2).

    A different embedding width is projected to the hidden size (ALBERT, Section 3.1). With Transformer-XL's encoding,
    attention handles positions and segments instead.
    """

    def __init__(self, settings: ModelSettings, *, vocab_size: int, max_positions: int) -> None:
        super().__init__()
        width, hidden = embedding_width(settings), settings.hidden_size
        normalised = settings.norm == "post" if settings.embedding_norm is None else settings.embedding_norm
        in_attention = settings.positions == "transformer_xl"
        self.factor = math.sqrt(width) if settings.scale_embeddings else 1.0
        self.waves = settings.positions == "sinusoidal"
        self.max_positions = max_positions
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(max_positions, width) if settings.positions == "learned" else None
        has_segments = settings.num_segments and not in_attention
        self.segments = nn.Embedding(settings.num_segments, width) if has_segments else None
        self.norm = layer_norm(settings, width) if normalised else nn.Identity()
        self.projection = nn.Linear(width, hidden) if width != hidden else nn.Identity()
        self.rate = settings.dropout

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, segment_ids: Tensor, dropout: DropoutKey | None = None
    ) -> Tensor:
        """Embed tokens with their positions and segments, all broadcast. *Shape:* (...) to (..., hidden size)"""
        embedded = self.tokens(input_ids)
        if self.factor != 1:
            embedded = embedded * self.factor
        if self.waves:
            embedded = embedded + self._sinusoids(position_ids)
        if self.segments is not None and self.segments.num_embeddings == 1:  # ignore the ids (RoBERTa)
            segment_ids = torch.zeros_like(segment_ids)
        for table, ids in ((self.positions, position_ids), (self.segments, segment_ids)):
            if table is not None:
                embedded = embedded + table(ids)
        embedded = self.norm(embedded)
        projected: Tensor = self.projection(embedded if dropout is None else dropout(embedded, self.rate))
        return projected.to(
            embedded.dtype
        )  # autocast narrows a projection, and the states of all layers add up from here

    def _sinusoids(self, position_ids: Tensor) -> Tensor:
        """Sines, then cosines of each position (Vaswani et al. 2017, Section 3.5). *Shape:* (...) to (..., width)"""
        width, ids = self.tokens.embedding_dim, position_ids.flatten()
        if len(ids) > self.max_positions:
            table = sinusoids(torch.arange(self.max_positions, device=ids.device), width).index_select(0, ids)
        else:
            table = sinusoids(ids, width)
        return table.view(*position_ids.shape, width)


class Stack(nn.Module):
    """Embeddings and layers, with an optional relative position bias shared by all of these layers.

    Args:
        settings: Model shape.
        embeddings: Embeds the tokens this stack reads.
        layers: Number of layers.
        decodes: Whether this is a decoder, whose layers read a source as well.

    Attributes:
        checkpoint_activations: Whether the backward pass computes each layer again, from its input.
    """

    def __init__(self, settings: ModelSettings, embeddings: Embeddings, *, layers: int, decodes: bool = False) -> None:
        super().__init__()
        self.settings = settings
        self.backend: Backend | None = None
        self.checkpoint_activations = False
        self.embeddings = embeddings
        self.relative = RelativeBias(settings, both_ways=not decodes) if settings.relative_bias else None
        first = Layer(settings, decodes=decodes)
        self.layers = nn.ModuleList(
            [first, *(Layer(settings, number, first, decodes=decodes) for number in range(1, layers))]
        )
        self.final_norm = layer_norm(settings) if settings.norm == "pre" else nn.Identity()
        self.final_rate = settings.final_dropout
        self.visibility = list(itertools.islice(itertools.cycle(settings.layer_visibility), layers))

    def read(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        segment_ids: Tensor,
        reader: Reader,
        dropout: DropoutKey | None = None,
        source: SourceReader | None = None,
    ) -> Iterator[Tensor]:
        """Run the layers one after another; this is the only loop over layers.

        Args:
            input_ids: *Shape:* (rows, slots)
            position_ids: *Shape:* (rows or 1, slots)
            segment_ids: *Shape:* (rows or 1, slots)
            reader: Supplies keys, values and biases, and computes attention.
            dropout: Dropout of this forward pass; none if None.
            source: Supplies keys and values of the source to a decoder.

        Yields:
            Hidden states of the embeddings and after each layer; the last are normalised. *Shape:* (rows, slots, hidden size)
        """
        hidden: Tensor = self.embeddings(input_ids, position_ids, segment_ids, dropout)
        reader.start(hidden, self.relative, self.visibility)
        yield hidden
        for layer in self.layers:
            assert isinstance(layer, Layer)
            hidden = self._through(layer, hidden, reader.at(layer.number), dropout, source)
            yield self._finished(hidden, dropout) if layer is self.layers[-1] else hidden

    def _through(
        self, layer: Layer, hidden: Tensor, reader: LayerReader, dropout: DropoutKey | None, source: SourceReader | None
    ) -> Tensor:
        computed: Tensor
        if not (self.checkpoint_activations and torch.is_grad_enabled()):
            computed = layer(hidden, reader, dropout, source)
            return computed
        if hidden.device.type == "mps" and dropout is not None:
            raise UsageError(
                "training.checkpoint_activations draws another dropout in the second pass on mps: set it to false"
            )
        again = nullcontext() if dropout is None else dropout.again()
        computed = checkpoint(
            layer,
            hidden,
            reader,
            dropout,
            source,
            use_reentrant=False,
            preserve_rng_state=hidden.device.type != "cpu",  # where the key decides
            context_fn=lambda: (nullcontext(), again),
        )
        return computed

    def _finished(self, hidden: Tensor, dropout: DropoutKey | None) -> Tensor:
        normed: Tensor = self.final_norm(hidden)
        return normed if dropout is None else dropout(normed, self.final_rate)


class Backbone(Stack):
    """A stack of layers; in an encoder-decoder this is the encoder, and `decoder` is a second stack.

    The decoder has the encoder's token embeddings, and positions, segments and embedding norm of its own.
    """

    def __init__(self, settings: ModelSettings, *, vocab_size: int, max_positions: int) -> None:
        def embeddings() -> Embeddings:
            return Embeddings(settings, vocab_size=vocab_size, max_positions=max_positions)

        super().__init__(settings, embeddings(), layers=settings.num_layers)
        self.decoder: Stack | None = None
        if settings.decoder_layers:
            self.decoder = Stack(settings, embeddings(), layers=settings.decoder_layers, decodes=True)
            borrow(self.decoder.embeddings, self.embeddings, SHARED_EMBEDDINGS)

    def forward(self, batch: Batch, *, select: bool = False, dropout: DropoutKey | None = None) -> list[Tensor]:
        """Hidden states of the embeddings and after each layer.

        Args:
            batch: The rows; their memory, if any, is updated with their text slots.
            select: From the last layer return only the predicted slots, concatenated in the order of the targets.
            dropout: Dropout of this forward pass; none if None.

        Returns:
            One tensor for the embeddings and one per layer; of an encoder-decoder, only the final states of the source and
            the slots after it. *Shape:* (rows, slots, hidden size); with `select` the last is (rows, predictions, hidden
            size).
        """
        if self.decoder is not None:
            return [self._through_both(self.decoder, batch, select, dropout)]
        reader = FullRows(batch=batch, settings=self.settings, select=select, backend=self.backend, dropout=dropout)
        states = list(self.read(batch.input_ids, batch.position_ids, batch.segment_ids, reader, dropout))
        if batch.memory is not None and batch.text_slots is not None:
            batch.memory.remember(states[:-1], batch.text_slots)
        if select:
            states[-1] = reader.predicted(states[-1])
        return states

    def _through_both(self, decoder: Stack, batch: Batch, select: bool, dropout: DropoutKey | None) -> Tensor:
        """Encode the sources, decode the rest, and return the final states in the order of the rows."""

        def final(stack: Stack, part: Batch, plan: Batch, source: SourceReader | None = None) -> Tensor:
            reader = FullRows(batch=plan, settings=self.settings, backend=self.backend, dropout=dropout)
            states = stack.read(part.input_ids, part.position_ids, part.segment_ids, reader, dropout, source)
            return deque(states, maxlen=1).pop()

        sources, targets = source_part(batch), target_part(batch)
        encoded = final(self, sources, sources)
        decoded = None
        if targets is not None:
            source = SourceStates(batch=batch, states=encoded, backend=self.backend, dropout=dropout)
            decoded = final(decoder, targets, for_planning(targets), source)
        return in_row_order(batch, encoded, decoded, predicted_slots(batch) if select else None)

    def residual_writers(self) -> list[nn.Module]:
        """The linear layers whose outputs are added to the residual stream."""
        kinds = SelfAttention | CrossAttention | FeedForward
        return [module.output for module in self.modules() if isinstance(module, kinds)]
