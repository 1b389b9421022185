"""Writes a model as a stock class of Transformers, an encoder or a language model, and says what no class can hold."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from unicloze.decoding import inputs
from unicloze.errors import UsageError, did_you_mean
from unicloze.interop import families
from unicloze.interop.family import (
    MODULES,
    OF_OUTPUT,
    OF_TRAINING,
    OF_WEIGHTS,
    PREDICTS,
    Architecture,
    Family,
    Head,
    task_class,
)
from unicloze.interop.read import segments_of
from unicloze.interop.tables import Table
from unicloze.interop.tokenizer_files import padding_of, swapped_ids, write_sentence_files, write_tokenizer
from unicloze.mixtures import all_targets
from unicloze.model.from_attention_mask import StepInputs
from unicloze.objectives.generation_format import GenerationFormat
from unicloze.objectives.permuted import PermutedSettings
from unicloze.objectives.unilmv2 import pseudo_id
from unicloze.settings import ModelSettings, Reading, Recipe
from unicloze.tasks import generation, task_heads
from unicloze.tasks.extraction import ExtractionSettings, predicts_none
from unicloze.tasks.rows import TextFormat, pooling_of
from unicloze.tasks.task import Labelled
from unicloze.text.vocabulary import Vocabulary
from unicloze.training.initial import SEGMENT_ROWS, TOKEN_ROWS
from unicloze.training.loading import LoadedModel

OWN = "unicloze"
"""Name of the format of the classes of `unicloze.hf`."""
PACKAGE = "package"
"""Name of the format of Python packages, which can hold every model."""
OPENED = "its rows need a token that opens the target or names the task"
"""Why a model that generates has no `step_inputs`, as a clause."""
AGAIN = "fine-tune it with"
PREDICT = "predict with `unicloze predict`"


@dataclass(frozen=True)
class Limit:
    """A setting that a class does not support."""

    setting: str  # its dotted name
    value: object  # the model's value
    theirs: str  # what the class does instead, such as "has post"
    cure: str = ""  # an alternative to another format, as a clause; empty if there is none


def check_name(to: str) -> None:
    """Reject an unknown format."""
    formats = [*families.STOCK, *families.CLASSES, OWN, PACKAGE]
    if to not in formats:
        raise UsageError(f"--to is '{to}': give one of {', '.join(formats)}{did_you_mean(to.lower(), formats)}")


def check_format(to: str, loaded: LoadedModel) -> None:
    """Reject a model that a format cannot represent."""
    check_name(to)
    if to == PACKAGE:
        return
    settings, heads = loaded.model.settings, task_heads(loaded.recipe)
    if settings.kind != "transformer":
        raise UsageError(
            f"{loaded.path}: model.kind is {settings.kind}, and all formats but {PACKAGE} are those of Transformers: use the "
            "model with unicloze's own commands"
        )
    if to == OWN:
        what = f"is fine-tuned for {loaded.recipe.task.kind}, and unicloze.hf has no class for the heads of a task"
        if settings.decoder_layers:
            what = "is an encoder-decoder, and unicloze.hf has no class for one"
        if settings.decoder_layers or heads:
            raise UsageError(f"{loaded.path} {what}: {_offered(loaded, PREDICT)}")
        return
    family = families.FAMILIES[to]
    limit = next(limits(family, loaded), None)
    if limit is None:
        return
    value = " ".join(map(str, limit.value)) if isinstance(limit.value, list) else limit.value
    own = family.classes and not heads and not settings.decoder_layers
    cure = limit.cure or _offered(loaded, f"export it with --to {OWN}" if own else PREDICT)
    name = family.generates or family.classes[frozenset()]
    raise UsageError(
        f"{loaded.path}: {limit.setting} is {str(value).lower()}, and the {name} of Transformers {limit.theirs}: {cure}"
    )


def _offered(loaded: LoadedModel, otherwise: str) -> str:
    """Advice for a model: the first format that can hold it, now or after fine-tuning with another setting."""
    first = {name: next(limits(families.FAMILIES[name], loaded), None) for name in (*families.STOCK, *families.CLASSES)}
    fitting = [f"export it with --to {name}" for name, limit in first.items() if limit is None]
    again = {name: limit.cure for name, limit in first.items() if limit and limit.cure.startswith(AGAIN)}
    nearly = [f"{cure}, then export it with --to {name}" for name, cure in again.items()]
    return next(iter(fitting + nearly), otherwise)


def limits(family: Family, loaded: LoadedModel) -> Iterator[Limit]:
    """What of a model a family's classes do not have."""
    settings, stacks = loaded.model.settings, family.decodes
    if bool(settings.decoder_layers) != stacks:
        theirs = "has a decoder" if stacks else "has one stack of layers"
        yield Limit("model.decoder_layers", settings.decoder_layers, theirs)
        return
    yield from _rows(family, loaded)
    if settings.adapter_size:
        yield Limit("finetuning.adapter_size", settings.adapter_size, "has no adapters")
    predicts = "token" in exported_heads(family, loaded)[0]
    for name, value, theirs in family.changed(settings, (*OF_WEIGHTS, *(OF_OUTPUT if predicts else ()))):
        if name == "num_segments" and family.classes:
            continue  # the first is folded into the positions
        shown = " ".join(theirs) if isinstance(theirs, list) else str(theirs).lower()
        yield Limit(f"model.{name}", value, f"has {shown}", _again("model.layer_mix") if name == "layer_mix" else "")
    if predicts and family.gelu_head and settings.activation != "gelu":
        yield Limit("model.activation", settings.activation, "uses gelu in its head")
    if family.classes and task_heads(loaded.recipe):
        yield from _task(family, loaded)


