"""The model that settings describe: one network, or a chain of them. All are the same to the loop."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch.overrides import TorchFunctionMode

from unicloze.model.chain import ReplacedTokenModel
from unicloze.model.model import UnifiedModel
from unicloze.settings import HeadSettings, ModelSettings

Model: TypeAlias = UnifiedModel | ReplacedTokenModel
"""What the loop trains: a batch in, losses by target out. `for_use` gives the one network that is used afterwards."""


def build(
    settings: ModelSettings,
    *,
    vocab_size: int,
    max_positions: int,
    targets: Collection[str],
    heads: Mapping[str, HeadSettings] | None = None,
) -> Model:
    """A model without weights drawn yet.

    Args:
        settings: Its shape.
        vocab_size: Rows of the token table.
        max_positions: Rows of the position table.
        targets: What it predicts.
        heads: Targets of a task, each with a head of its own; such a model is one network.
    """
    if settings.generator_size > 0 and not heads:
        return ReplacedTokenModel(settings, vocab_size=vocab_size, max_positions=max_positions, targets=targets)
    return UnifiedModel(settings, vocab_size=vocab_size, max_positions=max_positions, targets=targets, heads=heads)


class _Undrawn(TorchFunctionMode):
    """Leaves out what would draw weights: on `meta` that imports hundreds of modules for nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in ("normal_", "uniform_"):
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def shapes_only() -> Iterator[None]:
    """Models built within have shapes and no memory; `to_empty` gives them some."""
    with torch.device("meta"), _Undrawn():
        yield
