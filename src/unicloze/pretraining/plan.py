"""`pretrain --plan`: what a run would take, from steps of the same model with one and two layers and rows.

Memory and time of a step are sums of four terms: a constant, one per layer, one per row, and one per row and layer. Four
short steps on random tokens determine them, without the corpus and without the whole model. Where activations are
checkpointed, the models have two and three layers: only from the second layer on does each add the same.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unicloze import launch
from unicloze.mixtures import Phase, parts, phases
from unicloze.model.build import shapes_only
from unicloze.model.layers import Layer
from unicloze.pretraining.data import teacher_of
from unicloze.progress import short
from unicloze.settings import Recipe
from unicloze.spelling import spell
from unicloze.text.boundaries import Boundaries
from unicloze.text.phrases import PhraseTable
from unicloze.text.sampler import WindowSampler
from unicloze.text.shards import ShardWriter, TokenShard, TokenSource
from unicloze.text.vocabulary import Vocabulary
from unicloze.training.batches import MicroBatch, training_steps
from unicloze.training.divergence import Updates
from unicloze.training.loading import compiles, ready_model, shape_model, spell_tokens
from unicloze.training.loop import Compute, TrainState, accumulate_gradients, clip_gradient
from unicloze.training.memory import memory_of, shards
from unicloze.training.optimizers import build_optimizers, set_learning
from unicloze.training.precision import choose_device, choose_precision
from unicloze.training.sharding import owners_of_layers
from unicloze.training.tree import Node, PartialSums, share

_MIB, _GIB = 2**20, 2**30
_SPECIAL = 8
_ROWS = 1, 2
_KEPT = 0.35
"""Memory of a CPU that the allocator keeps after it was freed and that operations use inside, relative to the tensors."""
_FIXED = 64 * _MIB
"""Memory of a CPU that the libraries take at the first step, whatever the model."""
_LONG = 5.0
"""Seconds from which on the passes of a step are timed once, while their memory is measured, and not repeated."""
_RESERVE = 0.9
"""Share of the memory that a suggested micro-batch may fill."""


@dataclass(frozen=True, kw_only=True)
class Plan:
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
        available: Bytes of the device; None if unknown.
        rows: Rows of a micro-batch.
        steps: Number of steps.
        tokens: Largest number of tokens in all steps.
        seconds: Time of all steps on this machine, without preparation and evaluation.
        cure: What to change if it does not fit; empty if it fits.
    """

    recipe: str
    device: str
    precision: str
    parameters: int
    processes: int
    sharded: bool
    memory: Mapping[str, int]
    available: int | None
    rows: int
    steps: int
    tokens: int
    seconds: float
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
        return {**asdict(self), "memory": {**self.memory, "total": self.total}}

    def __str__(self) -> str:
        there = "" if self.available is None else f" of {self.available / _GIB:,.1f} GiB"
        each = ", ".join(f"{name} {_amount(size)}" for name, size in self.memory.items())
        shares = f", each with {'a share' if self.sharded else 'all'} of them" if self.processes > 1 else ""
        several = f", {self.processes} processes{shares}" if self.processes > 1 else ""
        lines = [
            f"{self.recipe}: {self.parameters:,} parameters, on {self.device} in {self.precision}{several}",
            f"memory   {_amount(self.total)}{there}: {each}",
            f"tokens   up to {short(self.tokens)} in {self.steps:,} steps",
            f"time     about {_time(self.seconds)} on this machine, without preparation and evaluation",
        ]
        return "\n".join([*lines, f"does not fit: {self.cure}"] if self.cure else lines)


@dataclass(frozen=True, kw_only=True)
class _Step:
    """Bytes and seconds of a step, or of one term of it.

    Args:
        gradients: All gradients.
        moments: State of the optimisers.
        activations: What forward and backward pass hold at most, beside weights and gradients.
        update: What the optimisers hold at most while they update, beside weights, gradients and moments.
        seconds: Forward and backward pass.
        update_seconds: The update.
    """

    gradients: float
    moments: float
    activations: float
    update: float
    seconds: float
    update_seconds: float

    @classmethod
    def of(cls, combine: Callable[..., float], *steps: _Step) -> _Step:
        """A function of the same field of several steps, for each field."""
        return cls(**{name: combine(*(getattr(step, name) for step in steps)) for name in cls.__dataclass_fields__})


