"""Pre-training heads: hidden states of predicted slots to losses, against tokens or a teacher's soft labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from unicloze.example import SoftLabels
from unicloze.model.backbone import embedding_width
from unicloze.model.layers import ACTIVATIONS, layer_norm
from unicloze.settings import ModelSettings


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


WIDENED, WIDENED_ON_GPU = 2**19, 2**26
"""Number of logits converted to float32 at once: 2 MB, which fits a core's cache, and 256 MB on a GPU."""


PADDED, PADDED_ON = 64, frozenset({"cuda"})
"""Multiple to which the vocabulary is padded where logits are computed, and the devices on which that is faster."""


def vocabulary_logits(hidden: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """Products with the output matrix, which keeps its size: rows of zeros are added here and their logits removed.

    Args:
        hidden: *Shape:* (..., width)
        matrix: *Shape:* (vocabulary, width)
        bias: *Shape:* (vocabulary,)

    Returns:
        *Shape:* (..., vocabulary)
    """
    tokens = len(matrix)
    more = -tokens % PADDED if hidden.device.type in PADDED_ON else 0
    if not more:
        return functional.linear(hidden, matrix, bias)
    wide = None if bias is None else functional.pad(bias, (0, more))
    return functional.linear(hidden, functional.pad(matrix, (0, 0, 0, more)), wide)[..., :tokens]


class TokenHead(nn.Module):
    """Hidden states to logits over the vocabulary, with output weights tied to the token embeddings.

    `head: transform` is BERT's: a dense layer, an activation and a normalisation before the output weights. `linear` has
    none of them (GPT, XLNet), except a projection where the embedding width differs from the hidden size. The output
    matrix is the token embeddings', unless the settings give it weights of its own (T5 1.1); that of an LSTM
    encoder-decoder is then as wide as the hidden states (CoVe).
    """

    def __init__(self, settings: ModelSettings, *, vocab_size: int) -> None:
        super().__init__()
        hidden = settings.hidden_size
        untied = settings.kind == "recurrent" and settings.decoder_layers and not settings.tied_output
        self.width = width = hidden if untied else embedding_width(settings)
        transforms = settings.head == "transform"
        self.dense = nn.Linear(hidden, width) if transforms or width != hidden else nn.Identity()
        self.activation = ACTIVATIONS[settings.activation] if transforms else nn.Identity()
        self.norm = layer_norm(settings, width) if transforms else nn.Identity()
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if settings.head_bias else None
        self.output = None if settings.tied_output else nn.Parameter(torch.zeros(vocab_size, width))
        self.factor = width**-0.5 if settings.scale_output else 1.0

    def matrix(self, embeddings: Tensor | None) -> Tensor:
        """The output matrix: the token embeddings given, or the head's own. *Shape:* (vocabulary, width)"""
        if self.output is not None:
            return self.output
        assert embeddings is not None  # a recipe without a table has an output matrix of its own
        return embeddings

    def transform(self, hidden: Tensor) -> Tensor:
        """The vectors multiplied with the output matrix. *Shape:* (predictions, hidden size) to (predictions, width)"""
        transformed: Tensor = self.norm(self.activation(self.dense(hidden)))
        return transformed * self.factor

    def forward(self, hidden: Tensor, embeddings: Tensor | None) -> Tensor:
        """Logits over the vocabulary.

        Args:
            hidden: *Shape:* (predictions, hidden size)
            embeddings: The token embeddings; None if this head has an output matrix of its own.
                *Shape:* (vocabulary, width)

        Returns:
            *Shape:* (predictions, vocabulary)
        """
        return vocabulary_logits(self.transform(hidden), self.matrix(embeddings), self.bias)


class BoundaryHead(nn.Module):
    """SpanBERT's span boundary objective: predicts a span's tokens from the slots left and right of it (Section 3.2).

    The two states and an embedding of the token's place in the span pass through two layers of dense, GELU and
    normalisation; the output weights are the token embeddings, with a bias.
    """

    PLACES = 128
    """Number of place embeddings; farther places share the last one."""
    PLACE_SIZE = 200
    """Width of the place embeddings (Section 4.2)."""

    def __init__(self, settings: ModelSettings, *, vocab_size: int) -> None:
        super().__init__()
        hidden, width = settings.hidden_size, settings.embedding_size or settings.hidden_size
        self.places = nn.Embedding(self.PLACES, self.PLACE_SIZE)
        self.inner = nn.Linear(2 * hidden + self.PLACE_SIZE, hidden)
        self.inner_norm = nn.LayerNorm(hidden, eps=settings.layer_norm_eps)
        self.outer = nn.Linear(hidden, width)
        self.outer_norm = nn.LayerNorm(width, eps=settings.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, boundary: Tensor, places: Tensor, embeddings: Tensor) -> Tensor:
        """Logits over the vocabulary.

        Args:
            boundary: States of the slots left and right of the span. *Shape:* (predictions, 2, hidden size)
            places: Place of the token in the span, from 1. *Shape:* (predictions,)
            embeddings: The token embeddings. *Shape:* (vocabulary, embedding size)

        Returns:
            *Shape:* (predictions, vocabulary)
        """
        place = self.places((places - 1).clamp(0, self.PLACES - 1))
        inner = self.inner_norm(functional.gelu(self.inner(torch.cat([boundary.flatten(1), place], dim=1))))
        outer = self.outer_norm(functional.gelu(self.outer(inner)))
        return vocabulary_logits(outer, embeddings, self.bias)


class DenseHead(nn.Module):
    """A dense layer, an activation and a linear layer.

    With tanh it classifies a segment pair from the first slot (BERT's pooler; BERT, Section 3.1); with the activation of the
    layers and one output it tells replaced tokens (ELECTRA's discriminator; Clark et al. 2020, Section 2).
    """

    def __init__(self, width: int, outputs: int, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.dense, self.output, self.activation = nn.Linear(width, width), nn.Linear(width, outputs), activation

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits. *Shape:* (..., hidden size) to (..., outputs)"""
        logits: Tensor = self.output(self.activation(self.dense(hidden)))
        return logits


class _CrossEntropy(torch.autograd.Function):
    """Cross-entropy per prediction in few passes over the logits; the buffer of probabilities becomes the gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        slopes, normaliser = _slopes(logits, labels, smoothing)
        ctx.save_for_backward(slopes)
        expected = logits.gather(1, labels[:, None]).squeeze(1).float()
        if smoothing:
            expected = torch.lerp(expected, logits.mean(dim=-1, dtype=torch.float32), smoothing)
        return normaliser - expected

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (slopes,) = ctx.saved_tensors
        return slopes.mul_(grads[0].to(slopes.dtype)[:, None]), None, None


def _slopes(logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """The gradient of each row's loss with respect to its logits, and the log of its normaliser in float32.

    The gradient is the softmax less the (smoothed) label, which half precision would cancel: the difference is rounded. The
    log normaliser is the largest logit minus the log of its probability. Half precision is converted in blocks of rows that
    stay in the processor's cache, so no full float32 copy is made.
    """
    if logits.dtype not in (torch.bfloat16, torch.float16):
        return _wide_slopes(logits, labels, smoothing, logits.dtype)
    slopes, normalisers = torch.empty_like(logits), []
    rows = max(1, (WIDENED if logits.device.type == "cpu" else WIDENED_ON_GPU) // logits.shape[1])
    for block, labelled, narrowed in zip(logits.split(rows), labels.split(rows), slopes.split(rows), strict=True):
        wide, normaliser = _wide_slopes(block, labelled, smoothing, torch.float32)
        normalisers.append(normaliser)
        narrowed.copy_(wide)
        del wide  # before the next block is allocated
    return slopes, torch.cat(normalisers)


def _wide_slopes(logits: Tensor, labels: Tensor, smoothing: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    wide = torch.softmax(logits, dim=-1, dtype=dtype)
    normaliser = (logits.amax(dim=-1).to(dtype) - wide.amax(dim=-1).log()).float()
    if smoothing:
        wide.sub_(smoothing / wide.shape[1])
    wide[torch.arange(len(labels), device=labels.device), labels] -= 1 - smoothing
    return wide, normaliser


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Negative log-likelihood of each label, in float32.

    Args:
        logits: *Shape:* (predictions, vocabulary)
        labels: *Shape:* (predictions,)
        smoothing: Probability mass of each label spread evenly over the vocabulary (Szegedy et al. 2016, Section 7).

    Returns:
        *Shape:* (predictions,)
    """
    losses: Tensor = _CrossEntropy.apply(logits, labels, smoothing)  # type: ignore[no-untyped-call]
    return losses
