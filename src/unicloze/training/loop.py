"""The training loop: `fit` and the functions it calls."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unicloze.cores import TRIMMED_EVERY, return_free_memory
from unicloze.errors import UniclozeError
from unicloze.example import Batch, Examples, Memory, collate
from unicloze.model.build import Model
from unicloze.model.dropout import DropoutKey
from unicloze.settings import TrainingSettings
from unicloze.text.windows import Windows
from unicloze.training.batches import WINDOWS_AT_ONCE, Memories, MicroBatch, Prefetch, pack, unpack, with_memory
from unicloze.training.divergence import MOST, NonFiniteError, Spikes, Updates, cure, first_non_finite, non_finite
from unicloze.training.gradients import GradientSums, by_rows, fill_gradients, share
from unicloze.training.ledger import Figure
from unicloze.training.optimizers import schedule_factor, set_learning, set_learning_rate
from unicloze.training.pace import Decay
from unicloze.training.parallel import whole
from unicloze.training.passes import Abandoned, OutOfMemoryError, Passes, is_out_of_memory, numbers_of, out_of_memory
from unicloze.training.signals import Interruption, stop_when_asked
from unicloze.training.world import StepReport, World


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
    buffers: dict[nn.Parameter, Tensor] = field(default_factory=dict)
    parts: list[int] | None = None  # index of the mixture part of each micro-batch of the last step
    # losses of the last step, by index of the mixture part
    figures: list[tuple[int, Figure]] = field(default_factory=list)
    step_tokens: int = 0  # tokens of text in the last step
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
    # Gets the reason of a spike before the step is counted. Returns None to leave out the update, or goes back to an
    # earlier step and returns the micro-batches from there on.
    spiked: Callable[[TrainState, str], Iterator[list[MicroBatch]] | None] = lambda _state, _reason: None
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


def fit(
    state: TrainState, steps: Iterator[list[MicroBatch]], settings: TrainingSettings, compute: Compute, hooks: Hooks
) -> Interruption:
    """Train until the last step or until a signal arrives."""
    with (
        stop_when_asked() as interruption,
        Prefetch(steps, max(1, WINDOWS_AT_ONCE // settings.batch_size)) as made,
    ):
        run = _Steps(state, made, settings, compute, hooks, interruption)
        while state.step < state.last_step(settings):
            try:
                with compute.world.passes():
                    if run.take():
                        break
            except _WentBack as back:
                if interruption.heeded:
                    break  # the checkpoint it went back to is saved already
                made.restart(back.steps)
    return interruption


class _WentBack(Exception):
    """A spike made the run go back to an earlier step, or a decision changed the steps to come.

    Args:
        steps: The micro-batches of each step from there on.
    """

    def __init__(self, steps: Iterator[list[MicroBatch]]) -> None:
        super().__init__()
        self.steps = steps


@dataclass(frozen=True)
class _Before:
    """What a step starts from, besides weights and moments; see `TrainState`. Statistics are of batch normalisation."""

    step: int
    text_tokens: int
    memories: Memories
    spikes: Spikes
    statistics: dict[str, Tensor]

    @classmethod
    def of(cls, state: TrainState) -> _Before:
        statistics = {name: buffer.clone() for name, buffer in state.model.named_buffers()}
        return cls(state.step, state.text_tokens, state.memories, replace(state.spikes), statistics)

    def restore(self, state: TrainState) -> None:
        state.step, state.text_tokens = self.step, self.text_tokens
        state.memories, state.spikes = self.memories, replace(self.spikes)
        state.model.load_state_dict(self.statistics, strict=False)


class _Steps:
    """The steps of a run, see `fit`."""

    def __init__(
        self,
        state: TrainState,
        made: Iterator[list[MicroBatch]],
        settings: TrainingSettings,
        compute: Compute,
        hooks: Hooks,
        interruption: Interruption,
    ) -> None:
        self._state, self._made, self._settings = state, made, settings
        self._compute, self._hooks, self._interruption = compute, hooks, interruption
        self._accepts = settings.on_spike == "accept"
        self._advice = cure(skip=hooks.may_skip and self._accepts)
        self._updates = Updates(state.model, state.optimizers, late=compute.queues, undo=not self._accepts)
        self._updated, self._updated_with = _Before.of(state), list[MicroBatch]()

    def take(self) -> bool:
        """Take a step; whether the run ends with it."""
        state, settings, hooks, interruption = self._state, self._settings, self._hooks, self._interruption
        started, before = time.perf_counter(), _Before.of(state)
        micro_batches = self._next_rows()
        set_learning(state.optimizers, state.step)
        spike, undone = None, False
        try:
            losses, norm = losses_and_norm(
                state, micro_batches, settings, self._compute, hooks.describe, interruption, self._updates
            )
            if not math.isfinite(norm):
                raise non_finite(f"the norm of the gradient is {norm}", micro_batches, hooks.describe)
        except NonFiniteError as error:
            self._check_update()
            if self._accepts:
                before.restore(state)
                raise _before_update(error, state, hooks.save, self._advice) from error
            spike, state.memories = str(error), {}
        except OutOfMemoryError as error:
            state.model.zero_grad(set_to_none=True)
            before.restore(state)
            if self._compute.world.size > 1:  # the others are in the middle of the step
                raise
            self._save_last()
            raise OutOfMemoryError(f"{error}. The weights of step {state.step} were saved") from None
        except Abandoned:
            before.restore(state)
            self._save_last()
            return True
        if self._check_update():
            before = replace(before, text_tokens=state.text_tokens, spikes=replace(state.spikes))
        if spike is None and not self._accepts:
            spike = state.spikes.reason(norm, settings.spike_factor)
        if spike is None:
            self._updated, self._updated_with = before, micro_batches
            with self._updates.checked():
                update(state, norm, settings, micro_batches[0].rate)
            state.text_tokens += state.step_tokens
            state.step += 1
            undone = not self._compute.queues and self._check_update()
        else:
            state.model.load_state_dict(before.statistics, strict=False)
            self._leave_out(spike)
            state.step += 1
        if state.step % TRIMMED_EVERY == 0:
            return_free_memory()
        if spike is None and not undone:
            speed = state.step_tokens / (time.perf_counter() - started)
            hooks.log(state, {"loss": losses, "gradient_norm": norm, "text_tokens_per_second": speed})
        changed = hooks.decide(state)
        done, stopping = state.step >= state.last_step(settings), bool(interruption.heeded)
        regular = settings.save_every and state.step % settings.save_every == 0
        measured = done or bool(settings.evaluate_every and state.step % settings.evaluate_every == 0)
        if done or stopping or regular or measured:
            self._check_update()
        if regular and settings.on_spike == "go_back":
            state.spikes.in_a_row = 0
        if done or stopping or regular:
            hooks.save(state)
        enough = measured and hooks.evaluate(state)
        if changed is not None and not (done or stopping or enough):
            raise _WentBack(changed)
        return stopping or enough

    def _next_rows(self) -> list[MicroBatch]:
        try:
            return next(self._made)
        except UniclozeError:  # the weights are still good
            if self._compute.world.size == 1:  # saving needs all processes, and the others may not get here
                self._save_last()
            raise

    def _save_last(self) -> None:
        """Save what the last update made, or what the run goes back to if that is not finite."""
        with suppress(_WentBack):
            self._check_update()
        self._hooks.save(self._state)

    def _check_update(self) -> bool:
        """Check the last update; whether it was undone."""
        name, state = self._updates.spoiled(), self._state
        if name is None:
            return False
        done, memories = state.step, state.memories
        self._updated.restore(state)
        what = f"the update of step {state.step + 1} made {name} NaN or infinite"
        problem = non_finite(what, self._updated_with, self._hooks.describe)
        if not self._updates.undo:
            raise NonFiniteError(f"{problem}. That step was not saved; earlier checkpoints are kept: {self._advice}")
        if self._accepts:
            raise _before_update(problem, state, self._hooks.save, self._advice, undone=True)
        state.memories = memories
        self._leave_out(str(problem))
        state.step = done
        return True

    def _leave_out(self, spike: str) -> None:
        """Leave out the update of the current step, or go back; see `Hooks.spiked`."""
        state = self._state
        state.spikes.in_a_row += 1
        if state.spikes.in_a_row > MOST:
            state.spikes.in_a_row = 0
            error = NonFiniteError(f"more than {MOST} steps spiked in a row, at last because {spike}")
            raise _before_update(error, state, self._hooks.save, self._advice)
        steps = self._hooks.spiked(state, spike)
        if steps is not None:
            raise _WentBack(steps)


def update(state: TrainState, norm: float, settings: TrainingSettings, rate: float = 1.0) -> None:
    """Make the update of a step with a gradient of this norm, at a multiple of the scheduled learning rate."""
    set_learning_rate(state.optimizers, schedule_factor(state.step, settings, state.decays) * rate)
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

    Each process computes its own leaves; the gradients of all are added in tree order, see `gradients`. The memories of
    these rows replace `state.memories`.
    """
    interruption = interruption or Interruption()
    passes = _passes(state, micro_batches, settings, compute, describe, interruption)
    passes.read()
    losses = passes.agree(interruption)
    state.memories, state.figures = passes.memories, passes.figures
    passes.give_gradients()
    return losses