@dataclass(frozen=True, kw_only=True)
class _Share:
    """What one process does and holds.

    Args:
        processes: Number of processes.
        sharded: Whether each holds a share of the model.
        gathered: Bytes of weights that a sharded model gathers at a time, and of their gradients.
    """

    processes: int
    sharded: bool
    gathered: int

    @classmethod
    def of(cls, model: nn.Module, processes: int, *, sharded: bool) -> _Share:
        """The share of a process: what is outside layers is gathered for a whole pass, and of the layers two at a time."""
        parameters = sum(weight.numel() for weight in model.parameters())
        layers = [] if owners_of_layers(model) else [each for each in model.modules() if isinstance(each, Layer)]
        sizes = [sum(weight.numel() for weight in layer.parameters()) for layer in layers]
        outside, largest = parameters - sum(sizes), max(sizes, default=0)
        gathered = 4 * (outside + 2 * largest + max(outside, largest)) if sharded else 0
        return cls(processes=processes, sharded=sharded, gathered=gathered)

    @property
    def of_model(self) -> float:
        """Share of weights, gradients and moments that the process holds."""
        return 1 / self.processes if self.sharded else 1.0


def plan_run(recipe: Recipe, vocab_size: int, processes: int | None = None) -> Plan:
    """Forecast a run on this machine.

    Args:
        recipe: The recipe.
        vocab_size: Number of token ids.
        processes: Number of processes, each with a device like that of this one; default: those torchrun started.
    """
    processes = launch.processes() if processes is None else processes
    teacher = teacher_of(recipe)
    device = choose_device(recipe.training)
    precision = choose_precision(recipe.training, device)
    compute = Compute(
        device=device,
        precision=precision,
        fixed_shape=compiles(recipe.training, device) or device.type == "cuda",
        soften=teacher,
    )
    with shapes_only():
        model = shape_model(recipe, vocab_size)
    parameters = sum(weight.numel() for weight in model.parameters())
    taught = [] if teacher is None else list(teacher.network.parameters())
    of_process = _Share.of(model, processes, sharded=shards(recipe, processes))
    forecasts = [
        (phase, _Forecast(phase, vocab_size, compute, parameters, of_process, taught)) for phase in phases(recipe)
    ]
    worst, largest = max(forecasts, key=lambda each: each[1].total(each[1].rows))
    available = memory_of(device)
    return Plan(
        recipe=recipe.name,
        device=str(device),
        precision=precision,
        parameters=parameters,
        processes=processes,
        sharded=of_process.sharded,
        memory=largest.memory(largest.rows),
        available=available,
        rows=largest.rows,
        steps=recipe.training.steps,
        tokens=sum(
            (phase.last_step - phase.first_step) * phase.recipe.training.batch_size * phase.recipe.data.window
            for phase in phases(recipe)
        ),
        seconds=sum((phase.last_step - phase.first_step) * each.seconds() for phase, each in forecasts),
        cure="" if available is None else largest.cure(available, worst.recipe.training.batch_size),
    )


