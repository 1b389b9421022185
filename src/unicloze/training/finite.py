"""Whether all weights are numbers, cheap enough to ask after every update."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor


def first_non_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Name of the first tensor that holds NaN or infinity; None if there is none.

    All are read once, for their norm. Only where that is not finite, which large numbers may cause too, is each looked
    through.
    """
    tensors = {name: tensor.detach() for name, tensor in tensors.items() if tensor.is_floating_point()}
    if math.isfinite(float(torch.nn.utils.get_total_norm(tensors.values()))):
        return None
    return next((name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())), None)
