"""Multi-head attention: its weights, and softmax(Q K^T / sqrt(d) + bias) V by region and backend."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from unicloze.model.attention_plan import Backend, Region
from unicloze.model.dropout import DropoutKey
from unicloze.model.transformer_xl import RelativeTerms
from unicloze.settings import ModelSettings


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    region: Region,
    *,
    backend: Backend,
    dropout: DropoutKey | None,
    rate: float,
    scale: float,
) -> Tensor:
    """Attention within one region: softmax(scale Q K^T + bias) V.

    Args:
        query: *Shape:* (rows, heads, queries, head size)
        key: *Shape:* (rows, heads, keys, head size)
        value: *Shape:* (rows, heads, keys, head size)
        region: The keys the queries may read, with their bias.
        backend: `explicit` computes the scores by matrix products; `sdpa` and `flex` are torch's fused kernels.
        dropout: Dropout of this forward pass; None in evaluation.
        rate: Dropout rate of the attention probabilities.
        scale: Factor of the scores, see `score_scale`.

    Returns:
        *Shape:* (rows, heads, queries, head size)
    """
    if region.block_mask is not None:
        kernel = _flex_kernel(query.is_cuda)
        return kernel(query, key, value, region.score_mod, block_mask=region.block_mask, scale=scale)
    if backend != "explicit" and (dropout is None or rate == 0 or query.is_cuda):
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=region.bias, dropout_p=rate if dropout is not None else 0.0, scale=scale
        )
    scores = (query * scale) @ key.transpose(-1, -2)
    if region.bias is not None:
        scores = scores + region.bias if region.bias.requires_grad else scores.add_(region.bias)
    probabilities = torch.softmax(scores, dim=-1)
    if dropout is not None:
        probabilities = dropout(probabilities, rate)
    return probabilities @ value


@functools.cache
def _flex_kernel(compiled: bool) -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    kernel: Any = torch.compile(flex_attention) if compiled else flex_attention
    return kernel  # type: ignore[no-any-return]


def head_width(settings: ModelSettings) -> int:
    """Width of an attention head."""
    return settings.head_size or settings.hidden_size // settings.num_heads


def score_scale(settings: ModelSettings) -> float:
    """Factor of the attention scores: 1 / sqrt(head size), or 1 without scaling (T5)."""
    return float(head_width(settings) ** -0.5) if settings.scale_scores else 1.0


class SelfAttention(nn.Module):
    """Weights of multi-head self-attention, with one fused projection to queries, keys and values, in that order.

    With Transformer-XL's encoding the projections have no bias, and `RelativeTerms` are added to the scores. The readers
    (`unicloze.model.readers`) compute attention with these weights.
    """

    FUSED = {"qkv": 3}  # noqa: RUF012
    """Projections of several equal matrices, one above the other, and how many; optimisers treat each by itself."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.num_heads = settings.num_heads
        self.rate = settings.attention_dropout
        self.scale = score_scale(settings)
        relative = settings.positions == "transformer_xl"
        biases, self.width = settings.biases and not relative, settings.num_heads * head_width(settings)
        self.qkv = nn.Linear(settings.hidden_size, 3 * self.width, bias=biases)
        self.output = nn.Linear(self.width, settings.hidden_size, bias=biases)
        self.terms = RelativeTerms(settings) if relative else None


def in_one_row(hidden: Tensor) -> Tensor:
    """Concatenate all rows into one. *Shape:* (rows, slots, hidden size) to (1, rows x slots, hidden size)"""
    return hidden.flatten(0, 1)[None]


def select_slots(hidden: Tensor, slots: Tensor) -> Tensor:
    """Gather the hidden states of some slots of each row.

    Args:
        hidden: *Shape:* (rows, slots, hidden size)
        slots: *Shape:* (rows, predictions)

    Returns:
        *Shape:* (rows, predictions, hidden size)
    """
    flat = slots + torch.arange(len(slots), device=slots.device)[:, None] * hidden.shape[1]
    chosen: Tensor = hidden.flatten(0, 1).index_select(0, flat.flatten()).unflatten(0, slots.shape)
    return chosen


def score_dtype(hidden: Tensor) -> torch.dtype:
    """Data type of attention: autocast's where it is enabled, else that of `hidden`."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype


def choose_backend(hidden: Tensor, dtype: torch.dtype, relative: bool) -> Backend:
    """The attention backend measured fastest for a device, data type and bias.

    On a CPU, explicit scores win in bf16 and with a trained bias, torch's SDPA kernel in fp32 without one. On a GPU the SDPA
    kernel handles every case; FlexAttention is for runs that need not be repeated bit for bit.
    """
    if hidden.device.type == "cpu" and (dtype != torch.float32 or relative):
        return "explicit"
    return "sdpa"