class _Forecast:
    """Forecast of one phase.

    Args:
        phase: The phase.
        vocab_size: Number of token ids.
        compute: Device and precision.
        parameters: Number of weights of the whole model.
        share: What one process does and holds.
        taught: Weights of the teacher, if there is one.
    """

    def __init__(
        self,
        phase: Phase,
        vocab_size: int,
        compute: Compute,
        parameters: int,
        share: _Share,
        taught: Sequence[Tensor] = (),
    ) -> None:
        training = phase.recipe.training
        self.rows = training.micro_batch_size or training.batch_size
        self._batch, self._leaves, self._share = training.batch_size, training.leaves, share
        self._weights = 4 * parameters
        self._layers, self._checkpoints = phase.recipe.model.num_layers, training.checkpoint_activations
        self._few = (2, 3) if self._checkpoints else (1, 2)
        self._taught, self._teacher = taught, sum(weight.nbytes for weight in taught)
        self._kept, self._fixed = (_KEPT, _FIXED) if compute.device.type == "cpu" else (0.0, 0)
        with _random_text(phase.recipe, vocab_size) as sampler_of:
            self._rows_held = _rows_held(phase.recipe, sampler_of)
            found = {
                (layers, rows): _measured(phase, layers, rows, vocab_size, compute, sampler_of, taught)
                for layers, rows in itertools.product(self._few, _ROWS)
            }
        self._found = found

    def _at(self, rows: int) -> _Step:
        """The step of the whole model with micro-batches of some rows."""
        fewer, more = self._few
        layers = self._layers - fewer

        def combine(one: float, of_rows: float, of_layers: float, both: float) -> float:
            mixed = both - of_rows - of_layers + one
            return one + (rows - 1) * (of_rows - one) + layers * (of_layers - one) + layers * (rows - 1) * mixed

        def timed(one: float, *others: float) -> float:
            return max(combine(one, *others), one)  # times of short steps vary

        steps = [self._found[number, size] for number in (fewer, more) for size in _ROWS]
        times = _Step.of(timed, *steps)
        return replace(_Step.of(combine, *steps), seconds=times.seconds, update_seconds=times.update_seconds)

    def memory(self, rows: int) -> dict[str, int]:
        """Bytes at the largest moment of a step, by what they hold."""
        step, micro_batches, share = self._at(rows), math.ceil(self._batch / rows), self._share
        leaves = min(self._leaves, micro_batches)
        held = 1 if share.sharded else gradients_held(leaves, share.processes)
        of_all, updating = share.of_model * step.gradients, share.of_model * step.update
        passes, update = held * of_all + step.activations + share.gathered, of_all + updating
        if micro_batches <= self._leaves:  # the gradients of a leaf of one micro-batch grow while its activations go
            passes -= min(of_all, step.activations)
        gradients = min(held * of_all, passes) if passes >= update else of_all
        used = {
            "weights": round(share.of_model * self._weights),
            "gradients": round(gradients),
            "moments": round(share.of_model * step.moments),
            "activations": round(passes - share.gathered - gradients if passes >= update else 0),
        }
        buffers = self._rows_held + self._fixed + (share.gathered if passes >= update else updating)
        used |= {"teacher": self._teacher} if self._teacher else {}
        return {**used, "buffers": round(buffers + self._kept * (sum(used.values()) + buffers))}

    def total(self, rows: int) -> int:
        """Bytes at the largest moment of a step."""
        return sum(self.memory(rows).values())

    def seconds(self) -> float:
        """Time of a step."""
        step = self._at(self.rows)
        micro_batches = math.ceil(math.ceil(self._batch / self.rows) / self._share.processes)
        return micro_batches * step.seconds + self._share.of_model * step.update_seconds

    def cure(self, available: int, batch_size: int) -> str:
        """What to change if the run does not fit; empty if it does."""
        if self.total(self.rows) <= available:
            return ""
        fits = [
            rows for rows in range(1, self.rows) if batch_size % rows == 0 and self.total(rows) <= _RESERVE * available
        ]
        if fits:
            return f"give --training.micro_batch_size {fits[-1]}, which needs {_amount(self.total(fits[-1]))}"
        fewer = self.total(1)
        recomputed = "" if self._checkpoints else " or --training.checkpoint_activations true"
        return (
            f"even rows one at a time need {_amount(fewer)}: lower model.hidden_size, model.num_layers, "
            f"tokenizer.vocab_size or data.window, or set --training.leaves 1{recomputed}"
        )


def gradients_held(leaves: int, processes: int = 1) -> int:
    """Most gradients that a process holds at a time while it adds those of its leaves in the order of the tree."""
    most = 1
    for process in range(processes):
        sums: PartialSums[None] = PartialSums(leaves, lambda *_: None)
        for leaf in share(process, processes, leaves):
            most = max(most, len(sums.nodes) + 1)
            sums.push(Node(0, leaf), None)
    return most


class _Live(TorchDispatchMode):
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


