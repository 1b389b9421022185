"""Attention whose mask is data: softmax(Q K^T / sqrt(d) + bias) V, region by region."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from unicloze.model.dropout import DropoutKey
from unicloze.model.transformer_xl import RelativeTerms
from unicloze.model.visibility_plan import Backend, Region
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
) -> Tensor:
    """Attention of one region: softmax(Q K^T / sqrt(d) + bias) V.

    Args:
        query: *Shape:* (rows, heads, queries, head size)
        key: *Shape:* (rows, heads, keys, head size)
        value: *Shape:* (rows, heads, keys, head size)
        region: What the queries may read.
        backend: `explicit` multiplies out the scores, `sdpa` and `flex` are torch's fused kernels.
        dropout: Dropout of this forward pass, None in evaluation.
        rate: Dropout rate of the probabilities.

    Returns:
        *Shape:* (rows, heads, queries, head size)
    """
    if region.block is not None:
        return _flex_kernel(query.is_cuda)(query, key, value, block_mask=region.block)
    if backend == "sdpa" and (dropout is None or rate == 0 or query.is_cuda):
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=region.bias, dropout_p=rate if dropout is not None else 0.0
        )
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
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


class SelfAttention(nn.Module):
    """Multi-head self-attention with one fused projection to queries, keys and values, in that order.

    With Transformer-XL's encoding the projections have no biases of their own, and the scores have `RelativeTerms`. It holds
    the weights; the readers (`unicloze.model.readers`) compute with them.
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.num_heads = settings.num_heads
        self.rate = settings.attention_dropout
        relative = settings.positions == "transformer_xl"
        self.qkv = nn.Linear(settings.hidden_size, 3 * settings.hidden_size, bias=not relative)
        self.output = nn.Linear(settings.hidden_size, settings.hidden_size, bias=not relative)
        self.terms = RelativeTerms(settings) if relative else None


def in_one_row(hidden: Tensor) -> Tensor:
    """The slots of all rows side by side. *Shape:* (rows, slots, hidden size) to (1, rows x slots, hidden size)"""
    return hidden.flatten(0, 1)[None]


def select_slots(hidden: Tensor, slots: Tensor) -> Tensor:
    """The hidden states of some slots of each row.

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
    """Data type attention computes in: autocast's where it is on."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype


def choose_backend(hidden: Tensor, dtype: torch.dtype, relative: bool) -> Backend:
    """The implementation of attention that measured fastest for what is asked.

    On a CPU, multiplying out the scores wins in bf16, and torch's kernel in fp32 as long as no gradient flows into the
    bias. On a GPU torch's kernel can do everything; FlexAttention has to be asked for.
    """
    if hidden.device.type == "cpu" and (dtype != torch.float32 or relative):
        return "explicit"
    return "sdpa"
