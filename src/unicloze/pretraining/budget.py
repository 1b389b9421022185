"""Converts a budget of time, steps, text or operations into the steps of a recipe."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np
import torch

from unicloze.errors import UsageError
from unicloze.example import Examples, Target
from unicloze.mixtures import Phase, phases
from unicloze.model.build import Model, shapes_only
from unicloze.model.flops import Amounts
from unicloze.pretraining.data import build_sampler, phrases_for, teacher_of
from unicloze.progress import counted
from unicloze.settings import Recipe
from unicloze.text.prepare import Prepared
from unicloze.text.sampler import WindowSampler
from unicloze.training.batches import MicroBatch, training_steps
from unicloze.training.distillation import Teacher
from unicloze.training.loading import ready_model, shape_model, spell_tokens
from unicloze.training.loop import Compute, TrainState, losses_and_norm
from unicloze.training.optimizers import build_optimizers
from unicloze.training.parallel import World
from unicloze.training.precision import choose_device, choose_precision
from unicloze.training.process import pinned_threads

SamplerOf = Callable[[Recipe], WindowSampler]
BudgetKind = Literal["flops", "steps", "time", "tokens"]

_UNITS = {"flops": "FLOPs", "steps": "step", "time": "seconds", "tokens": "text tokens"}
_SECONDS = {"s": 1, "min": 60, "h": 3600}
_DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(s|min|h)")
SAMPLED_STEPS = 24
_WARMING_STEPS, _TIMED_STEPS = 3, 12
LONGEST_TIMING = 20.0
"""Seconds after which the timing of a phase stops early."""


def _meant(text: str) -> str:
    """The budget that is most likely meant by a number with another unit, or without one, as the end of a sentence."""
    found = re.match(r"(\d*[1-9]\d*(?:\.\d+)?) ?([smh]|$)", text)
    if found is None:
        return "."
    unit = next((one for one in _SECONDS if found[2] and one.startswith(found[2])), "")
    return f"; did you mean '{found[1]}{unit or 'min'}'" + ("?" if unit else f" or 'steps={found[1]}'?")


@dataclass(frozen=True)
class Budget:
    """How much every contestant may spend."""

    # `steps`, `tokens` of text, `flops` of the model (slots and predictions), or `time` in seconds of a run
    kind: BudgetKind
    amount: float  # the amount of that kind

    @classmethod
    def parse(cls, text: str) -> Budget:
        """A budget such as `flops=2e14`, `steps=500` or `30min`."""
        kind, _, amount = text.partition("=")
        if duration := _DURATION.fullmatch(text.strip()):
            kind, amount = "time", str(float(duration[1]) * _SECONDS[duration[2]])
        try:
            value = float(amount)
        except ValueError:
            value = math.nan
        if kind not in get_args(BudgetKind) or not 0 < value < math.inf or (kind == "steps" and value % 1):
            raise UsageError(
                f"budget is {text!r}: give a time, as in 30min, or one of {', '.join(get_args(BudgetKind))} and a number "
                f"above 0, as in steps=500{_meant(text.strip().lower())}"
            )
        return cls(cast(BudgetKind, kind), value)

    def __str__(self) -> str:
        short = f"{self.amount:g}"
        return f"{self.kind}={short if float(short) == self.amount else f'{self.amount:.17g}'}"


@dataclass(frozen=True)
class Cost:
    """Average cost of a training step."""

    flops: float  # floating-point operations of the model, and of a teacher
    tokens: float  # text tokens
    seconds: float | None = None  # wall-clock time; None if not measured

    def of(self, kind: BudgetKind) -> float:
        """The cost in the unit of a budget."""
        if kind == "time":
            assert self.seconds is not None
            return self.seconds
        return {"flops": self.flops, "tokens": self.tokens, "steps": 1.0}[kind]


def cost_of_a_step(
    recipe: Recipe,
    prepared: Prepared,
    folder: Path,
    *,
    timed: bool,
    sampled: int = SAMPLED_STEPS,
    longest: float = LONGEST_TIMING,
) -> Cost:
    """Average cost of a step of a recipe, over its phases."""
    phrases, teacher = phrases_for(recipe, prepared, folder, progress=False), teacher_of(recipe, prepared.tokenizer)
    sampler_of = partial(build_sampler, prepared=prepared, phrases=phrases)
    flops, tokens = _counted(recipe, prepared, sampler_of, sampled, teacher)
    return Cost(flops, tokens, _seconds_of_a_step(recipe, prepared, sampler_of, teacher, longest) if timed else None)


def with_steps(recipe: Recipe, budget: Budget, cost: Cost, given: Collection[str] = ()) -> Recipe:
    """The recipe with the steps that a budget allows; its warm-up takes at most a tenth of them, unless it is given."""
    per_step = cost.of(budget.kind)
    own, steps = recipe.training, round(budget.amount / per_step)
    warmup, decay = own.warmup_steps, None
    if "training.warmup_steps" not in given:
        warmup = min(warmup, max(1, steps // 10))
    elif 0 < steps < warmup:
        few = f"the budget {budget} allows recipe {recipe.name} only {counted(steps, 'step')}: lower it"
        raise UsageError(f"training.warmup_steps is {warmup:,}, but {few}, or raise the budget.")
    if own.decay_steps is not None:  # the same share of the steps
        decay = min(max(1, round(own.decay_steps * steps / own.steps)), steps - warmup) or None
    found = recipe.changed("training", steps=steps, warmup_steps=warmup, decay_steps=decay)
    if any(phase.first_step == phase.last_step for phase in phases(found)):
        count = len(own.phases)
        of_phases = f" if each of its {count} phases is to have its share" if count > 1 else ""
        cure = "" if budget.kind == "steps" else " or lower --training.batch_size"
        raise UsageError(
            f"recipe {recipe.name}: a step costs {per_step:.3g} {_UNITS[budget.kind]}, more than the budget {budget} "
            f"allows{of_phases}; raise it{cure}."
        )
    return found


def _counted(
    recipe: Recipe, prepared: Prepared, sampler_of: SamplerOf, most: int, teacher: Teacher | None
) -> tuple[float, float]:
    """Floating-point operations and text tokens per step, averaged over a sample of steps of every phase."""
    with shapes_only():
        model = shape_model(recipe, prepared.tokenizer.vocabulary.size)
    flops = tokens = 0.0
    for phase, share in _phases(recipe):
        count = min(most, phase.last_step - phase.first_step)
        numbers = np.linspace(phase.first_step, phase.last_step - 1, count).round().astype(int)
        sampled = [next(training_steps(recipe, sampler_of, int(number))) for number in numbers]
        batches = [micro_batch for step in sampled for micro_batch in step]
        flops += share * sum(flops_of(model, batch.examples) for batch in batches) / len(sampled)
        if teacher is not None:
            softened = sum(teacher.flops(amounts_of(teacher.network, batch.examples)) for batch in batches)
            flops += share * softened / len(sampled)
        tokens += share * sum(batch.text_tokens for batch in batches) / len(sampled)
    return flops, tokens


def _phases(recipe: Recipe) -> list[tuple[Phase, float]]:
    """The phases that have steps, each with its share of all steps."""
    known = [(phase, phase.last_step - phase.first_step) for phase in phases(recipe)]
    return [(phase, steps / recipe.training.steps) for phase, steps in known if steps]


def flops_of(model: Model, examples: Examples) -> float:
    """Floating-point operations of a training step on a block of rows; see `unicloze.model.flops`."""
    return model.flops(amounts_of(model, examples))


def amounts_of(model: Model, examples: Examples) -> Amounts:
    """What a model computes for a block of rows."""
    network = model.for_use()
    amounts = measure_slots(examples, network.backbone.visibility)
    if network.settings.decoder_layers:
        sources = examples.mutual.astype(np.int64)
        return dataclasses.replace(amounts, source_slots=int(sources.sum()), source_pairs=int((sources**2).sum()))
    return amounts


def measure_slots(examples: Examples, visibility: Sequence[str] = ("full",)) -> Amounts:
    """What a network with a single stack computes for a block of rows."""
    real = np.arange(examples.input_ids.shape[1]) < examples.lengths[:, None]
    known = {}
    for name, rule in (("full", examples.intervals), ("local", examples.local)):
        if name in visibility and rule is not None:
            bounds = rule.astype(np.int64)[real]
            keys = bounds[:, 1] - bounds[:, 0] + bounds[:, 3] - bounds[:, 2]
            known[name] = float(keys.mean()) if len(keys) else 0.0
    return Amounts(
        rows=len(examples),
        slots=int(real.sum()),
        keys=float(np.mean([known[name] for name in visibility])),
        predictions={name: int((target.weights > 0).sum()) for name, target in examples.targets.items()},
        predicting_slots={name: _predicting_slots(target) for name, target in examples.targets.items()},
    )


def _predicting_slots(target: Target) -> int:
    """Number of distinct slots, over all rows, that a target's predictions are made from."""
    slots = target.slots.reshape(*target.weights.shape, -1)
    there = (target.weights > 0)[:, :, None] & (slots >= 0)
    row = np.nonzero(there)[0]
    return len(np.unique(np.stack([row, slots[there]], axis=1), axis=0))


