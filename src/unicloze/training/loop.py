"""The training loop: `fit` and the functions it calls."""

from __future__ import annotations

import itertools
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from unicloze.errors import UniclozeError
from unicloze.example import Batch, Examples, collate
from unicloze.model.build import Model
from unicloze.model.dropout import DropoutKey
from unicloze.settings import TrainingSettings
from unicloze.text.windows import Windows
from unicloze.training.allocator import TRIMMED_EVERY, return_free_memory
from unicloze.training.batches import WINDOWS_AT_ONCE, MicroBatch
from unicloze.training.finite import first_non_finite
from unicloze.training.gradients import GradientSums
from unicloze.training.lookups import by_rows, fill_gradients
from unicloze.training.optimizers import schedule_factor, set_learning, set_learning_rate
from unicloze.training.prefetch import Prefetch
from unicloze.training.recurrence import Memories, pack, unpack, with_memory
from unicloze.training.spikes import MOST, Spikes
from unicloze.training.tree import share
from unicloze.training.world import StepReport, World


@dataclass
class TrainState:
    """Everything that changes during a run. The sampler's state is `step` alone.

    Args:
        model: The weights.
        optimizers: Their moments.
        step: Steps done.
        text_tokens: Tokens of text trained on.
        memories: Memories that the rows of the last step leave for the next, by index of the micro-batch.
        buffers: Reused gradient buffers of large tables, see `lookups`; overwritten in every step.
        parts: Index of the mixture part of each micro-batch of the last step.
        step_tokens: Tokens of text in the last step.
        spikes: Gradient norms and spikes so far.
    """

    model: Model
    optimizers: list[torch.optim.Optimizer]
    step: int = 0
    text_tokens: int = 0
    memories: Memories = field(default_factory=dict)
    buffers: dict[nn.Parameter, Tensor] = field(default_factory=dict)
    parts: list[int] | None = None
    step_tokens: int = 0
    spikes: Spikes = field(default_factory=Spikes)


@dataclass
class Interruption:
    """Whether SIGTERM, SIGINT or SIGHUP asked the run to stop.

    Args:
        signal: The signal this process received; 0 if none.
        agreed: The signal all processes of the run stop for; 0 if none, None in a single process.
    """

    signal: int = 0
    agreed: int | None = None

    @property
    def heeded(self) -> int:
        """The signal to stop for."""
        return self.signal if self.agreed is None else self.agreed


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """Callbacks of a run, called with the state after a step.

    Args:
        log: Gets the loss per target, the gradient norm and the speed.
        evaluate: Measures the held-out perplexity. Returns True to end the run early.
        save: Writes a checkpoint.
        describe: Returns where the rows of a micro-batch come from.
        spiked: Gets the reason of a spike before the step is counted. Returns None to leave out the update, or goes back to
            an earlier step and returns the micro-batches from there on.
    """

    log: Callable[[TrainState, Mapping[str, Any]], None]
    evaluate: Callable[[TrainState], bool]
    save: Callable[[TrainState], None]
    describe: Callable[[MicroBatch], str]
    spiked: Callable[[TrainState, str], Iterator[list[MicroBatch]] | None] = lambda _state, _reason: None


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

    def lookups(self, model: Model) -> AbstractContextManager[None]:
        """Sparse gradients of large tables on a CPU, unless shapes are fixed for compilation."""
        return by_rows(model) if self.device.type == "cpu" and not self.fixed_shape else nullcontext()


