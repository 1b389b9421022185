"""Encoder families: how to read a configuration, and key tables for backbone and heads.

All of them are our backbone under other names. A table covers the backbone and whichever heads are present, so the same
families serve checkpoints with and without heads, in both directions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from unicloze.interop import configurations as layouts
from unicloze.interop import tables as entries
from unicloze.interop.configurations import OUTPUT, Architecture, Layout
from unicloze.interop.files import LARGEST, Config
from unicloze.interop.tables import (
    TOKENS,
    Appended,
    Entry,
    SplitRows,
    Table,
    module,
    modules,
    pair_head,
    same,
    token_head,
)
from unicloze.recipes import load_recipe
from unicloze.settings import TaskSettings

TaskClass = Literal["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice"]

TASK_CLASSES: Mapping[frozenset[str], TaskClass] = {
    frozenset({"label"}): "ForSequenceClassification",
    frozenset({"tags"}): "ForTokenClassification",
    frozenset({"start", "end"}): "ForQuestionAnswering",
    frozenset({"choice"}): "ForMultipleChoice",
}
"""Class of a task, by the task's targets."""
DENSE: Mapping[TaskClass, bool] = {
    "ForSequenceClassification": True,
    "ForTokenClassification": False,
    "ForQuestionAnswering": False,
    "ForMultipleChoice": True,
}
"""Whether a class has a dense layer before its output layer."""

_BIO = re.compile(r"O|[BI]-.+")


@dataclass(frozen=True, kw_only=True)
class TaskLayers:
    """Layers of a class with a dense layer before its output layer."""

    dense: str  # name of the dense layer
    output: str  # name of the output layer
    head: str = "dense"  # `task.head` of such layers


def task_entries(kind: TaskClass, layers: Mapping[TaskClass, TaskLayers]) -> list[Entry]:
    """Entries of a task's heads."""
    if kind == "ForQuestionAnswering":
        ours = "task_heads.start.output", "task_heads.end.output"
        return [
            Entry(ours=tuple(f"{name}.{part}" for name in ours), theirs=(f"qa_outputs.{part}",), change=SplitRows(2))
            for part in ("weight", "bias")
        ]
    if kind == "ForTokenClassification":
        return module("task_heads.tags.output", "classifier")
    target = "label" if kind == "ForSequenceClassification" else "choice"
    own = layers[kind]
    return module(f"task_heads.{target}.dense", own.dense) + module(f"task_heads.{target}.output", own.output)


def class_of(config: Config) -> TaskClass | None:
    """The class with a task's head that a configuration names; None if it names another or none."""
    names = config.values.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    return next((kind for kind in get_args(TaskClass) if isinstance(name, str) and name.endswith(kind)), None)


def imported_task(config: Config, kind: TaskClass, layers: Mapping[TaskClass, TaskLayers]) -> TaskSettings:
    """The task of a checkpoint with a task's head."""
    decodes = config.values.get("is_encoder_decoder") is True
    if not layers or (kind not in layers and (DENSE[kind] or decodes)):
        raise _refused(config, "architectures", "a head of this class cannot be imported")
    recipes = {"ForTokenClassification": "tagging", "ForQuestionAnswering": "squad-v1.1", "ForMultipleChoice": "choice"}
    labels: list[str] | None = None
    if kind in ("ForSequenceClassification", "ForTokenClassification"):
        labels = _labels(config)
    name = recipes.get(kind, "classification")
    if kind == "ForSequenceClassification" and _is_regression(config, labels or []):
        name, labels = "regression", None
    task: Any = load_recipe(name).task
    values: dict[str, Any] = {
        "head": layers[kind].head if DENSE[kind] else "plain",
        "pooling": "decoder" if decodes else "first",
        "head_dropout": _dropout(config, kind),
    }
    if labels is not None:
        values["labels"] = labels
    if kind == "ForTokenClassification" and not all(_BIO.fullmatch(label) for label in labels or ()):
        values["metrics"] = ["tag-accuracy"]
    imported: TaskSettings = dataclasses.replace(task, **values)
    return imported


