"""Torch's devices, and copies of batches to them. CUDA has been tested on one GPU, xpu and mps never."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import Tensor


def devices_here() -> list[str]:
    """Names of the devices that torch finds: cpu, cuda:0, ..., xpu:0, ..., mps."""
    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    xpu = torch.xpu.device_count() if torch.xpu.is_available() else 0
    numbered = [f"{kind}:{number}" for kind, count in (("cuda", cuda), ("xpu", xpu)) for number in range(count)]
    return ["cpu", *numbered, *(["mps"] if torch.backends.mps.is_available() else [])]


def widest_float(device: torch.device) -> torch.dtype:
    """The most exact floating-point type of a device."""
    return torch.float32 if device.type == "mps" else torch.float64


def seed(device: torch.device, number: int) -> None:
    """Seed the generator of a GPU; on a CPU, keys decide all draws."""
    if device.type in ("cuda", "xpu", "mps"):
        module = torch.get_device_module(device)
        with nullcontext() if device.type == "mps" else module.device(device):
            module.manual_seed(number)


T = TypeVar("T")

ALIGNED = 16
"""Bytes that the place of each tensor in a buffer is a multiple of."""


def to_device(batch: T, device: torch.device) -> T:
    """Copy all tensors of a batch to a device at once.

    For a GPU the buffer is pinned and copied on a stream of its own. What is queued afterwards waits for the copy; this
    process and what the GPU computes meanwhile do not.
    """
    if device.type == "cpu":
        return batch
    return moved(batch, lambda buffer: _sent(buffer, device), pinned=device.type == "cuda")


def moved(batch: T, send: Callable[[Tensor], Tensor], *, pinned: bool = False) -> T:
    """The batch, with tensors that are views of one buffer."""
    tensors: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    _replaced(batch, note)
    sizes = [-(-tensor.nbytes // ALIGNED) * ALIGNED for tensor in tensors]
    buffer = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=pinned)
    for own, tensor in zip(_views(buffer, tensors, sizes), tensors, strict=True):
        own.copy_(tensor)
    views = _views(send(buffer), tensors, sizes)
    found: T = _replaced(batch, lambda _: next(views))
    return found


def _views(buffer: Tensor, tensors: list[Tensor], sizes: list[int]) -> Iterator[Tensor]:
    for tensor, first in zip(tensors, accumulate(sizes, initial=0), strict=False):
        yield buffer[first : first + tensor.nbytes].view(tensor.dtype).view(tensor.shape)


def _replaced(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A value with its tensors replaced, also within dataclasses, mappings and tuples."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: _replaced(each, change) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(_replaced(each, change) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _replaced(getattr(value, field.name), change) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value


def _sent(buffer: Tensor, device: torch.device) -> Tensor:
    if device.type != "cuda":
        return buffer.to(device)
    current = torch.cuda.current_stream(device)
    side = _side_stream(current.device)
    with torch.cuda.stream(side):
        found = buffer.to(device, non_blocking=True)
    current.wait_stream(side)
    found.record_stream(current)
    return found


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
