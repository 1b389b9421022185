"""Initial weights: normal or truncated with one standard deviation for all, or T5's by the widths of each matrix.

In fine-tuning a few weights may learn: which ones, and adding and merging low-rank updates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from unicloze.model.adapters import DEVIATION, Adapter, LowRankLinear
from unicloze.model.attention import RelativeBias, SelfAttention, head_width
from unicloze.model.backbone import Backbone, Embeddings
from unicloze.model.encoder_decoder import CrossAttention
from unicloze.model.heads import TokenHead
from unicloze.model.layers import FeedForward
from unicloze.model.recurrent.backbone import RecurrentBackbone
from unicloze.model.recurrent.layers import CharacterCnn, draw_lstm
from unicloze.model.recurrent.translation import TranslationBackbone
from unicloze.model.task_heads import Biattention, LayerMix, WordEncoder
from unicloze.settings import FinetuningSettings, ModelSettings

Deviations = Mapping[int, Sequence[float]]
"""Standard deviations of the weights of some modules, by id; several for equal parts of the rows."""


def draw_weights(model: nn.Module, backbone: Backbone | RecurrentBackbone | TranslationBackbone, seed: int) -> None:
    """Draw the weights from normal distributions, truncated for BERT's; biases are zero and normalisations one.

    LSTMs are drawn as `nn.LSTM` does, and their embeddings uniformly. Adapters start near the identity. Low-rank updates,
    biLSTMs of heads and biattentive heads are drawn last, so that the other weights of heads start the same with and without.

    Args:
        model: The model.
        backbone: Its backbone.
        seed: Seed of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    settings = backbone.settings
    deviations: dict[int, Sequence[float]] = {}
    if settings.initializer == "t5":
        deviations |= _t5_deviations(model, settings)
    elif settings.scaled_init and isinstance(
        backbone, Backbone
    ):  # smaller where they write into the residual stream (GPT-2)
        smaller = settings.initializer_range / math.sqrt(2 * settings.num_layers)
        deviations |= {id(module): (smaller,) for module in backbone.residual_writers()}
    adapters = [module for module in model.modules() if isinstance(module, Adapter)]
    deviations |= {id(linear): (DEVIATION,) for adapter in adapters for linear in (adapter.down, adapter.up)}
    updated = [module for module in model.modules() if isinstance(module, LowRankLinear)]
    encoders = [module for module in model.modules() if isinstance(module, WordEncoder | Biattention)]
    apart = {id(inner) for encoder in encoders for inner in encoder.modules() if not isinstance(inner, nn.BatchNorm1d)}
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.LayerNorm | nn.RMSNorm | nn.BatchNorm1d):
                module.weight.fill_(1)
                if not isinstance(module, nn.RMSNorm):
                    module.bias.zero_()
                continue
            if isinstance(module, LayerMix):
                module.initialize()
                continue
            if id(module) in apart:
                continue
            for name, parameter in module.named_parameters(recurse=False):
                if name == "bias":
                    parameter.zero_()
                    continue
                if isinstance(module, LowRankLinear) and name != "weight":
                    continue
                each = deviations.get(id(module), (settings.initializer_range,))
                for part, deviation in zip(parameter.chunk(len(each)), each, strict=True):
                    if settings.initializer == "truncated_normal":
                        most = 2 * deviation
                        nn.init.trunc_normal_(part, std=deviation, a=-most, b=most, generator=generator)
                    else:
                        part.normal_(0, deviation, generator=generator)
        if settings.relative_start == "neighbours":
            for module in model.modules():
                if isinstance(module, RelativeBias):
                    module.raise_neighbours()
        for layer in updated:
            layer.draw(generator)
        for encoder in encoders:
            encoder.initialize(generator)
    if not isinstance(backbone, Backbone):
        _draw_lstms(backbone, settings.initializer_range, seed)


def _draw_lstms(backbone: nn.Module, initializer_range: float, seed: int) -> None:
    """Draw LSTMs as `nn.LSTM` does, embeddings uniformly within the initializer range, characters as ELMo does."""
    generator = torch.Generator().manual_seed(seed)
    of_characters = [inner for one in backbone.modules() if isinstance(one, CharacterCnn) for inner in one.modules()]
    with torch.no_grad():
        for module in backbone.modules():
            if isinstance(module, nn.LSTM):
                draw_lstm(module, generator)
            elif isinstance(module, CharacterCnn):
                module.initialize(generator)
            elif isinstance(module, nn.Embedding) and module not in of_characters:
                module.weight.uniform_(-initializer_range, initializer_range, generator=generator)


def _t5_deviations(model: nn.Module, settings: ModelSettings) -> Deviations:
    """Those of T5's released code: 1 for the token embeddings, and for a matrix by the width of its input.

    Queries are drawn smaller by the square root of the head size, in place of the scaling of the scores.
    """
    hidden, head = settings.hidden_size, head_width(settings)
    inner, query = hidden**-0.5, (hidden * head) ** -0.5
    found: dict[int, Sequence[float]] = {}
    for module in model.modules():
        if isinstance(module, SelfAttention):
            found[id(module.qkv)] = query, inner, inner
            found[id(module.output)] = (module.width**-0.5,)
        elif isinstance(module, CrossAttention):
            found[id(module.query)] = (query,)
            found[id(module.key_value)] = (inner,)
            found[id(module.output)] = (module.width**-0.5,)
        elif isinstance(module, FeedForward):
            found |= {id(part): (inner,) for part in (module.inner, module.gate) if part is not None}
            found[id(module.output)] = (settings.intermediate_size**-0.5,)
        elif isinstance(module, RelativeBias | TokenHead):
            found[id(module)] = (inner,)
        elif isinstance(module, Embeddings):
            found[id(module.tokens)] = (1.0,)
    return found


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
