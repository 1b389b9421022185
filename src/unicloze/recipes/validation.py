"""Rejects recipes with values of the right type that are invalid or do not work together, and settings without effect.

The valid values of a single setting are declared with its field, and those of an objective or a task in its `problems`.
`validate` checks values of any origin; the `refuse_` functions those given by the caller alone, since a recipe file may
contain settings that some parts of its mixture, or some commands, do not use. What these need is declared with their field.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unicloze.characters import LONGEST
from unicloze.errors import UsageError, option_of
from unicloze.files import is_utf8
from unicloze.mixtures import parts, phases, positions
from unicloze.objectives import OBJECTIVES
from unicloze.recipes.schema import KEYS, VARIED, find_key, having, keys_of, options
from unicloze.rules import Derived, Needs, Problem, Range, ReadBy, listed, needs
from unicloze.settings import DEVICE, OF_THE_MODEL, TRAINED, Recipe
from unicloze.storage import is_url, problem_with, shown
from unicloze.tasks import TASKS
from unicloze.tasks.task import Headed

SMALLEST_VOCABULARY = 16
"""The special tokens and a few word pieces."""
LONGEST_DISTANCE = 16384
BOTH_DIRECTIONS = "classification", "regression", "tagging"
"""Kinds of tasks whose rows can be read in both directions, one apart from the other."""
_NAME = re.compile(r"[^./\\\x00-\x1f][^/\\\x00-\x1f]*")
"""A single path component that is not hidden."""

Check = tuple[str, Any, str]
"""Dotted key, whether its value is invalid, and what it must be."""


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
            having = [value_of(one.recipe, key, ...) is not ... for one in found]
            alike = all(other == first for other, has in zip(firsts, having, strict=True) if has)
            of_all = key not in variant.set_by and alike
            said = f"{key} is {_without_secrets(value_of(variant.recipe, key))!r}; {problem}"
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
        recipe = recipe.changed("training", phases=[])
    changes = recipe.training.phases or [{}]
    for number, (phase, entry) in enumerate(zip(phases(recipe), changes, strict=True), 1):
        of_phase = f", phase {number} of training.phases" if recipe.training.phases else ""
        nested = {section: values for section, values in entry.items() if isinstance(values, Mapping)}
        by_phase = {f"{section}.{name}": "training.phases" for section, values in nested.items() for name in values}
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


def unshardable(recipe: Recipe) -> Iterator[Problem]:
    """Why the processes of a run cannot hold a share of the model each (`training.parallel: shard`)."""
    training, mixed = recipe.training, any(len(parts(phase.recipe.objective)) > 1 for phase in phases(recipe))
    yield from _invalid(
        ("training.parallel", training.optimizer not in ("adamw", "adamax"),
         f"training.optimizer {training.optimizer} needs whole matrices: set it to adamw or adamax"),
        ("training.parallel", recipe.model.kind == "recurrent", "a recurrent model cannot be sharded: set it to replicate"),
        ("training.parallel", mixed, "parts of a mixture use different weights at the same time: set it to replicate"),
        ("training.parallel", training.compile, "a sharded model is not compiled here: set training.compile to false"),
    )  # fmt: skip


def value_of(recipe: Recipe, key: str, default: Any = None) -> Any:
    """The value of a dotted key; the default if the recipe's objective or task lacks the setting."""
    section, _, name = key.rpartition(".")
    return getattr(getattr(recipe, section) if section else recipe, name, default)


def _invalid(*checks: Check) -> Iterator[Problem]:
    return ((key, rule) for key, invalid, rule in checks if invalid)


