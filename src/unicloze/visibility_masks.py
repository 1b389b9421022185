"""Visibility rules as boolean tensors, for rows given by an attention mask and for the slots of a generator.

Generated slots follow their source in no fixed order, as a tree of hypotheses or with gaps. The rules are boolean masks,
True where a query reads a key; only `real_rows` returns intervals.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unicloze.errors import UniclozeError
from unicloze.visibility import NOTHING_NEARBY, bool_mask


def real_rows(real: Tensor, *, both_ways: bool, width: int | None = None) -> Tensor:
    """`bidirectional_rows` or `left_to_right_rows` where padding is at either end, `nearby` if a width is given.

    Real slots are contiguous in `real`, and padding reads only itself. *Shape:* (rows, slots) to (rows, slots, 4), int32
    """
    slots = real.shape[1]
    slot = torch.arange(slots, device=real.device)
    seen, count = real.long().cumsum(1), real.long().sum(1, keepdim=True)
    first = (seen == 0).long().sum(1, keepdim=True)
    last = slots - (~real & (seen == count)).long().sum(1, keepdim=True)
    start = torch.where(real, first, slot)
    end = torch.where(real, last, slot + 1) if both_ways else (slot + 1).expand_as(start)
    if width is not None:
        start = torch.maximum(start, slot - width)
        end = torch.minimum(end, slot + width + 1) if both_ways else end
    nothing = torch.zeros_like(start)
    return torch.stack([start, end, nothing, nothing], dim=2).int()


def source_mask(real: Tensor, *, both_ways: bool) -> Tensor:
    """`real_rows` as a mask, for rows whose padding is never read; padding itself must read something, no matter what.

    *Shape:* (rows, slots) to (rows, slots, slots), or to (rows, 1, slots) if `both_ways`
    """
    if both_ways:
        return real[:, None, :]
    mask: Tensor = bool_mask(real_rows(real, both_ways=False), real.shape[1])
    return mask


def continuation_mask(real: Tensor, in_target: Tensor, *, earlier: int, both_ways: bool) -> Tensor:
    """`prefix_rows` or `left_to_right_rows` for the newest slots of rows with padding anywhere; every slot reads itself.

    Args:
        real: True where a slot is not padding, earlier slots first. *Shape:* (rows, keys)
        in_target: Which of the newest slots belong to the target rather than the source. *Shape:* (rows, slots)
        earlier: Number of earlier slots; passed explicitly because keys - slots would become a constant when traced.
        both_ways: Whether the source reads itself in both directions; the whole source must then be new.
    """
    (rows, slots), keys = in_target.shape, real.shape[1]
    key, query = torch.arange(keys, device=real.device), torch.arange(slots, device=real.device) + earlier
    read = (key <= query[:, None]).expand(rows, slots, keys)
    if both_ways:
        in_source = torch.cat([real.new_zeros(rows, earlier), ~in_target], dim=1)
        read = read | (~in_target[:, :, None] & in_source[:, None, :])
    return (read & real[:, None, :]) | (key == query[:, None])


def nearby_mask(positions: Tensor, key_positions: Tensor, width: int | None) -> Tensor:
    """Which keys are at most `width` positions away, see `nearby`.

    *Shape:* (rows, queries) and (rows, keys) to (rows, queries, keys)
    """
    if width is None:
        raise UniclozeError(NOTHING_NEARBY)
    return (positions[:, :, None] - key_positions[:, None, :]).abs() <= width


def hypothesis_mask(shared: Tensor, ancestors: Tensor) -> Tensor:
    """Hypotheses that each grow by one token: it reads the shared keys, its hypothesis's earlier tokens and itself.

    The keys are the shared ones, then the tokens (`ancestors`: those of each hypothesis), then the new tokens.
    *Shape:* (rows, shared keys) and (rows, hypotheses, tokens) to (rows, hypotheses, keys)
    """
    rows, count, _ = ancestors.shape
    own = torch.eye(count, dtype=torch.bool, device=shared.device).expand(rows, -1, -1)
    return torch.cat([shared[:, None, :].expand(-1, count, -1), ancestors, own], dim=2)


def filling_mask(known: Tensor, new: int, asked: int) -> Tensor:
    """Any-order generation: the newest tokens and a pseudo mask per predicted position, all reading the known keys.

    The newest tokens are the last keys. *Shape:* (rows, keys) to (rows, new + asked, keys + asked)
    """
    everybody = known[:, None, :]
    return with_pseudo_masks(everybody.expand(-1, new, -1), everybody.expand(-1, asked, -1))


def with_pseudo_masks(reads: Tensor, masks: Tensor) -> Tensor:
    """Append pseudo masks to a rule; each also reads itself, and no other slot reads it (UniLMv2, Section 3.4).

    *Shape:* (rows, slots, keys) and, of each mask, (rows, masks, keys) to (rows, slots + masks, keys + masks)
    """
    rows, count, _ = masks.shape
    own = torch.eye(count, dtype=torch.bool, device=masks.device).expand(rows, -1, -1)
    nobody = reads.new_zeros(*reads.shape[:2], count)
    return torch.cat([torch.cat([reads, nobody], dim=2), torch.cat([masks, own], dim=2)], dim=1)


def in_place_of(reads: Tensor, slots: Tensor) -> Tensor:
    """What pseudo masks for some slots of a row read: the same as those slots, except the slot itself.

    *Shape:* (rows, slots, slots) and (rows, masks) to (rows, masks, slots)
    """
    count = reads.shape[2]
    itself = slots[:, :, None] == torch.arange(count, device=slots.device)
    return reads.gather(1, slots[:, :, None].expand(-1, -1, count)) & ~itself
