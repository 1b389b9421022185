"""The training loop, on one screen: `fit` is what happens, the rest is what it calls."""

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
    """All that changes during a run. The sampler's state is `step` alone.

    Args:
        model: The weights.
        optimizers: Their moments.
        step: Steps done.
        text_tokens: Tokens of text trained on.
        memories: What the rows of the last step remember for those of the next, by number of the micro-batch.
        buffers: Memory for the gradients of large tables, see `lookups`. Nothing in it outlives a step.
    """

    model: Model
    optimizers: list[torch.optim.Optimizer]
    step: int = 0
    text_tokens: int = 0
    memories: Memories = field(default_factory=dict)
    buffers: dict[nn.Parameter, Tensor] = field(default_factory=dict)


@dataclass
class Interruption:
    """Whether SIGTERM, SIGINT or SIGHUP asked the run to stop."""

    signal: int = 0


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """What a run does beside learning, each called with the state as it is after a step.

    Args:
        log: With the loss per target, the gradient's norm and the speed.
        evaluate: Measure the held-out perplexity. The run ends early if it says that more steps would not help.
        save: Write a checkpoint.
        describe: Says where the rows of a micro-batch are from.
    """

    log: Callable[[TrainState, Mapping[str, Any]], None]
    evaluate: Callable[[TrainState], bool]
    save: Callable[[TrainState], None]
    describe: Callable[[MicroBatch], str]


@dataclass(frozen=True, kw_only=True)
class Compute:
    """Where and how to compute."""

    device: torch.device
    precision: str
    fixed_shape: bool = False

    def autocast(self) -> AbstractContextManager[Any]:
        """bf16 autocast, or nothing in fp32."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.precision == "bf16" else nullcontext()

    def lookups(self, model: Model) -> AbstractContextManager[None]:
        """Gradients of large tables by rows on a CPU, where that is faster and nothing is compiled."""
        return by_rows(model) if self.device.type == "cpu" and not self.fixed_shape else nullcontext()


def fit(
    state: TrainState, steps: Iterator[list[MicroBatch]], settings: TrainingSettings, compute: Compute, hooks: Hooks
) -> Interruption:
    """Train until `settings.steps` or until a signal asks to stop.

    Args:
        state: Changed in place.
        steps: The micro-batches of each step, from `state.step` on.
        settings: Schedule and intervals.
        compute: Where and how to compute.
        hooks: What else to do.

    Raises:
        NonFiniteError: The loss or the gradient is not finite; the weights are those of the step before, and saved. Or an
            update left weights that are not finite; these are never saved.
        UniclozeError: The text of a step cannot be read; the weights are those of the step before, and saved.
    """
    with stop_when_asked() as interruption:
        while state.step < settings.steps:
            started, memories = time.perf_counter(), state.memories
            try:
                micro_batches = next(steps)
            except UniclozeError:  # the text is damaged; what was learnt is not
                hooks.save(state)
                raise
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
    """Backward through every micro-batch, each loss divided by the weight of its target in the whole global batch.

    What the rows remember for the next step replaces `state.memories`.

    Returns:
        Mean loss of each target, in nats a prediction.

    Raises:
        NonFiniteError: A loss is not finite.
        Abandoned: A signal came before the last micro-batch. Who asks to stop may not wait for the end of a long step, which
            is taken anew when the run goes on.
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
    """Weight of each target over a global batch, at least 1 so that an empty one costs nothing."""
    sums: dict[str, float] = {}
    for block in examples:
        for name, target in block.targets.items():
            sums[name] = sums.get(name, 0.0) + target.normaliser
    return {name: total or 1.0 for name, total in sums.items()}


def clip_gradient(model: Model, largest: float) -> float:
    """Norm of the gradient before it is scaled down to `largest`; 0 leaves it as it is."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if largest > 0:
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), largest, norm)
    return float(norm)


def evaluate(model: Model, examples: Examples, compute: Compute, rows: int) -> dict[str, tuple[float, float]]:
    """Sum of the losses in nats, and number of predictions, of each target over a block of examples."""
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
    """Turn SIGTERM, SIGINT and SIGHUP into a wish that the loop grants after its current micro-batch.

    A second Ctrl-C stops at once.

    A second SIGTERM, as schedulers send, changes nothing: the first one's checkpoint is being written. SIGHUP, which a closed
    terminal sends, stays ignored where it is, as under nohup.
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
    in_main_thread = threading.current_thread() is threading.main_thread()  # signals reach no other
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
    """A step was left before its update."""


class NonFiniteError(UniclozeError):
    """The loss, the gradient or a weight is NaN or infinite."""


_CURE = (
    "run the same command with a lower --training.learning_rate or with --training.clip_norm 1.0, or start in another --out "
    "with a longer warm-up"
)


def non_finite(what: str, micro_batches: list[MicroBatch], describe: Callable[[MicroBatch], str]) -> NonFiniteError:
    """The error for a loss, gradient or weight that is not finite, with the rows of its step."""
    places = "; ".join(describe(micro_batch) for micro_batch in micro_batches[:2])
    return NonFiniteError(f"{what}; its rows are from {places}")


def _before_update(error: NonFiniteError, state: TrainState, save: Callable[[TrainState], None]) -> NonFiniteError:
    """The error that ends a run before an update; the weights are saved if they are finite."""
    what = f"stopped before the update of step {state.step + 1}: {error}."
    bad = first_non_finite(state.model.state_dict())
    if bad is not None:
        return NonFiniteError(
            f"{what} The weights it started from are not finite either ({bad}) and not saved: {_CURE}"
        )
    save(state)
    return NonFiniteError(f"{what} The weights of step {state.step} are finite and saved: {_CURE}")


def _after_update(
    name: str, state: TrainState, micro_batches: list[MicroBatch], describe: Callable[[MicroBatch], str]
) -> NonFiniteError:
    """The error that ends a run whose last update cannot be undone."""
    what = non_finite(f"the update of step {state.step + 1} made {name} NaN or infinite", micro_batches, describe)
    return NonFiniteError(f"{what}. That step is not saved, earlier checkpoints are kept: {_CURE}")
