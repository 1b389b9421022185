"""Counts the floating-point operations of matrix products, a multiply and an add as two.

Cheap operations are ignored: look-ups (with them the character convolutions, once per distinct token), normalisations,
activations, softmax, dropout, losses and the optimiser; in Transformer-XL's encoding also the projection of distances, once
per batch and layer, and the segment term. Only necessary work counts: no padding, and no keys that a slot does not read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Self

from torch import nn

from unicloze.model.attention import head_width
from unicloze.model.backbone import embedding_width
from unicloze.model.recurrent.backbone import layer_widths
from unicloze.settings import ModelSettings

TRAINING = 3
"""Forward and backward pass together, relative to the forward pass."""


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """What a model computes for some rows."""

    rows: int  # number of rows
    slots: int  # slots in all rows
    keys: float  # average number of keys of its own row a slot attends to, over slots and layers
    predictions: Mapping[str, int]  # number of predictions of each target
    predicting_slots: Mapping[str, int]  # number of slots these predictions are made from, each counted once per target
    source_slots: int = 0  # slots an encoder-decoder encodes, in all rows
    source_pairs: int = 0  # pairs of these slots that read each other

    def of(self, targets: Collection[str]) -> Self:
        """The same rows with the predictions of some targets only."""
        predictions, slots = (
            {name: count for name, count in counts.items() if name in targets}
            for counts in (self.predictions, self.predicting_slots)
        )
        return replace(self, predictions=predictions, predicting_slots=slots)


def linear_flops(module: nn.Module) -> int:
    """Forward operations of a module's linear layers and LSTMs for one vector."""
    products = 0
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            products += layer.weight.numel()
        elif isinstance(layer, nn.LSTM):
            products += sum(weight.numel() for weight in layer.parameters() if weight.ndim == 2)
    return 2 * products


def backbone_flops(settings: ModelSettings, amounts: Amounts) -> float:
    """Forward operations of the embeddings and all layers, with the model's full memory.

    Args:
        settings: Model shape.
        amounts: The rows.
    """
    if settings.kind == "recurrent":
        return (_translation if settings.decoder_layers else _recurrent)(settings, amounts)
    return (_two_stacks if settings.decoder_layers else _one_stack)(settings, amounts)


def _one_stack(settings: ModelSettings, amounts: Amounts) -> float:
    """Of a Transformer; the last layer has only the queries and outputs of the slots that predict anything."""
    slots, keys = amounts.slots, amounts.keys + settings.memory
    selected = min(slots, sum(amounts.predicting_slots.values()))
    square, inner, pair = _products(settings)
    remembered = 4 * amounts.rows * settings.memory * square  # only keys and values
    adapters = 4 * settings.hidden_size * settings.adapter_size  # two products
    full = 2 * slots * (4 * square + inner + adapters) + slots * keys * pair + remembered
    last = (
        2 * (slots * 2 + selected * 2) * square
        + 2 * selected * (inner + adapters)
        + selected * keys * pair
        + remembered
    )
    return _projection(settings, slots) + (settings.num_layers - 1) * full + last


def _two_stacks(settings: ModelSettings, amounts: Amounts) -> float:
    """Of an encoder-decoder; the decoder reads the slots of the source by cross-attention."""
    slots, source_slots, source_pairs = amounts.slots, amounts.source_slots, amounts.source_pairs
    pairs = slots * amounts.keys
    square, inner, pair = _products(settings)
    adapters = 2 * settings.hidden_size * settings.adapter_size
    encoder = 2 * source_slots * (4 * square + inner + 2 * adapters) + source_pairs * pair
    targets = slots - source_slots
    decoder = (
        2 * targets * (6 * square + inner + 3 * adapters) + 4 * source_slots * square + (pairs - source_pairs) * pair
    )
    return _projection(settings, slots) + settings.num_layers * encoder + settings.decoder_layers * decoder


def _recurrent(settings: ModelSettings, amounts: Amounts) -> float:
    """Of LSTMs; each slot is read in one direction, or in both by bidirectional ones."""
    total = 0
    for inputs, cells, outputs in layer_widths(settings):
        total += 2 * 4 * cells * (inputs + outputs) + (2 * cells * outputs if outputs != cells else 0)
    return amounts.slots * (2 * total if settings.directions == "bidirectional" else total)


def _translation(settings: ModelSettings, amounts: Amounts) -> float:
    """Of an LSTM encoder-decoder; rows without a target are sources alone."""
    encoded = amounts.source_slots or amounts.slots
    written, hidden, narrow = amounts.slots - encoded, settings.hidden_size, embedding_width(settings)
    widths = [outputs for _, _, outputs in layer_widths(settings)]
    encoder, decoder, below, fed = 0, 0, narrow, narrow + hidden
    for width in widths:
        encoder += 2 * 4 * width * (below + width // 2)
        decoder += 2 * 4 * width * (fed + width)
        below = fed = width
    last = widths[-1]
    decoder += 2 * (last * last + 2 * last * hidden)
    own = written * (written / max(1, amounts.rows) + 1) / 2
    pairs = max(0.0, amounts.slots * amounts.keys - amounts.source_pairs - own)
    return encoded * encoder + written * decoder + (4 * last * pairs if written else 0.0)


def _products(settings: ModelSettings) -> tuple[int, int, int]:
    """Multiplications for a slot of an attention projection and of the feed-forward network; operations for a pair."""
    attended = settings.num_heads * head_width(settings)
    square = settings.hidden_size * attended
    inner = (3 if settings.gated else 2) * settings.hidden_size * settings.intermediate_size
    # Scores, position terms, mean of values.
    return square, inner, (6 if settings.positions == "transformer_xl" else 4) * attended


def _projection(settings: ModelSettings, slots: int) -> int:
    narrow = embedding_width(settings)
    return 2 * slots * narrow * settings.hidden_size if narrow != settings.hidden_size else 0
