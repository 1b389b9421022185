"""The training loop: `fit` and the functions it calls."""

from __future__ import annotations

import itertools
import math
import operator
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from unicloze.cores import TRIMMED_EVERY, hangs_up, return_free_memory
from unicloze.errors import UniclozeError, option_of
from unicloze.example import Batch, Examples, Memory, collate
from unicloze.model.build import Model
from unicloze.model.dropout import DropoutKey
from unicloze.settings import TrainingSettings
from unicloze.text.windows import Windows
from unicloze.training.batches import WINDOWS_AT_ONCE, Memories, MicroBatch, Prefetch, pack, unpack, with_memory
from unicloze.training.divergence import MOST, NonFiniteError, Spikes, cure, first_non_finite, non_finite
from unicloze.training.gradients import GradientSums, by_rows, fill_gradients, share
from unicloze.training.ledger import Figure
from unicloze.training.optimizers import schedule_factor, set_learning, set_learning_rate
from unicloze.training.pace import Decay
from unicloze.training.parallel import World, whole


@dataclass
class TrainState:
    """Everything that changes during a run. The sampler's state is `step` alone."""

    model: Model  # the weights
    optimizers: list[torch.optim.Optimizer]  # their moments
    step: int = 0  # steps done
    text_tokens: int = 0  # tokens of text trained on
    # memories that the rows of the last step leave for the next, by index of the micro-batch
    memories: Memories = field(default_factory=dict)
    # reused gradient buffers of large tables, see `lookups`; overwritten in every step
    buffers: dict[torch.nn.Parameter, Tensor] = field(default_factory=dict)
    parts: list[int] | None = None  # index of the mixture part of each micro-batch of the last step
    # losses of the last step, by index of the mixture part
    figures: list[tuple[int, Figure]] = field(default_factory=list)
    step_tokens: int = 0  # tokens of text in the last step
    seconds: list[float] = field(default_factory=list)  # computing time of each process in the last step, of several
    spikes: Spikes = field(default_factory=Spikes)  # gradient norms and spikes so far
    decays: list[Decay] = field(default_factory=list)  # what a clock decided, see `unicloze.training.pace`

    def last_step(self, settings: TrainingSettings) -> int:
        """The step that ends the run, as planned or as a clock decided."""
        return self.decays[-1].end if self.decays else settings.steps


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """Callbacks of a run, called with the state after a step."""

    log: Callable[[TrainState, Mapping[str, Any]], None]  # gets the loss per target, the gradient norm and the speed
    evaluate: Callable[[TrainState], bool]  # Measures the held-out perplexity. Returns True to end the run early.
    save: Callable[[TrainState], None]  # writes a checkpoint
    describe: Callable[[MicroBatch], str]  # returns where the rows of a micro-batch come from
    # gets the reason why the update of a step is left out, before the step is counted
    skipped: Callable[[TrainState, str], None] = lambda _state, _reason: None
    # May end the run earlier or later, called with the state after each step. If it does, it returns the micro-batches
    # from there on.
    decide: Callable[[TrainState], Iterator[list[MicroBatch]] | None] = lambda _state: None
    may_skip: bool = True  # whether `training.on_spike skip` is possible in this run