def step_seconds(
    state: TrainState, micro_batches: list[MicroBatch], recipe: Recipe, compute: Compute
) -> tuple[float, float]:
    """Seconds of the passes and of the update of a training step, which is made."""

    def now() -> float:
        if compute.device.type == "cuda":
            torch.cuda.synchronize(compute.device)
        return time.perf_counter()

    begun = now()
    losses_and_norm(state, micro_batches, recipe.training, compute, lambda _: f"the timed steps of {recipe.name}")
    passed = now()
    for optimizer in state.optimizers:
        optimizer.step()
    return passed - begun, now() - passed


def _seconds_of_a_step(
    recipe: Recipe, prepared: Prepared, sampler_of: SamplerOf, teacher: Teacher | None, longest: float
) -> float:
    """Wall-clock seconds per training step, measured in every phase on temporary weights."""
    training, device = recipe.training, choose_device(recipe.training)
    compute = Compute(device=device, precision=choose_precision(training, device), soften=teacher)
    model = ready_model(recipe, prepared.tokenizer.vocabulary.size, device)
    spell_tokens(model, prepared.tokenizer.symbols)
    state, seconds = TrainState(model=model, optimizers=build_optimizers(model, training)), 0.0
    with pinned_threads(training, World()):
        for phase, share in _phases(recipe):
            steps, taken = training_steps(recipe, sampler_of, phase.first_step), list[float]()
            most = min(phase.last_step - phase.first_step, _WARMING_STEPS + _TIMED_STEPS)
            while len(taken) < most and sum(taken) <= longest:
                taken.append(sum(step_seconds(state, next(steps), recipe, compute)))
            timed = taken[_WARMING_STEPS:] or taken[-1:]
            seconds += share * sum(timed) / len(timed)
    return seconds
