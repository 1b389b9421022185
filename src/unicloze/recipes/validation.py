"""Rejects recipes with values of the right type that are invalid or do not work together."""

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
from unicloze.recipes.checks import model_problems, task_problems
from unicloze.rules import AT_LEAST_ONE, BELOW_ONE, NOT_NEGATIVE, POSITIVE, Problem, Range, declared
from unicloze.settings import DEVICE, Recipe
from unicloze.storage import is_url, problem_with, shown

SMALLEST_VOCABULARY = 16
"""The special tokens and a few word pieces."""

_NAME = re.compile(r"[^./\\\x00-\x1f][^/\\\x00-\x1f]*")
"""A single path component that is not hidden."""

_POSITIVE = (
    "data.window", "model.hidden_size", "model.num_layers", "model.num_heads", "model.intermediate_size",
    "model.head_size", "model.max_positions", "model.embedding_size", "model.relative_buckets", "model.relative_max_distance",
    "model.layer_norm_eps", "model.initializer_range", "training.steps", "training.batch_size",
    "training.micro_batch_size", "training.learning_rate", "training.muon_learning_rate", "training.epsilon",
    "training.decay_steps", "training.evaluate_windows", "training.log_every", "training.keep_checkpoints",
    "training.threads", "model.cell_clip", "model.projection_clip", "data.decontaminate_ngram",
    "distillation.temperature", "training.layer_decay", "training.average_patience", "model.character_size",
)  # fmt: skip
_NOT_NEGATIVE = (
    "model.decoder_layers", "model.num_segments", "model.memory", "model.adapter_size", "training.weight_decay",
    "training.warmup_steps",
    "training.clip_norm", "training.seed", "training.evaluate_every", "training.save_every", "tokenizer.extra_tokens",
    "model.activation_penalty", "model.temporal_penalty", "model.character_highways",
)  # fmt: skip
_BELOW_ONE = (
    "data.heldout_share",
    "model.dropout",
    "model.attention_dropout",
    "model.embedding_dropout",
    "model.input_dropout",
    "model.hidden_dropout",
    "model.weight_dropout",
    "model.activation_dropout",
    "model.final_dropout",
    "training.muon_momentum",
    "training.momentum",
    "training.label_smoothing",
    "training.final_rate",
)
_RANGES: Mapping[str, Range] = {
    **dict.fromkeys(_POSITIVE, POSITIVE),
    **dict.fromkeys(_NOT_NEGATIVE, NOT_NEGATIVE),
    **dict.fromkeys(_BELOW_ONE, BELOW_ONE),
    "training.spike_factor": AT_LEAST_ONE,
    "use.separators": AT_LEAST_ONE,
}


def validate(recipe: Recipe, origins: Mapping[str, str] | None = None) -> None:
    """Reject a recipe with invalid values."""

    def error(key: str, problem: str, place: str = "") -> UsageError:
        where = (origins or {}).get(key, f"recipe {recipe.name}")
        return UsageError(f"{where}{place}: {problem}.")

    if not _NAME.fullmatch(recipe.name):
        rule = "it names a run's folder: give a name without '/' and '\\' and without a leading dot"
        raise error("name", f"name is {recipe.name!r}; {rule}")
    found = list(variants(recipe))
    firsts = [next(_problems(variant.recipe), None) for variant in found]
    for variant, first in zip(found, firsts, strict=True):
        if first is not None:
            key, problem = first
            having = [other for one, other in zip(found, firsts, strict=True) if _has(one.recipe, key)]
            of_all = key not in variant.set_by and all(other == first for other in having)
            said = f"{key} is {_without_secrets(_value(variant.recipe, key))!r}; {problem}"
            raise error(variant.set_by.get(key, key), said, "" if of_all else variant.place)
        rows = variant.share * variant.recipe.training.batch_size
        if rows < 1 and not recipe.task.kind:  # a task has its own rows; the mixture is that of its model
            said = f"its share of training.batch_size {variant.recipe.training.batch_size} is less than one row"
            raise error(variant.mixture_key, f"{said}; raise the batch size or the share", variant.place)
    for key, problem in _problems_of_phases(recipe):
        raise error(key, problem)