@dataclass(frozen=True, kw_only=True)
class Compute:
    """Device, precision and processes of a computation, and what adds soft labels to the batches of training steps."""

    device: torch.device
    precision: str
    fixed_shape: bool = False
    world: World = field(default_factory=World)
    soften: Callable[[Batch, Compute], Batch] | None = None

    def autocast(self) -> AbstractContextManager[Any]:
        """bf16 autocast; no context in fp32."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.precision == "bf16" else nullcontext()

    @property
    def queues(self) -> bool:
        """Whether the device computes in the background, so that reading a number from it has to wait."""
        return self.device.type != "cpu"

    def lookups(self, model: Model) -> AbstractContextManager[None]:
        """Sparse gradients of large tables on a CPU, unless shapes are fixed for compilation."""
        sparse = self.device.type == "cpu" and not self.fixed_shape and not self.world.sharded
        return by_rows(model) if sparse else nullcontext()


@dataclass
class Interruption:
    """Whether SIGTERM, SIGINT or SIGHUP asked the run to stop."""

    signal: int = 0  # the signal this process received; 0 if none
    agreed: int | None = None  # the signal all processes of the run stop for; 0 if none, None in a single process

    @property
    def heeded(self) -> int:
        """The signal to stop for."""
        return self.signal if self.agreed is None else self.agreed


@contextmanager
def stop_when_asked() -> Iterator[Interruption]:
    """Turn SIGTERM, SIGINT and SIGHUP into a flag checked after each micro-batch; a second Ctrl-C stops at once.

    A second SIGTERM, as schedulers send, is ignored because the checkpoint is being written. SIGHUP, which a closed terminal
    sends, stays ignored if it already is, as under nohup.
    """
    interruption = Interruption()

    def note(number: int, _frame: Any) -> None:
        interruption.signal = number
        if number == signal.SIGINT:
            signal.signal(number, before[signal.SIGINT])

    asked = [signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if hangs_up() else [])]
    if threading.current_thread() is not threading.main_thread():  # other threads get no signals
        asked = []
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in asked}
    for number in before:
        signal.signal(number, note)
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def fit(
    state: TrainState, steps: Iterator[list[MicroBatch]], settings: TrainingSettings, compute: Compute, hooks: Hooks
) -> Interruption:
    """Train until the last step or until a signal arrives."""
    with stop_when_asked() as interruption, Prefetch(steps, max(1, WINDOWS_AT_ONCE // settings.batch_size)) as made:
        ended = state.step >= state.last_step(settings)
        while not ended:
            with compute.world.passes():
                ended = take_step(state, made, settings, compute, hooks, interruption)
    return interruption


def take_step(
    state: TrainState,
    made: Prefetch[list[MicroBatch]],
    settings: TrainingSettings,
    compute: Compute,
    hooks: Hooks,
    interruption: Interruption,
) -> bool:
    """Take a step; whether the run ends with it. No update is made of a gradient that is not finite, or one that spikes."""
    started, alone, skips = time.perf_counter(), compute.world.size == 1, settings.on_spike == "skip"
    advice = cure(skip=hooks.may_skip and not skips)
    memories = state.memories
    statistics = {name: buffer.clone() for name, buffer in state.model.named_buffers()}  # of batch normalisation

    def undo_passes() -> None:
        state.memories = memories
        state.model.load_state_dict(statistics, strict=False)

    try:
        micro_batches = next(made)
    except UniclozeError:  # the weights are still good
        if alone:  # saving needs all processes, and the others may not get here
            save_finite(state, hooks, advice)
        raise
    set_learning(state.optimizers, state.step)
    try:
        losses, norm = losses_and_norm(state, micro_batches, settings, compute, hooks.describe, interruption)
        spike = state.spikes.reason(norm, settings.spike_factor) if skips else None
        if spike is not None:
            state.model.load_state_dict(statistics, strict=False)
    except NonFiniteError as error:
        undo_passes()
        spike, bad = str(error), first_non_finite(state.model.state_dict())
        if bad is not None or not skips:
            raise stopped_before_update(spike, state, hooks, advice, bad) from error
        state.memories = {}
    except OutOfMemoryError as error:
        state.model.zero_grad(set_to_none=True)
        undo_passes()
        if not alone:  # the others are in the middle of the step
            raise
        save_finite(state, hooks, advice)
        raise OutOfMemoryError(f"{error}. The weights of step {state.step} were saved") from None
    except Abandoned:
        undo_passes()
        save_finite(state, hooks, advice)
        return True
    if spike is None:
        update(state, norm, settings, micro_batches[0].rate)
        state.text_tokens += state.step_tokens
    else:
        state.spikes.in_a_row += 1
        if state.spikes.in_a_row > MOST:
            state.spikes.in_a_row = 0
            spike = f"more than {MOST} steps spiked in a row, at last because {spike}"
            raise stopped_before_update(spike, state, hooks, advice)
        hooks.skipped(state, spike)
    state.step += 1
    if state.step % TRIMMED_EVERY == 0:
        return_free_memory()
    if spike is None:
        speed = state.step_tokens / (time.perf_counter() - started)
        hooks.log(state, {"loss": losses, "gradient_norm": norm, "text_tokens_per_second": speed})
    changed = hooks.decide(state)
    done, stopping = state.step >= state.last_step(settings), bool(interruption.heeded)
    regular = bool(settings.save_every and state.step % settings.save_every == 0)
    measured = done or bool(settings.evaluate_every and state.step % settings.evaluate_every == 0)
    if done or stopping or regular:
        save_finite(state, hooks, advice)
    elif measured:
        refuse_non_finite(state, advice)
    enough = measured and hooks.evaluate(state)
    ended = done or stopping or enough
    if changed is not None and not ended:
        made.restart(changed)
    return ended


def refuse_non_finite(state: TrainState, advice: str) -> None:
    """Refuse to use weights that an update since the last checkpoint made NaN or infinite."""
    if (bad := first_non_finite(state.model.state_dict())) is not None:
        raise NonFiniteError(
            f"the weights of step {state.step} are not finite ({bad}) and were not saved; earlier checkpoints are kept: "
            f"{advice}"
        )


def save_finite(state: TrainState, hooks: Hooks, advice: str) -> None:
    """Save the weights, but refuse those that are not finite."""
    refuse_non_finite(state, advice)
    hooks.save(state)


def stopped_before_update(
    reason: str, state: TrainState, hooks: Hooks, advice: str, bad: str | None = None
) -> NonFiniteError:
    """The error that ends a run before an update; the weights are saved unless some are `bad`."""
    what = f"stopped before the update of step {state.step + 1}: {reason}."
    if bad is not None:
        return NonFiniteError(
            f"{what} The weights before that step are not finite either ({bad}) and were not saved: {advice}"
        )
    hooks.save(state)
    return NonFiniteError(f"{what} The finite weights of step {state.step} were saved: {advice}")


def update(state: TrainState, norm: float, settings: TrainingSettings, rate: float = 1.0) -> None:
    """Make the update of a step with a gradient of this norm, at a multiple of the scheduled learning rate."""
    set_learning_rate(state.optimizers, schedule_factor(state.step, settings, state.decays) * rate)
    for optimizer in state.optimizers:
        optimizer.step()
    if settings.on_spike == "skip":
        state.spikes.add(norm)


def losses_and_norm(
    state: TrainState,
    micro_batches: list[MicroBatch],
    settings: TrainingSettings,
    compute: Compute,
    describe: Callable[[MicroBatch], str],
    interruption: Interruption | None = None,
) -> tuple[dict[str, float], float]:
    """Mean losses of a step and the norm of its gradient, which is then clipped; refuses one that is not finite.

    Each loss is divided by its target's weight in the global batch. Each process computes its own leaves; the gradients of
    all are added in tree order, see `gradients`. The memories of these rows replace `state.memories`.

    All numbers are read from a GPU at once: each process waits for its GPU once a step. Before that the processes agree that
    none of them left the step, and exchange gradients on their devices.
    """
    passes = _Passes(state, micro_batches, settings, compute, describe, interruption or Interruption())
    passes.run()
    if not compute.queues:
        passes.read()
    losses = passes.agree()
    passes.give_gradients()
    (norm,) = passes.read([clip_gradient(state.model, settings.clip_norm)])
    if compute.queues:
        losses = passes.agree()
    if not math.isfinite(norm):
        raise non_finite(f"the norm of the gradient is {norm}", micro_batches, describe)
    return losses, norm


class Abandoned(Exception):
    """A step was abandoned before its update."""


class OutOfMemoryError(UniclozeError):
    """A forward or backward pass needs more memory than its device has."""


@contextmanager
def shared_settings(what: str, of: str, more: str = "") -> Iterator[None]:
    """Say that the cure of an error needs another folder, since all runs of this one share their settings."""
    try:
        yield
    except (NonFiniteError, OutOfMemoryError) as error:
        cure = f"all runs {of} share their settings: give the changed command{more} another --out"
        raise type(error)(f"{what}: {error}; {cure}") from error


@dataclass
class _Report:
    """What a process reports of its passes in a step, as JSON."""

    means: list[Any] = field(default_factory=list)  # number and mean losses of its micro-batches
    left: bool = False  # whether it left the step before its last micro-batch
    problem: Sequence[Any] | None = None  # number of a micro-batch with a loss that is not finite, and the message
    signal: int = 0  # number of the signal it received; 0 if none
    seconds: float = 0.0  # its computing time


@dataclass
class _Passes:
    """Forward and backward passes of this process in a step; see `losses_and_norm`."""

    state: TrainState
    micro_batches: list[MicroBatch]
    settings: TrainingSettings
    compute: Compute
    describe: Callable[[MicroBatch], str]
    interruption: Interruption

    def __post_init__(self) -> None:
        state, self._world = self.state, self.compute.world
        self._used = state.model.for_use().settings
        parts = [micro_batch.part for micro_batch in self.micro_batches]
        self._own, self._leaves = self._world.leaves(parts, self.settings.leaves), min(self.settings.leaves, len(parts))
        self._weights, self._weights_of_parts, state.step_tokens = _totals(self.micro_batches, self._own, self._world)
        self._report = _Report()
        self._times: tuple[Any, Any] | None = None  # when the passes began and ended
        self._totals: dict[int, dict[str, Tensor]] = {}  # losses that are not read yet, by micro-batch and target
        self._memories: dict[int, Memory] = {}
        learned = [weight for weight in state.model.parameters() if weight.requires_grad]
        self._gradients = GradientSums(learned, self._leaves, state.buffers)
        if self._used.memory and state.parts != parts:  # the rows that continue ours may be on other processes
            state.memories = unpack(self._world.share_tensors(pack(state.memories)), self.compute.device)
        state.parts = parts

    def run(self) -> None:
        """Make the passes, until a signal, or a loss that is not finite, ends them early."""
        state, report, whole_model = self.state, self._report, not self._world.sharded
        state.model.train()
        state.model.zero_grad(set_to_none=True)
        begun = self._time()
        for leaf, numbers in self._own.items():
            for number in numbers:
                if (self._totals or report.means) and whole_model and self.interruption.signal:
                    report.left = True
                    return
                if not len(self.micro_batches[number].examples):
                    continue
                fits = False
                try:
                    self._totals[number] = self._pass(number)
                    fits = True
                except RuntimeError as error:
                    if not is_out_of_memory(error):
                        raise
                if not fits:  # out of the handler, whose traceback holds what the pass computed
                    raise self._out_of_memory(number)
                if whole_model and not self.compute.queues:
                    self.read()
                    if report.problem is not None:
                        return
            if whole_model:
                self._gradients.take(leaf)
        self._times = begun, self._time()

    def _time(self) -> Any:
        """The time now; on a GPU, when it has computed what is queued."""
        if self.compute.device.type != "cuda":
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.compute.device))
        return event

    def _pass(self, number: int) -> dict[str, Tensor]:
        """Forward and backward pass of a micro-batch; the summed loss of each target."""
        state, compute, micro_batch = self.state, self.compute, self.micro_batches[number]
        batch = micro_batch.batch(compute.device, fixed_shape=compute.fixed_shape)
        batch = with_memory(batch, micro_batch, state.memories.get(number), self._used)
        batch = batch if compute.soften is None else compute.soften(batch, compute)
        with compute.autocast(), compute.lookups(state.model):
            key = DropoutKey(self.settings.seed, state.step, number, factor=micro_batch.dropout, device=compute.device)
            losses = state.model(batch, key)
        if batch.memory is not None:
            self._memories[number] = batch.memory
        totals: list[Tensor] = [
            micro_batch.coefficients.get(name, 1.0) * loss.total / self._weights[name] for name, loss in losses.items()
        ]
        torch.stack(totals).sum().backward()
        fill_gradients(state.model, state.buffers)
        return {name: loss.total.detach() for name, loss in losses.items()}

    def _out_of_memory(self, number: int) -> OutOfMemoryError:
        """The error of a pass that did not fit."""
        settings, rows = self.settings, len(self.micro_batches[number].examples)
        cures = []
        fewer = [size for size in range(1, rows // 2 + 1) if settings.batch_size % size == 0]
        normalises = next(self.state.model.buffers(), None) is not None
        if fewer and not self._used.memory and not normalises:  # memories and batch statistics belong to micro-batches
            cures.append(f"{option_of('training.micro_batch_size')} {fewer[-1]}")
        if self._used.kind == "transformer" and not settings.checkpoint_activations:
            cures.append(f"{option_of('training.checkpoint_activations')} true")
        if not cures and settings.leaves > 1:
            cures.append(f"{option_of('training.leaves')} 1 in another --out")
        return OutOfMemoryError(
            f"step {self.state.step + 1} ran out of memory with {rows:,} rows at a time: run the same command with "
            f"{' or with '.join(cures) or 'a smaller model in another --out'}"
        )

    def read(self, others: Sequence[Tensor] = ()) -> list[float]:
        """Read the losses and some other numbers from the device at once; returns the others."""
        unread = [total for totals in self._totals.values() for total in totals.values()]
        numbers = numbers_of([*unread, *others])
        values, report = iter(numbers), self._report
        for number, totals in self._totals.items():
            means = {name: next(values) / self._weights[name] for name in totals}
            report.means.append([number, means])
            bad = next((name for name, value in means.items() if not math.isfinite(value)), None)
            if bad is not None and report.problem is None:
                what = f"the loss of {bad} is {means[bad]} in micro-batch {number}"
                message = str(non_finite(what, [self.micro_batches[number]], self.describe))
                report.problem = number, message
        self._totals.clear()
        if self._times is not None:
            begun, ended = self._times
            report.seconds = begun.elapsed_time(ended) / 1000 if self.compute.device.type == "cuda" else ended - begun
        return numbers[len(unread) :]

    def agree(self) -> dict[str, float]:
        """Agree with the other processes on the step; returns the mean loss of each target, of losses that were read."""
        self._report.signal = self.interruption.signal
        reports = [_Report(**each) for each in self._world.gather(vars(self._report))]
        if self._world.size > 1:
            self.interruption.agreed = next((report.signal for report in reports if report.signal), 0)
            self.state.seconds = [report.seconds for report in reports]
        if problems := [report.problem for report in reports if report.problem is not None]:
            raise NonFiniteError(min(problems, key=operator.itemgetter(0))[1])
        if any(report.left for report in reports):
            raise Abandoned
        sums: dict[str, float] = {}
        nats: dict[tuple[int, str], float] = {}
        for number, means in sorted(itertools.chain(*(each.means for each in reports)), key=operator.itemgetter(0)):
            for name, mean in means.items():
                sums[name] = sums.get(name, 0.0) + mean
                key = self.micro_batches[number].part, name
                nats[key] = nats.get(key, 0.0) + mean * self._weights[name]
        smoothed = any(network.label_smoothing for network in self.state.model.networks)
        labels: Literal["hard", "soft"] = "soft" if smoothed or self.compute.soften is not None else "hard"
        self.state.memories = self._memories
        self.state.figures = [
            (part, Figure(target=name, labels=labels, nats=total, weight=self._weights_of_parts[part, name]))
            for (part, name), total in nats.items()
        ]
        return sums

    def give_gradients(self) -> None:
        """Set the gradients of the weights to the sums over all processes, unless the backward passes did."""
        if not self._world.sharded:
            gradients = self._gradients
            gradients.give(self._world.add(gradients.sums, self._leaves, gradients.weights))


def numbers_of(tensors: Sequence[Tensor]) -> list[float]:
    """Read single numbers from a device at once."""
    numbers: list[float] = torch.stack([tensor.float() for tensor in tensors]).tolist() if tensors else []
    return numbers


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch could not allocate memory on a GPU or a CPU, perhaps while it compiled."""
    error = getattr(error, "inner_exception", error)
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _totals(
    micro_batches: list[MicroBatch], own: Mapping[int, list[int]], world: World
) -> tuple[dict[str, float], dict[tuple[int, str], float], int]:
    """Weight of each target over a global batch (1 if it is 0, since it is a divisor), in each part, and the text tokens."""
    mine = []
    for number in itertools.chain(*own.values()):
        targets = micro_batches[number].examples.targets
        weights = {name: target.normaliser for name, target in targets.items()}
        mine.append([number, weights, micro_batches[number].text_tokens])
    of_targets: dict[str, float] = {}
    of_parts: dict[tuple[int, str], float] = {}
    tokens = 0
    for number, weights, of_micro_batch in sorted(itertools.chain(*world.gather(mine))):
        tokens += of_micro_batch
        for name, weight in weights.items():
            part = micro_batches[number].part, name
            of_targets[name] = of_targets.get(name, 0.0) + weight
            of_parts[part] = of_parts.get(part, 0.0) + weight
    return {name: total or 1.0 for name, total in of_targets.items()}, of_parts, tokens


