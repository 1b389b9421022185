"""Estimates a lower bound of the memory a run needs, and refuses runs that cannot fit before any work."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from unicloze.errors import UsageError
from unicloze.mixtures import phases
from unicloze.model.build import shapes_only
from unicloze.settings import Recipe
from unicloze.training.loading import shape_model

_GIB = 2**30
_CGROUPS = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")


def refuse_what_cannot_fit(recipe: Recipe, device: torch.device, vocab_size: int) -> None:
    """Refuse a recipe whose lower bound of memory exceeds that of the device.

    Args:
        recipe: The recipe; each phase is checked.
        device: Device of the run.
        vocab_size: Number of token ids.

    Raises:
        UsageError: It cannot fit; the message suggests what would.
    """
    there = memory_of(device)
    if there is None:
        return
    with shapes_only():
        weights = sum(weight.numel() for weight in shape_model(recipe, vocab_size).parameters())
    of_a_weight = 4 if recipe.training.frozen else 12 if recipe.training.optimizer == "muon" else 16
    fixed = of_a_weight * weights  # each has a gradient and one or two moments, unless it is frozen
    if fixed > there:
        raise UsageError(
            f"the model has {weights:,} weights and would need {fixed / _GIB:,.0f} GiB of memory with their gradients and "
            f"moments, but there are only {there / _GIB:,.1f} GiB: lower model.hidden_size, model.num_layers, "
            f"tokenizer.vocab_size or data.window until it has {int(there / of_a_weight):,} weights or fewer"
        )
    for phase in phases(recipe):
        training = phase.recipe.training
        rows = training.micro_batch_size or training.batch_size
        of_a_row = _bytes_of_a_row(phase.recipe)
        if fixed + rows * of_a_row > there:
            most = int((there - fixed) // of_a_row)
            fits = next((size for size in range(most, 0, -1) if training.batch_size % size == 0), 0) if most else 0
            cure = f"--training.micro_batch_size {fits}" if fits else "a shorter data.window or a smaller model"
            raise UsageError(
                f"{rows:,} rows of {phase.recipe.data.window:,} tokens at a time would need "
                f"{(fixed + rows * of_a_row) / _GIB:,.0f} GiB of memory or more, but there are only {there / _GIB:,.1f}: "
                f"give {cure}"
            )


def _bytes_of_a_row(recipe: Recipe) -> int:
    """Lower bound of the bytes the backward pass keeps per row: inputs of each layer's matrix products, in bf16.

    A slot of an encoder-decoder passes through one of its stacks.
    """
    model = recipe.model
    layers = min(model.num_layers, model.decoder_layers or model.num_layers)
    kept = 4 * model.hidden_size + 2 * model.intermediate_size
    return 2 * recipe.data.window * layers * kept


def memory_of(device: torch.device) -> int | None:
    """Memory of a device in bytes, for a CPU limited by the cgroup of this process; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return None
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in _CGROUPS:
        said = file.read_text().strip() if file.is_file() else "max"
        if said.isdecimal():
            found.append(int(said))
    return min(found)
