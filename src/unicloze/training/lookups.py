"""Gradients of large embedding tables on a CPU: the rows that were read instead of the whole table.

A step reads some hundred rows of a table of tens of thousands. autograd would allocate, zero and add a gradient as large as
the table for them; fresh memory of that size costs more than a layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

LARGE = 2**22
"""Weights of a table from which on this pays: 16 MB in fp32."""


@contextmanager
def by_rows(model: nn.Module) -> Iterator[None]:
    """Look-ups in large tables give sparse gradients meanwhile."""
    tables = [each for each in model.modules() if isinstance(each, nn.Embedding) and each.weight.numel() >= LARGE]
    for table in tables:
        table.sparse = True
    try:
        yield
    finally:
        for table in tables:
            table.sparse = False


def fill_gradients(model: nn.Module, buffers: dict[nn.Parameter, Tensor]) -> None:
    """Sparse gradients become dense, as optimisers need them; those of later micro-batches are added to them in place.

    Args:
        model: What was learned.
        buffers: Memory of the gradients by weight, kept from step to step and overwritten here.
    """
    for weight in model.parameters():
        gradient = weight.grad
        if gradient is not None and gradient.is_sparse:
            if weight not in buffers:
                buffers[weight] = torch.empty_like(weight, requires_grad=False)
            weight.grad = buffers[weight].zero_().add_(gradient)
