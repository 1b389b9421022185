"""Visibility rules: for each query, at most two intervals of keys it may attend to.

Rows are laid out so that the slots a query reads are contiguous. Every rule of the papers then becomes "query q reads keys
[a0, a1) and [b0, b1)": four integers per query instead of a row of a matrix. Queries and keys are separate axes: keys may
include slots that are not queries, such as a memory or a decoder's cache; those come first.

A constructor returns the intervals of many rows, *Shape:* (rows, `capacity`, 4), int32; an interval [0, 0) is empty.
`lengths` are the real slots of each row, *Shape:* (rows,), and the padding after them reads only itself. `bool_mask`,
`block_mask` and `text` render intervals.

`unicloze.visibility_masks` has the rules for rows given as tensors and for a generator's slots, whose order is not fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from unicloze.arrays import ranks

if TYPE_CHECKING:
    import torch
    from torch.nn.attention.flex_attention import BlockMask

Intervals = npt.NDArray[np.int32]

TextVisibility = Literal["bidirectional", "left_to_right", "right_to_left"]
"""What a slot reads of an unmasked text."""

NOTHING_NEARBY = (
    "model.layer_visibility names 'local' but these rows define no local visibility: use objective.name causal with "
    "objective.local_width, or name 'full' alone"
)
"""Error for `local` layers over rows without local visibility."""


def _intervals(a0: Any, a1: Any, b0: Any = 0, b1: Any = 0) -> Intervals:
    return np.stack(np.broadcast_arrays(a0, a1, b0, b1), axis=-1).astype(np.int32)


def bidirectional_rows(lengths: npt.NDArray[np.integer], *, capacity: int) -> Intervals:
    """Every slot reads every slot (BERT, autoencoding)."""
    return _padded_rows(lengths, 0, lengths[:, None], capacity)


def left_to_right_rows(lengths: npt.NDArray[np.integer], *, capacity: int) -> Intervals:
    """A slot reads itself and all slots to its left (GPT)."""
    return _padded_rows(lengths, 0, np.arange(1, capacity + 1, dtype=np.int32), capacity)


def right_to_left_rows(lengths: npt.NDArray[np.integer], *, capacity: int) -> Intervals:
    """A slot reads itself and all slots to its right (UniLM v1)."""
    return _padded_rows(lengths, np.arange(capacity, dtype=np.int32), lengths[:, None], capacity)


def prefix_rows(source: npt.NDArray[np.integer], lengths: npt.NDArray[np.integer], *, capacity: int) -> Intervals:
    """The source reads itself in both directions; a target slot reads the source and the target up to itself (UniLM v1).

    `source` are the slots of each row's source, `lengths` those of source and target.
    """
    after = np.arange(1, capacity + 1, dtype=np.int32)
    return _padded_rows(lengths, 0, np.maximum(source[:, None].astype(np.int32), after), capacity)


def _padded_rows(lengths: npt.NDArray[np.integer], first: Any, last: Any, capacity: int) -> Intervals:
    """Rows whose slots each read one interval [first, last), with padding."""
    slot = np.arange(capacity, dtype=np.int32)
    real = slot < lengths[:, None]
    result = np.zeros((*real.shape, 4), dtype=np.int32)
    result[:, :, 0] = np.where(real, first, slot)
    result[:, :, 1] = np.where(real, last, slot + 1)
    return result


def nearby(intervals: Intervals, width: int) -> Intervals:
    """Restrict a rule of one interval to keys at most `width` slots away, where keys are queries (GPT-3's local layers)."""
    query = np.arange(intervals.shape[-2], dtype=np.int32)
    near = intervals.copy()
    np.maximum(near[..., 0], query - width, out=near[..., 0])
    np.minimum(near[..., 1], query + width + 1, out=near[..., 1])
    return near


def pseudo_masked_rows(
    context: npt.NDArray[np.integer],
    row: npt.NDArray[np.integer],
    starts: npt.NDArray[np.integer],
    ends: npt.NDArray[np.integer],
    *,
    capacity: int,
) -> Intervals:
    """UniLMv2's pseudo-masked rows: context C, originals O by step, pseudo masks P by step (paper Section 3.2, Figure 5).

    C reads C. O of step t reads C and O of steps <= t. P of step t reads C, O of steps < t and P of step t.
    With the source as context and steps of one token (or one block) these are also the rows for fine-tuning a generator
    (paper Section 3.4).

    Args:
        context: Number of C slots in each row. *Shape:* (rows,)
        row: Row of each masked token, in ascending order; within a row ordered by step. *Shape:* (masked,)
        starts: Number of masked tokens of its row in earlier steps. *Shape:* (masked,)
        ends: Number of masked tokens of its row up to and including its step. *Shape:* (masked,)
        capacity: Slots per row, padding included.
    """
    first, masked = context[row], np.bincount(row, minlength=len(context))[row]
    second = first + masked
    pseudos = (first + starts, second + starts, second + ends)
    return _rows_by_group(context, row, (context,), ((first + ends,), pseudos), capacity=capacity)


def _rows_by_group(
    context: npt.NDArray[np.integer],
    row: npt.NDArray[np.integer],
    of_context: Sequence[npt.NDArray[np.integer]],
    groups: Sequence[Sequence[npt.NDArray[np.integer]]],
    *,
    capacity: int,
) -> Intervals:
    """Rows of a context followed by groups with one slot per masked token; padding after them reads only itself.

    A rule is the end of its first interval, which begins at 0, and both bounds of its second if it has one.
    """
    masked = np.bincount(row, minlength=len(context))
    slot = np.arange(capacity, dtype=np.int32)
    in_context = slot < context[:, None].astype(np.int32)
    in_padding = slot >= (context + len(groups) * masked)[:, None].astype(np.int32)
    result = np.zeros((len(context), capacity, 4), dtype=np.int32)
    for column, own in enumerate((slot, slot + 1)):
        np.copyto(result[:, :, column], own, where=in_padding)
    for column, bound in enumerate(of_context, 1):
        np.copyto(result[:, :, column], bound[:, None], where=in_context)
    place = 4 * (row * capacity + context[row] + ranks(row, len(context)))
    for group in groups:
        for column, bound in enumerate(group, 1):
            result.reshape(-1)[place + column] = bound.astype(np.int32)
        place = place + 4 * masked[row]
    return result


def permuted_rows(
    context: npt.NDArray[np.integer],
    row: npt.NDArray[np.integer],
    starts: npt.NDArray[np.integer],
    ends: npt.NDArray[np.integer],
    *,
    capacity: int,
    apart: npt.NDArray[np.integer] | int = 0,
    of_apart: npt.NDArray[np.bool_] | bool = False,
) -> Intervals:
    """XLNet's two streams, C (without the masked tokens), O and P; arguments as of `pseudo_masked_rows`.

    C reads C; O of step t reads C and O of steps <= t; P of step t reads C and O of steps < t. P is never a key, not even for
    itself. The first slots of C, `apart` in each row, and those O and P of the first steps that are `of_apart` read no other
    slots of C. *Shape:* (rows,) and (masked,)
    """
    apart, first = np.broadcast_to(apart, context.shape), context[row]
    groups = [
        (
            np.where(of_apart, apart[row], first + bound),
            np.where(of_apart, first, 0),
            np.where(of_apart, first + bound, 0),
        )
        for bound in (ends, starts)
    ]
    result = _rows_by_group(context, row, (context,), groups, capacity=capacity)
    np.copyto(result[:, :, 1], apart[:, None], where=np.arange(capacity) < apart[:, None])
    return result


def compensated_rows(
    context: npt.NDArray[np.integer],
    row: npt.NDArray[np.integer],
    starts: npt.NDArray[np.integer],
    ends: npt.NDArray[np.integer],
    *,
    capacity: int,
) -> Intervals:
    """MPNet's permuted and masked rows: context, O, M, Q; the last three by step; arguments as of `pseudo_masked_rows`.

    Context and M read the context and every M. O of step t reads the context, O of steps <= t and M of steps > t. A query
    Q of step t reads the context, O of steps < t and only M of steps >= t; queries are never keys.
    """
    counts = np.bincount(row, minlength=len(context))
    first, masked = context[row], counts[row]
    masks, end = first + masked, first + 2 * masked
    of_context = (context, context + counts, context + 2 * counts)
    originals = (first + ends, masks + ends, end)
    queries = (first + starts, masks + starts, end)
    return _rows_by_group(context, row, of_context, (originals, (first, masks, end), queries), capacity=capacity)


def block_diffusion_rows(lengths: npt.NDArray[np.integer], block_size: int, *, copies: int, capacity: int) -> Intervals:
    """BD3-LM's rows: clean tokens by block, then noised copies of them by block; the last block may be shorter.

    A clean token reads clean blocks up to and including its own; a noised token reads earlier clean blocks and the noised
    block of its own copy.
    """
    different, which = np.unique(lengths, return_inverse=True)
    length = different[:, None]
    slot = np.arange(capacity)
    copy, place = np.divmod(slot, length)
    start = place // block_size * block_size
    end = np.minimum(start + block_size, length)
    first, noised, padding = copy * length, (copy > 0) & (copy <= copies), copy > copies
    rules = _intervals(
        np.where(padding, slot, 0),
        np.where(padding, slot + 1, np.where(noised, start, end)),
        np.where(noised, first + start, 0),
        np.where(noised, first + end, 0),
    )
    return rules[which]


def packed_rows(sizes: Sequence[Sequence[int]], *, reads: TextVisibility, capacity: int) -> Intervals:
    """Sequences of one visibility, several to a row; none reads another. `sizes` are their slots, per row."""
    slot = np.arange(capacity, dtype=np.int32)
    real = slot < np.array([sum(row) for row in sizes], dtype=np.int32)[:, None]
    each = np.concatenate([np.asarray(row, dtype=np.int32) for row in sizes])
    begins = np.concatenate([np.cumsum([0, *row[:-1]], dtype=np.int32) for row in sizes])
    result = np.zeros((*real.shape, 4), dtype=np.int32)
    result[:, :, 0], result[:, :, 1] = slot, slot + 1
    if reads != "right_to_left":
        result[real, 0] = np.repeat(begins, each)
    if reads != "left_to_right":
        result[real, 1] = np.repeat(begins + each, each)
    return result


def with_masks_rows(
    lengths: npt.NDArray[np.integer], row: npt.NDArray[np.integer], place: npt.NDArray[np.integer], *, capacity: int
) -> Intervals:
    """`left_to_right_rows` followed by pseudo masks for some slots; a mask reads itself and all slots left of its slot.

    `row` and `place` are the row of each mask, in ascending order, and the slot it stands for. *Shape:* (masks,)
    """
    result = left_to_right_rows(lengths, capacity=capacity)
    slot = lengths[row] + ranks(row, len(lengths))
    result[row, slot] = _intervals(0, place, slot, slot + 1)
    return result


def with_memory(intervals: Any, memory: int, filled: Any) -> Any:
    """Put a memory before the keys of rows: a query that reads its row's first slot also reads the memory.

    Each row reads the last `filled` keys of the memory. *Shape:* (rows, queries, 4) and (rows,) to (rows, queries, 4)
    """
    first_slot = (intervals[..., 0] == 0) & (intervals[..., 1] > 0)
    shifted = intervals + memory
    shifted[..., 0] -= first_slot * filled[:, None]
    return shifted


def bool_mask(intervals: Any, num_keys: int) -> Any:
    """Render intervals, an array or a tensor, as a boolean mask, true where a query reads a key.

    *Shape:* (..., queries, 4) to (..., queries, num_keys)
    """
    if isinstance(intervals, np.ndarray):
        keys: Any = np.arange(num_keys, dtype=intervals.dtype)
    else:
        import torch

        keys = torch.arange(num_keys, dtype=intervals.dtype, device=intervals.device)
    a0, a1, b0, b1 = (intervals[..., i, None] for i in range(4))
    return ((keys >= a0) & (keys < a1)) | ((keys >= b0) & (keys < b1))


def block_mask(intervals: torch.Tensor, num_keys: int) -> BlockMask:
    """Render intervals as FlexAttention's BlockMask; build it once per batch and share it between layers."""
    from torch.nn.attention.flex_attention import create_block_mask

    a0, a1, b0, b1 = (intervals[..., i].contiguous() for i in range(4))

    def reads(row: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        first = (key >= a0[row, query]) & (key < a1[row, query])
        return first | ((key >= b0[row, query]) & (key < b1[row, query]))

    rows, queries = intervals.shape[:2]
    return create_block_mask(reads, B=rows, H=None, Q_LEN=queries, KV_LEN=num_keys, device=str(intervals.device))


def text(intervals: Intervals, num_keys: int, *, query_names: Sequence[str], groups: Sequence[int] = ()) -> str:
    """Render intervals as lines of 0 and 1, one per query, with a space after each group of keys."""
    mask = bool_mask(intervals, num_keys)
    stops = np.cumsum(groups)[:-1] if len(groups) else np.array([], dtype=int)
    width = max(map(len, query_names), default=0)
    lines = []
    for name, row in zip(query_names, mask, strict=True):
        parts = np.split(row.astype(int), stops)
        lines.append(f"{name:<{width}}  " + " ".join("".join(map(str, part)) for part in parts))
    return "\n".join(lines)
