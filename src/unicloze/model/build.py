"""Builds the model a recipe describes: a Transformer, a recurrent network, or ELECTRA's chain of two."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from unicloze import keyed
from unicloze.devices import widest_float
from unicloze.example import Batch
from unicloze.model.dropout import DropoutKey
from unicloze.model.flops import Amounts
from unicloze.model.layers import borrow
from unicloze.model.model import TargetLoss, UnifiedModel
from unicloze.model.recurrent.model import RecurrentModel, TranslationModel
from unicloze.settings import HeadSettings, ModelSettings

SHARED = "tokens", "positions", "segments", "norm"
"""Embedding modules shared by both networks (Section 3.2); the released code shares the normalisation too."""

SAMPLED_AT_ONCE = 256
"""Number of predictions whose probabilities are held in float64 at a time."""


# The generator, a small masked language model, predicts the masked tokens. One sample per prediction is written into
# the row, and the discriminator classifies every slot as original or replaced. Both train at once, with no gradient
# through the samples. Only the discriminator is used after training.


class ReplacedTokenModel(nn.Module):
    """A generator and a discriminator behind the interface of `UnifiedModel`.

    Args:
        settings: Shape of the discriminator; `generator_size` scales the generator.
        vocab_size: Rows of the token table.
        max_positions: Rows of the position table.
        targets: `ae`, predicted by the generator, `rtd`, and any other targets of the discriminator.
    """

    def __init__(
        self, settings: ModelSettings, *, vocab_size: int, max_positions: int, targets: Collection[str]
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.max_positions = max_positions
        self.discriminator = UnifiedModel(
            settings, vocab_size=vocab_size, max_positions=max_positions, targets=set(targets) - {"ae"}
        )
        self.generator = UnifiedModel(
            generator_settings(settings), vocab_size=vocab_size, max_positions=max_positions, targets=("ae",)
        )
        borrow(self.generator.backbone.embeddings, self.discriminator.backbone.embeddings, SHARED)

    @property
    def networks(self) -> tuple[UnifiedModel, ...]:
        """Both networks, in the order they run."""
        return self.generator, self.discriminator

    def for_use(self) -> UnifiedModel:
        """The network used after training: the discriminator (Section 2)."""
        return self.discriminator

    def initialize(self, seed: int) -> None:
        """Initialise the weights of both networks."""
        self.discriminator.initialize(seed)
        self.generator.initialize(int(keyed.key(seed, keyed.Purpose.GENERATOR_WEIGHTS)[0] >> 1))

    def forward(self, batch: Batch, dropout: DropoutKey | None = None) -> Mapping[str, TargetLoss]:
        """Losses of every target in a batch.

        Args:
            batch: The rows, with masked positions corrupted.
            dropout: Dropout of this forward pass; none if None. It also keys the samples; without it the content of each row
                keys them, so they are the same at every call and in any batch.
        """
        generated, following = self.generate(batch, dropout)
        losses = {"ae": generated, **self.discriminator(following, dropout)}
        return {name: losses[name] for name in batch.targets}

    def generate(self, batch: Batch, dropout: DropoutKey | None = None) -> tuple[TargetLoss, Batch]:
        """The generator's loss and the discriminator's batch.

        Returns:
            Loss of `ae`; the rows with a sample at every predicted slot. Labels of `rtd` are 1 where a token differs from the
            original text and 0 where it is equal, even if it was sampled.
        """
        target = batch.targets["ae"]
        shown = dataclasses.replace(batch, targets={"ae": target})
        states = self.generator.backbone(shown, select=True, dropout=dropout)[-1].flatten(0, 1)
        predicted = target.predicted()
        logits = self.generator.token_logits(states.index_select(0, predicted))
        weights, labels = (part.flatten().index_select(0, predicted) for part in (target.weights, target.labels))
        losses = self.generator.token_losses(logits, labels)
        counted = None if target.counted is None else target.counted.flatten().index_select(0, predicted)
        loss = TargetLoss.of(losses, weights, target, counted)
        draws = draws_of_rows(batch) if dropout is None else dropout.uniform(len(predicted))
        draws = draws.to(logits.device, widest_float(logits.device), non_blocking=True)
        return loss, with_samples(batch, sample_tokens(logits.detach(), draws))

    def logits(self, batch: Batch) -> Mapping[str, Tensor]:
        """The generator's logits for every masked token, without dropout. *Shape:* (rows, predictions, vocabulary)"""
        return self.generator.logits(dataclasses.replace(batch, targets={"ae": batch.targets["ae"]}))

    def flops(self, amounts: Amounts) -> float:
        """Floating-point operations of a training step of both networks, see `unicloze.model.flops`."""
        others = amounts.of(amounts.predictions.keys() - {"ae"})
        return self.generator.flops(amounts.of({"ae"})) + self.discriminator.flops(others)

    def num_parameters(self) -> int:
        """Number of weights of both networks; shared weights count once."""
        return sum(parameter.numel() for parameter in self.parameters())


