"""Windows to examples: what is masked, who may read whom, what is predicted.

An objective is a function `(windows, vocabulary, settings, rates) -> Examples`, pure in its arguments: every random draw
is keyed by `windows.keys`. To add one, write the function, name it here, and give it a recipe and a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from unicloze.example import Examples
from unicloze.objectives.unilmv2 import unilmv2
from unicloze.settings import ObjectiveSettings
from unicloze.text.tokenizers import Vocabulary
from unicloze.text.windows import Windows

Objective = Callable[[Windows, Vocabulary, ObjectiveSettings, npt.NDArray[np.float64] | None], Examples]

OBJECTIVES: Mapping[str, Objective] = {
    "unilmv2": unilmv2,
}
