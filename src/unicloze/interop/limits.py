"""Formats of exports: what defines one, and what of a model each cannot hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from unicloze.decoding.inputs import find_generation_format, objective_of, part_with
from unicloze.errors import UsageError, did_you_mean
from unicloze.interop.configurations import OF_OUTPUT, OF_TRAINING, OF_WEIGHTS
from unicloze.interop.families import CLASSES, DENSE, FAMILIES, STOCK, TASK_CLASSES, Family, Head, TaskClass
from unicloze.mixtures import all_targets
from unicloze.settings import HeadSettings
from unicloze.tasks import task_heads
from unicloze.tasks.extraction import ExtractionSettings, predicts_none
from unicloze.tasks.groups import Delimited, Headed
from unicloze.tasks.rows import pooling_of
from unicloze.training.loading import LoadedModel


@dataclass(frozen=True, kw_only=True)
class Export:
    """How a model is exported."""

    to: str  # the format
    architecture: str  # the class of Transformers that loads it; empty for a format of unicloze alone
    write: Callable[[Path], None]  # writes all files but the model card
    check: Callable[[Path], Mapping[str, float]]  # loads a folder back and compares
    said: tuple[str, ...] = ()  # as in `ExportResult`
    imports: str = ""  # A module to import first, which registers the class in Transformers
    tag: str = ""  # its pipeline tag; default: that of the class
    use: str = ""  # how to use it, as Markdown; default: with Transformers
    name: str = ""  # name of the model; default: that of its recipe
    licence: str = ""  # identifier of the licence; default: a note to add one
    # further sections of the model card by title, as Markdown
    sections: Mapping[str, str] = field(default_factory=dict)


OWN = "unicloze"
"""Name of the format of the classes of `unicloze.hf`."""
PACKAGE = "package"
"""Name of the format of Python packages, which can hold every model."""


AGAIN = "fine-tune it with"
PREDICT = "predict with `unicloze predict`"
HEADS: Mapping[Head, str] = {
    "token": "the head that predicts tokens",
    "next": "the head that predicts whether a segment follows",
    "order": "the head that predicts whether segments are in order",
    "replaced": "the head that finds replaced tokens",
}
"""Description of each pre-training head."""


HAS: Mapping[str, str] = {
    "dense": "has a dense layer with tanh",
    "dense_gelu": "has a dense layer with GELU",
    "dense_relu": "has a dense layer with ReLU",
    "plain": "has no dense layer",
}
"""What a class has before its output layer, by the `task.head` that has it too."""


@dataclass(frozen=True)
class Limit:
    """A setting that a class does not support."""

    setting: str  # its dotted name
    value: object  # the model's value
    theirs: str  # what the class does instead, such as "normalises after each sub-layer"
    cure: str = ""  # an alternative to another format, as a clause; empty if there is none


def check_name(to: str) -> None:
    """Reject an unknown format."""
    formats = [*STOCK, *CLASSES, OWN, PACKAGE]
    if to not in formats:
        raise UsageError(f"--to is '{to}': give one of {', '.join(formats)}{did_you_mean(to.lower(), formats)}")


def check_format(to: str, loaded: LoadedModel) -> None:
    """Reject a model that a format cannot represent."""
    check_name(to)
    if to == PACKAGE:
        return
    if loaded.model.settings.kind != "transformer":
        raise UsageError(
            f"{loaded.path}: model.kind is {loaded.model.settings.kind}, and all formats but {PACKAGE} are those of "
            "Transformers: use the model with unicloze's own commands"
        )
    if to == OWN and loaded.model.settings.decoder_layers:
        raise UsageError(
            f"{loaded.path} is an encoder-decoder, and unicloze.hf has no class for one: {_offered(loaded, PREDICT)}"
        )
    if to == OWN:
        if task_heads(loaded.recipe):
            raise UsageError(
                f"{loaded.path} is fine-tuned for {loaded.recipe.task.kind}, and unicloze.hf has no class for the heads of a "
                f"task: {_offered(loaded, PREDICT)}"
            )
        return
    limit = next(limits(FAMILIES[to], loaded), None)
    if limit is None:
        return
    value = " ".join(map(str, limit.value)) if isinstance(limit.value, list) else limit.value
    own = to in STOCK and not task_heads(loaded.recipe) and not loaded.model.settings.decoder_layers
    cure = limit.cure or _offered(loaded, f"export it with --to {OWN}" if own else PREDICT)
    name = CLASSES.get(to) or f"{STOCK[to].prefix_of_classes}Model"
    raise UsageError(
        f"{loaded.path}: {limit.setting} is {str(value).lower()}, and the {name} of Transformers {limit.theirs}: {cure}"
    )


def _offered(loaded: LoadedModel, otherwise: str) -> str:
    """Advice for a model: the first format that can hold it, now or after fine-tuning with another setting."""
    first = {name: next(limits(FAMILIES[name], loaded), None) for name in (*STOCK, *CLASSES)}
    fitting = [f"export it with --to {name}" for name, limit in first.items() if limit is None]
    again = {name: limit.cure for name, limit in first.items() if limit and limit.cure.startswith(AGAIN)}
    nearly = [f"{cure}, then export it with --to {name}" for name, cure in again.items()]
    return next(iter(fitting + nearly), otherwise)


def limits(family: Family, loaded: LoadedModel) -> Iterator[Limit]:
    """What of a model a family's classes do not have."""
    settings = loaded.model.settings
    stacks = "decoder_layers" in [name for key in family.configuration.keys for name in key.ours]
    if bool(settings.decoder_layers) != stacks:
        theirs = "has a decoder" if stacks else "has one stack of layers"
        yield Limit("model.decoder_layers", settings.decoder_layers, theirs)
        return
    yield from _rows(family, loaded)
    if settings.adapter_size:
        yield Limit("finetuning.adapter_size", settings.adapter_size, "has no adapters")
    predicts = bool(family.generates) or (
        not task_heads(loaded.recipe) and "token" in exported_heads(family, loaded)[0]
    )
    for name, value, theirs in family.configuration.changed(settings, (*OF_WEIGHTS, *(OF_OUTPUT if predicts else ()))):
        if name == "num_segments" and family.classes:
            continue  # the first is folded into the positions
        shown = " ".join(theirs) if isinstance(theirs, list) else str(theirs).lower()
        cure = _again("model.layer_mix", "false") if name == "layer_mix" else ""
        yield Limit(f"model.{name}", value, f"has {shown}", cure)
    if predicts and "token" in family.gelu_heads and settings.activation != "gelu":
        yield Limit("model.activation", settings.activation, "uses gelu in its head")
    if family.classes and task_heads(loaded.recipe):
        yield from _task(family, loaded)