def generator_settings(settings: ModelSettings) -> ModelSettings:
    """The generator's shape: hidden size, feed-forward size and heads scaled by `generator_size` (Appendix A, Table 6).

    The number of heads is rounded, and the hidden size rounded to an even multiple of it, as sinusoidal positions require.
    The embeddings keep the discriminator's width.
    """
    size = settings.generator_size
    heads = max(1, round(settings.num_heads * size))
    unit = math.lcm(heads, 2)
    return dataclasses.replace(
        settings,
        num_heads=heads,
        hidden_size=unit * max(1, round(settings.hidden_size * size / unit)),
        intermediate_size=max(1, round(settings.intermediate_size * size)),
        embedding_size=settings.embedding_size or settings.hidden_size,
    )


def draws_of_rows(batch: Batch) -> Tensor:
    """Uniform draws keyed by each row's content, so that samples do not depend on the batch a row is evaluated in.

    Args:
        batch: The rows; `rtd` marks the slots that are not padding, `ae` the predictions.

    Returns:
        float64 on the CPU, one for each `ae` prediction with nonzero weight, row by row.
            *Shape:* (predictions,)
    """
    asked = batch.targets["rtd"]
    shown = batch.input_ids.gather(1, asked.slots).cpu().numpy()
    real = (asked.weights > 0).cpu().numpy()
    named = keyed.key(shown, asked.slots.cpu().numpy())
    rows = np.where(real, named, np.uint64(0)).sum(axis=1, dtype=np.uint64)  # wraps around
    row, prediction = batch.targets["ae"].weights.nonzero(as_tuple=True)
    drawn = keyed.bits(rows[row.cpu().numpy()], keyed.Stream.ONLY, prediction.cpu().numpy())
    return torch.from_numpy(keyed.uniform(drawn))


def sample_tokens(logits: Tensor, draws: Tensor) -> Tensor:
    """Sample a token from each softmax: the first whose cumulative probability exceeds the draw.

    Args:
        logits: *Shape:* (predictions, vocabulary)
        draws: Uniform in [0, 1). *Shape:* (predictions,)

    Returns:
        *Shape:* (predictions,)
    """
    tokens, exact = [], widest_float(logits.device)
    for block, drawn in zip(logits.split(SAMPLED_AT_ONCE), draws.to(exact).split(SAMPLED_AT_ONCE), strict=True):
        reached = torch.softmax(block.float(), dim=-1).cumsum(dim=-1, dtype=exact)
        tokens.append(torch.searchsorted(reached, (drawn * reached[:, -1])[:, None], right=True).squeeze(1))
    # NaN logits would give a token beyond the last; the loss check reports them.
    return torch.cat(tokens).clamp(max=logits.shape[1] - 1)


def with_samples(batch: Batch, samples: Tensor) -> Batch:
    """Make the discriminator's batch.

    Args:
        batch: The rows; `ae` marks where samples go, and the labels of `rtd` are the original tokens.
        samples: Tokens for the `ae` predictions with nonzero weight, row by row. *Shape:* (predictions,)

    Returns:
        The rows with the samples and without `ae`; labels of `rtd` are 1 where the token differs from the original.
    """
    target, asked = batch.targets["ae"], batch.targets["rtd"]
    predicted = target.predicted()
    row = predicted // target.weights.shape[1]
    input_ids = batch.input_ids.index_put((row, target.slots.flatten().index_select(0, predicted)), samples)
    replaced = (input_ids.gather(1, asked.slots) != asked.labels).long()
    others = {name: other for name, other in batch.targets.items() if name != "ae"}
    return dataclasses.replace(
        batch, input_ids=input_ids, targets={**others, "rtd": dataclasses.replace(asked, labels=replaced)}
    )


Model: TypeAlias = UnifiedModel | ReplacedTokenModel
"""Any model the training loop accepts: maps a batch to losses by target. `for_use` is the network kept after training."""


def build(
    settings: ModelSettings,
    *,
    vocab_size: int,
    max_positions: int,
    targets: Collection[str],
    heads: Mapping[str, HeadSettings] | None = None,
) -> Model:
    """Build a model without initialising its weights.

    Args:
        settings: Model shape.
        vocab_size: Rows of the token table.
        max_positions: Rows of the position table.
        targets: Names of the prediction targets.
        heads: Heads of a task by target; such a model is always a single network.
    """
    if settings.generator_size > 0 and not heads:
        return ReplacedTokenModel(settings, vocab_size=vocab_size, max_positions=max_positions, targets=targets)
    kind = UnifiedModel
    if settings.kind == "recurrent":
        kind = TranslationModel if settings.decoder_layers else RecurrentModel
    return kind(settings, vocab_size=vocab_size, max_positions=max_positions, targets=targets, heads=heads)


class _Undrawn(TorchFunctionMode):
    """Skips random initialisation, which on `meta` would import hundreds of modules to no effect."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in ("normal_", "uniform_"):
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def shapes_only() -> Iterator[None]:
    """Build models within this context on `meta`, without storage; `to_empty` allocates it."""
    with torch.device("meta"), _Undrawn():
        yield
