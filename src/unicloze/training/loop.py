"""The training loop: `fit` and the functions it calls."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from unicloze.errors import UniclozeError
from unicloze.example import Batch, Examples, Memory, collate
from unicloze.model.build import Model
from unicloze.model.dropout import DropoutKey
from unicloze.settings import TrainingSettings
from unicloze.text.windows import Windows
from unicloze.training.allocator import TRIMMED_EVERY, return_free_memory
from unicloze.training.batches import WINDOWS_AT_ONCE, MicroBatch
from unicloze.training.divergence import NonFiniteError, Updated, cure, non_finite
from unicloze.training.finite import first_non_finite
from unicloze.training.gradients import GradientSums
from unicloze.training.lookups import by_rows, fill_gradients
from unicloze.training.optimizers import schedule_factor, set_learning, set_learning_rate
from unicloze.training.out_of_memory import OutOfMemoryError, is_out_of_memory, out_of_memory
from unicloze.training.passes import Abandoned, Passes, numbers_of
from unicloze.training.prefetch import Prefetch
from unicloze.training.recurrence import Memories, pack, unpack, with_memory
from unicloze.training.sharding import whole
from unicloze.training.signals import Interruption, stop_when_asked
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
        may_skip: Whether `training.on_spike skip` is possible in this run.
    """

    log: Callable[[TrainState, Mapping[str, Any]], None]
    evaluate: Callable[[TrainState], bool]
    save: Callable[[TrainState], None]
    describe: Callable[[MicroBatch], str]
    spiked: Callable[[TrainState, str], Iterator[list[MicroBatch]] | None] = lambda _state, _reason: None
    may_skip: bool = True


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
    advice = cure(skip=hooks.may_skip and settings.on_spike == "accept")
    updated = Updated(state.model, hooks.describe, advice)
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
                    updated.check()
                    hooks.save(state)
                raise
            set_learning(state.optimizers, state.step)
            spike = None
            try:
                losses, norm = losses_and_norm(
                    state, micro_batches, settings, compute, hooks.describe, interruption, updated
                )
                if not math.isfinite(norm):
                    raise non_finite(f"the norm of the gradient is {norm}", micro_batches, hooks.describe)
                if settings.on_spike != "accept":
                    spike = state.spikes.reason(norm, settings.spike_factor)
            except NonFiniteError as error:
                updated.check()
                if settings.on_spike == "accept":
                    state.model.load_state_dict(statistics, strict=False)
                    state.memories = memories
                    raise _before_update(error, state, hooks.save, advice) from error
                spike, state.memories = str(error), {}
            except OutOfMemoryError as error:
                updated.check()
                state.model.zero_grad(set_to_none=True)
                state.model.load_state_dict(statistics, strict=False)
                if compute.world.size == 1:  # the others are in the middle of the step
                    hooks.save(state)
                    raise OutOfMemoryError(f"{error}. The weights of step {state.step} were saved") from None
                raise
            except Abandoned:
                updated.check()
                state.model.load_state_dict(statistics, strict=False)
                hooks.save(state)
                break
            updated.check()
            if spike is None:
                update(state, norm, settings, micro_batches[0].rate)
                updated.note(state.step + 1, micro_batches)
                if not compute.queues:
                    updated.check()
                state.text_tokens += state.step_tokens
            else:
                state.model.load_state_dict(statistics, strict=False)
                back = _at_spike(state, spike, hooks, advice)
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
            measured = done or bool(settings.evaluate_every and state.step % settings.evaluate_every == 0)
            if done or stopping or regular or measured:
                updated.check()
            if done or stopping or regular:
                hooks.save(state)
            enough = False
            if measured:
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
    interruption = interruption or Interruption()
    passes = _passes(state, micro_batches, settings, compute, describe, interruption)
    passes.read()
    losses = passes.agree(interruption)
    state.memories = passes.memories
    passes.give_gradients()
    return losses


def losses_and_norm(
    state: TrainState,
    micro_batches: list[MicroBatch],
    settings: TrainingSettings,
    compute: Compute,
    describe: Callable[[MicroBatch], str],
    interruption: Interruption,
    updated: Updated,
) -> tuple[dict[str, float], float]:
    """`accumulate_gradients`, then `clip_gradient`.

    A single process reads all numbers from a GPU at once, also the last update's: it waits for the GPU once a step. Several
    processes agree on the losses before they exchange gradients, and read the norm after that.

    Returns:
        Mean loss of each target, and the norm of the gradient.
    """
    passes = _passes(state, micro_batches, settings, compute, describe, interruption)
    alone = compute.queues and compute.world.size == 1 and not passes.report.left
    if not alone:
        passes.read()
        losses = passes.agree(interruption)
        state.memories = passes.memories
        passes.give_gradients()
        if not compute.queues:
            return losses, clip_gradient(state.model, settings.clip_norm)
        norm, *weights = numbers_of([_clipped(state.model, settings.clip_norm), *updated.unread])
        updated.read(weights)
        return losses, norm
    passes.give_gradients()
    norm, *weights = passes.read([_clipped(state.model, settings.clip_norm), *updated.unread])
    updated.read(weights)
    losses = passes.agree(interruption)
    state.memories = passes.memories
    return losses, norm


