"""The Transformer backbone: embeddings and layers, with visibility as input data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from unicloze.example import Batch
from unicloze.model.attention import SelfAttention
from unicloze.model.attention_plan import Backend
from unicloze.model.dropout import DropoutKey
from unicloze.model.layers import FeedForward, Layer, Reader, layer_norm
from unicloze.model.readers import FullRows
from unicloze.model.relative_bias import RelativeBias
from unicloze.settings import ModelSettings


def embedding_width(settings: ModelSettings) -> int:
    """Width of the embedding tables."""
    return settings.embedding_size or settings.hidden_size


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
        if self.segments is not None and self.segments.num_embeddings == 1:  # ignore the ids (RoBERTa)
            segment_ids = torch.zeros_like(segment_ids)
        for table, ids in ((self.positions, position_ids), (self.segments, segment_ids)):
            if table is not None:
                embedded = embedded + table(ids)
        embedded = self.norm(embedded)
        projected: Tensor = self.projection(embedded if dropout is None else dropout(embedded, self.rate))
        return projected


class Backbone(nn.Module):
    """Embeddings and layers, with an optional relative position bias shared by all layers."""

    def __init__(self, settings: ModelSettings, *, vocab_size: int, max_positions: int) -> None:
        super().__init__()
        self.settings = settings
        self.backend: Backend | None = None
        self.embeddings = Embeddings(settings, vocab_size=vocab_size, max_positions=max_positions)
        self.relative = RelativeBias(settings) if settings.relative_bias else None
        first = Layer(settings)
        self.layers = nn.ModuleList(
            [first, *(Layer(settings, number, first) for number in range(1, settings.num_layers))]
        )
        self.final_norm = layer_norm(settings) if settings.norm == "pre" else nn.Identity()
        self.visibility = list(itertools.islice(itertools.cycle(settings.layer_visibility), settings.num_layers))

    def forward(self, batch: Batch, *, select: bool = False, dropout: DropoutKey | None = None) -> list[Tensor]:
        """Hidden states of the embeddings and after each layer.

        Args:
            batch: The rows; their memory, if any, is updated with their text slots.
            select: From the last layer return only the predicted slots, concatenated in the order of the targets.
            dropout: Dropout of this forward pass; none if None.

        Returns:
            One tensor for the embeddings and one per layer. *Shape:* (rows, slots, hidden size); with `select` the last is
            (rows, predictions, hidden size).

        Raises:
            UniclozeError: A layer is `local` and the batch has no local visibility.
        """
        reader = FullRows(batch=batch, settings=self.settings, select=select, backend=self.backend, dropout=dropout)
        states = list(self.read(batch.input_ids, batch.position_ids, batch.segment_ids, reader, dropout))
        if batch.memory is not None and batch.text_slots is not None:
            batch.memory.remember(states[:-1], batch.text_slots)
        if select:
            states[-1] = reader.predicted(states[-1])
        return states

    def read(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        segment_ids: Tensor,
        reader: Reader,
        dropout: DropoutKey | None = None,
    ) -> Iterator[Tensor]:
        """Run the layers one after another; this is the only loop over the layers.

        Args:
            input_ids: *Shape:* (rows, slots)
            position_ids: *Shape:* (rows or 1, slots)
            segment_ids: *Shape:* (rows or 1, slots)
            reader: Supplies keys, values and biases, and computes attention.
            dropout: Dropout of this forward pass; none if None.

        Yields:
            Hidden states of the embeddings and after each layer; the last are normalised. *Shape:* (rows, slots, hidden size)
        """
        hidden: Tensor = self.embeddings(input_ids, position_ids, segment_ids, dropout)
        reader.start(hidden, self.relative, self.visibility)
        yield hidden
        for layer in self.layers:
            hidden = layer(hidden, reader, dropout)
            yield self.final_norm(hidden) if layer is self.layers[-1] else hidden

    def residual_writers(self) -> list[nn.Module]:
        """The linear layers whose outputs are added to the residual stream."""
        return [module.output for module in self.modules() if isinstance(module, SelfAttention | FeedForward)]
