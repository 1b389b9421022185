"""The training loop: `fit` and the functions it calls."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from unicloze.errors import UniclozeError
from unicloze.example import Examples, collate
from unicloze.model.build import Model
from unicloze.model.dropout import DropoutKey
from unicloze.settings import TrainingSettings
from unicloze.training.batches import MicroBatch
from unicloze.training.finite import first_non_finite
from unicloze.training.lookups import by_rows, fill_gradients
from unicloze.training.optimizers import schedule_factor, set_learning, set_learning_rate
from unicloze.training.recurrence import Memories, with_memory


@dataclass
class TrainState:
    """Everything that changes during a run. The sampler's state is `step` alone.

    Args:
        model: The model.
        optimizers: The optimisers.
        step: Number of steps done.
        text_tokens: Number of text tokens trained on.
        memories: Memories of the last step's rows, by index of the micro-batch.
        buffers: Gradient buffers for large tables, see `lookups`; not used across steps.
    """

    model: Model
    optimizers: list[torch.optim.Optimizer]
    step: int = 0
    text_tokens: int = 0
    memories: Memories = field(default_factory=dict)
    buffers: dict[nn.Parameter, Tensor] = field(default_factory=dict)


@dataclass
class Interruption:
    """The signal, SIGTERM or SIGINT, that asked the run to stop; 0 if none."""

    signal: int = 0


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """Callbacks of a run, called with the state after a step.

    Args:
        log: Gets the loss per target, the gradient norm and the speed.
        evaluate: Measures the held-out perplexity. Returns True to end the run early.
        save: Writes a checkpoint.
        describe: Returns where the rows of a micro-batch come from.
    """

    log: Callable[[TrainState, Mapping[str, Any]], None]
    evaluate: Callable[[TrainState], bool]
    save: Callable[[TrainState], None]
    describe: Callable[[MicroBatch], str]


@dataclass(frozen=True, kw_only=True)
class Compute:
    """Device and precision."""

    device: torch.device
    precision: str
    fixed_shape: bool = False

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
        NonFiniteError: The loss or gradient is not finite; the weights before that step are saved. Or an update made
            weights non-finite; these are never saved.
    """
    with stop_when_asked() as interruption:
        while state.step < settings.steps:
            started, micro_batches, memories = time.perf_counter(), next(steps), state.memories
            set_learning(state.optimizers, state.step)
            try:
                losses = accumulate_gradients(state, micro_batches, settings, compute, hooks.describe, interruption)
                norm = clip_gradient(state.model, settings.clip_norm)
                if not math.isfinite(norm):
                    raise non_finite(f"the norm of the gradient is {norm}", micro_batches, hooks.describe)
            except NonFiniteError as error:
                state.memories = memories
                raise _before_update(error, state, hooks.save) from error
            except Abandoned:
                hooks.save(state)
                break
            set_learning_rate(state.optimizers, schedule_factor(state.step, settings))
            for optimizer in state.optimizers:
                optimizer.step()
            spoiled = first_non_finite(state.model.state_dict())
            if spoiled is not None:
                raise _after_update(spoiled, state, micro_batches, hooks.describe)
            tokens = sum(micro_batch.text_tokens for micro_batch in micro_batches)
            state.step, state.text_tokens = state.step + 1, state.text_tokens + tokens
            speed = tokens / (time.perf_counter() - started)
            hooks.log(state, {"loss": losses, "gradient_norm": norm, "text_tokens_per_second": speed})
            done, stopping = state.step == settings.steps, bool(interruption.signal)
            if done or stopping or (settings.save_every and state.step % settings.save_every == 0):
                hooks.save(state)
            enough = False
            if done or (settings.evaluate_every and state.step % settings.evaluate_every == 0):
                enough = hooks.evaluate(state)
            if stopping or enough:
                break
    return interruption


