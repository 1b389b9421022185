"""Counts the floating-point operations of matrix products, a multiply and an add as two.

Cheap operations are ignored: look-ups (with them the character convolutions, once per distinct token), normalisations,
activations, softmax, dropout, losses and the optimiser; in Transformer-XL's encoding also the projection of distances, once
per batch and layer, and the segment term. Only necessary work counts: no padding, and no keys that a slot does not read.
"""

from __future__ import annotations

from torch import nn

from unicloze.model.attention import head_width
from unicloze.model.backbone import embedding_width
from unicloze.settings import ModelSettings

TRAINING = 3
"""Forward and backward pass together, relative to the forward pass."""


def linear_flops(module: nn.Module) -> int:
    """Forward operations of a module's linear layers and LSTMs for one vector."""
    products = 0
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            products += layer.weight.numel()
        elif isinstance(layer, nn.LSTM):
            products += sum(weight.numel() for weight in layer.parameters() if weight.ndim == 2)
    return 2 * products


def backbone_flops(settings: ModelSettings, *, slots: int, selected: int, keys: float, memory_slots: int = 0) -> float:
    """Forward operations of the embeddings and all layers.

    Args:
        settings: Model shape.
        slots: Number of slots in all rows.
        selected: Number of slots that predict anything; the last layer has only their queries and outputs.
        keys: Average number of keys a slot attends to, over all layers.
        memory_slots: Number of memory slots in all rows, which are only keys and values.
    """
    square, inner, pair = _products(settings)
    remembered = 4 * memory_slots * square
    adapters = 4 * settings.hidden_size * settings.adapter_size  # two products
    full = 2 * slots * (4 * square + inner + adapters) + slots * keys * pair + remembered
    last = (
        2 * (slots * 2 + selected * 2) * square
        + 2 * selected * (inner + adapters)
        + selected * keys * pair
        + remembered
    )
    return _projection(settings, slots) + (settings.num_layers - 1) * full + last


def two_stack_flops(
    settings: ModelSettings, *, slots: int, pairs: float, source_slots: int, source_pairs: int
) -> float:
    """Forward operations of an encoder-decoder, for all slots of both.

    Args:
        settings: Model shape.
        slots: Number of slots in all rows.
        pairs: Pairs of a slot and a slot it reads; the decoder reads those of the source by cross-attention.
        source_slots: Slots of the sources.
        source_pairs: Pairs within the sources.
    """
    square, inner, pair = _products(settings)
    adapters = 2 * settings.hidden_size * settings.adapter_size
    encoder = 2 * source_slots * (4 * square + inner + 2 * adapters) + source_pairs * pair
    targets = slots - source_slots
    decoder = (
        2 * targets * (6 * square + inner + 3 * adapters) + 4 * source_slots * square + (pairs - source_pairs) * pair
    )
    return _projection(settings, slots) + settings.num_layers * encoder + settings.decoder_layers * decoder


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