def losses_and_norm(
    state: TrainState,
    micro_batches: list[MicroBatch],
    settings: TrainingSettings,
    compute: Compute,
    describe: Callable[[MicroBatch], str],
    interruption: Interruption,
    updates: Updates,
) -> tuple[dict[str, float], float]:
    """`accumulate_gradients`, then `clip_gradient`.

    All numbers are read from a GPU at once, also whether the last update is finite: each process waits for its GPU once a
    step. Before that the processes agree that none of them left the step, and exchange gradients on their devices.
    """
    if not compute.queues:
        losses = accumulate_gradients(state, micro_batches, settings, compute, describe, interruption)
        return losses, clip_gradient(state.model, settings.clip_norm)
    passes = _passes(state, micro_batches, settings, compute, describe, interruption)
    passes.agree(interruption)
    passes.give_gradients()
    norm, *finite = passes.read([_clipped(state.model, settings.clip_norm), *updates.unread])
    updates.read(finite)
    losses = passes.agree(interruption)
    state.memories, state.figures = passes.memories, passes.figures
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
    weights, of_parts, state.step_tokens = _totals(micro_batches, own, world)
    smoothing = any(network.label_smoothing for network in state.model.networks)
    labels: Literal["hard", "soft"] = "soft" if smoothing or compute.soften is not None else "hard"
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

    passes = Passes(world, StepReport(), gradients, count, weights, memories, {}, problem, parts, of_parts, labels)
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
) -> tuple[dict[str, float], dict[tuple[int, str], float], int]:
    """Weight of each target over a global batch, see `total_weights`, in each part, and the number of its text tokens."""
    mine = [
        [number, weights_of(micro_batches[number].examples), micro_batches[number].text_tokens]
        for numbers in own.values()
        for number in numbers
    ]
    found = sorted(itertools.chain(*world.gather(mine)))
    of_parts: dict[tuple[int, str], float] = {}
    for number, weights, _ in found:
        for name, weight in weights.items():
            key = micro_batches[number].part, name
            of_parts[key] = of_parts.get(key, 0.0) + weight
    return total_weights([weights for _, weights, _ in found]), of_parts, sum(tokens for _, _, tokens in found)


