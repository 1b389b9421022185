"""Counts the bytes of tensors."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):
    """Counts the bytes of tensors that are made and not yet freed within it."""

    def __init__(self, known: Iterator[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._kept = [tensor.untyped_storage() for tensor in known]
        self._ids = {id(storage) for storage in self._kept}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call an operation and count what it made."""
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                for part in (tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,):
                    self._note(part)
        return made

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if id(storage) in self._ids:
            return
        size = storage.nbytes()
        self._ids.add(id(storage))
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._freed, id(storage), size)

    def _freed(self, number: int, size: int) -> None:
        self._ids.discard(number)
        self.live -= size
