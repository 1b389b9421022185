"""Families of models: their keys of a configuration, and their name of each of our tensors.

All of them are our backbone under other names. A table covers the backbone and whichever heads are present, so the same
families serve checkpoints with and without heads, in both directions.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from unicloze.interop import configurations as layouts
from unicloze.interop import tables
from unicloze.interop.configurations import FINAL_BIAS, OUTPUT, Architecture, Layout
from unicloze.interop.files import LARGEST, Config
from unicloze.model.model import OWN_HEADS
from unicloze.recipes import load_recipe
from unicloze.settings import TaskSettings

Head = Literal["token", "next", "order", "replaced"]
TaskClass = Literal["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice"]

TARGETS: Mapping[Head, str] = {"token": "ae", "next": "nsp", "order": "sop", "replaced": "rtd"}
"""Target of each head."""
PREDICTS: Mapping[Head, str] = {
    "token": "masked tokens",
    "next": "whether a segment follows",
    "order": "whether segments are in order",
    "replaced": "which tokens were replaced",
}
"""What each head predicts."""
MODULES: Mapping[Head, str] = {head: OWN_HEADS.get(target, "token_head") for head, target in TARGETS.items()}
"""Our module of each head."""
TASK_CLASSES: Mapping[TaskClass, tuple[str, ...]] = {
    "ForSequenceClassification": ("label",),
    "ForTokenClassification": ("tags",),
    "ForQuestionAnswering": ("start", "end"),
    "ForMultipleChoice": ("choice",),
}
"""Targets of the task of each class."""
NEVER = -1000.0
"""Logit bias of a token that is never predicted."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Checkpoints that share tensor names."""

    name: str  # name of the family
    paper: str  # title of its paper
    prefix: str  # prefix of backbone names in models with a head; a bare encoder has none
    configuration: Layout  # its keys of a configuration
    names: Mapping[str, str]  # as of `entries_of`, with full names
    gated: Mapping[str, str] = field(default_factory=dict)  # other names in gated models
    # as of `entries_of`, besides positions
    changes: Callable[[Architecture], Mapping[str, tables.Change]] = lambda _: {}
    pairs: Head = "next"  # what its head for pairs predicts
    gelu_head: bool = False  # whether its head for tokens uses GELU regardless of the activation of the layers
    always: bool = False  # whether every checkpoint predicts tokens, with tensors of its own for it or not
    unused: tuple[str, ...] = ()  # names that are not used here, besides those of all families
    # the stock class of each set of heads; none for a family of language models
    classes: Mapping[frozenset[Head], str] = field(default_factory=dict)
    generates: str = ""  # the stock class that generates texts, or permuted tokens; empty if there is none
    separators: int = 1  # number of tokens between two texts
    # whether slots that predict have a vector of their own instead of a token, see `Architecture.query`
    queries: bool = False
    task_head: str = "dense"  # `task.head` of its classes of texts and of choices

    @functools.cached_property
    def copies(self) -> Mapping[str, str]:
        """As in `Table`, with full names: the output matrix, the inputs of two stacks, and the output bias."""
        tokens = next(name for own, name in self.names.items() if own.startswith("backbone.embeddings.tokens"))
        tokens, bias = f"{tokens.split('|')[0].removesuffix('.weight')}.weight", self.names.get("token_head.bias", "")
        output = bias.removesuffix(".bias") if bias.endswith(".bias") else OUTPUT.removesuffix(".weight")
        tied = f"{output}.weight", f"{output}.decoder.weight", *(f"{self.prefix}{each}" for each in _INPUTS)
        return {**dict.fromkeys(tied, tokens), f"{output}.decoder.bias": bias}

    @property
    def prefix_of_classes(self) -> str:
        """How the names of its classes begin."""
        return self.classes[frozenset()].removesuffix("Model")

    def table(self, layout: Architecture, ours: Iterable[str], *, bare: bool = False) -> tables.Table:
        """The key table of a model with the given tensors of ours."""
        ours, settings = list(ours), layout.settings
        names = {**self.names, **layout.names, **(self.gated if settings.gated else {})}
        folds = settings.num_segments and not self.configuration.has_segments
        own = tables.folded(layout.padding, settings.num_segments) if folds else tables.shifted(layout.padding)
        changes = {
            "backbone.embeddings.positions.weight": own,
            "backbone.decoder.embeddings.positions.weight": tables.shifted(layout.padding),
            **self.changes(layout),
        }
        prefix, entries = self.prefix, tables.entries_of(ours, names, changes)
        unused = [f"{prefix}embeddings.position_ids", f"{prefix}embeddings.token_type_ids"]
        if "pooler" in names and any(name.startswith("task_heads.") for name in ours):
            unused.append(f"{names['pooler']}.*")
        copies = self.copies
        if bare:
            unused = [name.removeprefix(prefix) for name in unused]
            copies = {copy.removeprefix(prefix): first.removeprefix(prefix) for copy, first in copies.items()}
            bared = (tuple(name.removeprefix(prefix) for name in entry.theirs) for entry in entries)
            entries = [dataclasses.replace(entry, theirs=names) for entry, names in zip(entries, bared, strict=True)]
        stored = {name for entry in entries for name in entry.theirs}
        return tables.Table(
            entries=tuple(entries),
            copies={copy: first for copy, first in copies.items() if first in stored and copy not in stored},
            ignored=(*unused, *self.unused),
        )

    def layout(self, config: Config, names: Collection[str], task: TaskClass | None = None) -> Architecture:
        """The layout of a checkpoint, with a pooler if it has one outside a head and no task does without it."""
        config.only(
            "quantization_config", {}, None, why="quantised weights are not supported: use the unquantised checkpoint"
        )
        layout = self.configuration.read(config, names)
        pooler = self.names.get("pooler", "")
        own = {f"{pooler}.weight", f"{pooler.removeprefix(self.prefix)}.weight"}
        if task is not None or self.pairs in self.heads_among(names) or own.isdisjoint(names):
            return layout
        return dataclasses.replace(layout, settings=dataclasses.replace(layout.settings, pooler=True))

    def heads_among(self, names: Collection[str]) -> list[Head]:
        """The heads of which any tensor is present; a pooler alone is not a head, see `layout`."""
        stored = {self.copies.get(name, name) for name in names}
        heads: tuple[Head, ...] = ("token", self.pairs, "replaced")
        found: list[Head] = []
        for head in heads:
            theirs = [name for own, name in self.names.items() if own.startswith(MODULES[head])]
            theirs = [name for name in theirs if not name.startswith(self.prefix or " ")]
            is_stored = any(name == own or name.startswith(f"{own}.") for name in stored for own in theirs)
            if is_stored or (head == "token" and self.always):
                found.append(head)
        return found

    def has_task(self, kind: TaskClass) -> bool:
        """Whether it has a class with the head of a task."""
        return f"task_heads.{TASK_CLASSES[kind][0]}.output" in self.names

    def head_of(self, kind: TaskClass) -> str:
        """`task.head` of a class."""
        return self.task_head if f"task_heads.{TASK_CLASSES[kind][0]}.dense" in self.names else "plain"