def fit(
    state: TrainState, steps: Iterator[list[MicroBatch]], settings: TrainingSettings, compute: Compute, hooks: Hooks
) -> Interruption:
    """Train until `settings.steps` or until a signal arrives.

    Args:
        state: Changed in place.
        steps: The micro-batches of each step, from `state.step` on.
        settings: Schedule and intervals.
        compute: Device and precision.
        hooks: Callbacks.

    Raises:
        NonFiniteError: The loss or gradient is not finite, or too many steps spiked in a row; the weights before that step
            are saved. Or an update made weights non-finite; these are never saved.
        UniclozeError: The text of a step cannot be read; the weights before that step are saved.
    """
    ahead = max(1, WINDOWS_AT_ONCE // settings.batch_size)
    with stop_when_asked() as interruption, Prefetch(steps, ahead) as made:
        while state.step < settings.steps:
            started, memories = time.perf_counter(), state.memories
            statistics = {
                name: buffer.clone() for name, buffer in state.model.named_buffers()
            }  # of batch normalisation
            try:
                micro_batches = next(made)
            except UniclozeError:  # the weights are still good
                if compute.world.size == 1:  # saving needs all processes, and the others may not get here
                    hooks.save(state)
                raise
            set_learning(state.optimizers, state.step)
            spike = None
            try:
                losses = accumulate_gradients(state, micro_batches, settings, compute, hooks.describe, interruption)
                norm = clip_gradient(state.model, settings.clip_norm)
                if not math.isfinite(norm):
                    raise non_finite(f"the norm of the gradient is {norm}", micro_batches, hooks.describe)
                if settings.on_spike != "accept":
                    spike = state.spikes.reason(norm, settings.spike_factor)
            except NonFiniteError as error:
                if settings.on_spike == "accept":
                    state.model.load_state_dict(statistics, strict=False)
                    state.memories = memories
                    raise _before_update(error, state, hooks.save) from error
                spike, state.memories = str(error), {}
            except Abandoned:
                state.model.load_state_dict(statistics, strict=False)
                hooks.save(state)
                break
            if spike is None:
                update(state, norm, settings, micro_batches[0].rate)
                spoiled = first_non_finite(state.model.state_dict())
                if spoiled is not None:
                    raise _after_update(spoiled, state, micro_batches, hooks.describe)
                state.text_tokens += state.step_tokens
            else:
                state.model.load_state_dict(statistics, strict=False)
                back = _at_spike(state, spike, hooks)
                if back is not None and interruption.heeded:
                    break  # the checkpoint it went back to is saved already
                if back is not None:
                    made.restart(back)
                    continue
            state.step += 1
            if state.step % TRIMMED_EVERY == 0:
                return_free_memory()
            if spike is None:
                speed = state.step_tokens / (time.perf_counter() - started)
                hooks.log(state, {"loss": losses, "gradient_norm": norm, "text_tokens_per_second": speed})
            done, stopping = state.step == settings.steps, bool(interruption.heeded)
            regular = settings.save_every and state.step % settings.save_every == 0
            if regular and settings.on_spike == "go_back":
                state.spikes.in_a_row = 0
            if done or stopping or regular:
                hooks.save(state)
            enough = False
            if done or (settings.evaluate_every and state.step % settings.evaluate_every == 0):
                enough = hooks.evaluate(state)
            if stopping or enough:
                break
    return interruption


def update(state: TrainState, norm: float, settings: TrainingSettings, rate: float = 1.0) -> None:
    """Make the update of a step with a gradient of this norm, at a multiple of the scheduled learning rate."""
    set_learning_rate(state.optimizers, schedule_factor(state.step, settings) * rate)
    for optimizer in state.optimizers:
        optimizer.step()
    if settings.on_spike != "accept":
        state.spikes.add(norm)
    if settings.on_spike == "skip":
        state.spikes.in_a_row = 0


def accumulate_gradients(
    state: TrainState,
    micro_batches: list[MicroBatch],
    settings: TrainingSettings,
    compute: Compute,
    describe: Callable[[MicroBatch], str],
    interruption: Interruption | None = None,
) -> dict[str, float]:
    """Run forward and backward for every micro-batch, dividing each loss by its target's weight in the global batch.

    Each process computes its own leaves; the gradients of all are added in tree order, see `tree`. The memories of these rows
    replace `state.memories`.

    Returns:
        Mean loss of each target, in nats per prediction.

    Raises:
        NonFiniteError: A loss is not finite.
        Abandoned: A signal arrived before the last micro-batch. Signals are handled after the current micro-batch; the step
            is repeated when the run resumes.
    """
    parts, world = [micro_batch.part for micro_batch in micro_batches], compute.world
    own, count = world.leaves(parts, settings.leaves), min(settings.leaves, len(parts))
    weights, state.step_tokens = _totals(micro_batches, own, world)
    learned = [weight for weight in state.model.parameters() if weight.requires_grad]
    gradients = GradientSums(learned, count, state.buffers)
    memories, used = {}, state.model.for_use().settings
    if used.memory and state.parts != parts:  # the rows that continue ours may be on other processes
        state.memories = unpack(world.share_tensors(pack(state.memories)), compute.device)
    state.parts = parts
    state.model.train()
    state.model.zero_grad(set_to_none=True)
    report = StepReport()
    interruption = interruption or Interruption()
    world.begin_step(state.step)
    try:
        for leaf, numbers in own.items():
            for number in numbers:
                if report.means and (interruption.signal or world.leaving()):
                    raise Abandoned
                micro_batch = micro_batches[number]
                if not len(micro_batch.examples):
                    continue
                batch = micro_batch.batch(compute.device, fixed_shape=compute.fixed_shape)
                batch = with_memory(batch, micro_batch, state.memories.get(number), used)
                batch = batch if compute.soften is None else compute.soften(batch, compute)
                with compute.autocast(), compute.lookups(state.model):
                    key = DropoutKey(settings.seed, state.step, number, factor=micro_batch.dropout)
                    losses = state.model(batch, key)
                if batch.memory is not None:
                    memories[number] = batch.memory
                totals: list[Tensor] = [
                    micro_batch.coefficients.get(name, 1.0) * loss.total / weights[name]
                    for name, loss in losses.items()
                ]
                torch.stack(totals).sum().backward()
                fill_gradients(state.model, state.buffers)
                values = {name: float(loss.total.detach()) / weights[name] for name, loss in losses.items()}
                for name, value in values.items():
                    if not math.isfinite(value):
                        where = f"the loss of {name} is {value} in micro-batch {number}"
                        report.problem = number, str(non_finite(where, [micro_batch], describe))
                        raise Abandoned
                report.means[number] = values
            gradients.take(leaf)
    except Abandoned:
        report.left = report.problem is None
    sums: dict[str, float] = {}
    for of_micro_batch in _agreed(world.meet(report, lambda: interruption.signal), world, interruption):
        for name, value in of_micro_batch.items():
            sums[name] = sums.get(name, 0.0) + value
    gradients.give(world.add(gradients.sums, count, gradients.weights))
    state.memories = memories
    return sums


def _agreed(reports: list[StepReport], world: World, interruption: Interruption) -> list[dict[str, float]]:
    """The mean losses of all micro-batches, in order, from the reports of all processes.

    Raises:
        NonFiniteError: A loss is not finite.
        Abandoned: A process left the step.
    """
    if world.size > 1:
        interruption.agreed = next((report.signal for report in reports if report.signal), 0)
    problems = [report.problem for report in reports if report.problem is not None]
    if problems:
        raise NonFiniteError(min(problems)[1])
    if any(report.left for report in reports):
        raise Abandoned
    means = {number: values for report in reports for number, values in report.means.items()}
    return [means[number] for number in sorted(means)]


def _totals(
    micro_batches: list[MicroBatch], own: Mapping[int, list[int]], world: World
) -> tuple[dict[str, float], int]:
    """Weight of each target over a global batch, see `total_weights`, and the number of its text tokens."""
    mine = [
        [number, weights_of(micro_batches[number].examples), micro_batches[number].text_tokens]
        for numbers in own.values()
        for number in numbers
    ]
    found = sorted(itertools.chain(*world.gather(mine)))
    return total_weights([weights for _, weights, _ in found]), sum(tokens for _, _, tokens in found)


def weights_of(examples: Examples) -> dict[str, float]:
    """Weight of each target in some rows."""
    return {name: target.normaliser for name, target in examples.targets.items()}


def total_weights(weights: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Weight of each target over a global batch, or 1 if it is 0, since it is a divisor.

    Args:
        weights: Weights of its micro-batches, in order.
    """
    sums: dict[str, float] = {}
    for of_micro_batch in weights:
        for name, weight in of_micro_batch.items():
            sums[name] = sums.get(name, 0.0) + weight
    return {name: total or 1.0 for name, total in sums.items()}


def clip_gradient(model: Model, largest: float) -> float:
    """Clip the gradient norm to `largest` (0: no clipping) and return the norm before clipping."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if largest > 0:
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), largest, norm)
    return float(norm)