def clip_gradient(model: Model, largest: float) -> Tensor:
    """Clip the gradient norm to `largest` (0: no clipping) and return the norm before clipping. *Shape:* ()"""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = whole(torch.nn.utils.get_total_norm(gradients))
    if largest > 0:
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), largest, norm)
    return norm


def evaluate(
    model: Model, examples: Examples, compute: Compute, rows: int, windows: Windows | None = None
) -> dict[str, Figure]:
    """The summed losses of each target over a block of examples.

    Processes share the forward passes, unless each pass reads the memory of the previous one.
    """
    blocks, world, memory = list(examples.split(rows)), compute.world, None
    continued = windows is not None and windows.continues is not None
    totals: list[Tensor] = []
    weights: list[dict[str, tuple[float, float]]] = []
    own = range(len(blocks)) if continued else share(world.rank, world.size, len(blocks))
    extra = -(-len(blocks) // world.size) - len(own) if world.sharded and not continued else 0
    model.eval()
    with torch.no_grad(), world.passes():
        for number in [*own, *[0] * extra]:
            batch = collate(blocks[number], device=compute.device, fixed_shape=compute.fixed_shape)
            if continued:
                assert windows is not None
                of_block = MicroBatch(blocks[number], windows[number * rows : (number + 1) * rows])
                batch = with_memory(batch, of_block, memory, model.for_use().settings)
                memory = batch.memory
            with compute.autocast():
                losses = model(batch)
            totals += [each for loss in losses.values() for each in (loss.total, *loss.counted)]
            weights.append({name: (float(loss.weight), loss.counted_weight) for name, loss in losses.items()})
    values = iter(numbers_of(totals))
    found = [
        {name: (next(values), each, next(values), next(values), counted) for name, (each, counted) in of_block.items()}
        for of_block in weights
    ][: len(own)]
    sums = {name: Figure(target=name) for name in examples.targets}
    for each_block in found if continued else itertools.chain(*world.gather(found)):
        for name, numbers in each_block.items():
            sums[name] += Figure.of(name, numbers)
    return sums