def _without_secrets(value: Any) -> Any:
    """A value for a message: URLs without user name, password and query."""
    if isinstance(value, list):
        return [_without_secrets(each) for each in value]
    return shown(value) if isinstance(value, str) and is_url(value) else value


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The recipe of one part of one phase."""

    recipe: Recipe  # the recipe, without parts
    place: str  # its name in messages
    share: float  # share of the part in the rows of a step
    mixture_key: str  # the key that lists the part
    set_by: Mapping[str, str]  # for each key that the part or the phase sets, the key of the list with its entry


def variants(recipe: Recipe) -> Iterator[Variant]:
    """The recipe of each part of each phase."""
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
    """Settings that are invalid across phases: the key and why."""
    steps = recipe.training.steps
    for number, phase in enumerate(phases(recipe), 1):
        if phase.last_step == phase.first_step:
            cure = "raise training.steps or its share, or set training.phases to []"
            yield "training.phases", f"training.phases gives phase {number} none of the {steps} training.steps; {cure}"
        elif not any(part.evaluate for part in parts(phase.recipe.objective)):
            cure = "let at least one part be evaluated (evaluate: true)"
            yield "objective.mixture", f"objective.mixture has no part to evaluate on held-out text; {cure}"
    if recipe.data.order == "streams" and any(phase.recipe.objective.mixture for phase in phases(recipe)):
        yield (
            "data.order",
            "data.order is 'streams', but a mixture reorders its rows at every step; set objective.mixture to [] or "
            "data.order to shuffled",
        )
    streams = {(phase.recipe.data.window, phase.recipe.training.batch_size) for phase in phases(recipe)}
    if recipe.model.memory and len(streams) > 1:
        yield (
            "model.memory",
            f"model.memory is {recipe.model.memory}, but training.phases changes data.window or training.batch_size, "
            "which breaks the continuation of rows; keep both constant, or set model.memory to 0",
        )


_MOST = {
    "tokenizer.vocab_size": 2**22, "tokenizer.extra_tokens": 2**16, "data.window": 2**18, "training.batch_size": 2**20,
    "training.steps": 2**40, "training.evaluate_windows": 2**24, "model.num_layers": 2**10, "model.hidden_size": 2**17,
    "model.decoder_layers": 2**10, "model.head_size": 2**17,
    "model.num_heads": 2**12, "model.intermediate_size": 2**19, "model.embedding_size": 2**17, "model.max_positions": 2**18,
    "model.memory": 2**18, "decoding.beams": 2**10, "decoding.batch_size": 2**16, "decoding.max_length": 2**18,
}  # fmt: skip
"""What no model here comes near; larger values take a machine down before anything else is said."""


def unshardable(recipe: Recipe) -> Iterator[Problem]:
    """Why the processes of a run cannot hold a share of the model each (`training.parallel: shard`)."""
    training = recipe.training
    if training.optimizer not in ("adamw", "adamax"):
        yield (
            "training.parallel",
            f"training.optimizer {training.optimizer} needs whole matrices: set it to adamw or adamax",
        )
    if recipe.model.kind == "recurrent":
        yield "training.parallel", "a recurrent model cannot be sharded: set it to replicate"
    if any(len(parts(phase.recipe.objective)) > 1 for phase in phases(recipe)):
        yield "training.parallel", "parts of a mixture use different weights at the same time: set it to replicate"
    if training.compile:
        yield "training.parallel", "a sharded model is not compiled here: set training.compile to false"


def _has(recipe: Recipe, key: str) -> bool:
    """Whether a recipe has a setting; objectives differ in their settings."""
    section, _, name = key.rpartition(".")
    return hasattr(getattr(recipe, section) if section else recipe, name)


def _value(recipe: Recipe, key: str) -> Any:
    section, _, name = key.rpartition(".")
    return getattr(getattr(recipe, section) if section else recipe, name)


def _problems(recipe: Recipe) -> Iterator[Problem]:
    """Invalid values: the key and what the value must be."""
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
    for key, names in (("data.corpus", data.corpus), ("data.decontaminate", data.decontaminate)):
        refused = next(filter(None, map(problem_with, filter(is_url, names))), None)
        if refused is not None:
            yield key, refused
    if data.weights is not None and len(data.weights) != len(data.corpus):
        yield "data.weights", f"give one weight for each of the {len(data.corpus)} sources of data.corpus"
    if data.weights is not None and not all(0 < weight < math.inf for weight in data.weights):
        yield "data.weights", "every weight must be above 0; remove the source from data.corpus instead"
    if data.weights is not None and max(data.weights, default=0) > 1e6:
        yield "data.weights", "a weight is how often an epoch passes over a source, at most 1,000,000 times"
    for key, most in _MOST.items():
        value = _value(recipe, key)
        if value is not None and value != "auto" and value > most:
            yield key, f"it must be at most {most:,}"
    if not data.text_field:
        yield "data.text_field", "name the field that holds the text"
    shortest = 1 + 2 * data.segments
    if data.window < shortest:
        yield "data.window", f"{data.segments} segment(s) and their special tokens need {shortest} or more"
    streamed = data.order == "streams" and data.documents == "joined" and data.segments == 1
    if data.lengths == "random" and (not streamed or data.weights is not None):
        yield (
            "data.lengths",
            "it needs data.order streams, data.documents joined, data.segments 1 and data.weights null",
        )
    pairs = objective.windows.pairs
    if data.order == "streams" and pairs != "contiguous" and not (pairs == "next_sentence" and data.overlap):
        yield (
            "data.order",
            "streams need consecutive text: set objective.pairs to contiguous, or to next_sentence with data.overlap",
        )
    text = data.window - 3
    if not 0 <= data.overlap < 1 or (data.overlap and not 2 <= round(data.overlap * text) < text):
        yield "data.overlap", "it must be 0, or a share below 1 that leaves two tokens of a window to read again"
    if data.overlap and data.order == "streams" and (data.documents != "joined" or data.segments == 1):
        yield "data.overlap", "it needs data.documents joined and data.segments 2"
    if tokenizer.vocab_size < SMALLEST_VOCABULARY:
        yield "tokenizer.vocab_size", f"the special tokens and some text need {SMALLEST_VOCABULARY} or more"

    if objective.name not in OBJECTIVES:
        yield "objective.name", OBJECTIVES.unknown()
        return
    yield from objective.problems(recipe)
    yield from model_problems(recipe)
    yield from task_problems(recipe)
    if not 0 < recipe.distillation.weight <= 1:
        yield "distillation.weight", "it must be above 0 and at most 1"
    if training.attention == "flex" and model.attention_dropout > 0:
        yield "training.attention", "it needs model.attention_dropout 0"
    elif training.attention == "flex" and model.relative_bias and training.deterministic:
        yield "training.attention", "with model.relative_bias it needs training.deterministic false"
    if training.parallel == "shard":
        yield from unshardable(recipe)
    if training.decay_steps is not None and training.decay_steps > training.steps - training.warmup_steps:
        yield (
            "training.decay_steps",
            f"after {training.warmup_steps} warm-up steps it ends beyond step {training.steps}",
        )
    if training.copy_to is not None:
        refused = (
            problem_with(training.copy_to) if is_url(training.copy_to) else "give a URL such as s3://bucket/runs/mine"
        )
        if refused is not None:
            yield "training.copy_to", refused
    if training.leaves < 1 or training.leaves & (training.leaves - 1):
        yield "training.leaves", "it must be a power of 2, such as 64"
    micro = training.micro_batch_size
    if micro is not None and micro > 0 and training.batch_size % micro:
        yield "training.micro_batch_size", f"it must divide training.batch_size, {training.batch_size}"
    if training.learning_rate == "auto" and not recipe.task.kind:
        yield "training.learning_rate", "only fine-tuning supports auto: give a number"
    if training.word_vectors is not None and training.initialize_from is not None:
        yield "training.word_vectors", "the embeddings of training.initialize_from are trained: leave out one of them"
    if training.on_spike == "go_back" and recipe.task.kind:
        yield "training.on_spike", "fine-tuning has no other records to continue with: set it to skip"
    elif training.on_spike == "go_back" and not training.save_every:
        yield "training.on_spike", "there would be no checkpoint to go back to: set training.save_every above 0"
    if training.optimizer == "nt_asgd" and recipe.task.kind:
        yield "training.optimizer", "nt_asgd follows the evaluations of pre-training: use adamw to fine-tune"
    if training.optimizer in ("adamax", "sgd") and training.weight_decay:
        name = {"adamax": "Adamax", "sgd": "SGD"}[training.optimizer]
        yield "training.weight_decay", f"{name} does not support decoupled weight decay: set it to 0"
    if not all(0 <= beta < 1 for beta in training.betas):
        yield "training.betas", "both must be at least 0 and below 1"
    if training.seed >= 2**63:
        yield "training.seed", "it must be below 2**63"
    if not re.fullmatch(DEVICE, training.device):
        yield "training.device", "known devices: auto, cpu, cuda, cuda:N, xpu, xpu:N, mps"
