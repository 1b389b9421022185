"""Lists of what several rows hold, one row after the other.

Arrays are read and written by such lists through one index into the flattened array: NumPy does that several times faster
than by a row and a column.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Number = TypeVar("Number", bound=np.integer)


def ranks(row: npt.NDArray[np.integer], num_rows: int) -> npt.NDArray[np.int64]:
    """Number of each entry within its row, from 0.

    Args:
        row: Row of each entry, in ascending order. *Shape:* (entries,)
        num_rows: Number of rows, also of those without an entry.
    """
    counts = np.bincount(row, minlength=num_rows)
    numbers: npt.NDArray[np.int64] = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    return numbers


def flagged(flags: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Row and column of each flag that is set, row by row, and how many are set in each row.

    Args:
        flags: *Shape:* (rows, columns)
    """
    rows, width = flags.shape
    counts = np.count_nonzero(flags, axis=1)
    row = np.repeat(np.arange(rows), counts)
    return row, np.flatnonzero(flags) - row * width, counts


def sorted_in_rows(values: npt.NDArray[Number], counts: npt.NDArray[np.integer]) -> npt.NDArray[Number]:
    """Each row's values in ascending order. To sort values that carry what they stand for beats sorting an index.

    Args:
        values: Integers. *Shape:* (values of all rows,)
        counts: Values of each row. *Shape:* (rows,)
    """
    width = int(counts.max(initial=0))
    real = np.arange(width) < counts[:, None]
    padded = np.full(real.shape, np.iinfo(values.dtype).max, dtype=values.dtype)
    padded[real] = values
    padded.sort(axis=1)
    return padded[real]
