"""Builds the model a recipe describes: a Transformer, a recurrent network, or ELECTRA's chain of two."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch.overrides import TorchFunctionMode

from unicloze.model.chain import ReplacedTokenModel
from unicloze.model.model import UnifiedModel
from unicloze.model.recurrent.model import RecurrentModel
from unicloze.model.recurrent.translation_model import TranslationModel
from unicloze.settings import HeadSettings, ModelSettings

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
