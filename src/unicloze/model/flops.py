"""Counts the floating-point operations of matrix products, a multiply and an add as two.

Cheap operations are ignored: look-ups, normalisations, activations, softmax, dropout, losses and the optimiser; in
Transformer-XL's encoding also the projection of distances, once per batch and layer, and the segment term. Only necessary
work counts: no padding, and no keys that a slot does not read.
"""

from __future__ import annotations

from torch import nn

from unicloze.model.backbone import embedding_width
from unicloze.settings import ModelSettings

TRAINING = 3
"""Forward and backward pass together, relative to the forward pass."""


def linear_flops(module: nn.Module) -> int:
    """Forward operations of a module's linear layers for one vector."""
    return sum(2 * layer.weight.numel() for layer in module.modules() if isinstance(layer, nn.Linear))


def backbone_flops(settings: ModelSettings, *, slots: int, selected: int, keys: float, memory_slots: int = 0) -> float:
    """Forward operations of the embeddings and all layers.

    Args:
        settings: Model shape.
        slots: Number of slots in all rows.
        selected: Number of slots that predict anything; the last layer has only their queries and outputs.
        keys: Average number of keys a slot attends to, over all layers.
        memory_slots: Number of memory slots in all rows, which are only keys and values.
    """
    width, inner, narrow = settings.hidden_size, settings.intermediate_size, embedding_width(settings)
    pair = (6 if settings.positions == "transformer_xl" else 4) * width  # scores, position terms, mean of values
    remembered = 4 * memory_slots * width * width
    full = 2 * slots * (4 * width * width + 2 * width * inner) + slots * keys * pair + remembered
    last = (
        2 * (slots * 2 + selected * 2) * width * width
        + 4 * selected * width * inner
        + selected * keys * pair
        + remembered
    )
    adapters = 8 * width * settings.adapter_size  # of one slot: two adapters of two products each
    full, last = full + slots * adapters, last + selected * adapters
    projection = 2 * slots * narrow * width if narrow != width else 0
    return projection + (settings.num_layers - 1) * full + last
