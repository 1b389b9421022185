"""The loss of soft labels: how far a model's predictions are from its teacher's (Hinton et al. 2015, Section 2)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from unicloze.example import SoftLabels


def soft_losses(logits: Tensor, soft: SoftLabels) -> Tensor:
    """Divergence of the prediction from the teacher's at the temperature T, times T squared, in float32.

    The factor keeps the size of the gradient the same at any temperature. The gradient is that of the cross-entropy with
    the soft labels, which differs from the divergence by the teacher's entropy, a constant.

    Args:
        logits: *Shape:* (predictions, classes)
        soft: The teacher's logits.

    Returns:
        *Shape:* (predictions,)
    """
    own = functional.log_softmax(logits.float() / soft.temperature, dim=-1)
    theirs = functional.log_softmax(soft.outputs.float() / soft.temperature, dim=-1)
    return functional.kl_div(own, theirs, reduction="none", log_target=True).sum(dim=-1) * soft.temperature**2


def mixed_losses(losses: Tensor, outputs: Tensor, soft: SoftLabels, *, numbers: bool = False) -> Tensor:
    """The losses of labels mixed with those of soft labels.

    Args:
        losses: Losses of the labels. *Shape:* (predictions,)
        outputs: Logits, or quantities. *Shape:* (predictions, outputs)
        soft: What the teacher predicts.
        numbers: Whether the outputs are quantities, whose loss is the mean squared difference.
    """
    difference = (outputs.float() - soft.outputs.float()).square().mean(dim=-1) if numbers else None
    return torch.lerp(losses, soft_losses(outputs, soft) if difference is None else difference, soft.weight)