PARTS = ("attention.qkv", "attention.output", "attention_norm",
         "feed_forward.inner", "feed_forward.output", "feed_forward_norm")  # fmt: skip
"""Our modules of a layer."""
READS_SOURCE = "cross_attention.query", "cross_attention.key_value", "cross_attention.output", "cross_attention_norm"
_INPUTS = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"


def _parts(theirs: str, ours: Sequence[str] = PARTS) -> dict[str, str]:
    """Names of the modules of a layer."""
    return dict(zip(ours, theirs.split(), strict=True))


_BERT_LAYER = _parts(
    "attention.self.query|key|value attention.output.dense attention.output.LayerNorm intermediate.dense output.dense "
    "output.LayerNorm"
)
_DISTILBERT_LAYER = _parts(
    "attention.q_lin|k_lin|v_lin attention.out_lin sa_layer_norm ffn.lin1 ffn.lin2 output_layer_norm"
)
_ALBERT_LAYER = _parts(
    "attention.query|key|value attention.dense attention.LayerNorm ffn ffn_output full_layer_layer_norm"
)
_BART_LAYER = _parts("self_attn.q_proj|k_proj|v_proj self_attn.out_proj self_attn_layer_norm fc1 fc2 final_layer_norm")
_BART_CROSS = _parts(
    "encoder_attn.q_proj encoder_attn.k_proj|v_proj encoder_attn.out_proj encoder_attn_layer_norm", READS_SOURCE
)
_GPT2_LAYER = _parts("attn.c_attn attn.c_proj ln_1 mlp.c_fc mlp.c_proj ln_2")
_XLNET_LAYER = {
    "attention.qkv.weight": "rel_attn.q|k|v",
    "attention.output.weight": "rel_attn.o",
    "attention.terms.projection.weight": "rel_attn.r",
    "attention.terms.content": "rel_attn.r_w_bias",
    "attention.terms.position": "rel_attn.r_r_bias",
    "attention.terms.segment": "rel_attn.r_s_bias",
    "attention.terms.segments": "rel_attn.seg_embed",
    **_parts("rel_attn.layer_norm ff.layer_1 ff.layer_2 ff.layer_norm", PARTS[2:]),
}