def _rows(family: Family, loaded: LoadedModel) -> Iterator[Limit]:
    """What of a model's rows a family's classes do not have."""
    recipe, layout = loaded.recipe, layout_of(loaded)
    task, reads = recipe.task.kind, recipe.use.visibility
    if family.classes:
        if reads != "bidirectional":
            yield Limit("use.visibility", reads, "reads texts in both directions")
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
        if reads != "left_to_right":
            yield Limit("use.visibility", reads, "reads from left to right")
        elif task:
            yield Limit("generation.learning", generation.learning_of(recipe), "predicts the next token")
        else:
            yield Limit("objective.name", recipe.objective.name, "predicts the next token")
    elif family.name == "bart" and not layout.restarts:
        yield Limit("objective.restart_positions", False, "counts the positions of its target from 0")
    elif family.decodes and len(layout.opening) > 2:
        yield Limit("objective.target_start", layout.opening, "begins a target with at most two tokens")


def _task(family: Family, loaded: LoadedModel) -> Iterator[Limit]:
    """What of a task's heads and rows a family's class does not have."""
    task, heads = loaded.recipe.task, task_heads(loaded.recipe)
    kind = task_class(heads)
    if kind is None and isinstance(task, ExtractionSettings) and predicts_none(task):
        cure = f"fine-tune with --task.no_answer span, or {PREDICT}"
        yield Limit("task.no_answer", task.no_answer, "scores the span of the whole row", cure)
        return
    if kind is None or not family.has_task(kind):
        yield Limit("task.kind", task.kind, "has no class for it", PREDICT if kind is None else "")
        return
    if task.kind == "tagging" and "predicate" in (task.optional or ()):
        yield Limit("task.optional", task.optional, "marks no predicate", PREDICT)
    own: dict[str, Any] = {
        name: getattr(task, name) for name in ("head", "delimiter", "both_orders") if hasattr(task, name)
    }
    own |= {"pooling": pooling_of(loaded.recipe), "encoder_size": max(head.encoder_size for head in heads.values())}
    if task.kind == "tagging" and own["pooling"] == "last":
        own["pooling"] = "first"  # the class predicts from every slot
    theirs = {
        "head": family.head_of(kind), "pooling": "first", "encoder_size": 0, "delimiter": False, "both_orders": False,
    }  # fmt: skip
    for name, value in own.items():
        if value != theirs[name]:
            dense = name == "head" and "dense" in value and "dense" in str(theirs[name])  # another family's
            cure = "" if dense else _again(f"task.{name}", theirs[name])
            yield Limit(f"task.{name}", value, f"has {str(theirs[name]).lower()}", cure)
    folds = not family.has_segments and loaded.model.settings.num_segments > 1
    if folds and segments_of(loaded) != 1:
        yield Limit(
            "task.kind",
            f"{task.kind} on pairs, whose second part is segment 1",
            "has no segments",
            f"{PREDICT}, or fine-tune a model without relative bias (model.relative_bias) for --to bert",
        )