DROPOUT: Mapping[str, tuple[str, float | None]] = {
    "albert": ("classifier_dropout_prob", 0.1),
    "distilbert": ("seq_classif_dropout", 0.2),
    "bart": ("classifier_dropout", 0.0),
}
"""Key of the dropout before an output layer, and its default; None for the model's."""


def _dropout(config: Config, kind: TaskClass) -> float | None:
    if kind == "ForQuestionAnswering":
        return config.number("qa_dropout", 0.0, most=1)
    model = str(config.values.get("model_type"))
    of_words = model == "distilbert" and not DENSE[kind]
    key, default = DROPOUT.get("" if of_words else model, ("classifier_dropout", None))
    return default if config.values.get(key) is None else config.number(key, 0.0, most=1)


def _is_regression(config: Config, labels: list[str]) -> bool:
    """Whether a class of texts has one output, a quantity."""
    problem = config.values.get("problem_type")
    if problem not in (None, "regression", "single_label_classification"):
        raise _refused(config, "problem_type", "only one class or one quantity of a text can be predicted")
    if problem == "regression" and len(labels) != 1:
        raise _refused(config, "problem_type", f"only one quantity of a text can be predicted, not {len(labels)}")
    if problem == "single_label_classification" and len(labels) < 2:
        raise _refused(config, "problem_type", "there is only one class")
    return len(labels) == 1


def _labels(config: Config) -> list[str]:
    """The classes of a configuration, in the order of their indices."""
    named = config.values.get("id2label")
    if named is None:
        return [f"LABEL_{number}" for number in range(config.whole("num_labels", 2))]
    wrong = not isinstance(named, dict) or not 1 <= len(named) <= LARGEST["size"]
    labels = [] if wrong else [named.get(str(number)) for number in range(len(named))]
    if wrong or not all(isinstance(label, str) and label for label in labels) or len(set(labels)) < len(labels):
        raise _refused(config, "id2label", "it must give every class from 0 a name of its own")
    return labels


def _refused(config: Config, key: str, why: str) -> Exception:
    return config.refused(key, f"{why}; pass --allow 'PATTERN' for the tensors of its head to import the encoder alone")


Head = Literal["token", "next", "order", "replaced"]

NEVER = -1000.0
"""Logit bias of a token that is never predicted."""

