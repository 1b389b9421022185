"""One forward pass over rows of different lengths without padding: buckets of similar length concatenated into one row.

Per-slot operations run over the whole row at once; attention runs bucket by bucket. The row is an ordinary batch whose
slots attend within their own text; the buckets only tell the backbone how to compute it fast.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from unicloze.example import NO_LEADING, Batch, Examples, TargetBatch, collate

BUCKET_COST, BUCKET_COST_ON_GPU = 24, 1 << 20
"""Overhead of a separate attention block, in slots: so high on a GPU that a batch is one block, whatever its padding."""


def bucket_cost(device: str) -> int:
    """Overhead of a separate attention block on a type of device, in slots."""
    return BUCKET_COST if device == "cpu" else BUCKET_COST_ON_GPU


def bucket_sizes(lengths: npt.NDArray[np.integer], cost: int) -> list[int]:
    """Divide rows, the longest first, into buckets at the lowest cost, counting padding and a constant per bucket."""
    least, best = np.zeros(len(lengths) + 1), np.zeros(len(lengths) + 1, dtype=np.int64)
    for end in range(1, len(lengths) + 1):  # the cheapest way to divide the longest `end` rows
        starts = np.arange(end)
        options = least[starts] + (end - starts) * lengths[starts] + cost
        best[end] = options.argmin()
        least[end] = options.min()
    sizes, end = [], len(lengths)
    while end:
        sizes.append(int(end - best[end]))
        end = int(best[end])
    return sizes[::-1]


def collate_buckets(
    examples: Examples, sizes: Sequence[int], *, device: torch.device, fixed_shape: bool = False
) -> Batch:
    """The rows as a batch without padding between buckets; without `sizes`, all rows are padded to the longest.

    `fixed_shape` is that of `collate`, and must be False with buckets.
    """
    ends = np.cumsum([0, *(sizes or [len(examples)])])
    return pack(
        [
            collate(examples[int(first) : int(last)], device=device, fixed_shape=fixed_shape)
            for first, last in itertools.pairwise(ends)
        ]
    )


def pack(buckets: Sequence[Batch]) -> Batch:
    """Concatenate the slots of buckets, which have no memory, into one row; a single bucket is returned unchanged."""
    if len(buckets) == 1:
        return buckets[0]

    local = [bucket.local for bucket in buckets if bucket.local is not None]
    return Batch(
        input_ids=_joined([bucket.input_ids for bucket in buckets]),
        position_ids=_joined([bucket.position_ids for bucket in buckets]),
        segment_ids=_joined([bucket.segment_ids for bucket in buckets]),
        intervals=packed_slots([bucket.intervals for bucket in buckets], buckets),
        local=packed_slots(local, buckets) if local else None,
        leading=NO_LEADING,
        targets={name: _target([bucket.targets[name] for bucket in buckets], buckets) for name in buckets[0].targets},
        text_tokens=sum(bucket.text_tokens for bucket in buckets),
        buckets=tuple(buckets),
    )


def _joined(rows: Sequence[Tensor]) -> Tensor:
    return torch.cat([each.flatten(0, 1) for each in rows])[None]


def packed_slots(slots: Sequence[Tensor], buckets: Sequence[Batch]) -> Tensor:
    """Shift slot numbers of each bucket's rows to those of the concatenated row.

    *Shape:* (rows, n, ...) each to (1, sum of rows x n, ...)
    """
    found, first = [], 0
    for numbers, bucket in zip(slots, buckets, strict=True):
        rows, width = bucket.input_ids.shape
        starts = torch.arange(first, first + rows * width, width, dtype=numbers.dtype, device=numbers.device)
        found.append((numbers + starts.view(-1, *[1] * (numbers.ndim - 1))).flatten(0, 1))
        first += rows * width
    return torch.cat(found)[None]


def _target(parts: Sequence[TargetBatch], buckets: Sequence[Batch]) -> TargetBatch:
    """Concatenate the predictions of all rows; prediction slots missing in some buckets are marked absent."""
    slots, present = [part.slots for part in parts], None
    if any(part.present is not None for part in parts) or len({each.shape[2:] for each in slots}) > 1:
        there = [torch.ones_like(p.slots, dtype=torch.bool) if p.present is None else p.present for p in parts]
        if slots[0].ndim == 3:
            most = max(each.shape[2] for each in slots)
            slots = [torch.cat([each, each[:, :, :1].expand(-1, -1, most - each.shape[2])], dim=2) for each in slots]
            there = [functional.pad(each, (0, most - each.shape[2])) for each in there]
        present = _joined(there)
    return TargetBatch(
        slots=packed_slots(slots, buckets),
        labels=_joined([part.labels for part in parts]),
        weights=_joined([part.weights for part in parts]),
        normaliser=sum(part.normaliser for part in parts),
        predictions=sum(part.predictions for part in parts),
        places=None if parts[0].places is None else _joined([part.places for part in parts if part.places is not None]),
        present=present,
        shapes=tuple((len(part.weights), part.weights.shape[1]) for part in parts),
    )