def _stack(ours: str, theirs: str, parts: Mapping[str, str]) -> dict[str, str]:
    """Names of a stack of layers."""
    return {f"{ours}.{{}}.{own}": f"{theirs}.{name}" for own, name in parts.items()}


def _encoder(
    prefix: str, head: str, *, pooler: str = "", dense: str = "", pair: str = "", two_layers: bool = False,
    layer: Mapping[str, str] = _BERT_LAYER, stack: str = "encoder.layer.{}", segments: str = "token_type_embeddings",
    projection: str = "embeddings_project",
) -> dict[str, str]:  # fmt: skip
    """Names of an encoder.

    Args:
        prefix: Prefix of its backbone.
        head: Dense layer, normalisation and output bias of its masked language model.
        pooler: Its pooler.
        dense: Dense layer of its heads of texts and of choices; default: the pooler.
        pair: Output of its head for pairs.
        two_layers: Whether its head of texts has a dense layer of its own.
        layer: Modules of a layer.
        stack: Its layers.
        segments: The table of segments; without one, they are folded into the positions.
        projection: From the width of the embeddings.
    """
    dense = dense or pooler
    label = ("classifier.dense", "classifier.out_proj") if two_layers else (dense, "classifier")
    heads = {
        "pooler": pooler,
        **({"pair_head.dense": pooler, "pair_head.output": pair} if pair else {}),
        **dict(zip(("task_heads.label.dense", "task_heads.label.output"), label, strict=True)),
        **({"task_heads.choice.dense": dense, "task_heads.choice.output": "classifier"} if dense else {}),
    }
    return {
        "backbone.embeddings.tokens.weight": f"{prefix}embeddings.word_embeddings.weight",
        "backbone.embeddings.positions": f"{prefix}embeddings.position_embeddings",
        "backbone.embeddings.segments": f"{prefix}embeddings.{segments}",
        "backbone.embeddings.norm": f"{prefix}embeddings.LayerNorm",
        "backbone.embeddings.projection": f"{prefix}{projection}",
        **_stack("backbone.layers", f"{prefix}{stack}", layer),
        **_parts(head, ("token_head.dense", "token_head.norm", "token_head.bias")),
        "task_heads.tags.output": "classifier",
        "task_heads.start.output": "qa_outputs",
        "task_heads.end.output": "qa_outputs",
        **{own: name for own, name in heads.items() if name},
    }


