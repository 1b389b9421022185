"""Chooses the precision in which vectors are computed: bf16 if it is measured to be faster and close enough."""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unicloze.decoding.embed import embed
from unicloze.errors import UniclozeError
from unicloze.settings import TrainingSettings
from unicloze.training.loading import LoadedModel
from unicloze.training.precision import choose_precision

LEAST_COSINE = 0.999
LEAST_SPEED_UP = 1.1
_TEXTS = 32
_TOKENS = 12
_ROUNDS = 2


@dataclass(frozen=True, kw_only=True)
class VectorPrecision:
    """The precision chosen for vectors.

    Args:
        model: The model in that precision.
        speed_up: Speed of bf16 relative to fp32; None if it was not measured.
        cosine: Smallest cosine between vectors of the two; None if it was not measured.
    """

    model: LoadedModel
    speed_up: float | None = None
    cosine: float | None = None

    def __str__(self) -> str:
        if self.speed_up is None or self.cosine is None:
            return f"vectors in {self.model.precision}"
        return (
            f"vectors in {self.model.precision}: bf16 is {self.speed_up:.1f} times as fast as fp32 here, and its vectors "
            f"have cosines of at least {math.floor(self.cosine * 1e5) / 1e5:.5f} with those of fp32"
        )


def choose_for_vectors(model: LoadedModel) -> VectorPrecision:
    """Measure a model's vectors of short random texts in both precisions.

    bf16 is chosen if it is at least `LEAST_SPEED_UP` times as fast and no cosine is below `LEAST_COSINE`. It is not tried if
    the hardware does not compute it fast, or if the model is in bf16 already.
    """
    automatic = TrainingSettings(precision="auto")
    if model.precision != "fp32" or choose_precision(automatic, model.compute.device) != "bf16":
        return VectorPrecision(model=model)
    half = dataclasses.replace(model, precision="bf16")
    texts = _random_texts(model)
    try:
        exact, close = embed(model, texts), embed(half, texts)  # also warms up
    except UniclozeError:  # a model that gives no vectors says why when it is asked for them
        return VectorPrecision(model=model)
    seconds = {id(one): [_seconds(one, texts)] for one in (model, half)}
    for _ in range(_ROUNDS - 1):
        for one in (model, half):
            seconds[id(one)].append(_seconds(one, texts))
    speed_up, cosine = min(seconds[id(model)]) / min(seconds[id(half)]), float(_cosines(exact, close).min())
    good = speed_up >= LEAST_SPEED_UP and cosine >= LEAST_COSINE
    return VectorPrecision(model=half if good else model, speed_up=speed_up, cosine=cosine)


def _random_texts(model: LoadedModel) -> list[str]:
    draw = np.random.default_rng(0)
    ids = draw.choice(model.tokenizer.vocabulary.ordinary, size=(_TEXTS, _TOKENS))
    texts = [model.tokenizer.decode(row) for row in ids.tolist()]
    return [text if text.strip() else "a" for text in texts]


def _seconds(model: LoadedModel, texts: list[str]) -> float:
    # On a CPU, other work of the machine affects processor time less.
    clock = time.process_time if model.compute.device.type == "cpu" else time.perf_counter
    begin = clock()
    embed(model, texts)
    return clock() - begin


def _cosines(left: npt.NDArray[np.float32], right: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    both = [each.astype(np.float64) / np.linalg.norm(each, axis=1, keepdims=True) for each in (left, right)]
    cosines: npt.NDArray[np.float64] = (both[0] * both[1]).sum(axis=1)
    return cosines
