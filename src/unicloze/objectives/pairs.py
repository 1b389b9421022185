"""How two segments relate: next-sentence prediction (BERT) and sentence order prediction (ALBERT).

The sampler pairs the segments, `Windows.negative` says how; here the first slot of a row is asked for it.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from unicloze.errors import UsageError
from unicloze.example import Examples, Target
from unicloze.objectives.groups import PAIRS_OF_TARGETS, Pairs
from unicloze.text.windows import Windows


def with_pair_target(examples: Examples, windows: Windows, settings: Pairs) -> Examples:
    """The examples, and if the settings ask for it how their segments relate: 0 where S2 follows S1, 1 where it does not.

    Raises:
        UsageError: The windows were not paired for it.
    """
    names = [name for name in PAIRS_OF_TARGETS if name in settings.targets]
    if not names:
        return examples
    if windows.negative is None:
        raise UsageError(
            f"objective.targets names {names[0]}, which needs segments paired for it: set --objective.pairs "
            f"{PAIRS_OF_TARGETS[names[0]]}."
        )
    rows = len(examples)
    target = Target(
        slots=np.zeros((rows, 1), dtype=np.int32),
        labels=windows.negative.astype(np.int32)[:, None],
        weights=np.ones((rows, 1), dtype=np.float32),
    )
    return dataclasses.replace(examples, targets={**examples.targets, names[0]: target})