def evaluate(
    model: Model, examples: Examples, compute: Compute, rows: int, windows: Windows | None = None
) -> dict[str, tuple[float, float]]:
    """Sum of the losses in nats, and number of predictions, of each target over a block of examples.

    Processes share the forward passes, unless each pass reads the memory of the previous one.

    Args:
        model: The model.
        examples: The rows.
        compute: Device, precision and processes.
        rows: Rows per forward pass.
        windows: Windows the rows were made from. A row that continues the row `rows` places before it reads its memory, if
            the model has memory.
    """
    blocks, world, memory = list(examples.split(rows)), compute.world, None
    continued = windows is not None and windows.continues is not None
    found: list[dict[str, tuple[float, float]]] = []
    model.eval()
    with torch.no_grad():
        for number in range(len(blocks)) if continued else share(world.rank, world.size, len(blocks)):
            batch = collate(blocks[number], device=compute.device, fixed_shape=compute.fixed_shape)
            if continued:
                assert windows is not None
                of_block = MicroBatch(blocks[number], windows[number * rows : (number + 1) * rows])
                batch = with_memory(batch, of_block, memory, model.for_use().settings)
                memory = batch.memory
            with compute.autocast():
                losses = model(batch)
            found.append({name: (float(loss.total), float(loss.weight)) for name, loss in losses.items()})
    sums: dict[str, tuple[float, float]] = dict.fromkeys(examples.targets, (0.0, 0.0))
    for losses_of_block in found if continued else itertools.chain(*world.gather(found)):
        for name, (total, weight) in losses_of_block.items():
            sums[name] = sums[name][0] + total, sums[name][1] + weight
    return sums


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

    asked = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        asked.append(signal.SIGHUP)
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in asked}
    in_main_thread = threading.current_thread() is threading.main_thread()  # other threads get no signals
    if in_main_thread:
        for number in before:
            signal.signal(number, note)
    try:
        yield interruption
    finally:
        if in_main_thread:
            for number, handler in before.items():
                signal.signal(number, handler)


