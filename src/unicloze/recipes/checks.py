"""Checks settings against each other: those of the model and its objective, and those of a task and its fine-tuning."""

from __future__ import annotations

import math
from collections.abc import Iterator

from unicloze.mixtures import positions
from unicloze.rules import Problem
from unicloze.settings import ModelSettings, Recipe
from unicloze.tasks import TASKS
from unicloze.tasks.groups import Headed

LONGEST_DISTANCE = 16384
LONGEST_WORD = 50
"""Symbols of a word that is made of characters, as in `unicloze.characters`, which imports numpy."""


def model_problems(recipe: Recipe) -> Iterator[Problem]:
    """Invalid model settings: the key and what its value must be."""
    data, objective, model = recipe.data, recipe.objective, recipe.model
    if model.layer_mix and model.kind == "recurrent" and not model.projection and model.num_layers > 1:
        yield "model.layer_mix", "it mixes layers of one width: it needs model.projection true"
    elif model.layer_mix and model.embedding_size not in (None, model.hidden_size) and model.kind == "recurrent":
        yield "model.layer_mix", "it mixes layers of one width: it needs model.embedding_size null"
    if model.kind == "recurrent":
        yield from _recurrent_problems(recipe)
        return
    if model.embeddings == "characters":
        yield "model.embeddings", "only LSTMs read characters: set model.kind recurrent, or this to table"
    if model.num_heads > 0 and model.head_size is None and model.hidden_size % model.num_heads:
        yield "model.hidden_size", f"it must be a multiple of model.num_heads, {model.num_heads}"
    if not 0 <= model.generator_size <= 1:
        yield "model.generator_size", "it must lie between 0 and 1"
    if model.generator_size > 0 and "rtd" not in objective.targets:
        yield "model.generator_size", "only a model with the target 'rtd' has a generator; it must be 0"
    learns_rtd = "rtd" in objective.targets and objective.trains and not recipe.task.kind
    if model.generator_size == 0 and learns_rtd:
        yield "model.generator_size", "the target 'rtd' needs a generator; it must be above 0"
    if model.adapter_size and not recipe.task.kind:
        yield "model.adapter_size", "only fine-tuning adds adapters (finetuning.adapter_size); it must be 0"
    needed = positions(objective, data.window)
    if not recipe.task.kind and model.max_positions is not None and model.max_positions < needed:
        reason = "data.window" if needed == data.window else f"the positions of a row of objective {objective.name}"
        yield "model.max_positions", f"it must be at least {reason}, {needed}"
    if model.num_segments == 0 and data.segments > 1:
        yield "model.num_segments", "two segments need a segment table: set data.segments to 1, or this to 2 or more"
    elif 0 < model.num_segments < data.segments:
        yield "model.num_segments", f"it must be at least data.segments, {data.segments}"
    yield from _local_problems(recipe)
    if model.relative_bias and (not 4 <= model.relative_buckets <= 256 or model.relative_buckets % 2):
        yield "model.relative_buckets", "it must be even, half for either direction, and from 4 to 256"
    elif model.relative_bias and model.relative_start == "neighbours" and model.relative_buckets < 12:
        yield (
            "model.relative_start",
            f"distance 2 needs a bucket of its own: model.relative_buckets {model.relative_buckets} must be at least 12",
        )
    if model.relative_bias and model.relative_max_distance <= model.relative_buckets // 4:
        yield (
            "model.relative_max_distance",
            f"it must exceed model.relative_buckets {model.relative_buckets} / 4",
        )
    elif model.relative_bias and model.relative_max_distance > LONGEST_DISTANCE:
        yield (
            "model.relative_max_distance",
            f"it is the size of a table used in every step: give {LONGEST_DISTANCE:,} or less",
        )
    yield from _transformer_xl_problems(recipe)
    if model.positions == "sinusoidal" and (model.embedding_size or model.hidden_size) % 2:
        yield "model.positions", "sinusoids are pairs of sine and cosine: give embeddings of an even width"
    if model.decoder_layers:
        yield from _decoder_problems(recipe)


def _decoder_problems(recipe: Recipe) -> Iterator[Problem]:
    """What an encoder-decoder does not support, and what its rows need."""
    model, objective = recipe.model, recipe.objective
    start = getattr(objective, "starts", None)
    if start is None:
        yield (
            "model.decoder_layers",
            f"the rows of objective {objective.name} have no source and target: use span_corruption, denoising, "
            "masked_span or prefix, or set it to 0",
        )
    elif not start:
        yield (
            "objective.target_start",
            "a decoder needs a start slot before the target: give one or more of pad, sos, eos and mask",
        )
    if model.positions == "transformer_xl":
        yield "model.positions", "an encoder-decoder does not support transformer_xl"
    if model.generator_size:
        yield "model.generator_size", "an encoder-decoder has no generator; it must be 0"
    if set(model.layer_visibility) != {"full"}:
        yield "model.layer_visibility", "an encoder-decoder has no local layers; it must name 'full' alone"
    if recipe.use.visibility != "bidirectional":
        yield "use.visibility", "an encoder reads in both directions"
    if recipe.training.attention == "flex":
        yield "training.attention", "it does not support an encoder-decoder; leave it auto"