def accumulate_gradients(
    state: TrainState,
    micro_batches: list[MicroBatch],
    settings: TrainingSettings,
    compute: Compute,
    describe: Callable[[MicroBatch], str],
    interruption: Interruption | None = None,
) -> dict[str, float]:
    """Run forward and backward for every micro-batch, dividing each loss by its target's weight in the global batch.

    The rows' memories for the next step replace `state.memories`.

    Returns:
        Mean loss of each target, in nats per prediction.

    Raises:
        NonFiniteError: A loss is not finite.
        Abandoned: A signal arrived before the last micro-batch. Signals are handled after the current micro-batch; the step
            is repeated when the run resumes.
    """
    weights = total_weights([micro_batch.examples for micro_batch in micro_batches])
    sums = dict.fromkeys(weights, 0.0)
    memories, used = {}, state.model.for_use().settings
    state.model.train()
    state.model.zero_grad(set_to_none=True)
    for number, micro_batch in enumerate(micro_batches):
        if number and interruption is not None and interruption.signal:
            raise Abandoned
        batch = micro_batch.batch(compute.device, fixed_shape=compute.fixed_shape)
        batch = with_memory(batch, micro_batch, state.memories.get(number), used)
        with compute.autocast(), compute.lookups(state.model):
            losses = state.model(batch, DropoutKey(settings.seed, state.step, number))
        if batch.memory is not None:
            memories[number] = batch.memory
        totals: list[Tensor] = [
            micro_batch.coefficients.get(name, 1.0) * loss.total / weights[name] for name, loss in losses.items()
        ]
        torch.stack(totals).sum().backward()
        fill_gradients(state.model, state.buffers)
        for name, loss in losses.items():
            value = float(loss.total.detach()) / weights[name]
            if not math.isfinite(value):
                where = f"the loss of {name} is {value} in micro-batch {number}"
                raise non_finite(where, [micro_batch], describe)
            sums[name] += value
    state.memories = memories
    return sums


def total_weights(examples: list[Examples]) -> dict[str, float]:
    """Weight of each target over a global batch; 1 for an empty target, so that it can be divided by."""
    sums: dict[str, float] = {}
    for block in examples:
        for name, target in block.targets.items():
            sums[name] = sums.get(name, 0.0) + target.normaliser
    return {name: total or 1.0 for name, total in sums.items()}


def clip_gradient(model: Model, largest: float) -> float:
    """Clip the gradient norm to `largest` (0: no clipping) and return the norm before clipping."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if largest > 0:
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), largest, norm)
    return float(norm)


def evaluate(model: Model, examples: Examples, compute: Compute, rows: int) -> dict[str, tuple[float, float]]:
    """Summed loss in nats and number of predictions of each target over a block of examples."""
    sums: dict[str, tuple[float, float]] = dict.fromkeys(examples.targets, (0.0, 0.0))
    model.eval()
    with torch.no_grad():
        for block in examples.split(rows):
            with compute.autocast():
                losses = model(collate(block, device=compute.device, fixed_shape=compute.fixed_shape))
            for name, loss in losses.items():
                total, weight = sums[name]
                sums[name] = total + float(loss.total), weight + loss.weight
    return sums


@contextmanager
def stop_when_asked() -> Iterator[Interruption]:
    """Turn SIGTERM and SIGINT into a flag checked after each micro-batch; a second Ctrl-C stops at once.

    A second SIGTERM, as schedulers send, is ignored because the checkpoint is being written.
    """
    interruption = Interruption()

    def note(number: int, _frame: Any) -> None:
        interruption.signal = number
        if number == signal.SIGINT:
            signal.signal(number, before[signal.SIGINT])

    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGTERM, signal.SIGINT)}
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
    "start a new run in another --out with a lower training.learning_rate, a longer warm-up or training.clip_norm 1.0"
)


def non_finite(what: str, micro_batches: list[MicroBatch], describe: Callable[[MicroBatch], str]) -> NonFiniteError:
    """The error for a non-finite loss, gradient or weight, naming the rows of its step."""
    places = "; ".join(describe(micro_batch) for micro_batch in micro_batches[:2])
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


def _after_update(
    name: str, state: TrainState, micro_batches: list[MicroBatch], describe: Callable[[MicroBatch], str]
) -> NonFiniteError:
    """The error that ends a run after an update that cannot be undone."""
    what = non_finite(f"the update of step {state.step + 1} made {name} NaN or infinite", micro_batches, describe)
    return NonFiniteError(f"{what}. That step was not saved; earlier checkpoints are kept: {_CURE}")
