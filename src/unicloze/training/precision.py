"""Where and in which data type a run computes."""

from __future__ import annotations

import time
from typing import Any

import torch

from unicloze.errors import UsageError
from unicloze.settings import TrainingSettings


def choose_device(settings: TrainingSettings) -> torch.device:
    """The device the settings name.

    Raises:
        UsageError: It is not there.
    """
    if settings.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(settings.device)
    except RuntimeError as error:
        raise UsageError(f"training.device is {settings.device}: give auto, cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"training.device is {settings.device}: only cpu and cuda are supported")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError("training.device is cuda, but torch finds no CUDA device here: set --training.device cpu")
    return device


def choose_precision(settings: TrainingSettings, device: torch.device) -> str:
    """`bf16` or `fp32`: as set, else bf16 where it is faster.

    GPUs with bf16 and CPUs with AMX always are. A CPU whose only bf16 instructions are AVX512-BF16 may be either way
    (measured: 0.6 times the speed of fp32 on one, above it on others), so two short products are timed there.
    """
    if settings.precision != "auto":
        return settings.precision
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    abilities = cpu_abilities()
    if abilities["amx_bf16"] or not abilities["avx512_bf16"]:
        return "bf16" if abilities["amx_bf16"] else "fp32"
    return "bf16" if product_seconds(torch.float32) > 1.3 * product_seconds(torch.bfloat16) else "fp32"


def cpu_abilities() -> dict[str, bool]:
    """Whether the CPU has AMX and AVX512 instructions for bf16."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return {name: bool(capabilities.get(name, False)) for name in ("amx_bf16", "avx512_bf16")}


def product_seconds(dtype: torch.dtype, size: int = 768) -> float:
    """Fastest of a few square matrix products on the CPU."""
    left, right = torch.ones(size, size, dtype=dtype), torch.ones(size, size, dtype=dtype)
    times = []
    for _ in range(6):
        start = time.perf_counter()
        left @ right
        times.append(time.perf_counter() - start)
    return min(times)
