"""Fine-tuning a few weights of a model: which ones learn, and adding and merging low-rank updates."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from unicloze.model.adapters import Adapter, LowRankLinear
from unicloze.model.attention import SelfAttention
from unicloze.model.encoder_decoder import CrossAttention
from unicloze.model.layers import FeedForward
from unicloze.settings import FinetuningSettings

IN_ATTENTION = "query", "key", "value"
"""Projections that are stacked in one layer, in this order."""


def _linears(model: nn.Module, *kinds: type[nn.Module]) -> Iterator[tuple[nn.Module, str, nn.Module, tuple[str, ...]]]:
    """The projections of all layers of these classes: owner, attribute, layer, and the names of its blocks of outputs."""
    for module in list(model.modules()):
        places: dict[str, tuple[str, ...]] = {}
        if isinstance(module, SelfAttention):
            places = {"qkv": IN_ATTENTION, "output": ("output",)}
        elif isinstance(module, CrossAttention):
            places = {"query": ("query",), "key_value": ("key", "value"), "output": ("output",)}
        elif isinstance(module, FeedForward):
            places = {"inner": ("inner",), "output": ("outer",)}
        for attribute, names in places.items():
            part = getattr(module, attribute)
            if isinstance(part, kinds):
                yield module, attribute, part, names


def add_low_rank(model: nn.Module, settings: FinetuningSettings) -> None:
    """Replace the chosen projections of all layers by ones with a low-rank update; does nothing without a rank.

    The weights keep their names. `UnifiedModel.initialize` draws the updates.
    """
    if settings.lora_rank is None:
        return
    alpha = settings.lora_rank if settings.lora_alpha is None else settings.lora_alpha
    for owner, attribute, linear, names in _linears(model, nn.Linear):
        updated = [name in settings.lora_projections for name in names]
        if any(updated) and isinstance(linear, nn.Linear):
            rank, rate = settings.lora_rank, settings.lora_dropout
            setattr(owner, attribute, LowRankLinear(linear, updated, rank=rank, alpha=alpha, rate=rate))


def merge_low_rank(model: nn.Module) -> None:
    """Add all low-rank updates to the weights, which turns their layers into ordinary ones."""
    for owner, attribute, layer, _ in _linears(model, LowRankLinear):
        assert isinstance(layer, LowRankLinear)
        outputs, inputs = layer.weight.shape
        with torch.device("meta"):
            plain = nn.Linear(inputs, outputs, bias=layer.bias is not None)
        plain.weight = nn.Parameter(layer.merged_weight())
        if layer.bias is not None:
            plain.bias = nn.Parameter(layer.bias.detach().clone())
        setattr(owner, attribute, plain)


def learning(model: nn.Module, settings: FinetuningSettings) -> set[str]:
    """Names of the weights that learn: all, or the updates, or the adapters with the normalisations; and always the heads."""
    names = {name for name, _ in model.named_parameters()}
    if not settings.few:
        return names
    found = {name for name in names if not name.startswith("backbone.")}
    for place, module in model.named_modules():
        if isinstance(module, LowRankLinear):
            found |= {f"{place}.down", f"{place}.up"}
        elif settings.adapter_size and isinstance(module, Adapter | nn.LayerNorm | nn.RMSNorm):
            found |= {f"{place}.{name}" for name, _ in module.named_parameters()}
    return found & names
