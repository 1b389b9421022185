"""Keep freed memory instead of handing it back to the system after every tensor.

A CPU training step allocates and frees the same large blocks again and again. glibc returns such blocks to the kernel, so
that every step pays for fresh zeroed pages; measured, that costs as much as the arithmetic.
"""

from __future__ import annotations

import ctypes
import platform

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8


def tune_allocator() -> bool:
    """Tell glibc to serve large blocks from one growing heap. Call it before torch allocates; does nothing elsewhere.

    Returns:
        Whether the allocator was tuned.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(
        mallopt(option, value) for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_ARENA_MAX, 1))
    )
