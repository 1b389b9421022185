"""Names for arrays of numbers, and ragged rows stored as flat arrays."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

Number = TypeVar("Number", bound=np.integer)


# They index other arrays through one index into the flattened array, which in NumPy is several times faster than a
# pair of row and column indices.


def ranks(row: npt.NDArray[np.integer], num_rows: int) -> npt.NDArray[np.int64]:
    """Index of each entry within its row, from 0."""
    counts = np.bincount(row, minlength=num_rows)
    numbers: npt.NDArray[np.int64] = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    return numbers


def flagged(flags: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Row and column of each set flag in row-major order, and the number of set flags per row.

    Args:
        flags: *Shape:* (rows, columns)
    """
    rows, width = flags.shape
    counts = np.count_nonzero(flags, axis=1)
    row = np.repeat(np.arange(rows), counts)
    return row, np.flatnonzero(flags) - row * width, counts


def sorted_in_rows(values: npt.NDArray[Number], counts: npt.NDArray[np.integer]) -> npt.NDArray[Number]:
    """Sort each row's values in ascending order. Sorting packed values is faster than sorting an index."""
    width = int(counts.max(initial=0))
    real = np.arange(width) < counts[:, None]
    padded = np.full(real.shape, np.iinfo(values.dtype).max, dtype=values.dtype)
    padded[real] = values
    padded.sort(axis=1)
    return padded[real]
