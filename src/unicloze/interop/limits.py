"""Lists what the stock classes of Transformers do not support, setting by setting."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from unicloze.decoding.abilities import objective_of, part_with
from unicloze.errors import UsageError, did_you_mean
from unicloze.interop.families import Head
from unicloze.interop.language_model_export import CLASSES, misfit
from unicloze.interop.stock import STOCK, Stock
from unicloze.interop.task_classes import DENSE, TASK_CLASSES, TaskClass
from unicloze.mixtures import all_targets
from unicloze.settings import HeadSettings, ModelSettings
from unicloze.tasks import task_heads
from unicloze.tasks.extraction import ExtractionSettings, predicts_none
from unicloze.tasks.groups import Delimited, Headed
from unicloze.tasks.rows import pooling_of
from unicloze.training.loading import LoadedModel

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


PLAIN: Mapping[str, str] = {
    "norm_kind": "normalises mean and variance",
    "biases": "has biases",
    "gated": "has no gates",
    "scale_scores": "scales the scores of attention",
    "scale_embeddings": "does not scale its embeddings",
    "head_size": "divides its hidden states by the heads",
    "tied_output": "predicts tokens with the token embeddings",
    "scale_output": "does not scale its output",
}
"""What all classes of one stack have, by the setting that must keep its default."""


HAS: Mapping[str, str] = {
    "dense": "has a dense layer with tanh",
    "dense_gelu": "has a dense layer with GELU",
    "dense_relu": "has a dense layer with ReLU",
    "plain": "has no dense layer",
}
"""What a class has before its output layer, by the `task.head` that has it too."""


@dataclass(frozen=True)
class Limit:
    """A setting that a class does not support.

    Args:
        setting: Its dotted name.
        value: The model's value.
        theirs: What the class does instead, such as "normalises after each sub-layer".
        cure: An alternative to another format, as a clause; empty if there is none.
    """

    setting: str
    value: object
    theirs: str
    cure: str = ""


def check_name(to: str) -> None:
    """Reject an unknown format.

    Raises:
        UsageError: The format is unknown.
    """
    formats = [*STOCK, *CLASSES, OWN, PACKAGE]
    if to not in formats:
        raise UsageError(f"--to is '{to}': give one of {', '.join(formats)}{did_you_mean(to.lower(), formats)}")


def check_format(to: str, loaded: LoadedModel) -> None:
    """Reject a model that a format cannot represent.

    Raises:
        UsageError: The format is unknown or cannot represent the model; the message names the setting and the cure.
    """
    check_name(to)
    if to == PACKAGE:
        return
    if loaded.model.settings.kind != "transformer":
        raise UsageError(
            f"{loaded.path}: model.kind is {loaded.model.settings.kind}, and all formats but {PACKAGE} are those of "
            "Transformers: use the model with unicloze's own commands"
        )
    if to in CLASSES:
        if (found := misfit(to, loaded)) is not None:
            setting, value, theirs = found
            raise UsageError(
                f"{loaded.path}: {setting} is {str(value).lower()}, and the {CLASSES[to]} of Transformers {theirs}: "
                f"{_offered(loaded, PREDICT)}"
            )
        return
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
    limit = next(limits(STOCK[to], loaded), None)
    if limit is None:
        return
    value = " ".join(map(str, limit.value)) if isinstance(limit.value, list) else limit.value
    own = not task_heads(loaded.recipe) and not loaded.model.settings.decoder_layers
    cure = limit.cure or _offered(loaded, f"export it with --to {OWN}" if own else PREDICT)
    raise UsageError(
        f"{loaded.path}: {limit.setting} is {str(value).lower()}, and the {STOCK[to].prefix}Model of Transformers "
        f"{limit.theirs}: {cure}"
    )


def _offered(loaded: LoadedModel, otherwise: str) -> str:
    """Advice for a model: the first format that can hold it, now or after fine-tuning with another setting."""
    first = {name: next(limits(stock, loaded), None) for name, stock in STOCK.items()}
    fitting = [f"export it with --to {name}" for name, limit in first.items() if limit is None]
    fitting += [f"export it with --to {name}" for name in CLASSES if misfit(name, loaded) is None]
    again = {name: limit.cure for name, limit in first.items() if limit and limit.cure.startswith(AGAIN)}
    nearly = [f"{cure}, then export it with --to {name}" for name, cure in again.items()]
    return next(iter(fitting + nearly), otherwise)


def limits(stock: Stock, loaded: LoadedModel) -> Iterator[Limit]:
    """Settings of a model that a family's classes do not support."""
    settings, use = loaded.model.settings, loaded.recipe.use
    if settings.decoder_layers:
        yield Limit("model.decoder_layers", settings.decoder_layers, "has one stack of layers")
    for name, theirs in PLAIN.items():
        value, usual = getattr(settings, name), getattr(ModelSettings(), name)
        if value != usual:
            yield Limit(f"model.{name}", value, theirs)
    if use.visibility != "bidirectional":
        yield Limit("use.visibility", use.visibility, "reads texts in both directions")
    if settings.layer_mix:
        yield Limit("model.layer_mix", True, "reads the last layer alone", _again("model.layer_mix", "false"))
    if settings.positions != "learned":
        yield Limit("model.positions", settings.positions, "has learned positions")
    if settings.memory:
        yield Limit("model.memory", settings.memory, "has no memory")
    if settings.adapter_size:
        yield Limit("finetuning.adapter_size", settings.adapter_size, "has no adapters")
    if set(settings.layer_visibility) != {"full"}:
        yield Limit("model.layer_visibility", settings.layer_visibility, "reads all slots in every layer")
    if settings.norm != "post":
        yield Limit("model.norm", settings.norm, "normalises after each sub-layer")
    if settings.embedding_norm is False:
        yield Limit("model.embedding_norm", False, "normalises its embeddings")
    if settings.share_layers != stock.shared:
        kept = "shares the weights of all layers" if stock.shared == "all" else "has weights for each layer"
        yield Limit("model.share_layers", settings.share_layers, kept)
    narrow = settings.embedding_size not in (None, settings.hidden_size)
    if stock.narrow is not None and narrow != stock.narrow:
        width = "narrower than" if stock.narrow else "as wide as"
        value = settings.embedding_size or settings.hidden_size
        yield Limit("model.embedding_size", value, f"has embeddings {width} its hidden states ({settings.hidden_size})")
    if stock.epsilon not in (None, settings.layer_norm_eps):
        yield Limit("model.layer_norm_eps", settings.layer_norm_eps, f"has {stock.epsilon:g}")
    yield from _relative(stock, loaded)
    yield from _task(stock, loaded) if task_heads(loaded.recipe) else _pretraining(stock, loaded)


