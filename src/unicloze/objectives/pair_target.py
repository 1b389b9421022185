"""Segment-pair targets: next-sentence prediction (BERT) and sentence order prediction (ALBERT).

The sampler pairs the segments and records the pairing in `Windows.negative`; the first slot of a row predicts it.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from unicloze.errors import UsageError
from unicloze.example import Examples, Target
from unicloze.objectives.groups import PAIRS_OF_TARGETS, Pairs
from unicloze.text.windows import Windows


def with_pair_target(examples: Examples, windows: Windows, settings: Pairs) -> Examples:
    """Add the target `nsp` or `sop` if the settings name it: 0 if S2 follows S1, else 1."""
    names = [name for name in PAIRS_OF_TARGETS if name in settings.targets]
    if not names:
        return examples
    if windows.negative is None:
        raise UsageError(
            f"objective.targets names {names[0]}, which needs paired segments: set --objective.pairs "
            f"{PAIRS_OF_TARGETS[names[0]]}."
        )
    rows = len(examples)
    target = Target(
        slots=np.zeros((rows, 1), dtype=np.int32),
        labels=windows.negative.astype(np.int32)[:, None],
        weights=np.ones((rows, 1), dtype=np.float32),
    )
    return dataclasses.replace(examples, targets={**examples.targets, names[0]: target})
