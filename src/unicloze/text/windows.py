"""Windows: the rows of text every objective starts from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class Windows:
    """A block of windows "[SOS] S1 [EOS] S2 [EOS]" or "[SOS] S1 [EOS]" (paper Section 2.2), padded on the right.

    Args:
        token_ids: *Shape:* (rows, window)
        segment_ids: 0 up to the first [EOS], 1 after it. *Shape:* (rows, window)
        lengths: Tokens of each row, special tokens included. *Shape:* (rows,)
        maskable: The text tokens: neither special nor padding. *Shape:* (rows, window)
        keys: Key of all random draws for a row, see `unicloze.keyed`. *Shape:* (rows,)
        source: Which of the corpus's sources a row is from. *Shape:* (rows,)
        index: Number of the window within its source. *Shape:* (rows,)
    """

    token_ids: npt.NDArray[np.int32]
    segment_ids: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]
    maskable: npt.NDArray[np.bool_]
    keys: npt.NDArray[np.uint64]
    source: npt.NDArray[np.int32]
    index: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.token_ids)

    def __getitem__(self, rows: slice) -> Windows:
        return Windows(
            token_ids=self.token_ids[rows],
            segment_ids=self.segment_ids[rows],
            lengths=self.lengths[rows],
            maskable=self.maskable[rows],
            keys=self.keys[rows],
            source=self.source[rows],
            index=self.index[rows],
        )