class Abandoned(Exception):
    """A step was abandoned before its update."""


class NonFiniteError(UniclozeError):
    """The loss, the gradient or a weight is NaN or infinite."""


_CURE = (
    "run the same command with a lower --training.learning_rate, --training.clip_norm 1.0 or --training.on_spike skip, or "
    "start in another --out with a longer warm-up"
)


def non_finite(what: str, micro_batches: list[MicroBatch], describe: Callable[[MicroBatch], str]) -> NonFiniteError:
    """The error for a non-finite loss, gradient or weight, naming the rows of its step."""
    there = [micro_batch for micro_batch in micro_batches if len(micro_batch.examples)]
    places = "; ".join(describe(micro_batch) for micro_batch in there[:2])
    return NonFiniteError(f"{what}; its rows are from {places}")


def _before_update(error: NonFiniteError, state: TrainState, save: Callable[[TrainState], None]) -> NonFiniteError:
    """The error that ends a run before an update; the weights are saved if they are finite."""
    what = f"stopped before the update of step {state.step + 1}: {error}."
    bad = first_non_finite(state.model.state_dict())
    if bad is not None:
        return NonFiniteError(
            f"{what} The weights before that step are not finite either ({bad}) and were not saved: {_CURE}"
        )
    save(state)
    return NonFiniteError(f"{what} The finite weights of step {state.step} were saved: {_CURE}")


def _at_spike(state: TrainState, reason: str, hooks: Hooks) -> Iterator[list[MicroBatch]] | None:
    """Skip the update of a step, or go back; see `Hooks.spiked`.

    Raises:
        NonFiniteError: Too many steps spiked in a row; the weights are saved.
    """
    state.spikes.in_a_row += 1
    if state.spikes.in_a_row > MOST:
        state.spikes.in_a_row = 0
        error = NonFiniteError(f"more than {MOST} steps spiked in a row, at last because {reason}")
        raise _before_update(error, state, hooks.save)
    return hooks.spiked(state, reason)


def _after_update(
    name: str, state: TrainState, micro_batches: list[MicroBatch], describe: Callable[[MicroBatch], str]
) -> NonFiniteError:
    """The error that ends a run after an update that cannot be undone."""
    what = non_finite(f"the update of step {state.step + 1} made {name} NaN or infinite", micro_batches, describe)
    return NonFiniteError(f"{what}. That step was not saved; earlier checkpoints are kept: {_CURE}")
