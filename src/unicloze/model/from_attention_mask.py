"""Rows from token ids and an attention mask, made in torch alone: how other libraries and exported programs call a model.

`collate` makes a batch of examples that NumPy laid out. Here nothing but tensors goes in, so that `torch.export` can follow.

A text to be read becomes a `Batch`. To write a target after a source, slots go in with the keys and values of those before
them. The source reads itself, the target reads the source and its own past (UniLM v1, Section 2.3). The next token is
predicted in one of two ways:

    pseudo    a pseudo mask stands where the token will, with its position and segment, and reads what the token would
              (UniLMv2, Section 3.4). It is a target slot like any other, but its keys and values are thrown away.
    next      the last token predicts it (GPT; UniLM v1 reads so where it is trained so)

So one rule of visibility serves prompts, steps and whole rows, and padding may stand wherever the mask says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unicloze import visibility_masks as masks
from unicloze.errors import UsageError
from unicloze.example import Batch, Leading


@dataclass(frozen=True, kw_only=True)
class EncodingRule:
    """How a model reads a text.

    Args:
        visibility: Who reads whom.
        segment_ids: Rows of the segment table that a text and its second part take.
        local_width: Slots to the left a slot reads in the layers whose visibility is `local`.
    """

    visibility: Literal["bidirectional", "left_to_right"] = "bidirectional"
    segment_ids: tuple[int, int] = (0, 1)
    local_width: int | None = None


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


def positions_of(real: Tensor) -> Tensor:
    """Position of each slot: how many real slots stand before it. *Shape:* (rows, slots) to the same"""
    return (real.long().cumsum(1) - 1).clamp(min=0)


def named_segments(segment_ids: tuple[int, int], part: Tensor) -> Tensor:
    """Rows of the segment table for slots that say which part they belong to, 0 or 1. *Shape:* that of `part`"""
    return torch.where(part > 0, segment_ids[1], segment_ids[0])


def check_positions(real_slots: Tensor, slots: int, max_positions: int) -> None:
    """Refuse rows longer than the position table.

    Args:
        real_slots: Real slots of each row; looked at only where padding could make up the difference. *Shape:* (rows,)
        slots: Slots of a row, padding included.
        max_positions: Rows of the table.

    Raises:
        UsageError: A row is too long.
    """
    if torch.compiler.is_compiling() or slots <= max_positions:
        return
    longest = int(real_slots.max())
    if longest > max_positions:
        raise UsageError(
            f"a row has {longest} tokens and the model has {max_positions} positions: truncate it "
            f"(a tokenizer does with truncation=True, max_length={max_positions})"
        )


def encoding_batch(
    input_ids: Tensor,
    attention_mask: Tensor | None,
    part: Tensor | None,
    position_ids: Tensor | None,
    *,
    rule: EncodingRule,
    max_positions: int,
) -> Batch:
    """A batch of texts to be read with nothing predicted. Padding may stand at either end of a row; it reads only itself.

    Args:
        input_ids: *Shape:* (rows, slots)
        attention_mask: 1 where a slot is real; all are if None. *Shape:* (rows, slots)
        part: 0 for the text, 1 for its second part; 0 if None. *Shape:* (rows, slots)
        position_ids: Counted over the real slots of a row if None. *Shape:* (rows, slots)
        rule: How the model reads.
        max_positions: Rows of the position table.

    Raises:
        UsageError: A row is too long, or padding stands between its real slots.
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
        segment_ids=named_segments(rule.segment_ids, torch.zeros_like(input_ids) if part is None else part),
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
        positions=key_positions.index_select(1, torch.arange(slots, device=device) + earlier),
        key_positions=key_positions,
        visible=masks.continuation_mask(real, in_target, earlier=earlier, both_ways=rule.source == "bidirectional"),
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
        visible=masks.with_pseudo_masks(slots.visible, masks.in_place_of(slots.visible, labelled)),
    )


def _check_contiguous(real: Tensor) -> None:
    if torch.compiler.is_compiling():
        return
    begins = real[:, 1:] & ~real[:, :-1]
    broken = (begins.sum(1) + real[:, :1].sum(1) > 1).nonzero()
    if len(broken):
        raise UsageError(
            f"attention_mask has a gap in row {int(broken[0])}: padding stands at the beginning or the end of a row, not "
            "between its tokens"
        )
