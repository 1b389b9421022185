"""`pretrain --plan`: what a run would take: parameters and memory by formula, time by a few steps on random tokens."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from unicloze import cores
from unicloze.characters import spell
from unicloze.example import Examples, predicts_tokens
from unicloze.files import Plain
from unicloze.mixtures import Phase, parts, phases
from unicloze.model.build import shapes_only
from unicloze.model.layers import Layer
from unicloze.pretraining.budget import step_seconds
from unicloze.pretraining.data import cut_by, teacher_of
from unicloze.progress import short, span
from unicloze.settings import Recipe
from unicloze.text.phrases import PhraseTable
from unicloze.text.sampler import WindowSampler
from unicloze.text.shards import ShardWriter, TokenShard, TokenSource
from unicloze.text.vocabulary import Boundaries, Vocabulary
from unicloze.training.batches import MicroBatch, training_steps
from unicloze.training.gradients import Node, PartialSums, share
from unicloze.training.loading import ready_model, shape_model, spell_tokens
from unicloze.training.loop import Compute, TrainState
from unicloze.training.memory import MOMENTS, memory_of, shards
from unicloze.training.optimizers import build_optimizers
from unicloze.training.parallel import World, owners_of_layers
from unicloze.training.precision import choose_device, choose_precision
from unicloze.training.process import pinned_threads

_MIB, _GIB = 2**20, 2**30
_SPECIAL = 8
_ROWS = 2
"""Rows of the micro-batches whose memory is counted."""
_TIMED_ROWS = 16
"""Most rows of a micro-batch that are timed on a CPU, where a row of a larger one takes as long."""
_KEPT = 0.35
"""Memory of a CPU that the allocator keeps after it was freed and that operations use inside, relative to the tensors."""
_FIXED = 64 * _MIB
"""Memory of a CPU that the libraries take at the first step, whatever the model."""
_LONG = 5.0
"""Seconds from which on a step is timed once."""
_RESERVE = 0.9
"""Share of the memory that a suggested micro-batch may fill."""
_OF_A_SLOT = {"fp32": (38, 8, 8), "bf16": (28, 4, 4)}
"""Bytes that a layer keeps of each slot for the backward pass: per unit of its width, of its inner width and of its attention
scores. Measured on Transformers of 2 to 12 layers; see the test."""
_CROSS, _OF_A_CELL, _OF_A_LOGIT = 12, 80, 10
"""Those of cross-attention per unit of the width, of an LSTM per cell, and of each number over the vocabulary."""


@dataclass(frozen=True, kw_only=True)
class Plan(Plain):
    """What a run would take; `str` renders it.

    Args:
        recipe: Name of the recipe.
        device: Device of the run.
        precision: Precision of the run.
        parameters: Number of weights.
        processes: Number of processes.
        sharded: Whether each holds a share of the model.
        memory: Bytes of weights, gradients, moments, activations and buffers of a process at the largest moment of a step,
            above what the program itself takes.
        available: Bytes of the device; infinite if unknown.
        rows: Rows of a micro-batch.
        steps: Number of steps.
        tokens: Largest number of tokens in all steps.
        seconds: Time of all steps on this machine, without preparation and evaluation; None if it does not fit.
        cure: What to change if it does not fit; empty if it fits.
    """

    recipe: str
    device: str
    precision: str
    parameters: int
    processes: int
    sharded: bool
    memory: Mapping[str, int]
    available: float
    rows: int
    steps: int
    tokens: int
    seconds: float | None
    cure: str

    @property
    def total(self) -> int:
        """Bytes of memory in all."""
        return sum(self.memory.values())

    @property
    def exit_code(self) -> int:
        """Exit code of the command: 1 if the run does not fit, else 0."""
        return 1 if self.cure else 0

    def to_dict(self) -> dict[str, Any]:
        """The fields as a JSON-serialisable dictionary."""
        available = None if math.isinf(self.available) else self.available
        return {**super().to_dict(), "available": available, "memory": {**self.memory, "total": self.total}}

    def __str__(self) -> str:
        there = "" if math.isinf(self.available) else f" of {self.available / _GIB:,.1f} GiB"
        each = ", ".join(f"{name} {_amount(size)}" for name, size in self.memory.items())
        shares = f", each with {'a share' if self.sharded else 'all'} of them" if self.processes > 1 else ""
        several = f", {self.processes} processes{shares}" if self.processes > 1 else ""
        lines = [
            f"{self.recipe}: {self.parameters:,} parameters, on {self.device} in {self.precision}{several}",
            f"memory   {_amount(self.total)}{there}: {each}",
            f"tokens   up to {short(self.tokens)} in {self.steps:,} steps",
        ]
        if self.seconds is not None:
            lines.append(f"time     about {span(self.seconds)} on this machine, without preparation and evaluation")
        return "\n".join([*lines, f"does not fit: {self.cure}"] if self.cure else lines)


def plan_run(recipe: Recipe, vocab_size: int, processes: int | None = None) -> Plan:
    """Forecast a run on this machine."""
    processes = cores.processes() if processes is None else processes
    parameters, forecasts = _forecasts(recipe, vocab_size, processes)
    worst = max(forecasts, key=lambda each: each.total(each.rows))
    available = memory_of(worst.compute.device)
    cure = worst.cure(available)
    steps = [(each.phase.last_step - each.phase.first_step, each) for each in forecasts]
    return Plan(
        recipe=recipe.name,
        device=str(worst.compute.device),
        precision=worst.compute.precision,
        parameters=parameters,
        processes=processes,
        sharded=shards(recipe, processes),
        memory=worst.memory(worst.rows),
        available=available,
        rows=worst.rows,
        steps=recipe.training.steps,
        tokens=sum(n * each.phase.recipe.training.batch_size * each.phase.recipe.data.window for n, each in steps),
        seconds=None if cure else sum(n * each.seconds() for n, each in steps if n),
        cure=cure,
    )


def rows_that_fit(recipe: Recipe, vocab_size: int) -> int | None:
    """Most rows of a micro-batch that fit this machine in one process; 0 if none do, None if the recipe does as it is."""
    _, forecasts = _forecasts(recipe, vocab_size, 1)
    most = [each.fitting(memory_of(each.compute.device)) for each in forecasts]
    if all(rows == each.rows for rows, each in zip(most, forecasts, strict=True)):
        return None
    sizes = [each.phase.recipe.training.batch_size for each in forecasts]
    return next((rows for rows in range(min(most), 0, -1) if not any(size % rows for size in sizes)), 0)


def _forecasts(recipe: Recipe, vocab_size: int, processes: int) -> tuple[int, list[_Forecast]]:
    """Number of weights, and the forecast of each phase."""
    device, teacher = choose_device(recipe.training), teacher_of(recipe)
    fixed = bool(recipe.training.compile) or device.type == "cuda"
    precision = choose_precision(recipe.training, device)
    compute = Compute(device=device, precision=precision, fixed_shape=fixed, soften=teacher)
    with shapes_only():
        model = shape_model(recipe, vocab_size)
    parameters, sharded = sum(weight.numel() for weight in model.parameters()), shards(recipe, processes)
    held = 4 * parameters // (processes if sharded else 1)
    beside = _gathered(model) if sharded else 0
    beside += 0 if teacher is None else sum(weight.nbytes for weight in teacher.network.parameters())
    return parameters, [_Forecast(phase, vocab_size, compute, held, beside, processes) for phase in phases(recipe)]


class _Forecast:
    """Forecast of one phase.

    Args:
        phase: The phase.
        vocab_size: Number of token ids.
        compute: Device and precision.
        held: Bytes of the weights that a process holds.
        beside: Bytes of the teacher's, and of those it gathers from other processes.
        processes: Number of processes.
    """

    def __init__(self, phase: Phase, vocab_size: int, compute: Compute, held: int, beside: int, processes: int) -> None:
        training = phase.recipe.training
        self.phase, self.rows = phase, training.micro_batch_size or training.batch_size
        self._vocab_size, self.compute, self._processes = vocab_size, compute, processes
        self._held, self._beside = held, beside
        with _random_text(phase.recipe, vocab_size) as sampler_of:
            few = min(self.rows, _TIMED_ROWS) if compute.device.type == "cpu" else self.rows
            counted, self._batches = (_few_rows(phase.recipe, sampler_of, rows) for rows in (_ROWS, few))
        kept = [activations(phase.recipe, batch.examples, vocab_size, compute) for batch in counted.values()]
        self._of_a_row = max(kept) / _ROWS

    def memory(self, rows: int) -> dict[str, int]:
        """Bytes at the largest moment of a step, by what they hold."""
        training = self.phase.recipe.training
        micro_batches, kept = math.ceil(training.batch_size / rows), round(rows * self._of_a_row)
        leaves = min(training.leaves, micro_batches)
        gradients = self._held * gradients_held(leaves, self._processes)
        if micro_batches <= training.leaves:  # the gradients of a leaf of one micro-batch grow while its activations go
            gradients -= min(self._held, kept)
        moments = self._held * MOMENTS[training.optimizer] // 4
        used = {"weights": self._held, "gradients": gradients, "moments": moments, "activations": kept}
        on_cpu = self.compute.device.type == "cpu"
        kept_by_cpu = round(_FIXED + _KEPT * (sum(used.values()) + self._beside)) if on_cpu else 0
        return {**used, "buffers": self._beside + kept_by_cpu}

    def total(self, rows: int) -> int:
        """Bytes at the largest moment of a step."""
        return sum(self.memory(rows).values())

    def seconds(self) -> float:
        """Time of a step: of the passes of a few rows of each part, times the rows of a process, and of the update."""
        recipe, compute = self.phase.recipe, self.compute
        model = ready_model(recipe, self._vocab_size, compute.device)
        symbols = [f"{number:016}".encode() for number in range(self._vocab_size)]
        spell_tokens(model, lambda: spell(symbols, [True] * len(symbols)))
        state = TrainState(model=model, optimizers=build_optimizers(model, recipe.training))
        found, updates = 0.0, list[float]()
        with pinned_threads(recipe.training, World()):
            for part, settings in enumerate(parts(recipe.objective)):
                batch, passes = self._batches[part], list[float]()
                while len(passes) < 3 and sum(passes) < _LONG:
                    seconds = step_seconds(state, [batch], recipe, compute)
                    passes.append(seconds[0])
                    updates.append(seconds[1])
                found += settings.share * min(passes) / len(batch.examples)
        return found * math.ceil(recipe.training.batch_size / self._processes) + min(updates)

    def fitting(self, available: float) -> int:
        """Most rows of a micro-batch that fit; 0 if none do."""
        if self.total(self.rows) <= available:
            return self.rows
        size = self.phase.recipe.training.batch_size
        sizes = (rows for rows in range(self.rows - 1, 0, -1) if size % rows == 0)
        return next((rows for rows in sizes if self.total(rows) <= _RESERVE * available), 0)

    def cure(self, available: float) -> str:
        """What to change if the run does not fit; empty if it does."""
        if self.total(self.rows) <= available:
            return ""
        if fits := self.fitting(available):
            return f"give --training.micro_batch_size {fits}, which needs {_amount(self.total(fits))}"
        recomputed = (
            "" if self.phase.recipe.training.checkpoint_activations else " or --training.checkpoint_activations true"
        )
        return (
            f"even rows one at a time need {_amount(self.total(1))}: lower model.hidden_size, model.num_layers, "
            f"tokenizer.vocab_size or data.window, or set --training.leaves 1{recomputed}"
        )


def activations(recipe: Recipe, examples: Examples, vocab_size: int, compute: Compute) -> float:
    """Bytes that a model keeps of some rows from its forward pass for its backward pass."""
    model, rows, slots = recipe.model, len(examples), int(examples.lengths.max())
    width, inner, scores = _OF_A_SLOT[compute.precision]
    if model.kind == "recurrent":
        of_a_layer = width * model.hidden_size + _OF_A_CELL * model.intermediate_size
    else:
        of_a_layer = width * model.hidden_size + inner * model.intermediate_size
        of_a_layer += _CROSS * model.hidden_size if model.decoder_layers else 0
        if compute.device.type == "cpu":  # kernels of a GPU keep no scores
            of_a_layer += scores * model.num_heads * (slots + model.memory)
    layers = max(model.num_layers, model.decoder_layers) * (1 + (model.generator_size or 0.0))
    kept = layers * of_a_layer
    if recipe.training.checkpoint_activations and model.kind == "transformer":
        kept = of_a_layer + layers * 4 * model.hidden_size
    targets = [target for name, target in examples.targets.items() if predicts_tokens(name)]
    predictions = sum(int((target.weights > 0).sum()) for target in targets)
    once = scores * model.num_heads * slots if model.relative_bias and compute.device.type == "cpu" else 0
    return float(rows * slots * (kept + once)) + _OF_A_LOGIT * predictions * vocab_size


def _gathered(model: nn.Module) -> int:
    """Bytes that a process with a share of the model gathers: what is outside layers, two layers, and a gradient."""
    layers = [] if owners_of_layers(model) else [each for each in model.modules() if isinstance(each, Layer)]
    sizes = [sum(weight.numel() for weight in layer.parameters()) for layer in layers]
    outside, largest = sum(weight.numel() for weight in model.parameters()) - sum(sizes), max(sizes, default=0)
    return 4 * (outside + 2 * largest + max(outside, largest))


def gradients_held(leaves: int, processes: int = 1) -> int:
    """Most gradients that a process holds at a time while it adds those of its leaves in the order of the tree."""
    most = 1
    for process in range(processes):
        sums: PartialSums[None] = PartialSums(leaves, lambda *_: None)
        for leaf in share(process, processes, leaves):
            most = max(most, len(sums.nodes) + 1)
            sums.push(Node(0, leaf), None)
    return most


def _few_rows(recipe: Recipe, sampler_of: Callable[[Recipe], WindowSampler], rows: int) -> dict[int, MicroBatch]:
    """A micro-batch of a few rows of each part of the mixture."""
    batch = 2 * math.ceil(rows / min(part.share for part in parts(recipe.objective)))
    recipe = recipe.changed("training", batch_size=batch, micro_batch_size=rows, steps=2, phases=[])
    found: dict[int, MicroBatch] = {}
    for micro_batch in next(training_steps(recipe, sampler_of, 0)):
        if len(micro_batch.examples) == rows:
            found.setdefault(micro_batch.part, micro_batch)
    return found


@contextmanager
def _random_text(recipe: Recipe, vocab_size: int) -> Iterator[Callable[[Recipe], WindowSampler]]:
    """Samplers of windows of random tokens, without padding."""
    vocabulary = _vocabulary(vocab_size, recipe.tokenizer.extra_tokens)
    draw, window = np.random.default_rng(0), recipe.data.window
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random.ds"
        with ShardWriter(path, vocab_size=vocab_size, tokenizer_name="random") as writer:
            for _ in range(16):
                writer.write(draw.choice(vocabulary.ordinary, 4 * window), 0)
        source = TokenSource(name="random", shards=(TokenShard.open(path),))
        pair = vocabulary.ordinary[:1].repeat(2)

        def sampler_of(each: Recipe) -> WindowSampler:
            return WindowSampler(
                [source],
                **cut_by(each.data),
                vocabulary=vocabulary,
                seed=0,
                phrases=PhraseTable([pair], vocabulary) if each.objective.windows.phrases else None,
            )

        yield sampler_of


def _vocabulary(size: int, extra: int) -> Vocabulary:
    """A vocabulary of the size of the run's, in which every third token continues a word."""
    ids, first = np.arange(size), min(_SPECIAL + extra, size - 2)
    return Vocabulary(
        size=size, pad=0, unk=1, sos=2, eos=3, mask=4, pseudo=5,
        special=np.arange(first, dtype=np.int32),
        ordinary=np.arange(first, size, dtype=np.int32),
        extra=np.arange(_SPECIAL, first, dtype=np.int32),
        boundaries=Boundaries.marked((ids >= first) & (ids % 3 == 0)),
        ends_sentence=(ids >= first) & (ids % 10 == 9),
    )  # fmt: skip


def _amount(size: float) -> str:
    return f"{size / _GIB:,.1f} GiB" if size >= _GIB else f"{size / _MIB:,.0f} MiB"
