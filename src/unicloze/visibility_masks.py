"""Rules as tensors, for rows that come as an attention mask and for the slots of a generator.

Those stand behind their source in no fixed order, as a tree of hypotheses or with gaps. So these rules are boolean masks,
true where a query reads a key; only `real_rows` gives intervals.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unicloze.errors import UniclozeError
from unicloze.visibility import NOTHING_NEARBY, bool_mask


def real_rows(real: Tensor, *, both_ways: bool, width: int | None = None) -> Tensor:
    """`bidirectional` or `left_to_right` for rows padded at either end; padding reads only itself.

    Args:
        real: Which slots are no padding; those of a row stand together. *Shape:* (rows, slots)
        both_ways: Whether a slot reads those right of it too.
        width: How far a slot reads, as in `nearby`; any distance if None.

    Returns:
        *Shape:* (rows, slots, 4), int32
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
    """`real_rows` as a mask, for rows whose padding nobody reads: what it reads does not matter, but it reads something.

    Args:
        real: As for `real_rows`.
        both_ways: As for `real_rows`; one line then serves all slots of a row.

    Returns:
        *Shape:* (rows, 1 or slots, slots)
    """
    if both_ways:
        return real[:, None, :]
    mask: Tensor = bool_mask(real_rows(real, both_ways=False), real.shape[1])
    return mask


def continuation_mask(real: Tensor, in_target: Tensor, *, earlier: int, both_ways: bool) -> Tensor:
    """`prefix` or `left_to_right` for the newest slots of rows whose padding may stand anywhere.

    Args:
        real: Which slots are no padding, the earlier ones first. *Shape:* (rows, keys)
        in_target: Which of the newest slots belong to the target; the others belong to the source. *Shape:* (rows, slots)
        earlier: Slots before the newest ones. Given, since their difference would fix whether a traced program has any.
        both_ways: Whether the source reads itself in both directions; a source must then be new as a whole.

    Returns:
        Every slot reads itself, padding too. *Shape:* (rows, slots, keys)
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

    Args:
        positions: *Shape:* (rows, queries)
        key_positions: *Shape:* (rows, keys)
        width: How far a slot reads.

    Returns:
        *Shape:* (rows, queries, keys)

    Raises:
        UniclozeError: There is no width.
    """
    if width is None:
        raise UniclozeError(NOTHING_NEARBY)
    return (positions[:, :, None] - key_positions[:, None, :]).abs() <= width


def hypothesis_mask(shared: Tensor, ancestors: Tensor) -> Tensor:
    """Hypotheses that each grow by a token: it reads what all share, its hypothesis's earlier tokens and itself.

    Args:
        shared: Which keys all hypotheses of a row read. *Shape:* (rows, shared keys)
        ancestors: Which of the tokens behind them each hypothesis holds. *Shape:* (rows, hypotheses, tokens)

    Returns:
        The keys are the shared ones, the tokens and the new ones. *Shape:* (rows, hypotheses, keys)
    """
    rows, count, _ = ancestors.shape
    own = torch.eye(count, dtype=torch.bool, device=shared.device).expand(rows, -1, -1)
    return torch.cat([shared[:, None, :].expand(-1, count, -1), ancestors, own], dim=2)


def filling_mask(known: Tensor, new: int, asked: int) -> Tensor:
    """Any-order generation: the newest tokens and a pseudo mask for each asked position, all reading the known keys.

    Args:
        known: Which keys hold something to read, the newest tokens last. *Shape:* (rows, keys)
        new: How many tokens are the newest.
        asked: How many positions are asked.

    Returns:
        *Shape:* (rows, new + asked, keys + asked)
    """
    everybody = known[:, None, :]
    return with_pseudo_masks(everybody.expand(-1, new, -1), everybody.expand(-1, asked, -1))


def with_pseudo_masks(reads: Tensor, masks: Tensor) -> Tensor:
    """A rule with pseudo masks behind its slots, each of which reads itself too; nobody else reads it (UniLMv2, Section 3.4).

    Args:
        reads: What the slots read. *Shape:* (rows, slots, keys)
        masks: What each pseudo mask reads of the same keys. *Shape:* (rows, masks, keys)

    Returns:
        *Shape:* (rows, slots + masks, keys + masks)
    """
    rows, count, _ = masks.shape
    own = torch.eye(count, dtype=torch.bool, device=masks.device).expand(rows, -1, -1)
    nobody = reads.new_zeros(*reads.shape[:2], count)
    return torch.cat([torch.cat([reads, nobody], dim=2), torch.cat([masks, own], dim=2)], dim=1)


def in_place_of(reads: Tensor, slots: Tensor) -> Tensor:
    """What pseudo masks read that stand for some slots of a row: what these read, but for the slots themselves.

    Args:
        reads: Of all slots, which are the keys too. *Shape:* (rows, slots, slots)
        slots: *Shape:* (rows, masks)

    Returns:
        *Shape:* (rows, masks, slots)
    """
    count = reads.shape[2]
    itself = slots[:, :, None] == torch.arange(count, device=slots.device)
    return reads.gather(1, slots[:, :, None].expand(-1, -1, count)) & ~itself