def _again(setting: str, value: object = False) -> str:
    return f"{AGAIN} --{setting} {str(value).lower()}"


def exported_heads(family: Family, loaded: LoadedModel) -> tuple[list[Head], list[str]]:
    """The pre-training heads of a model that a family's class has too, and descriptions of the others."""
    model, said = loaded.model, []
    found: list[Head] = []
    if hasattr(model, "token_head"):
        if family.generates or inputs.predicts_at_masks(inputs.objective_of(loaded.recipe)):
            found.append("token")
        else:
            said.append("the head that predicts tokens, which was not trained to fill masks")
    if hasattr(model, "pair_head"):
        found.append("next" if "nsp" in all_targets(loaded.recipe) else "order")
    if hasattr(model, "replaced_head"):
        found.append("replaced")
    if hasattr(model, "boundary_head"):
        said.append("the head that predicts a span from its boundary")
    kept = max((each for each in family.classes if each <= frozenset(found)), key=len, default=frozenset({"token"}))
    if task_heads(loaded.recipe):
        kept = frozenset()
    said += [f"the head that predicts {PREDICTS[head]}" for head in found if head not in kept]
    return [head for head in found if head in kept], said


def layout_of(loaded: LoadedModel) -> GenerationFormat | None:
    """How a model generates; None if it cannot."""
    return inputs.find_generation_format(loaded.recipe, loaded.tokenizer.vocabulary)