def _relative(stock: Stock, loaded: LoadedModel) -> Iterator[Limit]:
    settings = loaded.model.settings
    if settings.relative_bias != stock.relative:
        yield Limit("model.relative_bias", settings.relative_bias, f"has {'one' if stock.relative else 'none'}")
    elif stock.relative and settings.relative_buckets != 32:
        yield Limit("model.relative_buckets", settings.relative_buckets, "has 32")
    elif stock.relative and settings.relative_max_distance != 128:
        yield Limit("model.relative_max_distance", settings.relative_max_distance, "has 128")


def _pretraining(stock: Stock, loaded: LoadedModel) -> Iterator[Limit]:
    settings, task = loaded.model.settings, loaded.recipe.task
    if task.kind:
        yield Limit("task.kind", task.kind, "does not generate text")
    if "token" not in exported_heads(stock, loaded)[0]:
        return
    if settings.head != "transform":
        yield Limit("model.head", settings.head, "has a dense layer before its output matrix")
    if not settings.head_bias:
        yield Limit("model.head_bias", settings.head_bias, "has a bias at its output matrix")
    if "token" in stock.family.gelu_heads and settings.activation != "gelu":
        yield Limit("model.activation", settings.activation, "uses gelu in its head")


def _task(stock: Stock, loaded: LoadedModel) -> Iterator[Limit]:
    task, heads = loaded.recipe.task, task_heads(loaded.recipe)
    kind = task_class(heads)
    if kind is None and isinstance(task, ExtractionSettings) and predicts_none(task):
        cure = f"fine-tune with --task.no_answer span, or {PREDICT}"
        yield Limit("task.no_answer", task.no_answer, "scores the span of the whole row", cure)
        return
    if kind is None:
        yield Limit("task.kind", task.kind, "has no class for it", PREDICT)
        return
    layers = stock.family.task_layers
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
    if not stock.has_segments and loaded.model.settings.num_segments > 1 and _segments_of_rows(loaded) > 1:
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


def exported_heads(stock: Stock, loaded: LoadedModel) -> tuple[list[Head], list[str]]:
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
    kept = _largest(stock, found)
    return [head for head in found if head in kept], said + [HEADS[head] for head in found if head not in kept]


def _largest(stock: Stock, heads: Sequence[Head]) -> frozenset[Head]:
    """The heads of the class that covers most of a model's heads."""
    return max((each for each in stock.classes if each <= frozenset(heads)), key=len)
