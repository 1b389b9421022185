"""The same layers, some slots at a time: new slots read the keys and values that earlier ones left in a cache.

A slot's keys and values depend on what it reads and on nothing later, so a row may be computed in any number of calls, as
long as no slot reads a slot of a later call. `extend` computes the next slots of every row; who reads whom is a boolean mask,
so that the slots of a cache may be a history, several histories, or a tree of them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from unicloze.errors import UniclozeError
from unicloze.model.attention import SelfAttention, select_slots
from unicloze.model.backbone import Backbone, Layer, score_dtype
from unicloze.model.cache import Cache
from unicloze.model.plan import RelativeBias, additive

FEW = 8
"""If the keys are so many times the slots, the slots attend to the cache's whole capacity under their mask: in bf16 torch
copies keys and values that do not fill their tensor, which costs as much as attention itself."""


def extend(
    backbone: Backbone,
    cache: Cache,
    input_ids: Tensor,
    position_ids: Tensor,
    segment_ids: Tensor,
    reads: Tensor | None,
    *,
    select: slice | Tensor | None = None,
    local_width: int | None = None,
) -> Tensor:
    """Hidden states of the next slots of every row; their keys and values are written behind those the cache holds.

    `cache.filled` does not change: what is to stay there the caller counts in.

    Args:
        backbone: The layers.
        cache: Has room for the slots.
        input_ids: Tokens; several slots may stand for one position. *Shape:* (rows, positions, slots of a position)
        position_ids: *Shape:* (rows or 1, positions), 1 only if the cache is empty
        segment_ids: *Shape:* (rows or 1, positions)
        reads: Which keys each slot reads, of those in the cache and these, which follow them; all if None.
            *Shape:* (rows or 1, slots or 1, keys)
        select: Of the last layer return these slots only: the same ones in all rows, or for each row its own,
            *Shape:* (rows, selected). All if None.
        local_width: How many positions back a slot reads in the layers that read nearby slots only.

    Raises:
        UniclozeError: A layer reads nearby slots only, and how far they are is not given.

    Returns:
        *Shape:* (rows, slots or selected, hidden size)
    """
    copies = input_ids.shape[2]
    first, slots = cache.filled, input_ids.shape[1] * copies
    last = first + slots
    cache.positions[:, first:last] = position_ids.repeat_interleave(copies, dim=1)
    hidden = backbone.embeddings.embed(input_ids, position_ids[:, :, None], segment_ids[:, :, None], None).flatten(1, 2)
    dtype = score_dtype(hidden)
    if reads is not None and FEW * slots <= last < cache.capacity:
        reads, last = functional.pad(reads, (0, cache.capacity - last)), cache.capacity
    key_positions = cache.positions[: len(position_ids), :last]
    biases = {"full": _bias(backbone.relative, position_ids, copies, key_positions, reads, dtype)}
    if "local" in backbone.visibility:
        near = _near(position_ids, copies, key_positions, local_width)
        near = near if reads is None else near & reads
        biases["local"] = _bias(backbone.relative, position_ids, copies, key_positions, near, dtype)
    for number, (layer, name) in enumerate(zip(backbone.layers, backbone.visibility, strict=True)):
        chosen = select if number == len(backbone.layers) - 1 else None
        hidden = _layer(layer, hidden, cache.keys[number], cache.values[number], (first, last), biases[name], chosen)
    normed: Tensor = backbone.final_norm(hidden)
    return normed


def _near(positions: Tensor, copies: int, key_positions: Tensor, width: int | None) -> Tensor:
    """Which keys stand at most `width` positions before each slot. *Shape:* (rows, slots, keys)"""
    if width is None:
        raise UniclozeError(
            "model.layer_visibility names 'local' and this row has no such visibility: use objective.name causal with "
            "objective.local_width"
        )
    furthest = (positions - width).repeat_interleave(copies, dim=1)
    return key_positions[:, None, :] >= furthest[:, :, None]


def _bias(
    relative: RelativeBias | None,
    positions: Tensor,
    copies: int,
    key_positions: Tensor,
    reads: Tensor | None,
    dtype: torch.dtype,
) -> list[Tensor]:
    """What is added to the scores, one after the other. *Shape:* (rows or 1, heads or 1, slots or 1, keys) each"""
    bias = [] if reads is None else [additive(reads, dtype)]
    if relative is None:
        return bias
    distance: Tensor = relative(positions, key_positions).to(dtype)
    if copies > 1:
        distance = distance.repeat_interleave(copies, dim=2)
    if bias and len(bias[0]) == len(distance):
        return [distance.add_(bias[0])]
    return [distance, *bias]


def _layer(
    layer: nn.Module,
    hidden: Tensor,
    keys: Tensor,
    values: Tensor,
    places: tuple[int, int],
    bias: list[Tensor],
    select: slice | Tensor | None,
) -> Tensor:
    assert isinstance(layer, Layer)
    normed = layer.attention_norm(hidden) if layer.norm_first else hidden
    update = _attention(layer.attention, normed, keys, values, places, bias, select)
    return layer.complete(_selected(hidden, select), update, None)


def _attention(
    attention: SelfAttention,
    hidden: Tensor,
    keys: Tensor,
    values: Tensor,
    places: tuple[int, int],
    bias: list[Tensor],
    select: slice | Tensor | None,
) -> Tensor:
    rows, slots, width = hidden.shape
    heads, (first, last) = attention.num_heads, places
    fused = attention.qkv(hidden)
    query, key, value = fused.view(rows, slots, 3, heads, width // heads).unbind(2)
    keys[:, :, :, first : first + slots].copy_(key.permute(0, 2, 3, 1))
    values[:, :, first : first + slots].copy_(value.transpose(1, 2))
    if isinstance(select, slice) and select.stop == 0:
        return hidden[:, :0]
    asking = _selected(query.flatten(2), select).unflatten(2, (heads, -1)) if select is not None else query
    asking = (asking * asking.shape[-1] ** -0.5).transpose(1, 2).flatten(0, 1)
    scores = torch.bmm(asking, keys[:, :, :, :last].flatten(0, 1)).unflatten(0, (rows, heads))
    for addend in bias:
        scores.add_(addend if select is None or addend.shape[2] == 1 else _selected_bias(addend, select))
    attended = torch.bmm(torch.softmax(scores, dim=-1).flatten(0, 1), values[:, :, :last].flatten(0, 1))
    projected: Tensor = attention.output(attended.unflatten(0, (rows, heads)).transpose(1, 2).flatten(2))
    return projected


def _selected(hidden: Tensor, select: slice | Tensor | None) -> Tensor:
    if select is None:
        return hidden
    return hidden[:, select] if isinstance(select, slice) else select_slots(hidden, select)


def _selected_bias(bias: Tensor, select: slice | Tensor) -> Tensor:
    if isinstance(select, slice):
        return bias[:, :, select]
    index = select[:, None, :, None].expand(-1, bias.shape[1], -1, bias.shape[3])
    return bias.expand(len(select), -1, -1, -1).gather(2, index)