TARGETS: Mapping[Head, str] = {"token": "ae", "next": "nsp", "order": "sop", "replaced": "rtd"}
"""Target of each head: masked tokens, next sentence, sentence order, replaced tokens."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Checkpoints that share tensor names."""

    name: str  # name of the family
    paper: str  # title of its paper
    prefix: str  # prefix of backbone names in models with a head; a bare encoder has none
    configuration: Layout  # its keys of a configuration
    backbone: Callable[[Architecture], Iterable[Entry]]  # entries of the backbone, without the prefix
    heads: Mapping[Head, tuple[Entry, ...]]  # entries of each head, with full names
    copies: Mapping[str, str] = field(default_factory=dict)  # as in `Table`, with full names
    # the layer over the first slot: part of a classifier in `heads`, or on its own `ModelSettings.pooler`
    pooler: str = ""
    gelu_heads: frozenset[Head] = frozenset()  # heads that use GELU regardless of the activation of the layers
    always: tuple[Head, ...] = ()  # heads every checkpoint has, whether or not they have tensors of their own
    unused: tuple[str, ...] = ()  # names that are not used here, besides those of all families
    # the stock class of each set of heads; none for a family of language models
    classes: Mapping[frozenset[Head], str] = field(default_factory=dict)
    generates: str = ""  # the stock class that generates texts, or permuted tokens; empty if there is none
    separators: int = 1  # number of tokens between two texts
    # whether slots that predict have a vector of their own instead of a token, see `Architecture.query`
    queries: bool = False
    # layers of its classes with the head of a task and a dense layer, with full names
    task_layers: Mapping[TaskClass, TaskLayers] = field(default_factory=dict)

    @property
    def prefix_of_classes(self) -> str:
        """How the names of its classes begin."""
        return self.classes[frozenset()].removesuffix("Model")

    def table(
        self, layout: Architecture, *, heads: Collection[Head] = (), bare: bool = False, task: TaskClass | None = None
    ) -> Table:
        """The key table of a model."""
        prefix = "" if bare else self.prefix
        found = [
            dataclasses.replace(entry, theirs=tuple(prefix + name for name in entry.theirs))
            for entry in self.backbone(layout)
        ]
        absent = set() if layout.settings.head_bias else {("token_head.bias",)}
        absent |= {("token_head.output",)} if layout.settings.tied_output else set()
        found += [
            dataclasses.replace(entry, change=Appended(NEVER)) if layout.query_is_new else entry
            for head in heads
            for entry in self.heads[head]
            if entry.ours not in absent
        ]
        stored = {name for entry in found for name in entry.theirs}
        unused = [f"{prefix}embeddings.position_ids", f"{prefix}embeddings.token_type_ids", *self.unused]
        if layout.settings.pooler:
            found += modules({"pooler": f"{prefix}{self.pooler}"})
        if task is not None:
            found += task_entries(task, self.task_layers)
            unused += [f"{prefix}{self.pooler}.*"] if self.pooler else []
        return Table(
            entries=tuple(found),
            copies={
                copy: original for copy, original in self.copies.items() if original in stored and copy not in stored
            },
            ignored=tuple(unused),
        )

    def layout(self, config: Config, names: Collection[str], task: TaskClass | None = None) -> Architecture:
        """The layout of a checkpoint, with a pooler if it has one outside a head and no task does without it."""
        config.only(
            "quantization_config", {}, None, why="quantised weights are not supported: use the unquantised checkpoint"
        )
        layout = self.configuration.read(config, names)
        own = {f"{prefix}{self.pooler}.weight" for prefix in ("", self.prefix)}
        if (
            not self.pooler
            or task is not None
            or {"next", "order"} & set(self.heads_among(names))
            or own.isdisjoint(names)
        ):
            return layout
        return dataclasses.replace(layout, settings=dataclasses.replace(layout.settings, pooler=True))

    def heads_among(self, names: Collection[str]) -> list[Head]:
        """The heads of which any tensor is present; a pooler alone is not a head, see `layout`."""
        copied = {original: copy for copy, original in self.copies.items()}
        found: list[Head] = list(self.always)
        for head, parts in self.heads.items():
            own = [name for entry in parts for name in entry.theirs if not name.startswith(self.prefix)]
            if head not in found and any(name in names or copied.get(name) in names for name in own):
                found.append(head)
        return found


