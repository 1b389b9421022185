"""Torch's devices: which are here, and what differs between them. Only the CPU has been tested, and CUDA's code paths."""

from __future__ import annotations

from contextlib import nullcontext

import torch


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
