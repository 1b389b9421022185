"""What is compared: recipes made equal where they must be, and a budget turned into steps of each."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import numpy.typing as npt
import torch

from unicloze.errors import UsageError
from unicloze.example import Examples, Target
from unicloze.mixtures import Phase, parts, phases
from unicloze.model.build import Model
from unicloze.objectives import OBJECTIVES
from unicloze.recipes import load_recipe
from unicloze.recipes.rules_unread import refuse_not_of_pretraining, refuse_unread
from unicloze.recipes.schema import foreign_key, keys_of
from unicloze.settings import ObjectiveSettings, Recipe
from unicloze.text.prepare import Prepared
from unicloze.text.sampler import WindowSampler
from unicloze.training.batches import MicroBatch, check_windows, training_steps
from unicloze.training.loop import Compute, TrainState, accumulate_gradients, clip_gradient
from unicloze.training.models import build_model, ready_model
from unicloze.training.optimizers import build_optimizers
from unicloze.training.precision import choose_device, choose_precision
from unicloze.training.run import build_sampler, phrases_for
from unicloze.visibility import Intervals

SamplerOf = Callable[[Recipe], WindowSampler]
BudgetKind = Literal["flops", "steps", "time", "tokens"]

_UNITS = {"flops": "FLOPs", "steps": "step", "time": "seconds", "tokens": "text tokens"}
SAMPLED_STEPS = 24
_WARMING_STEPS, _TIMED_STEPS = 3, 12

_OWN = "data.segments", "model.generator_size", "model.layer_visibility"
"""What an objective cannot do without; all else comes from the recipe that the others are to be like."""


PLAN = "comparison.json"
RESERVED_NAMES = {"data", "phrases", PLAN, "table.md", "index.html"}
"""What else lies in the folder of a comparison."""


@dataclass(frozen=True)
class Budget:
    """How much every contestant may spend.

    Args:
        kind: `steps`, `tokens` of text, `flops` of the model (slots and predictions), or `time` in seconds of training.
        amount: How many.
    """

    kind: BudgetKind
    amount: float

    @classmethod
    def parse(cls, text: str) -> Budget:
        """A budget such as `flops=2e14` or `steps=500`.

        Raises:
            UsageError: It is none.
        """
        kind, _, amount = text.partition("=")
        try:
            value = float(amount)
        except ValueError:
            value = math.nan
        if kind not in get_args(BudgetKind) or not 0 < value < math.inf or (kind == "steps" and value % 1):
            raise UsageError(
                f"budget is {text!r}: give one of {', '.join(get_args(BudgetKind))} and a number above 0, as in steps=500."
            )
        return cls(cast(BudgetKind, kind), value)

    def __str__(self) -> str:
        short = f"{self.amount:g}"
        return f"{self.kind}={short if float(short) == self.amount else f'{self.amount:.17g}'}"


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """One row of the table before it is run.

    Args:
        recipe: Its recipe, with `training.steps` as the budget allows.
        flops_per_step: Floating-point operations of a step, on average.
        tokens_per_step: Text tokens of a step, on average.
    """

    recipe: Recipe
    flops_per_step: float
    tokens_per_step: float


def contestants(names: Sequence[str], *, like: str | None, overrides: Mapping[str, Any]) -> list[Recipe]:
    """The recipes to compare, on one backbone if a recipe is named to be like.

    Args:
        names: Names or files of recipes.
        like: Take sizes, tokenizer, text and training from this recipe, so that nothing but the objective differs.
        overrides: Settings of all of them, by dotted name.

    Raises:
        UsageError: A recipe or setting cannot be, no recipe reads a setting, or two recipes have one name.
    """
    for key in ("training.steps", "training.decay_steps", "training.seed", "data.prepared"):
        if overrides.get(key) is not None:
            raise UsageError(f"option --{key}: the comparison decides on that, by its budget, its seeds and its text.")
    if "name" in overrides:
        raise UsageError("option --name: each recipe keeps its own, by which its rows and folders are called.")
    refuse_not_of_pretraining("compare", overrides, "probe.")
    own = [load_recipe(name) for name in names]
    for recipe in own:
        if recipe.name in RESERVED_NAMES:
            raise UsageError(
                f"a recipe is named {recipe.name}, as something of the comparison is: give it another name."
            )
    repeated = [recipe.name for recipe in own if [r.name for r in own].count(recipe.name) > 1]
    if repeated:
        raise UsageError(f"two recipes are named {repeated[0]}: give one of them another name.")
    extra = max(recipe.tokenizer.extra_tokens for recipe in own)
    model = None if like is None else load_recipe(like)
    found = []
    for name, recipe in zip(names, own, strict=True):
        shared: dict[str, Any] = {"tokenizer.extra_tokens": extra}
        if model is not None:
            shared |= _shared_settings(model, recipe) | {"tokenizer.extra_tokens": extra}
        found.append(load_recipe(name, {**shared, **_those_of(recipe, overrides)}))
    _refuse_foreign(own, overrides)
    for key in overrides:
        refuse_unread([recipe for recipe in found if key in _those_of(recipe, overrides)], [key])
    return found


def _those_of(recipe: Recipe, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a recipe has: all but those of other objectives."""
    name = overrides.get("objective.name", recipe.objective.name)
    kind = OBJECTIVES[name].settings if name in OBJECTIVES else ObjectiveSettings
    own = keys_of("objective", kind)
    return {key: value for key, value in overrides.items() if key in own or not key.startswith("objective.")}


