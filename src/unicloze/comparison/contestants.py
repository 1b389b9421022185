"""Plans a comparison: aligns the settings of its recipes, and converts a budget into steps for each."""

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
from unicloze.recipes.schema import foreign_key, keys_of
from unicloze.recipes.unread_settings import refuse_not_of_pretraining, refuse_unread
from unicloze.settings import ObjectiveSettings, Recipe
from unicloze.text.prepare import Prepared
from unicloze.text.sampler import WindowSampler
from unicloze.training.batches import MicroBatch, check_windows, training_steps
from unicloze.training.loading import build_model, ready_model
from unicloze.training.loop import Compute, TrainState, accumulate_gradients, clip_gradient
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
"""Settings that an objective depends on; `--like` takes all others from its recipe."""


COMPARISON_FILE = "comparison.json"
RESERVED_NAMES = {"data", "phrases", COMPARISON_FILE, "table.md", "index.html"}
"""Other names in the folder of a comparison."""


@dataclass(frozen=True)
class Budget:
    """How much every contestant may spend.

    Args:
        kind: `steps`, `tokens` of text, `flops` of the model (slots and predictions), or `time` in seconds of training.
        amount: The amount of that kind.
    """

    kind: BudgetKind
    amount: float

    @classmethod
    def parse(cls, text: str) -> Budget:
        """A budget such as `flops=2e14` or `steps=500`.

        Raises:
            UsageError: The text is not a valid budget.
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
    """A planned row of the table.

    Args:
        recipe: The recipe, with the `training.steps` that the budget allows.
        flops_per_step: Average floating-point operations per step.
        tokens_per_step: Average text tokens per step.
    """

    recipe: Recipe
    flops_per_step: float
    tokens_per_step: float


def contestants(names: Sequence[str], *, like: str | None, overrides: Mapping[str, Any]) -> list[Recipe]:
    """The recipes to compare, on the same backbone if `like` is given.

    Args:
        names: Names or files of recipes.
        like: Recipe whose sizes, tokenizer, text and training all others take, so that only the objective differs.
        overrides: Settings of all recipes, by dotted name.

    Raises:
        UsageError: A recipe or setting is invalid, no recipe uses a setting, or two recipes have the same name.
    """
    for key in ("training.steps", "training.decay_steps", "training.seed", "data.prepared"):
        if overrides.get(key) is not None:
            raise UsageError(f"option --{key}: the comparison sets this, from its budget, its seeds and its text.")
    if "name" in overrides:
        raise UsageError("option --name: each recipe keeps its own name, which also names its row and folder.")
    refuse_not_of_pretraining("compare", overrides, "probe.")
    own = [load_recipe(name) for name in names]
    for recipe in own:
        if recipe.name in RESERVED_NAMES:
            raise UsageError(
                f"a recipe is named {recipe.name}, which the comparison uses itself: give it another name."
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
    """The overrides that apply to a recipe: all except those of other objectives."""
    name = overrides.get("objective.name", recipe.objective.name)
    kind = OBJECTIVES[name].settings if name in OBJECTIVES else ObjectiveSettings
    own = keys_of("objective", kind)
    return {key: value for key, value in overrides.items() if key in own or not key.startswith("objective.")}


def _refuse_foreign(recipes: Sequence[Recipe], overrides: Mapping[str, Any]) -> None:
    """Reject a setting of an objective that no recipe has.

    Raises:
        UsageError: There is such a setting; the message names the objectives that have it.
    """
    for key in overrides:
        if not any(key in _those_of(recipe, overrides) for recipe in recipes):
            names = " or ".join(dict.fromkeys(recipe.objective.name for recipe in recipes))
            raise UsageError(f"option --{key}: {foreign_key(key, names)}.")


def _shared_settings(like: Recipe, own: Recipe) -> dict[str, Any]:
    """Settings, by dotted name, that make a recipe equal to `like` in everything except its objective."""
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


def check_same_text(recipe: Recipe, prepared: Prepared, folder: Path) -> None:
    """Reject text that the recipe's objective cannot use, before training starts.

    Raises:
        UsageError: The training or held-out text lacks something that the objective needs.
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
    """The recipes with the precision resolved to the same value for all."""
    training = recipes[0].training
    precision: Any = choose_precision(training, choose_device(training))
    return [
        dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, precision=precision))
        for recipe in recipes
    ]


