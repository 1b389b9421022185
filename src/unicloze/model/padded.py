"""Rows of texts from an attention mask, made in torch alone: what other libraries and exported programs call a model with.

`collate` makes a batch of examples that NumPy laid out. Here nothing but tensors goes in, so that `torch.export` can follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unicloze.errors import UsageError
from unicloze.example import Batch, Leading
from unicloze.visibility import nearby, real_rows


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
    both_ways = rule.visibility == "bidirectional"
    intervals = real_rows(real, both_ways=both_ways)
    mutual = slots if attention_mask is None and both_ways else 0
    return Batch(
        input_ids=input_ids,
        position_ids=positions_of(real) if position_ids is None else position_ids,
        segment_ids=named_segments(rule.segment_ids, torch.zeros_like(input_ids) if part is None else part),
        intervals=intervals,
        leading=Leading(slots=mutual, keys=mutual, alike=True, in_order=position_ids is None, shorter=None),
        targets={},
        text_tokens=rows * slots,
        local=None if both_ways or rule.local_width is None else nearby(intervals, rule.local_width),
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