def _refuse_foreign(recipes: Sequence[Recipe], overrides: Mapping[str, Any]) -> None:
    """Refuse a setting of an objective that no recipe has.

    Raises:
        UsageError: There is one, and which objectives have it.
    """
    for key in overrides:
        if not any(key in _those_of(recipe, overrides) for recipe in recipes):
            names = " or ".join(dict.fromkeys(recipe.objective.name for recipe in recipes))
            raise UsageError(f"option --{key}: {foreign_key(key, names)}.")


def _shared_settings(like: Recipe, own: Recipe) -> dict[str, Any]:
    """Settings by dotted name that make a recipe equal to another in all but its objective."""
    settings = {
        f"{section}.{name}": value
        for section in ("data", "tokenizer", "model", "training")
        for name, value in dataclasses.asdict(getattr(like, section)).items()
    }
    for key in _OWN:
        section, name = key.split(".")
        settings[key] = getattr(getattr(own, section), name)
    settings["training.phases"] = [
        {"share": phase.get("share", 1), "objective": phase["objective"]}
        for phase in own.training.phases
        if "objective" in phase
    ]
    settings["model.num_segments"] = max(like.model.num_segments, _segments_needed(own))
    return settings


def _segments_needed(recipe: Recipe) -> int:
    ids = [part.settings.reading.segments for phase in phases(recipe) for part in parts(phase.recipe.objective)]
    return 1 + max(max(pair) for pair in ids)


def check_text(recipe: Recipe, prepared: Prepared, folder: Path) -> None:
    """Refuse text that the recipe's objective can do nothing with, before anything is trained.

    Raises:
        UsageError: What is missing from the text to train on or held out, and the cure.
    """
    phrases = phrases_for(recipe, prepared, folder, progress=False)
    try:
        for heldout in (False, True):
            check_windows(
                recipe,
                lambda settings, part=heldout: build_sampler(  # type: ignore[misc]
                    settings, prepared, heldout=part, phrases=phrases
                ),
            )
    except UsageError as error:
        raise UsageError(f"recipe {recipe.name}: {error}") from error


def with_one_precision(recipes: Sequence[Recipe]) -> list[Recipe]:
    """The recipes with `auto` resolved to the same precision for all."""
    training = recipes[0].training
    precision: Any = choose_precision(training, choose_device(training))
    return [
        dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, precision=precision))
        for recipe in recipes
    ]