_BERT_HEADS: Mapping[Head, tuple[Entry, ...]] = {
    "token": token_head(
        "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"
    ),
    "next": pair_head("bert.pooler.dense", "cls.seq_relationship"),
}
_BERT_COPIES = {
    "cls.predictions.decoder.weight": f"bert.{TOKENS}",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_BERT_TASKS: Mapping[TaskClass, TaskLayers] = {
    "ForSequenceClassification": TaskLayers(dense="bert.pooler.dense", output="classifier"),
    "ForMultipleChoice": TaskLayers(dense="bert.pooler.dense", output="classifier"),
}
_TWO_LAYERS = TaskLayers(dense="classifier.dense", output="classifier.out_proj")
_LM_HEAD: Mapping[Head, tuple[Entry, ...]] = {
    "token": token_head("lm_head.dense", "lm_head.layer_norm", "lm_head.bias")
}

_NONE: frozenset[Head] = frozenset()
_TOKEN: frozenset[Head] = frozenset({"token"})

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family(
            name="bert",
            paper="BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
            prefix="bert.",
            configuration=layouts.BERT,
            classes={
                _NONE: "BertModel",
                _TOKEN: "BertForMaskedLM",
                frozenset({"next"}): "BertForNextSentencePrediction",
                frozenset({"token", "next"}): "BertForPreTraining",
            },
            backbone=entries.bert_backbone,
            heads=_BERT_HEADS,
            copies=_BERT_COPIES,
            pooler="pooler.dense",
            task_layers=_BERT_TASKS,
        ),
        Family(
            name="roberta",
            paper="RoBERTa: A Robustly Optimized BERT Pretraining Approach",
            prefix="roberta.",
            configuration=layouts.ROBERTA,
            classes={_NONE: "RobertaModel", _TOKEN: "RobertaForMaskedLM"},
            backbone=entries.bert_backbone,
            heads=_LM_HEAD,
            copies={"lm_head.decoder.weight": f"roberta.{TOKENS}", "lm_head.decoder.bias": "lm_head.bias"},
            pooler="pooler.dense",
            separators=2,
            task_layers={
                "ForSequenceClassification": _TWO_LAYERS,
                "ForMultipleChoice": TaskLayers(dense="roberta.pooler.dense", output="classifier"),
            },
            gelu_heads=frozenset({"token"}),
        ),
        Family(
            name="mpnet",
            paper="MPNet: Masked and Permuted Pre-training for Language Understanding",
            prefix="mpnet.",
            configuration=layouts.MPNET,
            classes={_NONE: "MPNetModel", _TOKEN: "MPNetForMaskedLM"},
            backbone=entries.mpnet_backbone,
            heads=_LM_HEAD,
            copies={"lm_head.decoder.weight": f"mpnet.{TOKENS}", "lm_head.decoder.bias": "lm_head.bias"},
            pooler="pooler.dense",
            separators=2,
            task_layers={
                "ForSequenceClassification": _TWO_LAYERS,
                "ForMultipleChoice": TaskLayers(dense="mpnet.pooler.dense", output="classifier"),
            },
            gelu_heads=frozenset({"token"}),
        ),
        Family(
            name="electra",
            paper="ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators",
            prefix="electra.",
            configuration=layouts.ELECTRA,
            classes={
                _NONE: "ElectraModel",
                _TOKEN: "ElectraForMaskedLM",
                frozenset({"replaced"}): "ElectraForPreTraining",
            },
            backbone=entries.electra_backbone,
            heads={
                "token": token_head(
                    "generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head.bias"
                ),
                "replaced": tuple(
                    modules(
                        {
                            "replaced_head.dense": "discriminator_predictions.dense",
                            "replaced_head.output": "discriminator_predictions.dense_prediction",
                        }
                    )
                ),
            },
            copies={"generator_lm_head.weight": f"electra.{TOKENS}"},
            gelu_heads=frozenset({"token"}),
            task_layers={"ForSequenceClassification": dataclasses.replace(_TWO_LAYERS, head="dense_gelu")},
        ),
        Family(
            name="albert",
            paper="ALBERT: A Lite BERT for Self-supervised Learning of Language Representations",
            prefix="albert.",
            configuration=layouts.ALBERT,
            classes={
                _NONE: "AlbertModel",
                _TOKEN: "AlbertForMaskedLM",
                frozenset({"token", "order"}): "AlbertForPreTraining",
            },
            backbone=entries.albert_backbone,
            heads={
                "token": token_head("predictions.dense", "predictions.LayerNorm", "predictions.bias"),
                "order": pair_head("albert.pooler", "sop_classifier.classifier"),
            },
            copies={
                "predictions.decoder.weight": f"albert.{TOKENS}",
                "predictions.decoder.bias": "predictions.bias",
            },
            pooler="pooler",
            task_layers={
                "ForSequenceClassification": TaskLayers(dense="albert.pooler", output="classifier"),
                "ForMultipleChoice": TaskLayers(dense="albert.pooler", output="classifier"),
            },
        ),
        Family(
            name="distilbert",
            paper="DistilBERT, a distilled version of BERT: smaller, faster, cheaper and lighter",
            prefix="distilbert.",
            configuration=layouts.DISTILBERT,
            classes={_NONE: "DistilBertModel", _TOKEN: "DistilBertForMaskedLM"},
            backbone=entries.distilbert_backbone,
            heads={"token": token_head("vocab_transform", "vocab_layer_norm", "vocab_projector.bias")},
            copies={"vocab_projector.weight": f"distilbert.{TOKENS}"},
            task_layers={
                "ForSequenceClassification": TaskLayers(dense="pre_classifier", output="classifier", head="dense_relu"),
                "ForMultipleChoice": TaskLayers(dense="pre_classifier", output="classifier", head="dense_relu"),
            },
        ),
        Family(
            name="t5",
            paper="Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
            prefix="",
            configuration=layouts.T5,
            generates="T5ForConditionalGeneration",
            backbone=entries.t5_backbone,
            heads={"token": (same("token_head.output", OUTPUT),)},
            copies=dict.fromkeys(
                ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", OUTPUT), "shared.weight"
            ),
            always=("token",),
            unused=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
        ),
        Family(
            name="bart",
            paper="BART: Denoising Sequence-to-Sequence Pre-training for Natural Language Generation, Translation, and "
            "Comprehension",
            prefix="model.",
            configuration=layouts.BART,
            generates="BartForConditionalGeneration",
            backbone=entries.bart_backbone,
            heads={"token": (entries.FINAL_LOGITS_BIAS,)},
            copies={
                **{f"model.{stack}.embed_tokens.weight": "model.shared.weight" for stack in ("encoder", "decoder")},
                **{f"{stack}.embed_tokens.weight": "shared.weight" for stack in ("encoder", "decoder")},
                "lm_head.weight": "model.shared.weight",
            },
            always=("token",),
            separators=2,
            task_layers={
                "ForSequenceClassification": TaskLayers(
                    dense="classification_head.dense", output="classification_head.out_proj"
                ),
            },
        ),
        Family(
            name="gpt2",
            paper="Language Models are Unsupervised Multitask Learners",
            prefix="transformer.",
            configuration=layouts.GPT2,
            generates="GPT2LMHeadModel",
            backbone=entries.gpt2_backbone,
            heads={"token": (same("token_head.output", OUTPUT),)},
            copies={OUTPUT: "transformer.wte.weight"},
            always=("token",),
            unused=tuple(
                f"{prefix}h.*.attn.{name}" for prefix in ("", "transformer.") for name in ("bias", "masked_bias")
            ),
        ),
        Family(
            name="xlnet",
            paper="XLNet: Generalized Autoregressive Pretraining for Language Understanding",
            prefix="transformer.",
            configuration=layouts.XLNET,
            generates="XLNetLMHeadModel",
            backbone=entries.xlnet_backbone,
            heads={"token": (same("token_head.bias", "lm_loss.bias"),)},
            copies={"lm_loss.weight": f"transformer.{entries.XLNET_TOKENS}"},
            queries=True,
        ),
        Family(
            name="unilm",
            paper="UniLMv2: Pseudo-Masked Language Models for Unified Language Model Pre-Training",
            prefix="bert.",
            configuration=layouts.UNILM,
            backbone=entries.unilm_backbone,
            heads=_BERT_HEADS,
            copies=_BERT_COPIES,
            pooler="pooler.dense",
            task_layers=_BERT_TASKS,
        ),
    )
}
"""Families by name."""
STOCK: Mapping[str, Family] = {
    name: FAMILIES[name] for name in ("bert", "mpnet", "roberta", "electra", "albert", "distilbert")
}
"""Families of encoders that a model can be exported to, in the order of preference."""
CLASSES: Mapping[str, str] = {name: family.generates for name, family in FAMILIES.items() if family.generates}
"""Class of the families of language models that a model can be exported to."""

MODEL_TYPES: Mapping[str, str] = {
    **{name: name for name in FAMILIES},
    "xlm-roberta": "roberta",
    "camembert": "roberta",
    "minilm": "unilm",
}
"""Family of each `model_type` of a configuration."""


def family_of(config: Config, names: Collection[str]) -> Family:
    """The family of a checkpoint, from its model type; released UniLM is recognised by its tensors."""
    if any(name.endswith((".qkv_linear.weight", "rel_pos_bias.weight")) for name in names):
        return FAMILIES["unilm"]
    kind = config.values.get("model_type")
    if kind is None and any(name.startswith("bert.") for name in names):  # released before the key existed
        return FAMILIES["bert"]
    if kind == "unicloze":
        raise config.refused(
            "model_type",
            "`unicloze export` wrote this folder for Transformers, without the recipe: give the run or checkpoint it was "
            "made from, or export that with --to package",
        )
    if not isinstance(kind, str) or kind not in MODEL_TYPES:
        raise config.refused("model_type", f"supported models are {', '.join(MODEL_TYPES)}")
    return FAMILIES[MODEL_TYPES[kind]]