_BERT = _encoder(
    "bert.",
    "cls.predictions.transform.dense cls.predictions.transform.LayerNorm cls.predictions.bias",
    pooler="bert.pooler.dense",
    pair="cls.seq_relationship",
)
_LM_HEAD = "lm_head.dense lm_head.layer_norm lm_head.bias"


def _t5_stack(ours: str, theirs: str, last: int) -> dict[str, str]:
    inner = f"{last}.DenseReluDense"
    parts = _parts(f"0.SelfAttention.q|k|v 0.SelfAttention.o 0.layer_norm {inner}.wi {inner}.wo {last}.layer_norm")
    return {
        **_stack(f"{ours}.layers", f"{theirs}.block.{{}}.layer", {**parts, "feed_forward.gate": f"{inner}.wi_1"}),
        f"{ours}.relative.weight": f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        f"{ours}.final_norm": f"{theirs}.final_layer_norm",
    }


_T5 = {
    "backbone.embeddings.tokens": "shared",
    **_t5_stack("backbone", "encoder", 1),
    **_t5_stack("backbone.decoder", "decoder", 2),
    **_stack(
        "backbone.decoder.layers",
        "decoder.block.{}.layer.1",
        _parts("EncDecAttention.q EncDecAttention.k|v EncDecAttention.o layer_norm", READS_SOURCE),
    ),
    "token_head.output": OUTPUT,
}


def _bart_stack(ours: str, theirs: str, parts: Mapping[str, str]) -> dict[str, str]:
    return {
        f"{ours}.embeddings.positions": f"{theirs}.embed_positions",
        f"{ours}.embeddings.norm": f"{theirs}.layernorm_embedding",
        **_stack(f"{ours}.layers", f"{theirs}.layers.{{}}", parts),
    }


def _of_xlnet(layout: Architecture) -> dict[str, tables.Change]:
    """An axis for the heads in every attention tensor, and the vector of the slots that predict."""
    settings, attention = layout.settings, "backbone.layers.{}.attention."
    hidden, heads = settings.hidden_size, settings.num_heads
    assert layout.query is not None
    terms = ("content", "position", "segment")
    return {
        "backbone.embeddings.tokens.weight": tables.query_vector(layout.query, is_new=layout.query_is_new),
        f"{attention}qkv.weight": tables.heads_last(heads, 3),
        f"{attention}output.weight": tables.reshaped((hidden, -1), (hidden, heads, -1)),
        f"{attention}terms.projection.weight": tables.heads_last(heads),
        **{f"{attention}terms.{name}": tables.reshaped((-1,), (heads, -1)) for name in terms},
        **({"token_head.bias": tables.appended(NEVER)} if layout.query_is_new else {}),
    }


