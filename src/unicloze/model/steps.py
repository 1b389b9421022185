"""Writing a target after a source, in torch alone: slots in, with the keys and values of those before them.

A row is a source and the target after it. The source reads itself, the target reads the source and its own past (UniLM v1,
Section 2.3). The next token is predicted in one of two ways:

    pseudo    a pseudo mask stands where the token will, with its position and segment, and reads what the token would
              (UniLMv2, Section 3.4). It is a target slot like any other, but its keys and values are thrown away.
    next      the last token predicts it (GPT; UniLM v1 reads so where it is trained so)

So one rule of visibility serves prompts, steps and whole rows, and padding may stand wherever the mask says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unicloze import visibility
from unicloze.errors import UsageError
from unicloze.model.attention import SelfAttention, attend
from unicloze.model.backbone import Backbone, Layer, choose_backend, score_dtype
from unicloze.model.dropout import DropoutKey
from unicloze.model.padded import check_positions, named_segments, positions_of
from unicloze.model.plan import Backend, Region, additive

Extend = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
"""New keys and values of a layer to those of all slots. *Shape:* (rows, heads, slots, head size) each"""


@dataclass(frozen=True, kw_only=True)
class StepRule:
    """How a model writes a target.

    Args:
        predicts: `pseudo` at a pseudo mask, `next` at the token before.
        source: Whether the source reads itself in both directions or from left to right.
        segment_ids: Rows of the segment table that source and target take.
        pseudo: Id of the pseudo mask.
        local_width: Slots to the left a slot reads in the layers whose visibility is `local`.
    """

    predicts: Literal["pseudo", "next"]
    source: Literal["bidirectional", "left_to_right"] = "bidirectional"
    segment_ids: tuple[int, int] = (0, 1)
    pseudo: int | None = None
    local_width: int | None = None


@dataclass(frozen=True, kw_only=True)
class Slots:
    """Some slots of every row, and all the slots they may read: those before them and themselves.

    Args:
        input_ids: *Shape:* (rows, slots)
        segment_ids: *Shape:* (rows, slots)
        positions: *Shape:* (rows, slots)
        key_positions: Of all they may read, the earlier ones first. *Shape:* (rows, keys)
        visible: *Shape:* (rows, slots, keys)
    """

    input_ids: Tensor
    segment_ids: Tensor
    positions: Tensor
    key_positions: Tensor
    visible: Tensor


def check_steps(backbone: Backbone) -> None:
    """Refuse a model whose layers need more of earlier slots than their keys and values.

    Raises:
        UsageError: It is one.
    """
    if backbone.settings.positions == "transformer_xl":
        raise UsageError(
            "model.positions is transformer_xl: such a model cannot write a target step by step here, it can encode"
        )


def slots_of(
    input_ids: Tensor,
    attention_mask: Tensor | None,
    part: Tensor | None,
    *,
    rule: StepRule,
    earlier: int,
    max_positions: int,
) -> Slots:
    """New slots of rows of which some may have been read already.

    Args:
        input_ids: The new slots. *Shape:* (rows, slots)
        attention_mask: 1 where a slot is real, the earlier ones included; all are if None. *Shape:* (rows, earlier + slots)
        part: 0 for the source, 1 for the target, of the new slots; 0 if None. *Shape:* (rows, slots)
        rule: Who reads whom.
        earlier: Slots whose keys and values are known.
        max_positions: Rows of the position table.

    Raises:
        UsageError: A row is too long.
    """
    rows, slots = input_ids.shape
    device = input_ids.device
    keys = earlier + slots
    real = torch.ones(rows, keys, dtype=torch.bool, device=device) if attention_mask is None else attention_mask != 0
    check_positions(real.sum(1), keys, max_positions)
    in_target = torch.zeros_like(input_ids, dtype=torch.bool) if part is None else part > 0
    key_positions = positions_of(real)
    return Slots(
        input_ids=input_ids,
        segment_ids=named_segments(rule.segment_ids, in_target),
        positions=key_positions.narrow(1, earlier, slots),
        key_positions=key_positions,
        visible=visibility.continuation_mask(real, in_target, both_ways=rule.source == "bidirectional"),
    )


def with_pseudo_masks(slots: Slots, labelled: Tensor, pseudo: int, segment: int) -> Slots:
    """Whole rows with a pseudo mask after them for every labelled slot (paper Section 3.4): how a generator is trained.

    A pseudo mask stands for its slot and reads what that reads, but for the slot itself, and itself; nobody reads it.

    Args:
        slots: All slots of the rows.
        labelled: The slots to be predicted, side by side; others to fill up. *Shape:* (rows, predictions)
        pseudo: Id of the pseudo mask.
        segment: Its row of the segment table.
    """
    positions = torch.cat([slots.positions, slots.positions.gather(1, labelled)], dim=1)
    return Slots(
        input_ids=torch.cat([slots.input_ids, torch.full_like(labelled, pseudo)], dim=1),
        segment_ids=torch.cat([slots.segment_ids, torch.full_like(labelled, segment)], dim=1),
        positions=positions,
        key_positions=positions,
        visible=visibility.with_pseudo_masks(slots.visible, visibility.in_place_of(slots.visible, labelled)),
    )


def step_states(
    backbone: Backbone,
    slots: Slots,
    extend: Extend,
    *,
    local_width: int | None = None,
    dropout: DropoutKey | None = None,
) -> list[Tensor]:
    """Hidden states of some slots: of the embeddings and after each layer.

    Args:
        backbone: The model.
        slots: The slots, and what they read.
        extend: Is given each layer's new keys and values, and gives back those of all slots.
        local_width: Slots to the left a slot reads in `local` layers.
        dropout: Dropout of this forward pass; none if None.

    Returns:
        *Shape:* (rows, slots, hidden size) each
    """
    positions, key_positions = slots.positions, slots.key_positions
    hidden = backbone.embeddings.embed(slots.input_ids, positions, slots.segment_ids, dropout)
    dtype = score_dtype(hidden)
    backend = backbone.backend or choose_backend(hidden, dtype, backbone.relative is not None)
    distance_bias = None if backbone.relative is None else backbone.relative(positions, key_positions).to(dtype)
    regions = {}
    for name in dict.fromkeys(backbone.visibility):
        visible = slots.visible
        if name == "local":
            if local_width is None:
                raise UsageError(
                    "a layer of the model reads nearby slots only: the rule of its steps needs local_width"
                )
            visible = visible & (positions[:, :, None] - key_positions[:, None, :] <= local_width)
        bias = additive(visible, dtype)
        regions[name] = Region(
            0, positions.shape[1], key_positions.shape[1], bias if distance_bias is None else distance_bias + bias
        )
    states = [hidden]
    for number, (layer, name) in enumerate(zip(backbone.layers, backbone.visibility, strict=True)):
        assert isinstance(layer, Layer)
        normed = layer.attention_norm(states[-1]) if layer.norm_first else states[-1]
        update = _attention(layer.attention, number, extend, regions[name], backend, dropout, normed)
        states.append(layer.complete(states[-1], update, dropout))
    states[-1] = backbone.final_norm(states[-1])
    return states


def _attention(
    attention: SelfAttention,
    number: int,
    extend: Extend,
    region: Region,
    backend: Backend,
    dropout: DropoutKey | None,
    hidden: Tensor,
) -> Tensor:
    """Attention from new slots to all. *Shape:* (rows, slots, hidden size) to the same"""
    query, key, value = (
        part.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for part in attention.qkv(hidden).chunk(3, dim=-1)
    )
    key, value = extend(key, value, number)
    attended = attend(query, key, value, region, backend=backend, dropout=dropout, rate=attention.rate)
    projected: Tensor = attention.output(attended.transpose(1, 2).flatten(2))
    return projected