def _measured(
    phase: Phase,
    layers: int,
    rows: int,
    vocab_size: int,
    compute: Compute,
    sampler_of: Callable[[Recipe], WindowSampler],
    taught: Sequence[Tensor] = (),
) -> _Step:
    """A step of the model with few layers on one micro-batch of few rows, of each part of the mixture."""
    recipe = phase.recipe
    shares = [part.share for part in parts(recipe.objective)]
    batch = 2 * math.ceil(rows / min(shares))
    training = replace(recipe.training, batch_size=batch, micro_batch_size=rows, steps=2, phases=[])
    model_settings = recipe.model
    decoder = layers if model_settings.decoder_layers == model_settings.num_layers else model_settings.decoder_layers
    few = replace(model_settings, num_layers=layers, decoder_layers=decoder)
    recipe = replace(recipe, model=few, training=training)
    chosen: dict[int, MicroBatch] = {}
    for micro_batch in next(training_steps(recipe, sampler_of, 0)):
        if len(micro_batch.examples) == rows:
            chosen.setdefault(micro_batch.part, micro_batch)
    model = ready_model(recipe, vocab_size, compute.device)
    spell_tokens(model, lambda: spell([f"{number:016}".encode() for number in range(vocab_size)], [True] * vocab_size))
    state = TrainState(model=model, optimizers=build_optimizers(model, training))
    found = [_one_step(state, chosen[part], recipe, compute, taught) for part in sorted(chosen)]
    seconds = sum(share * step.seconds for share, step in zip(shares, found, strict=False))
    return replace(_Step.of(max, *found), seconds=seconds) if len(found) > 1 else found[0]


def _one_step(
    state: TrainState, micro_batch: MicroBatch, recipe: Recipe, compute: Compute, taught: Sequence[Tensor]
) -> _Step:
    twice = replace(recipe.training, leaves=1)

    def passes() -> None:
        # The second pass finds all gradients there, so that its peak beside them is that of the activations.
        accumulate_gradients(state, [micro_batch] * 2, twice, compute, lambda _: "random tokens")
        clip_gradient(state.model, recipe.training.clip_norm)

    updates = Updates(state.model, state.optimizers, late=compute.queues, undo=recipe.training.on_spike != "accept")

    def update() -> None:
        set_learning(state.optimizers, state.step)
        with updates.checked():
            for optimizer in state.optimizers:
                optimizer.step()
        if not compute.queues:
            updates.spoiled()

    with _Live(itertools.chain(state.model.parameters(), state.model.buffers(), taught)) as first:
        begun = time.perf_counter()
        passes()
        middle = time.perf_counter()
        gradients, peak = first.live, first.peak
        first.peak = first.live
        update()
        moments = first.live - gradients
        updating = first.peak - first.live
    timed = [((middle - begun) / 2, time.perf_counter() - middle)]
    for _ in range(0 if middle - begun > _LONG else 2):
        begun = time.perf_counter()
        passes()
        middle = time.perf_counter()
        update()
        timed.append(((middle - begun) / 2, time.perf_counter() - middle))
    state.model.zero_grad(set_to_none=True)
    return _Step(
        gradients=gradients,
        moments=moments,
        activations=peak - gradients,
        update=updating,
        seconds=min(one for one, _ in timed),
        update_seconds=min(other for _, other in timed),
    )


def _rows_held(recipe: Recipe, sampler_of: Callable[[Recipe], WindowSampler]) -> int:
    """Bytes of the rows that are trained on and of those that are made meanwhile."""
    training = replace(recipe.training, steps=2**20, phases=[])
    tracemalloc.start()
    try:
        steps = training_steps(replace(recipe, training=training), sampler_of, 0)
        _rows = next(steps)
        return sum(tracemalloc.get_traced_memory())
    finally:
        tracemalloc.stop()


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
                window=each.data.window,
                segments=each.data.segments,
                vocabulary=vocabulary,
                seed=0,
                documents=each.data.documents,
                order=each.data.order,
                directions=each.data.directions,
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


def _time(seconds: float) -> str:
    for unit, size in (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.0f} seconds"
