"""Values that have the right type and still cannot work together."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from unicloze.errors import UsageError
from unicloze.mixtures import parts, phases
from unicloze.objectives import OBJECTIVES
from unicloze.recipes.rules_model import model_problems
from unicloze.recipes.rules_task import task_problems
from unicloze.rules import BELOW_ONE, NOT_NEGATIVE, POSITIVE, Problem, Range, declared
from unicloze.settings import DEVICE, Recipe

SMALLEST_VOCABULARY = 16
"""Special tokens and a few pieces."""

_NAME = re.compile(r"[^./\\\x00-\x1f][^/\\\x00-\x1f]*")
"""A single path component, and no hidden one."""

_POSITIVE = (
    "data.window", "model.hidden_size", "model.num_layers", "model.num_heads", "model.intermediate_size",
    "model.max_positions", "model.embedding_size", "model.relative_buckets", "model.relative_max_distance",
    "model.layer_norm_eps", "model.initializer_range", "training.steps", "training.batch_size",
    "training.micro_batch_size", "training.learning_rate", "training.muon_learning_rate", "training.epsilon",
    "training.decay_steps", "training.evaluate_windows", "training.log_every", "training.keep_checkpoints",
)  # fmt: skip
_NOT_NEGATIVE = (
    "model.num_segments", "model.memory", "training.weight_decay", "training.warmup_steps",
    "training.clip_norm", "training.seed", "training.evaluate_every", "training.save_every", "tokenizer.extra_tokens",
)  # fmt: skip
_BELOW_ONE = (
    "data.heldout_share",
    "model.dropout",
    "model.attention_dropout",
    "training.muon_momentum",
    "training.label_smoothing",
)
_RANGES: Mapping[str, Range] = {
    **dict.fromkeys(_POSITIVE, POSITIVE),
    **dict.fromkeys(_NOT_NEGATIVE, NOT_NEGATIVE),
    **dict.fromkeys(_BELOW_ONE, BELOW_ONE),
}


def validate(recipe: Recipe, origins: Mapping[str, str] | None = None) -> None:
    """Refuse a recipe whose values cannot work.

    Args:
        recipe: The recipe.
        origins: Where the value of a dotted key comes from, for the message: a file and line, or an option.

    Raises:
        UsageError: The first value that cannot work, why, and the cure.
    """

    def error(key: str, problem: str, place: str = "") -> UsageError:
        where = (origins or {}).get(key, f"recipe {recipe.name}")
        return UsageError(f"{where}{place}: {problem}.")

    if not _NAME.fullmatch(recipe.name):
        rule = "a run's folder is called so: give it a name without '/' and '\\' and without a dot in front"
        raise error("name", f"name is {recipe.name!r}; {rule}")
    found = list(variants(recipe))
    firsts = [next(_problems(variant.recipe), None) for variant in found]
    for variant, first in zip(found, firsts, strict=True):
        if first is not None:
            key, problem = first
            having = [other for one, other in zip(found, firsts, strict=True) if _has(one.recipe, key)]
            of_all = key not in variant.set_by and all(other == first for other in having)
            said = f"{key} is {_value(variant.recipe, key)!r}; {problem}"
            raise error(variant.set_by.get(key, key), said, "" if of_all else variant.place)
        rows = variant.share * variant.recipe.training.batch_size
        if rows < 1 and not recipe.task.kind:  # a task has the objective of its model, and rows of its own
            said = f"its share of training.batch_size {variant.recipe.training.batch_size} is less than one row"
            raise error(variant.mixture_key, f"{said}; raise the batch size or the share", variant.place)
    for key, problem in _problems_of_phases(recipe):
        raise error(key, problem)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The recipe as one part of one phase sees it.

    Args:
        recipe: Itself without parts.
        place: What to call it.
        share: Share of the part in the rows of a step.
        mixture_key: The key that lists the part.
        set_by: By the key of a value that the part or the phase sets, the key of the list it stands in.
    """

    recipe: Recipe
    place: str
    share: float
    mixture_key: str
    set_by: Mapping[str, str]


def variants(recipe: Recipe) -> Iterator[Variant]:
    """The recipe as each part of each phase sees it."""
    if recipe.training.steps < 1:
        recipe = dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, phases=[]))
    changes = recipe.training.phases or [{}]
    for number, (phase, entry) in enumerate(zip(phases(recipe), changes, strict=True), 1):
        of_phase = f", phase {number} of training.phases" if recipe.training.phases else ""
        by_phase = {
            f"{section}.{name}": "training.phases"
            for section, values in entry.items()
            if isinstance(values, Mapping)
            for name in values
        }
        mixture_key = by_phase.get("objective.mixture", "objective.mixture")
        mixture = phase.recipe.objective.mixture
        for part, values in zip(parts(phase.recipe.objective), mixture or [{}], strict=True):
            of_part = f", part {part.label!r} of objective.mixture" if mixture else ""
            yield Variant(
                recipe=dataclasses.replace(phase.recipe, objective=part.settings),
                place=of_phase + of_part,
                share=part.share,
                mixture_key=mixture_key,
                set_by=by_phase | {f"objective.{name}": mixture_key for name in values},
            )