def said_of_training(family: Family, loaded: LoadedModel) -> list[str]:
    """Settings of further training that a family's classes do not have, as sentences without a full stop."""
    changed = family.configuration.changed(loaded.model.settings, OF_TRAINING)
    return [f"model.{name} is {value:g}, and in further training there {theirs:g}" for name, value, theirs in changed]


def _rows(family: Family, loaded: LoadedModel) -> Iterator[Limit]:
    """What of a model's rows a family's classes do not have."""
    recipe, layout = loaded.recipe, find_generation_format(loaded.recipe, loaded.tokenizer.vocabulary)
    task, reads = recipe.task.kind, Limit("use.visibility", recipe.use.visibility, "reads texts in both directions")
    if family.classes:
        if recipe.use.visibility != "bidirectional":
            yield reads
        if task and not task_heads(recipe):
            yield Limit("task.kind", task, "does not generate text")
    elif family.queries:
        if task:
            yield Limit("task.kind", task, "predicts permuted tokens")
        if recipe.objective.name != "permuted" or not hasattr(loaded.model, "token_head"):
            yield Limit("objective.name", recipe.objective.name, "predicts permuted tokens")
    elif layout is None:
        yield Limit("task.kind", task, "generates texts")
    elif family.name == "gpt2" and not (layout.decoder_only and layout.predicts == "next"):
        yield Limit("use.visibility", recipe.use.visibility, "reads from left to right")
    elif family.name == "bart" and not layout.restarts:
        yield Limit("objective.restart_positions", False, "counts the positions of its target from 0")


