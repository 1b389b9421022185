"""Builds rows from token ids and an attention mask, in pure torch, for Transformers and exported programs.

`collate` makes batches of examples laid out in NumPy. Here every input is a tensor, so `torch.export` can trace it.

To encode a text, a `Batch` is made. To generate a target after a source, new slots are processed with the keys and values
of the earlier ones. The source reads itself; the target reads the source and its own past (UniLM v1, Section 2.3). The
next token is predicted in one of two ways:

    pseudo    at a pseudo mask with the position and segment of that token, which reads what the token would read
              (UniLMv2, Section 3.4). It is an ordinary target slot whose keys and values are discarded.
    next      at the previous token (GPT; UniLM v1 if trained that way)

One visibility rule covers prompts, steps and whole rows; padding may be wherever the mask says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unicloze import visibility_masks as masks
from unicloze.errors import UsageError
from unicloze.example import Batch, Leading
from unicloze.settings import Reading


@dataclass(frozen=True, kw_only=True)
class StepInputs:
    """How a model generates a target."""

    predicts: Literal["pseudo", "next"]  # `pseudo` at a pseudo mask, `next` at the previous token
    # whether the source reads itself in both directions or left to right
    source: Literal["bidirectional", "left_to_right"] = "bidirectional"
    segment_ids: tuple[int, int] = (0, 1)  # segment ids of source and target
    pseudo: int | None = None  # id of the pseudo mask
    local_width: int | None = None  # how many slots to its left a slot reads in `local` layers


@dataclass(frozen=True, kw_only=True)
class Slots:
    """Some slots of every row, and all slots they may read: the earlier ones and themselves."""

    input_ids: Tensor  # *Shape:* (rows, slots)
    segment_ids: Tensor  # *Shape:* (rows, slots)
    positions: Tensor  # *Shape:* (rows, slots)
    key_positions: Tensor  # Positions of all slots they may read, earlier ones first. *Shape:* (rows, keys)
    visible: Tensor  # True where a slot reads a key. *Shape:* (rows, slots, keys)


def positions_of(real: Tensor) -> Tensor:
    """Position of each slot: the number of real slots before it. *Shape:* (rows, slots) to the same"""
    return (real.long().cumsum(1) - 1).clamp(min=0)


def named_segments(segment_ids: tuple[int, int], part: Tensor) -> Tensor:
    """Segment ids of slots, given the part each belongs to (0 or 1). *Shape:* that of `part`"""
    return torch.where(part > 0, segment_ids[1], segment_ids[0])


def check_positions(real_slots: Tensor, slots: int, max_positions: int, *, generates: bool = False) -> None:
    """Reject rows longer than the position table.

    Args:
        real_slots: Number of real slots per row; read only if the padded row is too long. *Shape:* (rows,)
        slots: Slots per row, padding included.
        max_positions: Rows of the table.
        generates: Whether a row is a source with its target, for the message.
    """
    if torch.compiler.is_compiling() or slots <= max_positions:
        return
    longest = int(real_slots.max())
    if longest > max_positions and generates:
        raise UsageError(
            f"source and target together have {longest} tokens and the model has {max_positions} positions: truncate the "
            f"source to at most {max_positions} - max_new_tokens, or lower max_new_tokens"
        )
    if longest > max_positions:
        raise UsageError(
            f"a row has {longest} tokens and the model has {max_positions} positions: truncate it "
            f"(call the tokenizer with truncation=True, max_length={max_positions})"
        )


def encoding_batch(
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    part: Tensor | None = None,
    position_ids: Tensor | None = None,
    *,
    rule: Reading,
    max_positions: int,
) -> Batch:
    """A batch of texts to encode, without targets. Padding may be at either end of a row; it reads only itself.

    Args:
        input_ids: *Shape:* (rows, slots)
        attention_mask: 1 where a slot is real; default: all. *Shape:* (rows, slots)
        part: 0 for the text, 1 for its second part; default: 0. *Shape:* (rows, slots)
        position_ids: Default: counted over the real slots of each row. *Shape:* (rows, slots)
        rule: How the model encodes.
        max_positions: Rows of the position table.
    """
    rows, slots = input_ids.shape
    real = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask != 0
    _check_contiguous(real)
    if position_ids is None:
        check_positions(real.sum(1), slots, max_positions)
    both_ways, width = rule.visibility == "bidirectional", rule.local_width
    mutual = slots if attention_mask is None and both_ways else 0
    return Batch(
        input_ids=input_ids,
        position_ids=positions_of(real) if position_ids is None else position_ids,
        segment_ids=named_segments(rule.segments, torch.zeros_like(input_ids) if part is None else part),
        intervals=masks.real_rows(real, both_ways=both_ways),
        leading=Leading(slots=mutual, keys=mutual, alike=True, in_order=position_ids is None, shorter=None),
        targets={},
        text_tokens=rows * slots,
        local=None if both_ways or width is None else masks.real_rows(real, both_ways=both_ways, width=width),
    )


def slots_of(
    input_ids: Tensor,
    attention_mask: Tensor | None,
    part: Tensor | None,
    *,
    rule: StepInputs,
    earlier: int,
    max_positions: int,
) -> Slots:
    """New slots of rows, some of which may have been processed already.

    Args:
        input_ids: The new slots. *Shape:* (rows, slots)
        attention_mask: 1 where a slot is real, earlier slots included; default: all. *Shape:* (rows, earlier + slots)
        part: 0 for source, 1 for target, of the new slots; default: 0. *Shape:* (rows, slots)
        rule: How the model generates.
        earlier: Number of slots whose keys and values are cached.
        max_positions: Rows of the position table.
    """
    rows, slots = input_ids.shape
    device = input_ids.device
    keys = earlier + slots
    real = torch.ones(rows, keys, dtype=torch.bool, device=device) if attention_mask is None else attention_mask != 0
    check_positions(real.sum(1), keys, max_positions, generates=True)
    in_target = torch.zeros_like(input_ids, dtype=torch.bool) if part is None else part > 0
    key_positions = positions_of(real)
    return Slots(
        input_ids=input_ids,
        segment_ids=named_segments(rule.segment_ids, in_target),
        positions=key_positions.index_select(1, torch.arange(slots, device=device) + earlier),
        key_positions=key_positions,
        visible=masks.continuation_mask(real, in_target, earlier=earlier, both_ways=rule.source == "bidirectional"),
    )


def with_pseudo_masks(slots: Slots, labelled: Tensor, pseudo: int, segment: int) -> Slots:
    """Append a pseudo mask for every labelled slot to whole rows (paper Section 3.4), as in training a generator.

    A pseudo mask reads itself and what its slot reads except that slot; no other slot reads it.

    Args:
        slots: All slots of the rows.
        labelled: The slots to predict, padded with arbitrary others. *Shape:* (rows, predictions)
        pseudo: Id of the pseudo mask.
        segment: Segment id of the pseudo masks.
    """
    positions = torch.cat([slots.positions, slots.positions.gather(1, labelled)], dim=1)
    return Slots(
        input_ids=torch.cat([slots.input_ids, torch.full_like(labelled, pseudo)], dim=1),
        segment_ids=torch.cat([slots.segment_ids, torch.full_like(labelled, segment)], dim=1),
        positions=positions,
        key_positions=positions,
        visible=masks.with_pseudo_masks(slots.visible, masks.in_place_of(slots.visible, labelled)),
    )


def _check_contiguous(real: Tensor) -> None:
    if torch.compiler.is_compiling():
        return
    begins = real[:, 1:] & ~real[:, :-1]
    broken = (begins.sum(1) + real[:, :1].sum(1) > 1).nonzero()
    if len(broken):
        raise UsageError(
            f"attention_mask has a gap in row {int(broken[0])}: padding must be at the beginning or the end of a row, not "
            "between its tokens"
        )