def _classes(stem: str, *pretraining: Head) -> dict[frozenset[Head], str]:
    """Classes of an encoder: without heads, with that for tokens, and with those it is pre-trained with."""
    own: dict[frozenset[Head], str] = {frozenset(): f"{stem}Model", frozenset({"token"}): f"{stem}ForMaskedLM"}
    return own | ({frozenset(pretraining): f"{stem}ForPreTraining"} if pretraining else {})


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family(
            name="bert",
            paper="BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
            prefix="bert.",
            configuration=layouts.BERT,
            classes=_classes("Bert", "token", "next") | {frozenset({"next"}): "BertForNextSentencePrediction"},
            names=_BERT,
        ),
        Family(
            name="roberta",
            paper="RoBERTa: A Robustly Optimized BERT Pretraining Approach",
            prefix="roberta.",
            configuration=layouts.ROBERTA,
            classes=_classes("Roberta"),
            names=_encoder("roberta.", _LM_HEAD, pooler="roberta.pooler.dense", two_layers=True),
            separators=2,
            gelu_head=True,
        ),
        Family(
            name="mpnet",
            paper="MPNet: Masked and Permuted Pre-training for Language Understanding",
            prefix="mpnet.",
            configuration=layouts.MPNET,
            classes=_classes("MPNet"),
            names={
                **_encoder(
                    "mpnet.", _LM_HEAD, pooler="mpnet.pooler.dense", two_layers=True, segments="position_embeddings",
                    layer=_BERT_LAYER | _parts("attention.attn.q|k|v attention.attn.o attention.LayerNorm", PARTS[:3]),
                ),
                "backbone.relative.weight": "mpnet.encoder.relative_attention_bias.weight",
            },
            changes=lambda _: {"backbone.relative.weight": tables.TRANSPOSED},
            separators=2,
            gelu_head=True,
        ),
        Family(
            name="electra",
            paper="ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators",
            prefix="electra.",
            configuration=layouts.ELECTRA,
            classes=_classes("Electra", "replaced"),
            names={
                **_encoder(
                    "electra.",
                    "generator_predictions.dense generator_predictions.LayerNorm generator_lm_head.bias",
                    two_layers=True,
                ),
                "replaced_head.dense": "discriminator_predictions.dense",
                "replaced_head.output": "discriminator_predictions.dense_prediction",
            },
            gelu_head=True,
            task_head="dense_gelu",
        ),
        Family(
            name="albert",
            paper="ALBERT: A Lite BERT for Self-supervised Learning of Language Representations",
            prefix="albert.",
            configuration=layouts.ALBERT,
            classes=_classes("Albert", "token", "order"),
            names=_encoder(
                "albert.", "predictions.dense predictions.LayerNorm predictions.bias", pooler="albert.pooler",
                pair="sop_classifier.classifier", layer=_ALBERT_LAYER,
                stack="encoder.albert_layer_groups.{0}.albert_layers.{0}",
                projection="encoder.embedding_hidden_mapping_in",
            ),
            pairs="order",
        ),
        Family(
            name="distilbert",
            paper="DistilBERT, a distilled version of BERT: smaller, faster, cheaper and lighter",
            prefix="distilbert.",
            configuration=layouts.DISTILBERT,
            classes=_classes("DistilBert"),
            names=_encoder(
                "distilbert.", "vocab_transform vocab_layer_norm vocab_projector.bias", dense="pre_classifier",
                layer=_DISTILBERT_LAYER,
                stack="transformer.layer.{}", segments="position_embeddings",
            ),
            task_head="dense_relu",
        ),
        Family(
            name="t5",
            paper="Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
            prefix="",
            configuration=layouts.T5,
            generates="T5ForConditionalGeneration",
            names=_T5,
            gated={own: f"{name}_0" for own, name in _T5.items() if name.endswith(".wi")},
            changes=lambda _: dict.fromkeys(
                ("backbone.relative.weight", "backbone.decoder.relative.weight"), tables.TRANSPOSED
            ),
            always=True,
            unused=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
        ),
        Family(
            name="bart",
            paper="BART: Denoising Sequence-to-Sequence Pre-training for Natural Language Generation, Translation, and "
            "Comprehension",
            prefix="model.",
            configuration=layouts.BART,
            generates="BartForConditionalGeneration",
            names={
                "backbone.embeddings.tokens": "model.shared",
                **_bart_stack("backbone", "model.encoder", _BART_LAYER),
                **_bart_stack("backbone.decoder", "model.decoder", {**_BART_LAYER, **_BART_CROSS}),
                "token_head.bias": FINAL_BIAS,
                "task_heads.label.dense": "classification_head.dense",
                "task_heads.label.output": "classification_head.out_proj",
            },
            changes=lambda _: {"token_head.bias": tables.reshaped((-1,), (1, -1))},
            always=True,
            separators=2,
        ),
        Family(
            name="gpt2",
            paper="Language Models are Unsupervised Multitask Learners",
            prefix="transformer.",
            configuration=layouts.GPT2,
            generates="GPT2LMHeadModel",
            names={
                "backbone.embeddings.tokens": "transformer.wte",
                "backbone.embeddings.positions": "transformer.wpe",
                **_stack("backbone.layers", "transformer.h.{}", _GPT2_LAYER),
                "backbone.final_norm": "transformer.ln_f",
                "token_head.output": OUTPUT,
            },
            changes=lambda _: {  # its projections are stored transposed
                f"backbone.layers.{{}}.{own}.weight": tables.TRANSPOSED for own in PARTS if not own.endswith("norm")
            },
            always=True,
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
            names={
                "backbone.embeddings.tokens.weight": "transformer.word_embedding.weight|transformer.mask_emb",
                **_stack("backbone.layers", "transformer.layer.{}", _XLNET_LAYER),
                "token_head.bias": "lm_loss.bias",
            },
            changes=_of_xlnet,
            queries=True,
        ),
        Family(
            name="unilm",
            paper="UniLMv2: Pseudo-Masked Language Models for Unified Language Model Pre-Training",
            prefix="bert.",
            configuration=layouts.UNILM,
            names=_BERT,
            changes=lambda layout: dict.fromkeys(
                layout.names.keys() & {"backbone.layers.{}.attention.qkv.bias"}, tables.KEYLESS_BIAS
            ),
        ),
    )
}  # fmt: skip
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