def _problems(recipe: Recipe) -> Iterator[Problem]:
    """Invalid values: the key and what the value must be."""
    for section in dataclasses.fields(recipe)[1:]:
        settings = getattr(recipe, section.name)
        for key, known in keys_of(section.name, type(settings)).items():
            value = getattr(settings, key.rpartition(".")[2])
            texts = value if isinstance(value, list) else [value]
            if any(isinstance(text, str) and not is_utf8(text) for text in texts):
                yield (
                    key,
                    "a recipe cannot contain a name that is not UTF-8: rename the file, or give the folder it is in",
                )
            for rule in known.rules:
                if isinstance(rule, Range) and value is not None and value != "auto" and not rule.fits(value):
                    yield key, rule.rule
    yield from _data_problems(recipe)
    if recipe.objective.name not in OBJECTIVES:
        yield "objective.name", OBJECTIVES.unknown()
        return
    yield from recipe.objective.problems(recipe)
    yield from _lstm_problems(recipe) if recipe.model.kind == "recurrent" else _transformer_problems(recipe)
    yield from _task_problems(recipe)
    yield from _training_problems(recipe)


def _data_problems(recipe: Recipe) -> Iterator[Problem]:
    """Of the corpus, its windows and its tokens."""
    data, needed, weights = recipe.data, recipe.objective.windows, recipe.data.weights
    for key, names in (("data.corpus", data.corpus), ("data.decontaminate", data.decontaminate)):
        refused = next(filter(None, map(problem_with, filter(is_url, names))), None)
        if refused is not None:
            yield key, refused
    shortest, text, streams = 1 + 2 * data.segments, data.window - 3, data.order == "streams"
    again = round(data.overlap * text) if 0 <= data.overlap < 1 else 0
    consecutive = needed.pairs == "contiguous" or (needed.pairs == "next_sentence" and data.overlap)
    lstm = recipe.model.kind == "recurrent"  # its state has read the whole window
    marked, remembers = needed.phrases or needed.spans or needed.static_copies is not None, recipe.model.memory > 0
    forward = recipe.objective.reading.visibility == "left_to_right" and data.directions == "forward"
    ordered = recipe.objective.name == "permuted" or (recipe.objective.name == "causal" and forward and not lstm)
    running = streams and data.documents == "joined" and data.segments == 1
    yield from _invalid(
        ("data.corpus", not data.corpus and data.prepared is None,
         "name at least one file, folder or glob, or 'python-docs'"),
        ("data.weights", weights is not None and len(weights) != len(data.corpus),
         f"give one weight for each of the {len(data.corpus)} sources of data.corpus"),
        ("data.weights", not all(weight > 0 for weight in weights or ()),
         "every weight must be above 0; remove the source from data.corpus instead"),
        ("data.weights", max(weights or (), default=0) > 1e6,
         "a weight is how often an epoch passes over a source, at most 1,000,000 times"),
        ("data.text_field", not data.text_field, "name the field that holds the text"),
        ("data.window", data.window < shortest,
         f"{data.segments} segment(s) and their special tokens need {shortest} or more"),
        ("data.lengths", data.lengths == "random" and (not running or weights is not None),
         "it needs data.order streams, data.documents joined, data.segments 1 and data.weights null"),
        ("data.lengths", data.lengths == "random" and recipe.model.kind != "recurrent",
         "some windows are longer than data.window, which only LSTMs read; set it to fixed"),
        ("data.lengths", data.lengths == "random" and marked,
         "such windows have no phrases, entities or repeated masks; set it to fixed"),
        ("data.order", streams and not consecutive,
         "streams need consecutive text: set objective.pairs to contiguous, or to next_sentence with data.overlap"),
        ("data.overlap", data.overlap and not 2 <= again < text,
         "it must be 0, or a share below 1 that leaves two tokens of a window to read again"),
        ("data.overlap", data.overlap and remembers and not ordered,
         "what is remembered has read the text that the next window predicts again; set it to 0, or model.memory to 0"),
        ("data.overlap", data.overlap and streams and (data.documents != "joined" or data.segments == 1),
         "it needs data.documents joined and data.segments 2"),
        ("tokenizer.vocab_size", recipe.tokenizer.vocab_size < SMALLEST_VOCABULARY,
         f"the special tokens and some text need {SMALLEST_VOCABULARY} or more"),
    )  # fmt: skip