def _attention_decoder_problems(recipe: Recipe) -> Iterator[Problem]:
    """What an LSTM encoder-decoder (CoVe) does not support, and what its layers need."""
    model = recipe.model
    yield from _decoder_problems(recipe)
    if model.decoder_layers != model.num_layers:
        yield (
            "model.decoder_layers",
            "each layer of an LSTM decoder starts with the state of an encoder layer: set it to model.num_layers, "
            f"{model.num_layers}",
        )
    if model.directions != "both":
        yield "model.directions", "the encoder of an LSTM encoder-decoder reads in both directions: set it to both"
    for name in ("hidden_size", "intermediate_size"):
        if getattr(model, name) % 2:
            yield f"model.{name}", "half of the cells of an encoder layer read in each direction: give an even number"
    for name in ("projection", "weight_dropout", "activation_penalty", "temporal_penalty", "cell_clip", "layer_mix"):
        if getattr(model, name):
            yield f"model.{name}", "an LSTM encoder-decoder does not support it; leave it out"


def _recurrent_problems(recipe: Recipe) -> Iterator[Problem]:
    """Settings of a recurrent model that contradict each other, the objective or the way its text is read."""
    data, objective, model, training = recipe.data, recipe.objective, recipe.model, recipe.training
    both_ways = model.directions == "bidirectional"
    if both_ways and model.hidden_size % 2:
        yield "model.hidden_size", "it must be even: each direction makes half of a bidirectional layer's output"
    outputs = model.hidden_size // 2 if both_ways else model.hidden_size
    if model.projection and model.intermediate_size <= outputs:
        half = "half of " * both_ways
        yield "model.projection", f"it projects model.intermediate_size cells to fewer outputs, {half}model.hidden_size"
    for name in ("residual", "projection_clip"):
        if getattr(model, name) and not model.projection:
            yield f"model.{name}", "it needs model.projection true"
    if model.embeddings == "characters":
        yield from _character_problems(model)
    if model.decoder_layers:
        yield from _attention_decoder_problems(recipe)
    if model.generator_size > 0:
        yield "model.generator_size", "a recurrent model has no generator; it must be 0"
    if model.memory > 1:
        yield "model.memory", "a recurrent model carries one state; it must be 0 or 1"
    if model.memory and (data.order != "streams" or model.directions == "both" or data.directions != model.directions):
        yield (
            "model.memory",
            "a carried state needs data.order streams, and data.directions and model.directions both forward or both "
            "backward; set it to 0 otherwise",
        )
    if training.optimizer == "muon":
        yield "training.optimizer", "Muon must not take the stacked gates of LSTMs: use another optimiser"
    if training.attention != "auto":
        yield "training.attention", "a recurrent model has no attention; leave it auto"
    if training.compile:
        yield "training.compile", "LSTMs are compiled already; it must be false"
    if model.decoder_layers:
        return
    visibility = recipe.use.visibility if recipe.task.kind else objective.reading.visibility
    read = {
        "left_to_right": "forward", "right_to_left": "backward", "both_directions": "both",
        "bidirectional": "bidirectional",
    }.get(visibility)  # fmt: skip
    key = "use.visibility" if recipe.task.kind else "objective.visibility"
    if read is None or (read == "bidirectional" and not both_ways):
        yield "model.kind", f"it reads left_to_right or right_to_left, but {key} is {visibility}"
    elif both_ways and read != "bidirectional":
        yield "model.directions", f"{key} is {visibility}, and bidirectional layers read whole texts: set it to {read}"
    elif read == "both" and model.directions != "both":
        yield "model.directions", f"objective {objective.name} reads in both directions: set it to both"
    elif model.directions not in (read, "both"):
        yield "model.directions", f"{key} is {visibility}, which is read {read}: set it to {read} or both"


def _character_problems(model: ModelSettings) -> Iterator[Problem]:
    """Invalid settings of embeddings made of characters."""
    if model.tied_output:
        yield "model.tied_output", "embeddings made of characters cannot be shared with the output: set it to false"
    if not 1 <= len(model.character_filters) <= LONGEST_WORD or min(model.character_filters) < 1:
        yield (
            "model.character_filters",
            f"list a number of filters, at least 1, for each of up to {LONGEST_WORD} widths",
        )


