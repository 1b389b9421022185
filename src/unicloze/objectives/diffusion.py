"""Masked diffusion: MDLM (Sahoo et al. 2024) and the block-wise BD3-LM (Arriola et al. 2025).

Noise masks each text token independently with probability t, the noise level; `diffusion` predicts the masked tokens. With
t uniform and weights 1/t, the expected loss is an upper bound of the text's negative log-likelihood: divided by the number
of text tokens it is in nats per token, and its exponential bounds the perplexity. Special tokens are given and not counted.

Two details differ from the released code. Each row draws its level independently: levels spread evenly over a batch would
make a row depend on its neighbours. And levels below `LOWEST_LEVEL` are raised to it instead of never drawn, so that the
expectation is exactly the bound of a sampler that fills all remaining masks at that level in one last step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze import keyed, visibility
from unicloze.arrays import Flags
from unicloze.example import Examples, Kind
from unicloze.objectives import unilmv2
from unicloze.objectives.masking import Steps
from unicloze.objectives.objective import Objective
from unicloze.objectives.row_builder import Joined, target_of
from unicloze.rules import POSITIVE, setting
from unicloze.settings import ObjectiveSettings
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows

LOWEST_LEVEL = 1e-3
"""Lowest noise level, the `sampling_eps` of MDLM's released code; its inverse is the largest weight."""

Levels = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class MaskedDiffusionSettings(ObjectiveSettings):
    """Settings of MDLM."""

    name: str = "masked_diffusion"

    known_targets = ("diffusion",)


@dataclass(frozen=True, kw_only=True)
class BlockDiffusionSettings(ObjectiveSettings):
    """Settings of BD3-LM.

    Args:
        block_size: Tokens of a block.
    """

    name: str = "block_diffusion"
    block_size: int = setting(4, POSITIVE)

    known_targets = ("diffusion",)

    @property
    def forgets(self) -> str:
        """Why rows cannot use the memory of earlier rows."""
        return "the first noised block of a row would not see what its clean copy sees"


def masked_diffusion(
    windows: Windows, vocabulary: Vocabulary, settings: MaskedDiffusionSettings, rates: Levels | None = None
) -> Examples:
    """MDLM: the window with a mask at every noised token and full visibility (Section 3.5, log-linear schedule).

    Each row draws one level t, uniform in [0, 1); its loss is 1/t times the summed cross-entropy of its masked tokens,
    normalised by the number of its text tokens.

    Args:
        windows: The text.
        vocabulary: Id of the mask.
        settings: Not used.
        rates: Not used: noise levels are drawn at random.
    """
    window = windows.token_ids.shape[1]
    levels = np.broadcast_to(noise_levels(windows.keys, 1), windows.token_ids.shape)
    return _noised_rows(windows, levels, vocabulary, block_size=window, clean=0)