def _problems_of_phases(recipe: Recipe) -> Iterator[Problem]:
    """Keys that cannot work over all phases, and why."""
    steps = recipe.training.steps
    for number, phase in enumerate(phases(recipe), 1):
        if phase.last_step == phase.first_step:
            cure = "raise training.steps or its share, or set training.phases to []"
            yield "training.phases", f"training.phases leaves phase {number} none of the {steps} training.steps; {cure}"
        elif not any(part.evaluate for part in parts(phase.recipe.objective)):
            cure = "let at least one part be evaluated (evaluate: true)"
            yield "objective.mixture", f"objective.mixture leaves nothing to measure on held-out text; {cure}"
    if recipe.data.order == "streams" and any(phase.recipe.objective.mixture for phase in phases(recipe)):
        yield (
            "data.order",
            "data.order is 'streams', but the rows of a mixture change places from step to step; set objective.mixture "
            "to []",
        )
    streams = {(phase.recipe.data.window, phase.recipe.training.batch_size) for phase in phases(recipe)}
    if recipe.model.memory and len(streams) > 1:
        yield (
            "model.memory",
            f"model.memory is {recipe.model.memory}, but training.phases changes data.window or training.batch_size, "
            "after which rows do not go on from those before; keep both, or set model.memory to 0",
        )


def _has(recipe: Recipe, key: str) -> bool:
    """Whether a recipe has a setting: of another objective it may not."""
    section, _, name = key.rpartition(".")
    return hasattr(getattr(recipe, section) if section else recipe, name)


def _value(recipe: Recipe, key: str) -> Any:
    section, _, name = key.rpartition(".")
    return getattr(getattr(recipe, section) if section else recipe, name)


def _problems(recipe: Recipe) -> Iterator[Problem]:
    """Keys with a value that cannot work, and what it must be."""
    data, tokenizer, objective = recipe.data, recipe.tokenizer, recipe.objective
    model, training = recipe.model, recipe.training
    own = {
        f"{section}.{name}": allowed
        for section, settings in (("objective", objective), ("task", recipe.task))
        for name, allowed in declared(type(settings), "ranges").items()
    }
    for key, allowed in {**_RANGES, **own}.items():
        value = _value(recipe, key)
        if value is not None and value != "auto" and not allowed.fits(value):
            yield key, allowed.rule

    if not data.corpus and data.prepared is None:
        yield "data.corpus", "name at least one file, folder or glob, or 'python-docs'"
    if data.weights is not None and len(data.weights) != len(data.corpus):
        yield "data.weights", f"give one weight for each of the {len(data.corpus)} sources of data.corpus"
    if data.weights is not None and not all(0 < weight < math.inf for weight in data.weights):
        yield "data.weights", "every weight must be above 0; take the source out of data.corpus instead"
    if not data.text_field:
        yield "data.text_field", "name the field that holds the text"
    shortest = 1 + 2 * data.segments
    if data.window < shortest:
        yield "data.window", f"{data.segments} segment(s) and their special tokens need {shortest} or more"
    if data.order == "streams" and data.segments == 2:
        yield "data.order", "windows that go on from each other have one segment: set data.segments to 1"
    if tokenizer.vocab_size < SMALLEST_VOCABULARY:
        yield "tokenizer.vocab_size", f"the special tokens and some text need {SMALLEST_VOCABULARY} or more"

    if objective.name not in OBJECTIVES:
        yield "objective.name", OBJECTIVES.unknown()
        return
    yield from objective.problems(recipe)
    yield from model_problems(recipe)
    yield from task_problems(recipe)
    if training.attention == "flex" and (model.relative_bias or model.attention_dropout > 0):
        yield "training.attention", "that needs model.relative_bias false and model.attention_dropout 0"
    if training.decay_steps is not None and training.decay_steps > training.steps - training.warmup_steps:
        yield (
            "training.decay_steps",
            f"after {training.warmup_steps} warm-up steps that is beyond step {training.steps}",
        )
    micro = training.micro_batch_size
    if micro is not None and micro > 0 and training.batch_size % micro:
        yield "training.micro_batch_size", f"it must divide training.batch_size, {training.batch_size}"
    if training.learning_rate == "auto" and not recipe.task.kind:
        yield "training.learning_rate", "only fine-tuning chooses one: give a number"
    if training.optimizer == "adamax" and training.weight_decay:
        yield "training.weight_decay", "Adamax has no decay of the weights beside the gradient: set it to 0"
    if not all(0 <= beta < 1 for beta in training.betas):
        yield "training.betas", "both must be at least 0 and below 1"
    if training.seed >= 2**63:
        yield "training.seed", "it must be below 2**63"
    if not re.fullmatch(DEVICE, training.device):
        yield "training.device", "known devices: auto, cpu, cuda, cuda:N"