def plan(
    recipe: Recipe, prepared: Prepared, budget: Budget, folder: Path, *, evaluate_every: int | None = None
) -> Contestant:
    """Give a recipe the steps that a budget allows.

    Args:
        recipe: Its `training.steps` do not matter.
        prepared: The text.
        budget: What it may spend.
        folder: Where phrases are kept that its objective may need.
        evaluate_every: Steps between evaluations; an eighth of all if not given.

    Raises:
        UsageError: It does not allow a single step.
    """
    phrases = phrases_for(recipe, prepared, folder, progress=False)

    def sampler_of(settings: Recipe) -> WindowSampler:
        return build_sampler(settings, prepared, phrases=phrases)

    flops, tokens = _cost_of_a_step(recipe, prepared, sampler_of)
    cost = {"flops": flops, "tokens": tokens, "steps": 1.0}
    per_step = _seconds_of_a_step(recipe, prepared, sampler_of) if budget.kind == "time" else cost[budget.kind]
    steps = round(budget.amount / per_step)
    if steps < max(1, len(recipe.training.phases)):
        raise UsageError(
            f"recipe {recipe.name}: a step costs {per_step:.3g} {_UNITS[budget.kind]}, more than the budget {budget} allows; "
            "raise it or lower --training.batch_size."
        )
    training = dataclasses.replace(
        recipe.training,
        steps=steps,
        warmup_steps=min(recipe.training.warmup_steps, max(1, steps // 10)),
        decay_steps=None,
        evaluate_every=max(1, steps // 8) if evaluate_every is None else evaluate_every,
    )
    return Contestant(
        recipe=dataclasses.replace(recipe, training=training), flops_per_step=flops, tokens_per_step=tokens
    )


def _cost_of_a_step(recipe: Recipe, prepared: Prepared, sampler_of: SamplerOf) -> tuple[float, float]:
    """Floating-point operations and text tokens of a step, averaged over steps spread over every phase."""
    model = build_model(recipe, prepared.tokenizer.vocabulary.size)
    flops = tokens = 0.0
    for phase, share in _phases(recipe):
        sampled = _some_steps(recipe, phase, sampler_of)
        batches = [micro_batch for step in sampled for micro_batch in step]
        flops += share * sum(flops_of(model, batch.examples) for batch in batches) / len(sampled)
        tokens += share * sum(batch.text_tokens for batch in batches) / len(sampled)
    return flops, tokens


def _phases(recipe: Recipe) -> list[tuple[Phase, float]]:
    """The phases that have steps, each with its share of all."""
    known = [(phase, phase.last_step - phase.first_step) for phase in phases(recipe)]
    return [(phase, steps / recipe.training.steps) for phase, steps in known if steps]


def _some_steps(recipe: Recipe, phase: Phase, sampler_of: SamplerOf) -> list[list[MicroBatch]]:
    count = min(SAMPLED_STEPS, phase.last_step - phase.first_step)
    numbers = np.linspace(phase.first_step, phase.last_step - 1, count).round().astype(int)
    return [next(training_steps(recipe, sampler_of, int(number))) for number in numbers]


def flops_of(model: Model, examples: Examples) -> float:
    """Floating-point operations of a training step on a block of rows, see `unicloze.model.flops`."""
    return model.flops(**measure_slots(examples, model.for_use().backbone.visibility))


def measure_slots(examples: Examples, visibility: Sequence[str] = ("full",)) -> dict[str, Any]:
    """What a block of rows asks a model to compute, see `UnifiedModel.flops`.

    Args:
        examples: The rows.
        visibility: Name of the visibility of each layer.
    """
    real = np.arange(examples.input_ids.shape[1]) < examples.lengths[:, None]
    by_name = {"full": examples.intervals, "local": examples.local}
    known = {name: _mean_keys(rule, real) for name in set(visibility) if (rule := by_name[name]) is not None}
    return {
        "rows": len(examples),
        "slots": int(real.sum()),
        "keys": float(np.mean([known[name] for name in visibility])),
        "predictions": {name: int((target.weights > 0).sum()) for name, target in examples.targets.items()},
        "predicting_slots": {name: _predicting_slots(target) for name, target in examples.targets.items()},
    }


def _predicting_slots(target: Target) -> int:
    """Different slots of all rows that a target's predictions are made from."""
    slots = target.slots.reshape(*target.weights.shape, -1)
    there = (target.weights > 0)[:, :, None] & (slots >= 0)
    row = np.nonzero(there)[0]
    return len(np.unique(np.stack([row, slots[there]], axis=1), axis=0))


def _mean_keys(intervals: Intervals, real: npt.NDArray[np.bool_]) -> float:
    """Keys a slot reads, on average over those that are not padding."""
    bounds = intervals.astype(np.int64)[real]
    return float((bounds[:, 1] - bounds[:, 0] + bounds[:, 3] - bounds[:, 2]).mean()) if len(bounds) else 0.0


def _seconds_of_a_step(recipe: Recipe, prepared: Prepared, sampler_of: SamplerOf) -> float:
    """Wall-clock seconds of a training step, measured on throw-away weights in every phase."""
    training = recipe.training
    device = choose_device(training)
    compute = Compute(device=device, precision=training.precision)
    model = ready_model(recipe, prepared.tokenizer.vocabulary.size, device)
    state = TrainState(model=model, optimizers=build_optimizers(model, training))
    return sum(share * _seconds_in(phase, recipe, state, compute, sampler_of) for phase, share in _phases(recipe))


def _seconds_in(phase: Phase, recipe: Recipe, state: TrainState, compute: Compute, sampler_of: SamplerOf) -> float:
    steps = training_steps(recipe, sampler_of, phase.first_step)
    taken = []
    for _ in range(min(phase.last_step - phase.first_step, _WARMING_STEPS + _TIMED_STEPS)):
        started = time.perf_counter()
        accumulate_gradients(
            state, next(steps), recipe.training, compute, lambda _: f"the timed steps of {recipe.name}"
        )
        clip_gradient(state.model, recipe.training.clip_norm)
        for optimizer in state.optimizers:
            optimizer.step()
        if compute.device.type == "cuda":
            torch.cuda.synchronize(compute.device)
        taken.append(time.perf_counter() - started)
    timed = taken[_WARMING_STEPS:] or taken[-1:]
    return sum(timed) / len(timed)