def _transformer_xl_problems(recipe: Recipe) -> Iterator[Problem]:
    """Settings incompatible with Transformer-XL's position encoding, and requirements of a memory."""
    model = recipe.model
    if model.positions == "transformer_xl":
        if model.relative_bias:
            yield "model.positions", "it already encodes distances: set model.relative_bias to false"
        if model.hidden_size % 2:
            yield "model.hidden_size", "it must be even: model.positions transformer_xl uses pairs of sine and cosine"
        if model.head_size not in (None, model.hidden_size // max(1, model.num_heads)):
            yield "model.head_size", "model.positions transformer_xl divides the hidden size by the heads: leave it out"
        if recipe.training.attention == "flex":
            yield "training.attention", "it does not support model.positions transformer_xl; leave it auto"
    if model.memory and (model.positions != "transformer_xl" or recipe.data.order != "streams"):
        yield "model.memory", "it needs model.positions transformer_xl and data.order streams"
    if model.memory and (problem := recipe.objective.forgets) is not None:
        yield "model.memory", f"{problem}; it must be 0"
    if model.memory and model.generator_size > 0:
        yield "model.memory", "generator and discriminator models do not support a memory; it must be 0"


def _local_problems(recipe: Recipe) -> Iterator[Problem]:
    """Requirements of local attention layers that are not met."""
    names, objective = recipe.model.layer_visibility, recipe.objective
    if not names:
        yield "model.layer_visibility", "name at least one of 'full' and 'local'"
    if "local" not in names:
        return
    if not objective.in_order:
        yield (
            "model.layer_visibility",
            "'local' needs rows in text order, such as those of objective.name causal: in other rows, such as "
            "pseudo-masked ones, nearby positions are not contiguous slots",
        )
    elif objective.reading.local_width is None:
        yield (
            "model.layer_visibility",
            "'local' needs objective.local_width, the number of slots to the left it attends to",
        )


BOTH_DIRECTIONS = "classification", "regression", "tagging"
"""Kinds of tasks whose rows can be read in both directions, one apart from the other."""

LARGEST_ADAPTER = 2**16


def task_problems(recipe: Recipe) -> Iterator[Problem]:
    """Invalid settings of the task and of fine-tuning: the key and what its value must be."""
    task, finetuning = recipe.task, recipe.finetuning
    if not task.kind:
        return
    if task.kind not in TASKS:
        yield "task.kind", TASKS.unknown()
        return
    yield from task.problems(recipe)
    if recipe.use.visibility == "both_directions":
        if task.kind not in BOTH_DIRECTIONS:
            yield "use.visibility", f"only {' and '.join(BOTH_DIRECTIONS)} read both directions: set it to another"
        elif isinstance(task, Headed) and task.pooling not in (None, "mean"):
            yield "task.pooling", "the slots of either direction are averaged: set it to mean, or leave it out"
        if finetuning.auxiliary:
            yield "finetuning.auxiliary", "rows read in both directions have none: set it to {}"
    if finetuning.epochs != "auto" and not 0 < finetuning.epochs < math.inf:
        yield "finetuning.epochs", "it must be above 0 and finite"
    if not 0 <= finetuning.warmup_share < 1:
        yield "finetuning.warmup_share", "it must be at least 0 and below 1"
    if not 0 < finetuning.evaluations < math.inf:
        yield "finetuning.evaluations", "it must be above 0 and finite"
    if finetuning.patience is not None and finetuning.patience < 1:
        yield "finetuning.patience", "it must be at least 1, or left out"
    if not all(0 < weight < math.inf for weight in finetuning.auxiliary.values()):
        yield "finetuning.auxiliary", "each factor must be above 0 and finite"
    if not finetuning.views or len(set(finetuning.views)) < len(finetuning.views):
        yield "finetuning.views", "name at least one view, and each once"
    if not 0 <= finetuning.unlabelled_dropout < math.inf:
        yield "finetuning.unlabelled_dropout", "it must be at least 0 and finite"
    if finetuning.average_last < 1:
        yield "finetuning.average_last", "it must be at least 1"
    if not 0 < finetuning.layer_decay <= 1:
        yield "finetuning.layer_decay", "it must be above 0 and at most 1"
    if finetuning.unfreeze_epochs is not None and not 0 < finetuning.unfreeze_epochs < math.inf:
        yield "finetuning.unfreeze_epochs", "it must be above 0 and finite, or left out"
    yield from _problems_of_few(recipe)


def _problems_of_few(recipe: Recipe) -> Iterator[Problem]:
    """Invalid settings of LoRA and of adapters: the key and what its value must be."""
    finetuning = recipe.finetuning
    if finetuning.lora_rank is not None and not 1 <= finetuning.lora_rank <= recipe.model.hidden_size:
        yield "finetuning.lora_rank", f"it must be at least 1 and at most model.hidden_size, {recipe.model.hidden_size}"
    if finetuning.lora_rank is not None and finetuning.adapter_size is not None:
        yield "finetuning.lora_rank", "a run trains either low-rank updates or adapters: leave out one of them"
    if finetuning.lora_alpha is not None and not 0 < finetuning.lora_alpha < math.inf:
        yield "finetuning.lora_alpha", "it must be above 0 and finite, or left out"
    if not 0 <= finetuning.lora_dropout < 1:
        yield "finetuning.lora_dropout", "it must be at least 0 and below 1"
    if not finetuning.lora_projections or len(set(finetuning.lora_projections)) < len(finetuning.lora_projections):
        yield "finetuning.lora_projections", "name at least one projection, and each once"
    if finetuning.adapter_size is not None and not 1 <= finetuning.adapter_size <= LARGEST_ADAPTER:
        yield "finetuning.adapter_size", f"it must be at least 1 and at most {LARGEST_ADAPTER:,}"