def block_diffusion(
    windows: Windows, vocabulary: Vocabulary, settings: BlockDiffusionSettings, rates: Levels | None = None
) -> Examples:
    """BD3-LM: the clean window, then the noised one; a noised block sees itself and the clean blocks before it (Section 3).

    A block is `settings.block_size` positions of the window, counted from [SOS], and draws its own level. Special tokens
    belong to the block at their position and are never masked in either copy: a noised block sees its own [EOS], even to
    the right of the token it predicts. With blocks of one token this is a left-to-right language model; with a block as
    long as the window it is `masked_diffusion`.

    Args:
        windows: The text.
        vocabulary: Id of the mask.
        settings: `block_size`.
        rates: Not used: noise levels are drawn at random.
    """
    window = windows.token_ids.shape[1]
    size = min(settings.block_size, window)
    levels = np.repeat(noise_levels(windows.keys, -(-window // size)), size, axis=1)[:, :window]
    return _noised_rows(windows, levels, vocabulary, block_size=size, clean=1)


def cloze(windows: Windows, steps: Steps, vocabulary: Vocabulary, settings: MaskedDiffusionSettings) -> Examples:
    """Rows that predict all masked tokens at once from the rest, as MDLM is trained to do at any level."""
    examples = unilmv2.lay_out(windows, steps, vocabulary, unilmv2.ALL_MASKED, predict=("ae",), pseudo=vocabulary.mask)
    return dataclasses.replace(examples, targets={"diffusion": examples.targets["ae"]})


def causal(windows: Windows, vocabulary: Vocabulary, settings: BlockDiffusionSettings) -> Examples:
    """Rows that predict every text token from those left of it: one order in which block diffusion can fill a block.

    The clean window is followed by as many noised copies as a block has tokens. In copy k each block shows its first k
    tokens and predicts the next one, as some training rows do. A row is `block_size` + 1 windows wide, so this suits short
    blocks only.
    """
    window = windows.token_ids.shape[1]
    size = min(settings.block_size, window)
    place = np.arange(window) % size
    masked = np.zeros((len(windows), 1 + size, window), dtype=bool)
    masked[:, 1:] = windows.maskable[:, None] & (place >= np.arange(size)[:, None])
    return _lay_out(
        windows,
        masked,
        np.where(windows.maskable, 1 + place, -1),
        np.ones(windows.token_ids.shape),
        vocabulary,
        block_size=size,
    )


def noise_levels(keys: keyed.Bits, count: int) -> Levels:
    """Noise levels of each row's blocks, uniform in [0, 1), at least `LOWEST_LEVEL`. *Shape:* (rows, count)"""
    draws = keyed.uniform(keyed.bits(keys[:, None], keyed.Stream.NOISE_LEVEL, np.arange(count)))
    return np.maximum(draws, LOWEST_LEVEL)


def _noised_rows(windows: Windows, levels: Levels, vocabulary: Vocabulary, *, block_size: int, clean: int) -> Examples:
    """Training rows: `clean` clean copies, then one with each text token masked with the probability at its position."""
    rows, window = windows.token_ids.shape
    draws = keyed.uniform(keyed.bits(windows.keys[:, None], keyed.Stream.DIFFUSED, np.arange(window)))
    noised = windows.maskable & (draws < levels)
    masked = np.zeros((rows, clean + 1, window), dtype=bool)
    masked[:, clean] = noised
    return _lay_out(
        windows,
        masked,
        np.where(noised, clean, -1),
        1 / levels,
        vocabulary,
        block_size=block_size,
        norms=windows.maskable.sum(axis=1).astype(np.float32),
    )


def _lay_out(
    windows: Windows,
    masked: Flags,
    predicting: npt.NDArray[np.integer],
    weights: Levels,
    vocabulary: Vocabulary,
    *,
    block_size: int,
    norms: npt.NDArray[np.float32] | None = None,
) -> Examples:
    """Rows of concatenated masked copies of each window; the first copy is clean if there are several.

    Args:
        windows: The text.
        masked: Where each copy shows a mask. *Shape:* (rows, copies, window)
        predicting: Index of the copy that predicts the token at each position, -1 for none. *Shape:* (rows, window)
        weights: Weight of that prediction. *Shape:* (rows, window)
        vocabulary: Id of the mask.
        block_size: Positions per block.
        norms: See `Target.norms`. *Shape:* (rows,)
    """
    rows, copies, window = masked.shape
    position = np.arange(window, dtype=np.int32)
    unmasked = np.full((copies, 1), Kind.CONTEXT, dtype=np.uint8)
    unmasked[: copies > 1] = Kind.ORIGINAL
    join = Joined(windows.lengths, copies, window)
    intervals = visibility.block_diffusion_rows(windows.lengths, block_size, copies=copies - 1, capacity=join.width)
    row, place = np.nonzero(predicting >= 0)
    target = target_of(
        row,
        predicting[row, place] * windows.lengths[row] + place,
        windows.token_ids[row, place],
        rows=rows,
        width=window,
        weights=weights[row, place],
        norms=norms,
    )
    return Examples(
        input_ids=join(np.where(masked, np.int32(vocabulary.mask), windows.token_ids[:, None]), vocabulary.pad),
        position_ids=join(position, 0),
        segment_ids=join(windows.segment_ids[:, None], 0),
        kinds=join(np.where(masked, np.uint8(Kind.MASK), unmasked), Kind.PADDING),
        steps=join(np.where(masked, position // np.int32(block_size), np.int32(-1)), -1),
        intervals=intervals,
        lengths=copies * windows.lengths,
        mutual=windows.lengths if copies == 1 else np.zeros(rows, dtype=np.int32),
        text_tokens=windows.lengths,
        targets={"diffusion": target},
    )


OBJECTIVES: Mapping[str, Objective[Any]] = {
    "masked_diffusion": Objective(settings=MaskedDiffusionSettings, make=masked_diffusion, cloze=cloze),
    "block_diffusion": Objective(settings=BlockDiffusionSettings, make=block_diffusion, causal=causal),
}