def _training_problems(recipe: Recipe) -> Iterator[Problem]:
    """Of the optimiser, its schedule, the kernels and the processes."""
    training, model = recipe.training, recipe.model
    if training.parallel == "shard":
        yield from unshardable(recipe)
    if training.copy_to is not None:
        url = training.copy_to
        refused = problem_with(url) if is_url(url) else "give a URL such as s3://bucket/runs/mine"
        if refused is not None:
            yield "training.copy_to", refused
    flex, task = training.attention == "flex", recipe.task.kind
    without_decay = {"adamax": "Adamax", "sgd": "SGD"}.get(training.optimizer)
    steps = training.steps - training.warmup_steps
    yield from _invalid(
        ("training.attention", flex and model.attention_dropout > 0, "it needs model.attention_dropout 0"),
        ("training.attention", flex and model.relative_bias and training.deterministic,
         "with model.relative_bias it needs training.deterministic false"),
        ("training.decay_steps", training.decay_steps is not None and training.decay_steps > steps,
         f"after {training.warmup_steps} warm-up steps it ends beyond step {training.steps}"),
        ("training.leaves", training.leaves < 1 or training.leaves & (training.leaves - 1),
         "it must be a power of 2, such as 64"),
        ("training.micro_batch_size", training.batch_size % (training.micro_batch_size or 1),
         f"it must divide training.batch_size, {training.batch_size}"),
        ("training.learning_rate", training.learning_rate == "auto" and not task,
         "only fine-tuning supports auto: give a number"),
        ("training.word_vectors", training.word_vectors is not None and training.initialize_from is not None,
         "the embeddings of training.initialize_from are trained: leave out one of them"),
        ("training.optimizer", training.optimizer == "nt_asgd" and task,
         "nt_asgd follows the evaluations of pre-training: use adamw to fine-tune"),
        ("training.weight_decay", without_decay and training.weight_decay,
         f"{without_decay} does not support decoupled weight decay: set it to 0"),
        ("training.betas", not all(0 <= beta < 1 for beta in training.betas), "both must be at least 0 and below 1"),
        ("training.seed", training.seed >= 2**63, "it must be below 2**63"),
        ("model.adapter_size", model.adapter_size and not task,
         "only fine-tuning adds adapters (finetuning.adapter_size); it must be 0"),
        ("training.device", not re.fullmatch(DEVICE, training.device),
         "known devices: auto, cpu, cuda, cuda:N, xpu, xpu:N, mps"),
    )  # fmt: skip


