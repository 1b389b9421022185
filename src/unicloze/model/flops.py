"""Floating-point operations of matrix products, a multiplication and an addition counted as two.

Left out is what takes hardly any time beside them: look-ups, normalisations, activations, softmax, dropout, losses and the
optimiser; of Transformer-XL's encoding also the projection of the distances, once per batch and layer, and the term of the
segments. Only what a step needs is counted: no padding, and no keys that a slot does not read.
"""

from __future__ import annotations

from torch import nn

from unicloze.model.backbone import embedding_width
from unicloze.settings import ModelSettings

TRAINING = 3
"""A step's backward pass takes two products for every one of its forward pass."""


def linear_flops(module: nn.Module) -> int:
    """Operations of a module's linear layers for one vector, forward."""
    return sum(2 * layer.weight.numel() for layer in module.modules() if isinstance(layer, nn.Linear))


def backbone_flops(settings: ModelSettings, *, slots: int, selected: int, keys: float, memory_slots: int = 0) -> float:
    """Operations of the embeddings and all layers, forward.

    Args:
        settings: The model's shape.
        slots: Slots in all rows.
        selected: Those of them that predict anything: the last layer asks and answers for no others.
        keys: Keys a slot attends to on average, over all layers.
        memory_slots: Slots of memory in all rows, which are keys and values only.
    """
    width, inner, narrow = settings.hidden_size, settings.intermediate_size, embedding_width(settings)
    pair = (6 if settings.positions == "transformer_xl" else 4) * width  # scores, their position terms, and the mean
    remembered = 4 * memory_slots * width * width
    full = 2 * slots * (4 * width * width + 2 * width * inner) + slots * keys * pair + remembered
    last = (
        2 * (slots * 2 + selected * 2) * width * width
        + 4 * selected * width * inner
        + selected * keys * pair
        + remembered
    )
    projection = 2 * slots * narrow * width if narrow != width else 0
    return projection + (settings.num_layers - 1) * full + last
