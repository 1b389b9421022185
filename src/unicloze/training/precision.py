"""Chooses the device and precision of a run."""

from __future__ import annotations

import re
import time
import warnings
from typing import Any

import torch

from unicloze import cores
from unicloze.devices import devices_here
from unicloze.errors import UsageError
from unicloze.settings import DEVICE, Recipe, TrainingSettings


def choose_device(settings: TrainingSettings) -> torch.device:
    """The device named in the settings, see `named_device`; with several processes a CUDA device for each."""
    device = named_device(settings.device, "training.device")
    if device.type not in ("cpu", "cuda") and cores.processes() > 1:
        raise UsageError(f"training.device is {device}: several processes train on CPUs or on CUDA devices alone")
    if device.type != "cuda" or cores.processes() == 1:
        return device
    number, there = cores.local_rank(), torch.cuda.device_count()
    if number >= there:
        raise UsageError(
            f"process {cores.rank()} has local rank {number}, but its machine has {there} CUDA devices: start one process "
            "per device (torchrun --nproc-per-node)"
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def named_device(name: str | torch.device, setting: str = "device") -> torch.device:
    """The device of a given name."""
    name = str(name)
    if not re.fullmatch(DEVICE, name):
        raise UsageError(f"{setting} is {name!r}: give auto, cpu, cuda, cuda:N, xpu, xpu:N or mps")
    here = devices_here()
    if name == "auto":
        return torch.device("cuda" if "cuda:0" in here else "cpu")
    if name not in here and f"{name}:0" not in here:
        there = ", ".join(["auto", *here])
        raise UsageError(f"{setting} is {name}, but torch finds no such device here: give one of {there}")
    return torch.device(name)


def choose_precision(settings: TrainingSettings, device: torch.device) -> str:
    """`bf16` or `fp32`: as set, else bf16 where it is faster.

    bf16 is always faster on GPUs that support it and on CPUs with AMX. On CPUs with only AVX512-BF16 it varies (measured: 0.6
    times the speed of fp32 on one, above it on others), so two short products are timed.
    """
    if settings.precision != "auto":
        if settings.precision == "bf16" and device.type == "cpu" and not any(cpu_abilities().values()):
            warnings.warn(
                "the precision is bf16, and this CPU has no instructions for it, so that it computes many times slower than "
                "in fp32: leave the precision at auto",
                stacklevel=3,
            )
        return settings.precision
    if device.type == "cuda":
        with torch.cuda.device(device):
            return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    if device.type != "cpu":
        return "fp32"
    abilities = cpu_abilities()
    if abilities["amx_bf16"] or not abilities["avx512_bf16"]:
        return "bf16" if abilities["amx_bf16"] else "fp32"
    return "bf16" if product_seconds(torch.float32) > 1.3 * product_seconds(torch.bfloat16) else "fp32"


def with_precision(recipe: Recipe, precision: Any) -> Recipe:
    """The recipe with this precision where it leaves it open."""
    return recipe.changed("training", precision=precision) if recipe.training.precision == "auto" else recipe


def cpu_abilities() -> dict[str, bool]:
    """Whether the CPU has AMX and AVX512 instructions for bf16."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return {name: bool(capabilities.get(name, False)) for name in ("amx_bf16", "avx512_bf16")}


def product_seconds(dtype: torch.dtype, size: int = 768) -> float:
    """Time of the fastest of a few square matrix products on the CPU."""
    left, right = torch.ones(size, size, dtype=dtype), torch.ones(size, size, dtype=dtype)
    times = []
    for _ in range(6):
        start = time.perf_counter()
        left @ right
        times.append(time.perf_counter() - start)
    return min(times)
