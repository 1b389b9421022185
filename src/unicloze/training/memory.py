"""Memory: refuses runs that cannot fit before any work."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from unicloze import cores
from unicloze.errors import UsageError, option_of
from unicloze.mixtures import phases
from unicloze.model.build import shapes_only
from unicloze.recipes.validation import unshardable
from unicloze.settings import Recipe
from unicloze.training.loading import shape_model
from unicloze.training.precision import choose_device

_GIB = 2**30
MOMENTS = {"adamw": 8, "adamax": 8, "lamb": 8, "muon": 4, "sgd": 4, "nt_asgd": 0, "adafactor": 0}
"""Bytes of moments of each weight in a matrix, at least, by optimiser."""


def refuse_what_cannot_fit(recipe: Recipe, device: torch.device, vocab_size: int, shares: int = 1) -> None:
    """Refuse pre-training whose lower bound of memory exceeds that of the device."""
    there = memory_of(device)
    cure = "lower model.hidden_size, model.num_layers, tokenizer.vocab_size or data.window until it has {} weights or fewer"
    fixed = _bytes_of_weights(recipe, vocab_size, there * shares, cure) // shares
    for phase in phases(recipe):
        training, window = phase.recipe.training, phase.recipe.data.window
        rows = training.micro_batch_size or training.batch_size
        _check_rows(phase.recipe, rows, rows * window, fixed, there, "a shorter data.window or a smaller model")


def refuse_task_that_cannot_fit(recipe: Recipe, device: torch.device, vocab_size: int, slots: Sequence[int]) -> None:
    """Refuse fine-tuning whose lower bound of memory exceeds that of the device."""
    there, head_only = memory_of(device), f"{option_of('training.frozen')} backbone"
    cure = f"start from a model of {{}} weights or fewer, or train only its head ({head_only})"
    fixed = _bytes_of_weights(recipe, vocab_size, there, cure)
    rows = min(recipe.training.micro_batch_size or recipe.training.batch_size, len(slots))
    tokens = rows * sum(slots) // max(1, len(slots))  # the largest micro-batch has at least the mean
    cure = f"a shorter {option_of('task.max_length')} or a smaller model"
    _check_rows(recipe, rows, tokens, fixed, there, cure)


def shards(recipe: Recipe, processes: int) -> bool:
    """Whether each process of pre-training holds a share of the model: as set, or where the whole does not fit."""
    wanted = recipe.training.parallel
    if processes == 1 or wanted == "replicate":
        return False
    if wanted == "shard":
        return True
    if any(unshardable(recipe)):
        return False
    try:
        _bytes_of_weights(recipe, recipe.tokenizer.vocab_size, memory_of(choose_device(recipe.training)), "")
    except UsageError:
        return True
    return False


def _bytes_of_weights(recipe: Recipe, vocab_size: int, there: float, cure: str) -> int:
    """Bytes of the weights, each with a gradient and the optimiser's moments, unless some are frozen."""
    with shapes_only():
        weights = sum(weight.numel() for weight in shape_model(recipe, vocab_size).parameters())
    training, few = recipe.training, bool(recipe.training.frozen) or recipe.finetuning.few
    of_a_weight = 4 if few else 8 + MOMENTS[training.optimizer]
    if of_a_weight * weights > there:
        raise UsageError(
            f"the model has {weights:,} weights and would need {of_a_weight * weights / _GIB:,.0f} GiB of memory with their "
            f"gradients and moments, but there are only {there / _GIB:,.1f} GiB: "
            + cure.format(f"{int(there // of_a_weight):,}")
        )
    return of_a_weight * weights


def _check_rows(recipe: Recipe, rows: int, tokens: int, fixed: int, there: float, otherwise: str) -> None:
    """Refuse rows whose backward pass keeps more than fits: the inputs of each layer's matrix products, in bf16.

    With checkpointed activations it keeps these of one layer, and of the others the input.

    A slot of an encoder-decoder passes through one of its stacks.
    """
    model, training = recipe.model, recipe.training
    layers = min(model.num_layers, model.decoder_layers or model.num_layers)
    of_a_layer = 4 * model.hidden_size + 2 * model.intermediate_size
    kept = layers * of_a_layer
    if training.checkpoint_activations and model.kind == "transformer":
        kept = (layers - 1) * model.hidden_size + of_a_layer
    needed = 2 * tokens * kept
    frozen = training.frozen or recipe.finetuning.few or recipe.finetuning.unfreeze_epochs is not None
    if fixed + needed <= there or frozen:
        return
    most = int((there - fixed) * rows // needed)
    fits = next((size for size in range(min(most, rows), 0, -1) if training.batch_size % size == 0), 0)
    cure = f"{option_of('training.micro_batch_size')} {fits}" if fits else otherwise
    raise UsageError(
        f"{rows:,} rows of {tokens / rows:,.0f} tokens at a time would need {(fixed + needed) / _GIB:,.0f} GiB of memory or "
        f"more, but there are only {there / _GIB:,.1f}: give {cure}"
    )


def memory_of(device: torch.device) -> float:
    """Memory of a device in bytes, see `cores.memory` for a CPU; infinite if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return math.inf if device.type == "xpu" else cores.memory()