def contestants_at_budget(
    recipe: Recipe, prepared: Prepared, budget: Budget, folder: Path, *, evaluate_every: int | None = None
) -> Contestant:
    """Plan the steps of a recipe that a budget allows.

    Args:
        recipe: The recipe; its `training.steps` are ignored.
        prepared: The prepared text.
        budget: What the recipe may spend.
        folder: Folder for the phrases that some objectives need.
        evaluate_every: Steps between evaluations; default: an eighth of all steps.

    Raises:
        UsageError: The budget does not allow a single step.
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
    """Floating-point operations and text tokens per step, averaged over a sample of steps from every phase."""
    model = build_model(recipe, prepared.tokenizer.vocabulary.size)
    flops = tokens = 0.0
    for phase, share in _phases(recipe):
        sampled = _some_steps(recipe, phase, sampler_of)
        batches = [micro_batch for step in sampled for micro_batch in step]
        flops += share * sum(flops_of(model, batch.examples) for batch in batches) / len(sampled)
        tokens += share * sum(batch.text_tokens for batch in batches) / len(sampled)
    return flops, tokens


def _phases(recipe: Recipe) -> list[tuple[Phase, float]]:
    """The phases that have steps, each with its share of all steps."""
    known = [(phase, phase.last_step - phase.first_step) for phase in phases(recipe)]
    return [(phase, steps / recipe.training.steps) for phase, steps in known if steps]


def _some_steps(recipe: Recipe, phase: Phase, sampler_of: SamplerOf) -> list[list[MicroBatch]]:
    count = min(SAMPLED_STEPS, phase.last_step - phase.first_step)
    numbers = np.linspace(phase.first_step, phase.last_step - 1, count).round().astype(int)
    return [next(training_steps(recipe, sampler_of, int(number))) for number in numbers]


def flops_of(model: Model, examples: Examples) -> float:
    """Floating-point operations of a training step on a block of rows; see `unicloze.model.flops`."""
    return model.flops(**amounts_of(model, examples))


def amounts_of(model: Model, examples: Examples) -> dict[str, Any]:
    """The amounts of computation in a block of rows for a model, as arguments of its `flops`."""
    network = model.for_use()
    amounts = measure_slots(examples, network.backbone.visibility)
    if network.settings.decoder_layers:
        sources = examples.mutual.astype(np.int64)
        amounts |= {"source_slots": int(sources.sum()), "source_pairs": int((sources**2).sum())}
    return amounts


def measure_slots(examples: Examples, visibility: Sequence[str] = ("full",)) -> dict[str, Any]:
    """The amounts of computation in a block of rows, as arguments of `UnifiedModel.flops`.

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
    """Number of distinct slots, over all rows, that a target's predictions are made from."""
    slots = target.slots.reshape(*target.weights.shape, -1)
    there = (target.weights > 0)[:, :, None] & (slots >= 0)
    row = np.nonzero(there)[0]
    return len(np.unique(np.stack([row, slots[there]], axis=1), axis=0))


def _mean_keys(intervals: Intervals, real: npt.NDArray[np.bool_]) -> float:
    """Average number of keys that a slot reads, excluding padding."""
    bounds = intervals.astype(np.int64)[real]
    return float((bounds[:, 1] - bounds[:, 0] + bounds[:, 3] - bounds[:, 2]).mean()) if len(bounds) else 0.0


def _seconds_of_a_step(recipe: Recipe, prepared: Prepared, sampler_of: SamplerOf) -> float:
    """Wall-clock seconds per training step, measured in every phase on temporary weights."""
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