def weights_of(examples: Examples) -> dict[str, float]:
    """Weight of each target in some rows."""
    return {name: target.normaliser for name, target in examples.targets.items()}


def total_weights(weights: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Weight of each target over a global batch, or 1 if it is 0, since it is a divisor."""
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
    values = iter(numbers_of(totals, world))
    found = [
        {name: (next(values), next(values), next(values), *both) for name, both in of_block.items()}
        for of_block in weights
    ][: len(own)]
    sums = {name: Figure(target=name) for name in examples.targets}
    for losses_of_block in found if continued else itertools.chain(*world.gather(found)):
        for name, (total, counted, squares, weight, counted_weight) in losses_of_block.items():
            sums[name] += Figure(
                target=name,
                nats=total,
                weight=weight,
                counted_nats=counted,
                counted_squares=squares,
                counted_weight=counted_weight,
            )
    return sums


def _before_update(
    error: NonFiniteError, state: TrainState, save: Callable[[TrainState], None], advice: str, *, undone: bool = False
) -> NonFiniteError:
    """The error that ends a run before an update, or after it was undone; the weights are saved if they are finite."""
    what = f"{error}. It was undone." if undone else f"stopped before the update of step {state.step + 1}: {error}."
    bad = first_non_finite(state.model.state_dict())
    if bad is not None:
        return NonFiniteError(
            f"{what} The weights before that step are not finite either ({bad}) and were not saved: {advice}"
        )
    save(state)
    return NonFiniteError(f"{what} The finite weights of step {state.step} were saved: {advice}")