def _passes(
    state: TrainState,
    micro_batches: list[MicroBatch],
    settings: TrainingSettings,
    compute: Compute,
    describe: Callable[[MicroBatch], str],
    interruption: Interruption,
) -> Passes:
    """Run forward and backward for the micro-batches of this process; see `accumulate_gradients`."""
    parts, world = [micro_batch.part for micro_batch in micro_batches], compute.world
    own, count = world.leaves(parts, settings.leaves), min(settings.leaves, len(parts))
    weights, state.step_tokens = _totals(micro_batches, own, world)
    learned = [weight for weight in state.model.parameters() if weight.requires_grad]
    gradients = GradientSums(learned, count, state.buffers)
    memories: dict[int, Memory] = {}
    used = state.model.for_use().settings
    if used.memory and state.parts != parts:  # the rows that continue ours may be on other processes
        state.memories = unpack(world.share_tensors(pack(state.memories)), compute.device)
    state.parts = parts
    state.model.train()
    state.model.zero_grad(set_to_none=True)

    def problem(number: int, name: str, value: float) -> str:
        where = f"the loss of {name} is {value} in micro-batch {number}"
        return str(non_finite(where, [micro_batches[number]], describe))

    def run(number: int, micro_batch: MicroBatch) -> dict[str, Tensor]:
        batch = micro_batch.batch(compute.device, fixed_shape=compute.fixed_shape)
        batch = with_memory(batch, micro_batch, state.memories.get(number), used)
        batch = batch if compute.soften is None else compute.soften(batch, compute)
        with compute.autocast(), compute.lookups(state.model):
            key = DropoutKey(settings.seed, state.step, number, factor=micro_batch.dropout, device=compute.device)
            losses = state.model(batch, key)
        if batch.memory is not None:
            memories[number] = batch.memory
        totals: list[Tensor] = [
            micro_batch.coefficients.get(name, 1.0) * loss.total / weights[name] for name, loss in losses.items()
        ]
        torch.stack(totals).sum().backward()
        fill_gradients(state.model, state.buffers)
        return {name: loss.total.detach() for name, loss in losses.items()}

    passes = Passes(world, StepReport(), gradients, count, weights, memories, {}, problem)
    world.begin_step(state.step)
    begun, full = False, None
    try:
        for leaf, numbers in own.items():
            for number in numbers:
                if begun and not world.sharded and (interruption.signal or world.leaving()):
                    raise Abandoned
                begun = True
                if not len(micro_batches[number].examples):
                    continue
                with world.passes():
                    passes.totals[number] = run(number, micro_batches[number])
                if not compute.queues and not world.sharded:
                    passes.read()
                    if passes.report.problem is not None:
                        raise Abandoned
            if not world.sharded:
                gradients.take(leaf)
    except Abandoned:
        passes.report.left = passes.report.problem is None
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        full = micro_batches[number]
    if full is not None:  # out of the handler, whose traceback holds what the pass computed
        fewer = None if used.memory or world.sharded else lambda rows: run(number, rows)
        layers = used.kind == "transformer"
        raise out_of_memory(full, settings, state.step + 1, fewer, can_checkpoint=layers)
    return passes


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
    return float(_clipped(model, largest))


def _clipped(model: Model, largest: float) -> Tensor:
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = whole(torch.nn.utils.get_total_norm(gradients))
    if largest > 0:
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), largest, norm)
    return norm


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
    totals: list[dict[str, Tensor]] = []
    weights: list[dict[str, float]] = []
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
            totals.append({name: loss.total for name, loss in losses.items()})
            weights.append({name: float(loss.weight) for name, loss in losses.items()})
    values = iter(numbers_of([total for of_block in totals for total in of_block.values()]))
    found = [{name: (next(values), weight) for name, weight in of_block.items()} for of_block in weights][: len(own)]
    sums: dict[str, tuple[float, float]] = dict.fromkeys(examples.targets, (0.0, 0.0))
    for losses_of_block in found if continued else itertools.chain(*world.gather(found)):
        for name, (total, weight) in losses_of_block.items():
            sums[name] = sums[name][0] + total, sums[name][1] + weight
    return sums


def _before_update(
    error: NonFiniteError, state: TrainState, save: Callable[[TrainState], None], advice: str
) -> NonFiniteError:
    """The error that ends a run before an update; the weights are saved if they are finite."""
    what = f"stopped before the update of step {state.step + 1}: {error}."
    bad = first_non_finite(state.model.state_dict())
    if bad is not None:
        return NonFiniteError(
            f"{what} The weights before that step are not finite either ({bad}) and were not saved: {advice}"
        )
    save(state)
    return NonFiniteError(f"{what} The finite weights of step {state.step} were saved: {advice}")


def _at_spike(state: TrainState, reason: str, hooks: Hooks, advice: str) -> Iterator[list[MicroBatch]] | None:
    """Skip the update of a step, or go back; see `Hooks.spiked`.

    Raises:
        NonFiniteError: Too many steps spiked in a row; the weights are saved.
    """
    state.spikes.in_a_row += 1
    if state.spikes.in_a_row > MOST:
        state.spikes.in_a_row = 0
        error = NonFiniteError(f"more than {MOST} steps spiked in a row, at last because {reason}")
        raise _before_update(error, state, hooks.save, advice)
    return hooks.spiked(state, reason)
