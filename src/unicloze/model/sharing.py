"""Weights that several modules use: one of them owns them, so that each tensor has one name in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

_OWNER = "_owner_of_borrowed"


def borrow(borrower: nn.Module, owner: nn.Module, names: Iterable[str]) -> None:
    """Let a module use submodules of another one, which stay registered there alone.

    They are among the owner's parameters, state and submodules and not among the borrower's. A copy of a model that holds
    both borrows from its own owner.

    Args:
        borrower: Uses them as attributes of the same names.
        owner: Has them.
        names: Which ones; none leaves the borrower as it is.
    """
    for name in names:
        borrower._modules.pop(name, None)
        # Past nn.Module, which would register them a second time.
        object.__setattr__(borrower, name, getattr(owner, name))
        object.__setattr__(borrower, _OWNER, owner)


def owners(model: nn.Module) -> list[nn.Module]:
    """The modules of a model that others borrow from.

    Their weights are needed outside their own forward pass. So whoever shards a model layer by layer keeps these gathered
    after it: `fully_shard(layer, reshard_after_forward=layer not in owners(model))`.
    """
    found = {id(owner): owner for module in model.modules() if (owner := vars(module).get(_OWNER)) is not None}
    return list(found.values())