def _transformer_problems(recipe: Recipe) -> Iterator[Problem]:
    """Settings of a Transformer that contradict each other, the objective or the windows."""
    data, objective, model, task = recipe.data, recipe.objective, recipe.model, recipe.task.kind
    needed, local = positions(objective, data.window), "local" in model.layer_visibility
    rows = "data.window" if needed == data.window else f"the positions of a row of objective {objective.name}"
    buckets, distance = model.relative_buckets, model.relative_max_distance
    sides = 1 if model.decoder_layers else 2  # a decoder reads one side, see `RelativeBias.bucket`
    xl, learns_rtd = model.positions == "transformer_xl", "rtd" in objective.targets and objective.trains and not task
    yield from _invalid(
        ("model.embeddings", model.embeddings == "characters",
         "only LSTMs read characters: set model.kind recurrent, or this to table"),
        ("model.hidden_size", model.head_size is None and model.hidden_size % model.num_heads,
         f"it must be a multiple of model.num_heads, {model.num_heads}"),
        ("model.generator_size", model.generator_size and "rtd" not in objective.targets,
         "only a model with the target 'rtd' has a generator; it must be 0"),
        ("model.generator_size", not model.generator_size and learns_rtd,
         "the target 'rtd' needs a generator; it must be above 0"),
        ("model.max_positions", not task and model.max_positions is not None and model.max_positions < needed,
         f"it must be at least {rows}, {needed}"),
        ("model.num_segments", not model.num_segments and data.segments > 1,
         "two segments need a segment table: set data.segments to 1, or this to 2 or more"),
        ("model.num_segments", 0 < model.num_segments < data.segments,
         f"it must be at least data.segments, {data.segments}"),
        ("model.layer_visibility", not model.layer_visibility, "name at least one of 'full' and 'local'"),
        ("model.layer_visibility", local and not objective.in_order,
         "'local' needs rows in text order, such as those of objective.name causal: in other rows, such as pseudo-masked "
         "ones, nearby positions are not contiguous slots"),
        ("model.layer_visibility", local and objective.reading.local_width is None,
         "'local' needs objective.local_width, the number of slots to the left it attends to"),
        ("model.positions", model.positions == "sinusoidal" and (model.embedding_size or model.hidden_size) % 2,
         "sinusoids are pairs of sine and cosine: give embeddings of an even width"),
        ("model.positions", xl and model.relative_bias,
         "it already encodes distances: set model.relative_bias to false"),
        ("model.hidden_size", xl and model.hidden_size % 2,
         "it must be even: model.positions transformer_xl uses pairs of sine and cosine"),
        ("model.head_size", xl and model.head_size not in (None, model.hidden_size // model.num_heads),
         "model.positions transformer_xl divides the hidden size by the heads: leave it out"),
        ("training.attention", xl and recipe.training.attention == "flex",
         "it does not support model.positions transformer_xl; leave it auto"),
        ("model.memory", model.memory and (not xl or data.order != "streams"),
         "it needs model.positions transformer_xl and data.order streams"),
        ("model.memory", model.memory and local, "layers that read nearby slots alone do not read a memory; it must be 0"),
        ("model.memory", model.memory and objective.forgets, f"{objective.forgets}; it must be 0"),
        ("model.memory", model.memory and model.generator_size,
         "generator and discriminator models do not support a memory; it must be 0"),
    )  # fmt: skip
    if model.relative_bias:
        yield from _invalid(
            ("model.relative_buckets", not 4 <= buckets <= 256 or buckets % 2,
             "it must be even, half for either direction, and from 4 to 256"),
            ("model.relative_start", model.relative_start == "neighbours" and buckets < 12,
             f"distance 2 needs a bucket of its own: model.relative_buckets {buckets} must be at least 12"),
            ("model.relative_max_distance", distance <= buckets // sides // 2,
             f"it must exceed model.relative_buckets {buckets} / {2 * sides}"),
            ("model.relative_max_distance", distance > LONGEST_DISTANCE,
             f"it is the size of a table used in every step: give {LONGEST_DISTANCE:,} or less"),
        )  # fmt: skip
    if model.decoder_layers:
        yield from _decoder_problems(recipe)


def _decoder_problems(recipe: Recipe) -> Iterator[Problem]:
    """What an encoder-decoder does not support, and what its rows need."""
    model, objective = recipe.model, recipe.objective
    start = getattr(objective, "starts", None)
    yield from _invalid(
        ("model.decoder_layers", start is None,
         f"the rows of objective {objective.name} have no source and target: use span_corruption, denoising, masked_span "
         "or prefix, or set it to 0"),
        ("objective.target_start", start is not None and not start,
         "a decoder needs a start slot before the target: give one or more of pad, sos, eos and mask"),
        ("model.positions", model.positions == "transformer_xl", "an encoder-decoder does not support transformer_xl"),
        ("model.generator_size", model.generator_size, "an encoder-decoder has no generator; it must be 0"),
        ("model.layer_visibility", {*model.layer_visibility} != {"full"},
         "an encoder-decoder has no local layers; it must name 'full' alone"),
        ("model.layer_mix", model.layer_mix, "heads on an encoder-decoder see its last states only: leave it out"),
        ("use.visibility", recipe.use.visibility != "bidirectional", "an encoder reads in both directions"),
        ("training.attention", recipe.training.attention == "flex",
         "it does not support an encoder-decoder; leave it auto"),
    )  # fmt: skip


def _lstm_problems(recipe: Recipe) -> Iterator[Problem]:
    """Settings of a recurrent model that contradict each other, the objective or the way its text is read."""
    data, model, training = recipe.data, recipe.model, recipe.training
    both_ways, filters = model.directions == "bidirectional", model.character_filters
    outputs, half = (model.hidden_size // 2, "half of ") if both_ways else (model.hidden_size, "")
    carries = data.order == "streams" and model.directions != "both" and data.directions == model.directions
    yield from _invalid(
        ("model.layer_mix", model.layer_mix and not model.projection and model.num_layers > 1,
         "it mixes layers of one width: it needs model.projection true"),
        ("model.layer_mix", model.layer_mix and model.embedding_size not in (None, model.hidden_size),
         "it mixes layers of one width: it needs model.embedding_size null"),
        ("model.hidden_size", both_ways and model.hidden_size % 2,
         "it must be even: each direction makes half of a bidirectional layer's output"),
        ("model.projection", model.projection and model.intermediate_size <= outputs,
         f"it projects model.intermediate_size cells to fewer outputs, {half}model.hidden_size"),
        *((f"model.{name}", getattr(model, name) and not model.projection, "it needs model.projection true")
          for name in ("residual", "projection_clip")),
        ("model.generator_size", model.generator_size, "a recurrent model has no generator; it must be 0"),
        ("objective.targets", "rtd" in recipe.objective.targets and recipe.objective.trains and not recipe.task.kind,
         "the target 'rtd' needs a generator, which a recurrent model does not have: leave it out"),
        ("model.memory", model.memory > 1, "a recurrent model carries one state; it must be 0 or 1"),
        ("model.memory", model.memory and not carries,
         "a carried state needs data.order streams, and data.directions and model.directions both forward or both "
         "backward; set it to 0 otherwise"),
        ("training.optimizer", training.optimizer == "muon",
         "Muon must not take the stacked gates of LSTMs: use another optimiser"),
        ("training.attention", training.attention != "auto", "a recurrent model has no attention; leave it auto"),
        ("training.compile", training.compile, "LSTMs are compiled already; it must be false"),
    )  # fmt: skip
    if model.embeddings == "characters":
        yield from _invalid(
            ("model.tied_output", model.tied_output,
             "embeddings made of characters cannot be shared with the output: set it to false"),
            ("model.character_filters", not 1 <= len(filters) <= LONGEST or min(filters) < 1,
             f"list a number of filters, at least 1, for each of up to {LONGEST} widths"),
            ("objective.targets", "sbo" in recipe.objective.targets,
             "the target 'sbo' needs a table of embeddings: leave it out, or set model.embeddings to table"),
        )  # fmt: skip
    yield from _translation_problems(recipe) if model.decoder_layers else _direction_problems(recipe)


def _translation_problems(recipe: Recipe) -> Iterator[Problem]:
    """What an LSTM encoder-decoder (CoVe) does not support, and what its layers need."""
    model = recipe.model
    yield from _decoder_problems(recipe)
    yield from _invalid(
        ("model.decoder_layers", model.decoder_layers != model.num_layers,
         "each layer of an LSTM decoder starts with the state of an encoder layer: set it to model.num_layers, "
         f"{model.num_layers}"),
        ("model.directions", model.directions != "both",
         "the encoder of an LSTM encoder-decoder reads in both directions: set it to both"),
        *((f"model.{name}", getattr(model, name) % 2,
           "half of the cells of an encoder layer read in each direction: give an even number")
          for name in ("hidden_size", "intermediate_size")),
        *((f"model.{name}", getattr(model, name), "an LSTM encoder-decoder does not support it; leave it out") for name in (
            "projection", "weight_dropout", "activation_penalty", "temporal_penalty", "cell_clip")),
    )  # fmt: skip


def _direction_problems(recipe: Recipe) -> Iterator[Problem]:
    """LSTMs that read in other directions than the objective or the task."""
    directions, both_ways = recipe.model.directions, recipe.model.directions == "bidirectional"
    task = bool(recipe.task.kind)
    key, visibility = ("use" if task else "objective") + ".visibility", recipe.objective.reading.visibility
    visibility = recipe.use.visibility if task else visibility
    read = {
        "left_to_right": "forward", "right_to_left": "backward", "both_directions": "both",
        "bidirectional": "bidirectional",
    }.get(visibility)  # fmt: skip
    if read is None or (read == "bidirectional" and not both_ways):
        yield "model.kind", f"it reads left_to_right or right_to_left, but {key} is {visibility}"
    elif both_ways and read != "bidirectional":
        yield "model.directions", f"{key} is {visibility}, and bidirectional layers read whole texts: set it to {read}"
    elif read == "both" and directions != "both":
        yield "model.directions", f"objective {recipe.objective.name} reads in both directions: set it to both"
    elif directions not in (read, "both"):
        yield "model.directions", f"{key} is {visibility}, which is read {read}: set it to {read} or both"


def _task_problems(recipe: Recipe) -> Iterator[Problem]:
    """Of the task and its fine-tuning."""
    task, finetuning = recipe.task, recipe.finetuning
    if not task.kind:
        return
    if task.kind not in TASKS:
        yield "task.kind", TASKS.unknown()
        return
    yield from task.problems(recipe)
    both, hidden = recipe.use.visibility == "both_directions", recipe.model.hidden_size
    pooled = isinstance(task, Headed) and task.pooling not in (None, "mean")
    yield from _invalid(
        ("use.visibility", both and task.kind not in BOTH_DIRECTIONS,
         f"only {' and '.join(BOTH_DIRECTIONS)} read both directions: set it to another"),
        ("task.pooling", both and pooled, "the slots of either direction are averaged: set it to mean, or leave it out"),
        ("finetuning.auxiliary", both and finetuning.auxiliary,
         "rows read in both directions have none: set it to {}"),
        ("finetuning.lora_rank", (finetuning.lora_rank or 0) > hidden,
         f"it must be at least 1 and at most model.hidden_size, {hidden}"),
        ("finetuning.lora_rank", finetuning.lora_rank is not None and finetuning.adapter_size is not None,
         "a run trains either low-rank updates or adapters: leave out one of them"),
    )  # fmt: skip


DECIDED_IN_A_TASK = {
    key: rule.instead for key, known in KEYS.items() for rule in known.rules if isinstance(rule, Derived)
}
"""Settings that are derived from others or from the model in fine-tuning, and what to do instead."""
OF_TASKS = "task", "generation", "finetuning"
"""Sections that only fine-tuning uses."""
OF_AN_AUXILIARY = (
    "masking", "mask_unit", "mask_rate", "block_probability", "max_span", "geometric_p", "factorization",
    "masks_in_context", "pseudo_token", "mask_share", "random_share", "corruption_unit", "block_size",
)  # fmt: skip
"""Settings of `objective` that `finetuning.auxiliary` uses."""
_AUXILIARY = needs("finetuning.auxiliary")


def given_settings(overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    """The settings given by a caller, nested or not, by dotted key."""
    return {key: setting.value for key, setting in options(overrides or {}).items()}


def refuse_unread(recipes: Sequence[Recipe], given: Collection[str]) -> None:
    """Reject given settings that have no effect on pre-training in any recipe, part or phase.

    Settings equal to their default are accepted, but for those of a tokenizer beside one that is loaded.
    """
    every = [variant for recipe in recipes for variant in variants(recipe)]
    for key in given:
        read_there = [variant.recipe for variant in every if key not in variant.set_by]
        if not read_there:
            place = next(variant.set_by[key] for variant in every)
            raise UsageError(
                f"option {option_of(key)}: it has no effect, because each entry of {place} sets it: change it there."
            )
        loads = [recipe.tokenizer.path for recipe in recipes]
        if key in KEYS and TRAINED in KEYS[key].rules and all(loads):
            raise UsageError(
                f"option {option_of(key)} applies to training a tokenizer, but tokenizer.path loads {loads[0]}: leave one of "
                "them out."
            )
        _refuse(key, read_there)


def refuse_unread_in_task(recipes: Sequence[Recipe], given: Collection[str]) -> None:
    """Reject given settings that have no effect on fine-tuning or on generated text with any of the models."""
    for key in given:
        section, _, name = key.partition(".")
        if section == "objective" and name not in OF_AN_AUXILIARY:
            raise UsageError(
                f"option {option_of(key)}: it has no effect, because {OF_THE_MODEL.instead}: leave it out."
            )
        _refuse(key, recipes, *([_AUXILIARY] if section == "objective" else []))


def refuse_decided_in_task(given: Collection[str], prefix: str = "") -> None:
    """Reject given settings that fine-tuning derives from others."""
    for key in given:
        if key in DECIDED_IN_A_TASK:
            raise UsageError(f"{prefix}{key} cannot be set in fine-tuning: {DECIDED_IN_A_TASK[key]}.")


def refuse_unread_in_task_files(recipe: Recipe, origins: Mapping[str, str]) -> None:
    """Reject settings of hand-written task files that fine-tuning derives from others or takes from the model."""
    for key, origin in origins.items():
        refuse_decided_in_task([key], f"{origin}: ")
        section, _, name = key.partition(".")
        if section == "objective" and (name not in OF_AN_AUXILIARY or not _AUXILIARY.holds(recipe)):
            unused = name in OF_AN_AUXILIARY
            reason = f"nothing but {_AUXILIARY.what} uses it" if unused else OF_THE_MODEL.instead
            raise UsageError(f"{origin}: {key} has no effect, because {reason}: leave it out.")


def refuse_not_of_pretraining(verb: str, given: Collection[str], prefix: str = "") -> None:
    """Reject given settings that only fine-tuning uses."""
    for key in given:
        if key.partition(".")[0] in OF_TASKS:
            instead = f"give --{prefix}{key}" if prefix else "give it to `unicloze finetune`"
            raise UsageError(f"option --{key}: `unicloze {verb}` does not use it: {instead}.")


def refuse_beyond(verb: str, given: Collection[str], instead: str) -> None:
    """Reject given settings that a verb does not read at all."""
    for key in given:
        known = find_key(key)
        readers = [rule.verbs for rule in (known.rules if known else ()) if isinstance(rule, ReadBy)]
        if key != "name" and verb not in (readers[-1] if readers else ()):
            raise UsageError(f"option --{key}: `unicloze {verb}` does not use it: {instead}.")


def _needs(key: str, recipe: Recipe) -> list[Needs]:
    """What a setting needs in a recipe without parts and phases: another objective or task, if its own lacks the setting."""
    section = key.partition(".")[0]
    known = keys_of(section, type(getattr(recipe, section))) if "." in key else KEYS
    if key not in known:
        return [Needs(f"{section}.{VARIED[section][1]} {listed(having(key))}", lambda _: False)]
    return [rule for rule in known[key].rules if isinstance(rule, Needs)]


def _refuse(key: str, recipes: Sequence[Recipe], *first: Needs) -> None:
    """Reject a key if every recipe lacks something it needs there."""
    lacks = [next((need.what for need in (*first, *_needs(key, one)) if not need.holds(one)), "") for one in recipes]
    known = find_key(key)
    if all(lacks) and known and any(value_of(recipe, key, known.default) != known.default for recipe in recipes):
        raise UsageError(
            f"option {option_of(key)}: it has no effect without {lacks[0]}: set that as well, or leave it out."
        )