def class_of(config: Config) -> TaskClass | None:
    """The class with a task's head that a configuration names; None if it names another or none."""
    names = config.values.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    return next((kind for kind in get_args(TaskClass) if isinstance(name, str) and name.endswith(kind)), None)


def task_class(targets: Iterable[str]) -> TaskClass | None:
    """The class for the heads of a task; None if there is none."""
    return next((kind for kind, own in TASK_CLASSES.items() if {*own} == {*targets}), None)


def dropout_key(model: str, kind: TaskClass) -> tuple[str, float | None]:
    """Key of the dropout before an output layer, and its default; None for the model's."""
    if model == "distilbert" and kind == "ForQuestionAnswering":
        return "qa_dropout", 0.0
    if model == "distilbert" and kind != "ForTokenClassification":
        return "seq_classif_dropout", 0.2
    return {"albert": ("classifier_dropout_prob", 0.1), "bart": ("classifier_dropout", 0.0)}.get(
        model, ("classifier_dropout", None)
    )


def imported_task(config: Config, kind: TaskClass, family: Family) -> TaskSettings:
    """The task of a checkpoint with a task's head."""
    if not family.has_task(kind):
        raise _refused(config, "architectures", "a head of this class cannot be imported")
    recipes = {"ForTokenClassification": "tagging", "ForQuestionAnswering": "squad-v1.1", "ForMultipleChoice": "choice"}
    name = recipes.get(kind, "classification")
    key, default = dropout_key(str(config.values.get("model_type")), kind)
    key, default = ("qa_dropout", 0.0) if kind == "ForQuestionAnswering" else (key, default)
    values: dict[str, Any] = {
        "head": family.head_of(kind),
        "pooling": "decoder" if family.configuration.decodes else "first",
        "head_dropout": default if config.values.get(key) is None else config.number(key, 0.0, most=1),
    }
    if kind in ("ForSequenceClassification", "ForTokenClassification"):
        values["labels"] = labels = _labels(config)
        if kind == "ForSequenceClassification" and _is_regression(config, labels):
            name = "regression"
            del values["labels"]
        elif kind == "ForTokenClassification" and not all(re.fullmatch(r"O|[BI]-.+", label) for label in labels):
            values["metrics"] = ["tag-accuracy"]
    task: Any = load_recipe(name).task
    imported: TaskSettings = dataclasses.replace(task, **values)
    return imported


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
