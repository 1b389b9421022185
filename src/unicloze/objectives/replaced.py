"""Replaced-token detection: every slot predicts whether its token is original or replaced (ELECTRA, Section 2).

A network samples the tokens at masked positions, so the objective only gives the slots and their original tokens; the model
inserts its samples and compares (`unicloze.model.chain`).
"""

from __future__ import annotations

import dataclasses

import numpy as np

from unicloze.example import Examples, Target
from unicloze.settings import ObjectiveSettings
from unicloze.text.windows import Windows


def with_replaced_target(examples: Examples, windows: Windows, settings: ObjectiveSettings) -> Examples:
    """Add the target `rtd`, if the settings name it, at every slot of the window that is not padding.

    Special tokens are included, as in the released code. Labels are the tokens of the window.

    Args:
        examples: Rows whose slots are the positions of the window.
        windows: The windows of the rows.
        settings: Settings with the target names.
    """
    if "rtd" not in settings.targets:
        return examples
    rows, window = windows.token_ids.shape
    position = np.arange(window, dtype=np.int32)
    target = Target(
        slots=np.tile(position, (rows, 1)),
        labels=windows.token_ids,
        weights=(position < windows.lengths[:, None]).astype(np.float32),
    )
    return dataclasses.replace(examples, targets={**examples.targets, "rtd": target})