@dataclass(frozen=True, kw_only=True)
class StockExport:
    """A model with everything needed to write it as a stock class."""

    loaded: LoadedModel  # the model
    family: Family  # its family
    architecture: str  # name of the class
    heads: tuple[str, ...]  # names of the outputs of the class: kept heads, or targets of the task
    form: TextFormat  # rows of texts, whose segments are the class's `token_type_ids`
    swapped: tuple[int, int] | None  # two ids to swap
    config: Mapping[str, Any]  # content of config.json
    generation: Mapping[str, Any]  # content of generation_config.json; empty if it generates no text
    state: Mapping[str, Tensor]  # our tensors with rows in their order
    table: Table  # the key table
    said: tuple[str, ...]  # what is changed or missing in the export, as sentences

    def write(self, folder: Path) -> None:
        """Write weights, configuration, tokenizer and the files of sentence-transformers."""
        loaded = self.loaded
        for name, content in (("config.json", self.config), ("generation_config.json", self.generation)):
            if content:
                (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        write_tokenizer(
            loaded.tokenizer,
            folder,
            self.form,
            swapped=self.swapped,
            pad=self.config["pad_token_id"],
            takes_segments=self.family.has_segments,
            words=loaded.recipe.task.kind == "tagging" and loaded.tokenizer.spaced,
        )
        if self.family.classes and not task_heads(loaded.recipe):
            write_sentence_files(folder, loaded.recipe, longest=self.form.longest)
        weights = {name: tensor.detach().clone() for name, tensor in self.table.to_theirs(self.state).items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def stock_export(family: Family, loaded: LoadedModel) -> StockExport:
    """Prepare the export of a model to a family that can hold it, see `limits`."""
    model, recipe, vocabulary = loaded.model, loaded.recipe, loaded.tokenizer.vocabulary
    targets, settings, layout = task_heads(recipe), model.settings, layout_of(loaded)
    kind = task_class(targets) if family.classes else None
    pad, swapped = padding_of(loaded.tokenizer, family.padding_id)
    padding = pad + 1 if family.after_padding else family.padding
    kept, lost = exported_heads(family, loaded)
    said = [f"{each} is omitted" for each in lost] if family.classes else []
    for name, own, theirs in family.changed(settings, OF_TRAINING):
        said.append(f"model.{name} is {own:g}, and in further training there {theirs:g}")

    state = dict(model.state_dict())
    if swapped is not None:
        ids = torch.from_numpy(swapped_ids(model.vocab_size, swapped))
        state |= {name: state[name][ids] for name in TOKEN_ROWS if name in state}
    if family.name == "bart" and not settings.head_bias:
        state["token_head.bias"] = torch.zeros(model.vocab_size)
    folds = settings.num_segments > 1 and not family.has_segments
    if SEGMENT_ROWS in state:
        order = dict.fromkeys((*inputs.text_format(loaded).segments, *range(settings.num_segments)))
        state[SEGMENT_ROWS] = state[SEGMENT_ROWS][[*order]]  # those of a text and its second part come first
    elif family.classes and family.has_segments:
        settings = dataclasses.replace(settings, num_segments=1)
        state[SEGMENT_ROWS] = state[TOKEN_ROWS[0]].new_zeros(1, state[TOKEN_ROWS[0]].shape[1])
    if folds:
        said.append("the first segment is added to the positions, and both texts of a pair are read as that segment")
    if swapped is not None:
        said.append(f"ids {swapped[0]} and {swapped[1]} are swapped, because padding has id {pad} there")

    modules = {"backbone", "task_heads", *(MODULES[head] for head in kept)}
    if settings.pooler and "pooler" in family.names and "pair_head" not in modules:  # whose dense layer is theirs
        modules.add("pooler")
    elif settings.pooler:
        said.append("the pooler is omitted")
    names = [name for name in state if name.partition(".")[0] in modules]
    # the token whose row is the vector of predicted slots (XLNet)
    query = None
    if family.queries and isinstance(recipe.objective, PermutedSettings):
        query = pseudo_id(vocabulary, recipe.objective)
    architecture = family.generates or (
        family.classes[frozenset(kept)] if kind is None else f"{family.prefix_of_classes}{kind}"
    )
    roles: dict[str, Any] = {"pad_token_id": pad}
    if family.generates:
        roles |= {"eos_token_id": vocabulary.eos, "bos_token_id": vocabulary.sos}
    writing: dict[str, Any] = {}
    if family.generates and layout is not None:
        if settings.decoder_layers:
            roles["decoder_start_token_id"] = layout.opening[0]
        writing = {**roles, "forced_eos_token_id": None, "forced_bos_token_id": None, **generate_arguments(loaded)}
        if len(layout.opening) > 1:  # `generate` writes it, counts it, and refuses to suppress it
            forced = layout.opening[1]
            kept = [token for token in writing["suppress_tokens"] or () if token != forced]
            writing |= {"forced_bos_token_id": forced, "suppress_tokens": kept or None, "bad_words_ids": [[forced]]}
            for limit in {"max_new_tokens", "min_new_tokens"} & writing.keys():
                writing[limit] += 1
        if family.name == "t5" and settings.decoder_layers > settings.num_layers:
            writing["use_cache"] = False
            said.append("`generate` runs without a cache, since Transformers' has only as many layers as T5's encoder")
        said += [*not_said(loaded), *_not_said_of_stock(loaded, layout)]
    return StockExport(
        loaded=loaded,
        family=family,
        architecture=architecture,
        heads=tuple(kept if kind is None else targets),
        form=_form(family, loaded),
        swapped=swapped,
        config={
            "architectures": [architecture],
            "model_type": family.name,
            "vocab_size": model.vocab_size,
            "dtype": "float32",
            **roles,
            **family.write(settings, positions=model.max_positions, padding=padding),
            **({} if kind is None else _task_config(family, loaded)),
        },
        generation=writing,
        state=state,
        table=family.table(
            Architecture(settings=settings, padding=padding, query=query), names, bare=not kept and kind is None
        ),
        said=tuple(said),
    )


def _form(family: Family, loaded: LoadedModel) -> TextFormat:
    """The rows of a text: of an encoder, of the source of a generator, or of an XLNet's whole text."""
    layout, form = layout_of(loaded), inputs.text_format(loaded)
    if family.classes:
        return dataclasses.replace(form, segments=(0, int(form.segments[0] != form.segments[1])))
    if layout is None:
        return dataclasses.replace(form, segments=(0, 1), longest=loaded.model.max_positions)
    return source_format(loaded, layout)


def source_format(loaded: LoadedModel, layout: GenerationFormat) -> TextFormat:
    """The rows of a source, all of one segment; those of a task have one [EOS] between their parts."""
    form, stop, task = inputs.text_format(loaded), (layout.stop,), loaded.recipe.task.kind
    shares = task or layout.decoder_only  # the positions of source and target
    return TextFormat(
        start=layout.start,
        between=stop if task else form.between,
        end=stop if layout.ends_source else (),
        segments=(0, 0),
        longest=longest_source(loaded) if shares else loaded.model.max_positions,
        keep="end" if {*_kept(loaded, layout)} == {"end"} else "beginning",
    )


def _kept(loaded: LoadedModel, layout: GenerationFormat) -> list[generation.Keep]:
    """What is kept of each part of a source that is too long."""
    if loaded.recipe.task.kind:
        return generation.kept_parts(loaded.recipe)
    return ["end" if layout.decoder_only else "beginning"]


def _task_config(family: Family, loaded: LoadedModel) -> dict[str, object]:
    """The keys of a class with the head of a task."""
    task, heads, dropout = loaded.recipe.task, task_heads(loaded.recipe), loaded.model.settings.dropout
    kind = task_class(heads)
    assert kind is not None
    rate = max(loaded.model.task_head(name).rate for name in heads)
    key, default = family.dropout_key(kind)
    # Classes without a default of their own have the encoder's rate.
    values: dict[str, object] = {}
    if default is not None or (rate != dropout and family.name != "mpnet"):
        values[key] = rate
    if "label" not in heads and "tags" not in heads:
        return values
    if not isinstance(task, Labelled) or task.labels is None:
        return {**values, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": "regression"}
    names = dict(enumerate(task.labels))
    values |= {"id2label": names, "label2id": {name: number for number, name in names.items()}}
    return values | ({"problem_type": "single_label_classification"} if "label" in heads else {})


def encoder_inputs(recipe: Recipe) -> Reading:
    """How a model reads a text with nothing masked, as `embed` does; no segment lies beyond the end of its table."""
    reading = inputs.read_as(recipe)
    if reading.visibility not in ("bidirectional", "left_to_right") or recipe.model.kind != "transformer":
        raise UsageError(
            "only a Transformer that reads a text in both directions or from left to right can be exported "
            "(use.visibility, model.kind)"
        )
    return reading._replace(segment_ids=_in_table(recipe.model, *reading.segments))


def step_inputs(recipe: Recipe, vocabulary: Vocabulary) -> StepInputs | None:
    """How a model generates a target, see `unicloze.decoding.inputs`.

    None if it cannot, or if its rows hold more than source, target and the tokenizer's special tokens: a token that
    opens the target (MASS) or names the task (UL2).
    """
    layout = inputs.find_generation_format(recipe, vocabulary)
    if layout is None or layout.opening or len(layout.start) > 1:
        return None
    return StepInputs(
        predicts=layout.predicts,
        source="left_to_right" if layout.decoder_only else "bidirectional",
        segment_ids=_in_table(recipe.model, layout.source_segment, layout.target_segment),
        pseudo=layout.pseudo,
        local_width=layout.local_width,
    )


def _in_table(settings: ModelSettings, first: int, second: int) -> tuple[int, int]:
    last = max(0, settings.num_segments - 1)
    return min(first, last), min(second, last)


def never_written(recipe: Recipe, vocabulary: Vocabulary) -> list[int]:
    """Tokens that a target never contains: all special ones except [EOS], and except sentinels if targets consist of them."""
    layout = inputs.find_generation_format(recipe, vocabulary)
    return sorted({*vocabulary.special.tolist()} - {vocabulary.eos} if layout is None else {*layout.never})


def generate_arguments(loaded: LoadedModel) -> dict[str, Any]:
    """Arguments of `generate` that reproduce `unicloze generate` as far as possible."""
    decoding = loaded.recipe.decoding
    search: dict[str, Any] = {}
    if decoding.sample:
        search = {
            "temperature": decoding.temperature,
            "top_k": decoding.top_k or 0,
            "top_p": 1.0 if decoding.top_p is None else decoding.top_p,
        }
    elif decoding.beams > 1:
        search = {
            "num_beams": decoding.beams,
            "early_stopping": True if decoding.early_stop == "first" else "never",
            "length_penalty": decoding.length_penalty,
        }
    if decoding.num_results > 1:
        search["num_return_sequences"] = decoding.num_results
    limits = {"min_new_tokens": decoding.min_length, "no_repeat_ngram_size": decoding.no_repeat_ngram}
    return {
        "do_sample": decoding.sample,  # pipelines draw unless a model says no
        "suppress_tokens": never_written(loaded.recipe, loaded.tokenizer.vocabulary) or None,
        "max_new_tokens": inputs.longest_target(loaded),
        **{name: most for name, most in limits.items() if most},
        **search,
    }


def not_said(loaded: LoadedModel) -> list[str]:
    """How `generate` differs from the recipe's `decoding`, as sentences without a full stop."""
    decoding, guard = loaded.recipe.decoding, inputs.repetition_guard(loaded)
    alpha, layout = f"{decoding.length_penalty:g}", layout_of(loaded)
    assert layout is not None
    keep, kept = source_format(loaded, layout).keep, _kept(loaded, layout)
    of_parts = (
        f"the piece of {role} that shares most with the others" if how == "chunk" else f"the {how} of {role}"
        for role, how in zip(loaded.recipe.generation.source, kept, strict=False)
    )
    said = {
        f"`generate` ranks beams by log p / n^{alpha}, unicloze by log p / ((5 + n) / 6)^{alpha}: with short texts they may "
        "choose differently (`length_penalty=0.0` is the same in both)": decoding.beams > 1 and decoding.length_penalty,
        "`generate` samples with torch's random numbers instead of `decoding.seed`: the texts differ": decoding.sample,
        "`generate` blocks every repeated n-gram, unicloze allows those with a token of "
        f"{', '.join(decoding.may_repeat)}": decoding.no_repeat_ngram and decoding.may_repeat,
        f"unicloze lets so small a model repeat no {guard} tokens (`no_repeat_ngram_size={guard}`)":
            guard and not decoding.no_repeat_ngram,
        "`generate` writes one token at a time, unicloze `decoding.parallel` at once": decoding.parallel is not None,
        f"the tokenizer keeps the {keep} of each part of a source that is too long, unicloze {' and '.join(of_parts)}":
            len(kept) > 1 and {*kept} != {keep},
    }  # fmt: skip
    return [sentence for sentence, holds in said.items() if holds]


def _not_said_of_stock(loaded: LoadedModel, layout: GenerationFormat) -> list[str]:
    """How `generate` of a stock class differs further."""
    size, begun = loaded.recipe.decoding.no_repeat_ngram, layout.row([]) if layout.decoder_only else layout.opening
    said = {
        "`generate` repeats no n-gram of the prompt either, which unicloze allows": layout.decoder_only and size,
        "`generate` never writes [EOS] with `no_repeat_ngram_size=1`, since what it continues contains one: every text has "
        "`max_new_tokens` tokens": size == 1 and layout.stop in begun,
        "the tokenizer pads on the right: give it `padding_side=\"left\"` to generate from several prompts at once":
            layout.decoder_only,
        f"prompts have at most {longest_source(loaded)} tokens: let the tokenizer truncate longer ones": layout.decoder_only,
    }  # fmt: skip
    return [sentence for sentence, holds in said.items() if holds]


def longest_source(loaded: LoadedModel) -> int:
    """Largest source in tokens, special tokens included, that leaves room for a target."""
    layout = inputs.generation_format_of(loaded.recipe, loaded.tokenizer.vocabulary)
    return inputs.room_for_source(loaded, inputs.longest_target(loaded)) + len(layout.row([]))