def _task(family: Family, loaded: LoadedModel) -> Iterator[Limit]:
    task, heads = loaded.recipe.task, task_heads(loaded.recipe)
    kind = task_class(heads)
    if kind is None and isinstance(task, ExtractionSettings) and predicts_none(task):
        cure = f"fine-tune with --task.no_answer span, or {PREDICT}"
        yield Limit("task.no_answer", task.no_answer, "scores the span of the whole row", cure)
        return
    if kind is None:
        yield Limit("task.kind", task.kind, "has no class for it", PREDICT)
        return
    layers = family.task_layers
    if DENSE[kind] and kind not in layers:
        yield Limit("task.kind", task.kind, f"has another head for {kind[3:]}")
        return
    needed = layers[kind].head if DENSE[kind] else "plain"
    if isinstance(task, Headed) and task.head != needed:
        dense = task.head.startswith("dense") and needed.startswith("dense")  # then a format of another family has it
        cure = "" if dense else _again("task.head", needed)
        yield Limit("task.head", task.head, f"{HAS[needed]} before the output layer of {kind[3:]}", cure)
    pooling = pooling_of(loaded.recipe)
    if task.kind == "tagging" and pooling == "mean":
        yield Limit("task.pooling", pooling, "predicts from each slot alone", _again("task.pooling", "first"))
    if task.kind != "tagging" and pooling != "first":
        yield Limit("task.pooling", pooling, "predicts from the first slot", _again("task.pooling", "first"))
    encoder = max(head.encoder_size for head in heads.values())
    if encoder:
        yield Limit("task.encoder_size", encoder, "has no LSTM before its head", _again("task.encoder_size", "0"))
    if isinstance(task, Delimited) and task.delimiter:
        yield Limit("task.delimiter", True, "puts [EOS] between two texts", _again("task.delimiter", "false"))
    if any(head.pooling == "sum" for head in heads.values()):
        yield Limit("task.both_orders", True, "reads a pair once", _again("task.both_orders", "false"))
    if (
        not family.configuration.has_segments
        and loaded.model.settings.num_segments > 1
        and _segments_of_rows(loaded) > 1
    ):
        yield Limit(
            "task.kind",
            f"{task.kind} on pairs, whose second part is segment 1",
            "has no segments",
            f"{PREDICT}, or fine-tune a model without relative bias (model.relative_bias) for --to bert",
        )


def _again(setting: str, value: str) -> str:
    return f"{AGAIN} --{setting} {value}"


def task_class(heads: Mapping[str, HeadSettings]) -> TaskClass | None:
    """The class for the heads of a task; None if there is none."""
    return TASK_CLASSES.get(frozenset(heads))


def _segments_of_rows(loaded: LoadedModel) -> int:
    """Number of segments in the rows a model was fine-tuned on; 2 if its checkpoint does not say."""
    file = loaded.path / "state.json"
    state = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return int(state.get("segments", 2))


def exported_heads(family: Family, loaded: LoadedModel) -> tuple[list[Head], list[str]]:
    """The pre-training heads of a model that a family's class has too, and descriptions of the others."""
    model, said = loaded.model, []
    found: list[Head] = []
    if hasattr(model, "token_head"):
        if part_with(objective_of(loaded.recipe), "cloze") is not None:
            found.append("token")
        else:
            said.append("the head that predicts tokens, which was not trained to fill masks")
    if hasattr(model, "pair_head"):
        found.append("next" if "nsp" in all_targets(loaded.recipe) else "order")
    if hasattr(model, "replaced_head"):
        found.append("replaced")
    if hasattr(model, "boundary_head"):
        said.append("the head that predicts a span from its boundary")
    kept = _largest(family, found)
    return [head for head in found if head in kept], said + [HEADS[head] for head in found if head not in kept]


def _largest(family: Family, heads: Sequence[Head]) -> frozenset[Head]:
    """The heads of the class that covers most of a model's heads."""
    return max((each for each in family.classes if each <= frozenset(heads)), key=len)
