"""Who may read whom: at most two intervals of keys for each query.

A row is laid out so that the slots a query reads stand together. Every rule of the papers is then "query q reads keys
[a0, a1) and [b0, b1)": four integers a query instead of a row of a matrix. Queries and keys are separate axes: keys may
include slots that are no queries, such as a memory or a decoder's cache; those stand first.

A constructor returns the intervals of one row, *Shape:* (queries, 4), int32; an interval [0, 0) is empty.
Those named `..._rows` do it for many rows at once. `bool_mask`, `block_mask` and `text` render the same intervals.

Rows that come as tensors, and slots of a generator, which stand in no fixed order, have their rules in
`unicloze.visibility_masks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from unicloze.ragged import ranks

if TYPE_CHECKING:
    import torch
    from torch.nn.attention.flex_attention import BlockMask

Intervals = npt.NDArray[np.int32]

NOTHING_NEARBY = (
    "model.layer_visibility names 'local' and these rows have no such visibility: use objective.name causal with "
    "objective.local_width, or name 'full' alone"
)
"""Why rows that say nothing of nearby slots cannot be read by `local` layers."""


def _intervals(a0: Any, a1: Any, b0: Any = 0, b1: Any = 0) -> Intervals:
    return np.stack(np.broadcast_arrays(a0, a1, b0, b1), axis=-1).astype(np.int32)


def bidirectional(length: int) -> Intervals:
    """Every slot reads every slot (BERT, autoencoding)."""
    return _intervals(np.zeros(length), length)


def left_to_right(length: int) -> Intervals:
    """A slot reads itself and what is left of it (GPT)."""
    return _intervals(0, np.arange(length) + 1)


def right_to_left(length: int) -> Intervals:
    """A slot reads itself and what is right of it (UniLM v1)."""
    return _intervals(np.arange(length), length)


def prefix(source: int, target: int) -> Intervals:
    """The source reads itself in both directions; a target slot reads the source and the target up to itself (UniLM v1)."""
    return _intervals(0, np.maximum(source, np.arange(source + target) + 1))


def bidirectional_rows(lengths: npt.NDArray[np.integer], *, capacity: int) -> Intervals:
    """`bidirectional` for many rows, see `left_to_right_rows`."""
    return _padded_rows(lengths, 0, lengths[:, None], capacity)


def left_to_right_rows(lengths: npt.NDArray[np.integer], *, capacity: int) -> Intervals:
    """`left_to_right` for many rows, padded on the right to `capacity` slots; padding reads only itself.

    Args:
        lengths: Slots of each row that are not padding. *Shape:* (rows,)
        capacity: Slots of a row.

    Returns:
        *Shape:* (rows, capacity, 4)
    """
    return _padded_rows(lengths, 0, np.arange(1, capacity + 1, dtype=np.int32), capacity)


def prefix_rows(source: npt.NDArray[np.integer], lengths: npt.NDArray[np.integer], *, capacity: int) -> Intervals:
    """`prefix` for many rows, see `left_to_right_rows`.

    Args:
        source: Slots of each row's source. *Shape:* (rows,)
        lengths: Slots of each row, of the source and the target. *Shape:* (rows,)
        capacity: Slots of a row.
    """
    after = np.arange(1, capacity + 1, dtype=np.int32)
    return _padded_rows(lengths, 0, np.maximum(source[:, None].astype(np.int32), after), capacity)


def right_to_left_rows(lengths: npt.NDArray[np.integer], *, capacity: int) -> Intervals:
    """`right_to_left` for many rows, see `left_to_right_rows`."""
    return _padded_rows(lengths, np.arange(capacity, dtype=np.int32), lengths[:, None], capacity)


def _padded_rows(lengths: npt.NDArray[np.integer], first: Any, last: Any, capacity: int) -> Intervals:
    """Rows of one interval [first, last) a slot, and padding."""
    slot = np.arange(capacity, dtype=np.int32)
    real = slot < lengths[:, None]
    result = np.zeros((*real.shape, 4), dtype=np.int32)
    result[:, :, 0] = np.where(real, first, slot)
    result[:, :, 1] = np.where(real, last, slot + 1)
    return result


def nearby(intervals: Intervals, width: int) -> Intervals:
    """A rule less the keys more than `width` slots away, for rows whose keys are their queries (GPT-3's local layers).

    Args:
        intervals: One interval a query. *Shape:* (..., queries, 4)
        width: How far a slot reads.
    """
    query = np.arange(intervals.shape[-2], dtype=np.int32)
    near = intervals.copy()
    np.maximum(near[..., 0], query - width, out=near[..., 0])
    np.minimum(near[..., 1], query + width + 1, out=near[..., 1])
    return near


def pseudo_masked(context: int, steps: Sequence[int]) -> Intervals:
    """UniLMv2's pseudo-masked row: context C, originals O by step, pseudo masks P by step (paper Section 3.2, Figure 5).

    C reads C. O of step t reads C and O of steps <= t. P of step t reads C, O of steps < t and P of step t.
    With the source as context and steps of one token (or one block) this is also how a generator is fine-tuned
    (paper Section 3.4).

    Args:
        context: Slots of C.
        steps: Number of tokens predicted in each factorization step.
    """
    starts, ends = _step_bounds(steps)
    masked = len(starts)
    row = np.zeros(masked, dtype=np.int64)
    alone: Intervals = pseudo_masked_rows(np.array([context]), row, starts, ends, capacity=context + 2 * masked)[0]
    return alone


def pseudo_masked_rows(
    context: npt.NDArray[np.integer],
    row: npt.NDArray[np.integer],
    starts: npt.NDArray[np.integer],
    ends: npt.NDArray[np.integer],
    *,
    capacity: int,
) -> Intervals:
    """`pseudo_masked` for many rows, padded on the right to `capacity` slots; padding reads only itself.

    Args:
        context: Slots of C in each row. *Shape:* (rows,)
        row: Row of each masked token, in ascending order; within a row they stand by step. *Shape:* (masked,)
        starts: Masked tokens of its row in earlier steps than its own. *Shape:* (masked,)
        ends: Masked tokens of its row up to and with its own step. *Shape:* (masked,)
        capacity: Slots of a row.

    Returns:
        *Shape:* (rows, capacity, 4)
    """
    first, masked = context[row], np.bincount(row, minlength=len(context))[row]
    originals = (0, first + ends, 0, 0)
    second = first + masked
    pseudos = (0, first + starts, second + starts, second + ends)
    return _rows_by_group(context, row, (0, context, 0, 0), (originals, pseudos), capacity=capacity)


def _rows_by_group(
    context: npt.NDArray[np.integer],
    row: npt.NDArray[np.integer],
    of_context: tuple[Any, Any, Any, Any],
    groups: Sequence[tuple[Any, Any, Any, Any]],
    *,
    capacity: int,
) -> Intervals:
    """Rows of a context and groups of one slot for each masked token; padding after them reads only itself.

    Args:
        context: Slots of the context of each row. *Shape:* (rows,)
        row: Row of each masked token, in ascending order. *Shape:* (masked,)
        of_context: Intervals of the context slots, 0 or a number for each row.
        groups: Intervals of the slots of each group, 0 or a number for each masked token.
        capacity: Slots of a row.
    """
    masked = np.bincount(row, minlength=len(context))
    slot = np.arange(capacity, dtype=np.int32)
    in_context = slot < context[:, None].astype(np.int32)
    in_padding = slot >= (context + len(groups) * masked)[:, None].astype(np.int32)
    result = np.zeros((len(context), capacity, 4), dtype=np.int32)
    for column, bound in enumerate((slot, slot + 1)):
        np.copyto(result[:, :, column], bound, where=in_padding)
    for column, bound in enumerate(of_context):
        if np.ndim(bound):
            np.copyto(result[:, :, column], bound[:, None], where=in_context)
    place = 4 * (row * capacity + context[row] + ranks(row, len(context)))
    for group in groups:
        for column, bound in enumerate(group):
            if np.ndim(bound):
                result.reshape(-1)[place + column] = bound.astype(np.int32)
        place = place + 4 * masked[row]
    return result


def permuted(memory: int, context: int, steps: Sequence[int]) -> Intervals:
    """XLNet's two streams: keys are memory, C (without the masked tokens), O, P; queries are C, O, P.

    C reads memory and C; O of step t those and O of steps <= t; P of step t memory, C and O of steps < t. P is never a
    key, not even to itself.
    """
    starts, ends = _step_bounds(steps)
    first = memory + context
    return np.concatenate(
        [_intervals(np.zeros(context), first), _intervals(0, first + ends), _intervals(0, first + starts)]
    )


def permuted_rows(
    context: npt.NDArray[np.integer],
    row: npt.NDArray[np.integer],
    starts: npt.NDArray[np.integer],
    ends: npt.NDArray[np.integer],
    *,
    capacity: int,
) -> Intervals:
    """`permuted` without a memory for many rows, see `pseudo_masked_rows` for the arguments."""
    first = context[row]
    groups = ((0, first + ends, 0, 0), (0, first + starts, 0, 0))
    return _rows_by_group(context, row, (0, context, 0, 0), groups, capacity=capacity)


def compensated(context: int, steps: Sequence[int]) -> Intervals:
    """MPNet's permuted and masked row: context, O, M, Q, the last three by step.

    Context and M read context and every M. O of step t reads context, O of steps <= t and the M of steps > t. A query Q of
    step t reads context, O of steps < t and only the M of steps >= t; queries are never keys.
    """
    starts, ends = _step_bounds(steps)
    masked = len(starts)
    masks = context + masked, context + 2 * masked
    both = _intervals(np.zeros(context + masked), context, *masks)
    original = _intervals(0, context + ends, masks[0] + ends, masks[1])
    query = _intervals(0, context + starts, masks[0] + starts, masks[1])
    return np.concatenate([both[:context], original, both[context:], query])


def compensated_rows(
    context: npt.NDArray[np.integer],
    row: npt.NDArray[np.integer],
    starts: npt.NDArray[np.integer],
    ends: npt.NDArray[np.integer],
    *,
    capacity: int,
) -> Intervals:
    """`compensated` for many rows, see `pseudo_masked_rows` for the arguments."""
    counts = np.bincount(row, minlength=len(context))
    first, masked = context[row], counts[row]
    masks, end = first + masked, first + 2 * masked
    of_context = (0, context, context + counts, context + 2 * counts)
    originals = (0, first + ends, masks + ends, end)
    queries = (0, first + starts, masks + starts, end)
    return _rows_by_group(context, row, of_context, (originals, (0, first, masks, end), queries), capacity=capacity)


def block_diffusion(blocks: Sequence[int]) -> Intervals:
    """BD3-LM's row: clean tokens by block, then noised tokens by block.

    A clean token reads clean blocks up to its own; a noised one reads clean blocks before its own and its own noised block.

    Args:
        blocks: Number of tokens in each block.
    """
    starts, ends = _step_bounds(blocks)
    tokens = len(starts)
    return np.concatenate([_intervals(0, ends), _intervals(0, starts, tokens + starts, tokens + ends)])


def block_diffusion_rows(
    lengths: npt.NDArray[np.integer], block_size: int, *, copies: int = 1, capacity: int
) -> Intervals:
    """`block_diffusion` for many rows, padded on the right to `capacity` slots; padding reads only itself.

    Args:
        lengths: Tokens of each row. *Shape:* (rows,)
        block_size: Tokens of a block; the last one of a row may be short.
        copies: Noised copies, one after the other; none reads another.
        capacity: Slots of a row.

    Returns:
        *Shape:* (rows, capacity, 4)
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


def packed(rows: Sequence[Intervals]) -> Intervals:
    """Several self-contained rows one after the other, none reading another; each must have as many keys as queries."""
    shifted, first = [], 0
    for row in rows:
        shifted.append(row + np.int32(first))
        first += len(row)
    return np.concatenate(shifted)


def packed_rows(sizes: Sequence[Sequence[int]], *, both_ways: bool, capacity: int) -> Intervals:
    """`packed` for many rows of `bidirectional` or `left_to_right` sequences, padded on the right; padding reads only itself.

    Args:
        sizes: Slots of the sequences of each row.
        both_ways: Whether a slot reads those right of it too.
        capacity: Slots of a row.

    Returns:
        *Shape:* (rows, capacity, 4)
    """
    slot = np.arange(capacity, dtype=np.int32)
    real = slot < np.array([sum(row) for row in sizes], dtype=np.int32)[:, None]
    each = np.concatenate([np.asarray(row, dtype=np.int32) for row in sizes])
    begins = np.concatenate([np.cumsum([0, *row[:-1]], dtype=np.int32) for row in sizes])
    result = np.zeros((*real.shape, 4), dtype=np.int32)
    result[:, :, 0], result[:, :, 1] = slot, slot + 1
    result[real, 0] = np.repeat(begins, each)
    if both_ways:
        result[real, 1] = np.repeat(begins + each, each)
    return result


def with_masks_rows(
    lengths: npt.NDArray[np.integer], row: npt.NDArray[np.integer], place: npt.NDArray[np.integer], *, capacity: int
) -> Intervals:
    """`left_to_right` rows with a pseudo mask behind them for some slots, reading what is left of its slot, and itself.

    Args:
        lengths: Slots of each row before the masks. *Shape:* (rows,)
        row: Row of each mask, in ascending order. *Shape:* (masks,)
        place: The slot it stands for. *Shape:* (masks,)
        capacity: Slots of a row; padding behind the masks reads only itself.

    Returns:
        *Shape:* (rows, capacity, 4)
    """
    result = left_to_right_rows(lengths, capacity=capacity)
    slot = lengths[row] + ranks(row, len(lengths))
    result[row, slot] = _intervals(0, place, slot, slot + 1)
    return result


def _step_bounds(steps: Sequence[int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    sizes = np.asarray(steps, dtype=np.int64)
    ends = np.cumsum(sizes)
    return np.repeat(ends - sizes, sizes), np.repeat(ends, sizes)


def with_memory(intervals: Any, memory: int, filled: Any) -> Any:
    """The same rows with a memory before their keys: what reads a row's first slot reads what is before it too.

    Args:
        intervals: NumPy array or tensor. *Shape:* (rows, queries, 4)
        memory: Keys of the memory.
        filled: How many of them each row reads, the last ones. *Shape:* (rows,)

    Returns:
        Of the same library. *Shape:* (rows, queries, 4)
    """
    first_slot = (intervals[..., 0] == 0) & (intervals[..., 1] > 0)
    shifted = intervals + memory
    shifted[..., 0] -= first_slot * filled[:, None]
    return shifted


def bool_mask(intervals: Any, num_keys: int) -> Any:
    """Render intervals as a boolean mask, true where a query reads a key.

    Args:
        intervals: NumPy array or tensor. *Shape:* (..., queries, 4)
        num_keys: Number of keys.

    Returns:
        Of the same library. *Shape:* (..., queries, num_keys)
    """
    if isinstance(intervals, np.ndarray):
        keys: Any = np.arange(num_keys, dtype=intervals.dtype)
    else:
        import torch

        keys = torch.arange(num_keys, dtype=intervals.dtype, device=intervals.device)
    a0, a1, b0, b1 = (intervals[..., i, None] for i in range(4))
    return ((keys >= a0) & (keys < a1)) | ((keys >= b0) & (keys < b1))


def block_mask(intervals: torch.Tensor, num_keys: int) -> BlockMask:
    """Render intervals as FlexAttention's BlockMask; build it once for a batch and share it over the layers.

    Args:
        intervals: *Shape:* (rows, queries, 4)
        num_keys: Number of keys.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    a0, a1, b0, b1 = (intervals[..., i].contiguous() for i in range(4))

    def reads(row: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        first = (key >= a0[row, query]) & (key < a1[row, query])
        return first | ((key >= b0[row, query]) & (key < b1[row, query]))

    rows, queries = intervals.shape[:2]
    return create_block_mask(reads, B=rows, H=None, Q_LEN=queries, KV_LEN=num_keys, device=str(intervals.device))


def text(intervals: Intervals, num_keys: int, *, query_names: Sequence[str], groups: Sequence[int] = ()) -> str:
    """Render intervals as lines of 0 and 1, one a query, with a gap after each group of keys.

    Args:
        intervals: *Shape:* (queries, 4)
        num_keys: Number of keys.
        query_names: A label for each query.
        groups: Keys of each group, in order.
    """
    mask = bool_mask(intervals, num_keys)
    stops = np.cumsum(groups)[:-1] if len(groups) else np.array([], dtype=int)
    width = max(map(len, query_names), default=0)
    lines = []
    for name, row in zip(query_names, mask, strict=True):
        parts = np.split(row.astype(int), stops)
        lines.append(f"{name:<{width}}  " + " ".join("".join(map(str, part)) for part in parts))
    return "\n".join(lines)
