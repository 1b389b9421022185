"""Families of encoders: what their configurations mean here, and the key table of each.

All of them are our backbone with other names. What a configuration asks for beyond that is refused by the key that asks.
A table holds the backbone and the heads that are there, so the same families serve checkpoints with and without heads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from unicloze.interop.config import Config
from unicloze.interop.tables import (
    Change,
    Entry,
    Folded,
    KeylessBias,
    Same,
    Shifted,
    Table,
    Transposed,
    module,
    modules,
    same,
)
from unicloze.settings import ModelSettings

Head = Literal["token", "next", "order", "replaced"]

TARGETS: Mapping[Head, str] = {"token": "ae", "next": "nsp", "order": "sop", "replaced": "rtd"}
"""What each head predicts: masked tokens, whether a segment follows, whether two are in order, which tokens were replaced."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What a family's table depends on.

    Args:
        settings: Shape of the model.
        padding: First rows of their position table that stand for padding.
        fused: Their attention has one `qkv_linear` without a bias of the keys (released UniLM).
    """

    settings: ModelSettings
    padding: int = 0
    fused: bool = False


@dataclass(frozen=True, kw_only=True)
class Family:
    """Checkpoints that share their names.

    Args:
        name: What to call it.
        paper: Title of its paper.
        prefix: What their names of the backbone begin with where a head is there too; a bare encoder's do not.
        read: The layout a configuration describes, given the names of its tensors. Raises `UniclozeError`.
        backbone: Entries of the backbone, their names without the prefix.
        heads: Entries of each head, their names in full.
        copies: As of `Table`, the names in full.
        pooler: Their layer over the first slot, which is of no use without the classifier of `heads` that reads it.
        gelu_heads: Heads that compute by GELU whatever the activation of the layers.
    """

    name: str
    paper: str
    prefix: str
    read: Callable[[Config, Collection[str]], Layout]
    backbone: Callable[[Layout], Iterable[Entry]]
    heads: Mapping[Head, tuple[Entry, ...]]
    copies: Mapping[str, str] = field(default_factory=dict)
    pooler: str = ""
    gelu_heads: frozenset[Head] = frozenset()

    def table(self, layout: Layout, *, heads: Collection[Head] = (), bare: bool = False) -> Table:
        """The key table of a model.

        Args:
            layout: Its layout.
            heads: The heads it has.
            bare: Their names of the backbone have no prefix.
        """
        prefix = "" if bare else self.prefix
        entries = [
            dataclasses.replace(entry, theirs=tuple(prefix + name for name in entry.theirs))
            for entry in self.backbone(layout)
        ]
        entries += [entry for head in heads for entry in self.heads[head]]
        stored = {name for entry in entries for name in entry.theirs}
        unused = [f"{prefix}embeddings.position_ids", f"{prefix}embeddings.token_type_ids"]
        if self.pooler and not {"next", "order"} & set(heads):
            unused.append(f"{prefix}{self.pooler}.*")
        return Table(
            entries=tuple(entries),
            copies={copy: original for copy, original in self.copies.items() if original in stored},
            ignored=tuple(unused),
        )

    def heads_among(self, names: Collection[str]) -> list[Head]:
        """The heads some tensor of whose own is there; a pooler alone is none."""
        copied = {original: copy for copy, original in self.copies.items()}
        found: list[Head] = []
        for head, entries in self.heads.items():
            own = [name for entry in entries for name in entry.theirs if not name.startswith(self.prefix)]
            if any(name in names or copied.get(name) in names for name in own):
                found.append(head)
        return found


TOKENS = "embeddings.word_embeddings.weight"
BERT_LAYER: Mapping[str, tuple[str, ...]] = {
    "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.output": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "feed_forward.inner": ("intermediate.dense",),
    "feed_forward.output": ("output.dense",),
    "feed_forward_norm": ("output.LayerNorm",),
}
"""Our modules of a layer, and theirs."""
MPNET_LAYER: Mapping[str, tuple[str, ...]] = {
    **BERT_LAYER,
    "attention.qkv": ("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    "attention.output": ("attention.attn.o",),
    "attention_norm": ("attention.LayerNorm",),
}
DISTILBERT_LAYER: Mapping[str, tuple[str, ...]] = {
    "attention.qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "attention.output": ("attention.out_lin",),
    "attention_norm": ("sa_layer_norm",),
    "feed_forward.inner": ("ffn.lin1",),
    "feed_forward.output": ("ffn.lin2",),
    "feed_forward_norm": ("output_layer_norm",),
}
ALBERT_LAYER: Mapping[str, tuple[str, ...]] = {
    "attention.qkv": ("attention.query", "attention.key", "attention.value"),
    "attention.output": ("attention.dense",),
    "attention_norm": ("attention.LayerNorm",),
    "feed_forward.inner": ("ffn",),
    "feed_forward.output": ("ffn_output",),
    "feed_forward_norm": ("full_layer_layer_norm",),
}


def _embeddings(layout: Layout, *, segments: bool = True) -> list[Entry]:
    """The tables and their normalisation; a family without a segment table takes ours in its positions."""
    positions, own = "embeddings.position_embeddings.weight", layout.settings.num_segments
    ours = "backbone.embeddings.positions.weight", "backbone.embeddings.segments.weight"
    shifted: Change = Shifted(layout.padding) if layout.padding else Same()
    entries = [same("backbone.embeddings.tokens.weight", TOKENS)]
    if own and not segments:
        entries.append(Entry(ours=ours, theirs=(positions,), change=Folded(layout.padding, own)))
    else:
        entries.append(Entry(ours=ours[:1], theirs=(positions,), change=shifted))
    if own and segments:
        entries.append(same(ours[1], "embeddings.token_type_embeddings.weight"))
    return entries + module("backbone.embeddings.norm", "embeddings.LayerNorm")


def _layers(
    layout: Layout, parts: Mapping[str, tuple[str, ...]] = BERT_LAYER, stack: str = "encoder.layer.{}."
) -> list[Entry]:
    layers = 1 if layout.settings.share_layers == "all" else layout.settings.num_layers
    return [
        entry
        for number in range(layers)
        for ours, theirs in parts.items()
        for entry in module(f"backbone.layers.{number}.{ours}", *(stack.format(number) + name for name in theirs))
    ]


def _fused_layers(layout: Layout) -> list[Entry]:
    entries = _layers(layout, {ours: theirs for ours, theirs in BERT_LAYER.items() if ours != "attention.qkv"})
    for number in range(layout.settings.num_layers):
        ours, theirs = f"backbone.layers.{number}.attention.qkv", f"encoder.layer.{number}.attention.self"
        entries.append(same(f"{ours}.weight", f"{theirs}.qkv_linear.weight"))
        biases = f"{theirs}.q_bias", f"{theirs}.v_bias"
        entries.append(Entry(ours=(f"{ours}.bias",), theirs=biases, change=KeylessBias()))
    return entries


def _bert_backbone(layout: Layout) -> list[Entry]:
    return _embeddings(layout) + _layers(layout)


def _unilm_backbone(layout: Layout) -> list[Entry]:
    entries = _embeddings(layout) + (_fused_layers(layout) if layout.fused else _layers(layout))
    if layout.settings.relative_bias:
        entries.append(same("backbone.relative.weight", "encoder.rel_pos_bias.weight"))
    return entries


def _mpnet_backbone(layout: Layout) -> list[Entry]:
    relative = Entry(
        ours=("backbone.relative.weight",),
        theirs=("encoder.relative_attention_bias.weight",),
        change=Transposed(),
    )
    return [*_embeddings(layout, segments=False), *_layers(layout, MPNET_LAYER), relative]


def _distilbert_backbone(layout: Layout) -> list[Entry]:
    return _embeddings(layout, segments=False) + _layers(layout, DISTILBERT_LAYER, "transformer.layer.{}.")


def _electra_backbone(layout: Layout) -> list[Entry]:
    projected = layout.settings.embedding_size is not None
    projection = module("backbone.embeddings.projection", "embeddings_project") if projected else []
    return _bert_backbone(layout) + projection


def _albert_backbone(layout: Layout) -> list[Entry]:
    projection = module("backbone.embeddings.projection", "encoder.embedding_hidden_mapping_in")
    stack = "encoder.albert_layer_groups.{0}.albert_layers.{0}."
    return _embeddings(layout) + projection + _layers(layout, ALBERT_LAYER, stack)


def _token_head(dense: str, norm: str, bias: str) -> tuple[Entry, ...]:
    transform = modules({"token_head.dense": dense, "token_head.norm": norm})
    return (*transform, same("token_head.bias", bias))


def _pair_head(pooler: str, classifier: str) -> tuple[Entry, ...]:
    return tuple(modules({"pair_head.dense": pooler, "pair_head.output": classifier}))


def _common(config: Config) -> None:
    """Refuse what no model here does, whatever its family."""
    decoder = "models here with this key are decoders; only an encoder can be read"
    config.only("is_decoder", False, None, why=decoder)
    config.only("add_cross_attention", False, None, why=decoder)
    absolute = "positions here are rows of a table (absolute)"
    config.only("position_embedding_type", "absolute", None, why=absolute)
    config.only("pruned_heads", {}, None, why="all layers here have all their attention heads")
    config.only(
        "quantization_config", {}, None, why="weights here are no quantised ones: take the unquantised checkpoint"
    )


def _shape(config: Config, **changes: Any) -> ModelSettings:
    """The settings whose keys all of BERT's kin share."""
    _common(config)
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    if hidden % heads:
        raise config.refused("num_attention_heads", f"hidden_size is {hidden}, which must be a multiple of it")
    values: dict[str, Any] = dict(
        hidden_size=hidden,
        num_heads=heads,
        num_layers=config.whole("num_hidden_layers", kind="layers"),
        intermediate_size=config.whole("intermediate_size"),
        max_positions=config.whole("max_position_embeddings"),
        num_segments=config.whole("type_vocab_size", 2, least=0),
        activation=config.activation("hidden_act", "gelu"),
        relative_bias=False,
        dropout=config.number("hidden_dropout_prob", 0.1, most=1),
        attention_dropout=config.number("attention_probs_dropout_prob", 0.1, most=1),
        layer_norm_eps=config.number("layer_norm_eps", 1e-12, most=1),
        initializer_range=config.number("initializer_range", 0.02, most=10),
    )
    return ModelSettings(**(values | changes))


def _bert(config: Config, _: Collection[str]) -> Layout:
    return Layout(settings=_shape(config))


def _after_padding(config: Config, **changes: Any) -> Layout:
    """Positions that are counted from the one after the padding token's id on."""
    padding = config.whole("pad_token_id", 1, least=0) + 1
    rows = config.whole("max_position_embeddings")
    if padding >= rows:
        raise config.refused("pad_token_id", f"that leaves none of max_position_embeddings {rows} for text")
    return Layout(settings=_shape(config, max_positions=rows - padding, **changes), padding=padding)


def _roberta(config: Config, _: Collection[str]) -> Layout:
    return _after_padding(config)


def _mpnet(config: Config, _: Collection[str]) -> Layout:
    buckets = config.whole("relative_attention_num_buckets", 32)
    if buckets % 2 or not 4 <= buckets <= 256:
        raise config.refused("relative_attention_num_buckets", "expected an even number from 4 to 256")
    config.only("pad_token_id", 1, why="Transformers' MPNet takes id 1 for padding whatever this says")
    return _after_padding(config, num_segments=0, relative_bias=True, relative_buckets=buckets)


def _narrow(config: Config, default: int) -> int | None:
    width = config.whole("embedding_size", default)
    return None if width == config.whole("hidden_size") else width


def _electra(config: Config, _: Collection[str]) -> Layout:
    return Layout(settings=_shape(config, embedding_size=_narrow(config, 128)))


def _albert(config: Config, _: Collection[str]) -> Layout:
    one = "all layers here share one group's weights"
    config.only("num_hidden_groups", 1, why=one)
    config.only("inner_group_num", 1, why=one)
    narrow = _narrow(config, 128)
    if narrow is None:
        raise config.refused("embedding_size", "embeddings as wide as the hidden states have no projection here")
    activation = config.activation("hidden_act", "gelu_new")
    dropout = config.number("hidden_dropout_prob", 0.0, most=1)
    attention = config.number("attention_probs_dropout_prob", 0.0, most=1)
    settings = _shape(config, embedding_size=narrow, share_layers="all", activation=activation, dropout=dropout)
    return Layout(settings=dataclasses.replace(settings, attention_dropout=attention))


def _distilbert(config: Config, _: Collection[str]) -> Layout:
    theirs = {
        "hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers",
        "intermediate_size": "hidden_dim", "hidden_act": "activation", "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    }  # fmt: skip
    for key in ("dim", "n_heads", "hidden_dim"):
        config.whole(key)
    config.whole("n_layers", kind="layers")
    renamed = {name: config.values[key] for name, key in theirs.items() if key in config.values}
    return Layout(
        settings=_shape(Config(config.path, {**config.values, **renamed}), num_segments=0, layer_norm_eps=1e-12)
    )


def _unilm(config: Config, names: Collection[str]) -> Layout:
    """Released UniLM and MiniLM: which of its variants one is, its tensors tell better than its configuration."""
    config.only("prenorm", False, None, why="layers here normalise after each sub-layer")
    config.only("untie_rel_pos", False, None, why="all layers here share one table of relative positions")
    config.only("seperate_cls_rel_pos", False, None, why="relative positions here know no [CLS]")
    config.only("rel_pos_type", 0, 2, None, why="relative positions here fall into T5's buckets, which is type 2")
    relative = any(name.endswith("rel_pos_bias.weight") for name in names)
    settings = _shape(
        config,
        num_segments=config.whole("type_vocab_size", 6, least=0),
        relative_bias=relative,
        relative_buckets=config.whole("rel_pos_bins", 32) or 32,
        relative_max_distance=config.whole("max_rel_pos", 128) or 128,
    )
    return Layout(settings=settings, fused=any(name.endswith(".qkv_linear.weight") for name in names))


_BERT_HEADS: Mapping[Head, tuple[Entry, ...]] = {
    "token": _token_head(
        "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"
    ),
    "next": _pair_head("bert.pooler.dense", "cls.seq_relationship"),
}
_BERT_COPIES = {
    "cls.predictions.decoder.weight": f"bert.{TOKENS}",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_LM_HEAD: Mapping[Head, tuple[Entry, ...]] = {
    "token": _token_head("lm_head.dense", "lm_head.layer_norm", "lm_head.bias")
}

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family(
            name="bert",
            paper="BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
            prefix="bert.",
            read=_bert,
            backbone=_bert_backbone,
            heads=_BERT_HEADS,
            copies=_BERT_COPIES,
            pooler="pooler",
        ),
        Family(
            name="roberta",
            paper="RoBERTa: A Robustly Optimized BERT Pretraining Approach",
            prefix="roberta.",
            read=_roberta,
            backbone=_bert_backbone,
            heads=_LM_HEAD,
            copies={"lm_head.decoder.weight": f"roberta.{TOKENS}", "lm_head.decoder.bias": "lm_head.bias"},
            pooler="pooler",
            gelu_heads=frozenset({"token"}),
        ),
        Family(
            name="mpnet",
            paper="MPNet: Masked and Permuted Pre-training for Language Understanding",
            prefix="mpnet.",
            read=_mpnet,
            backbone=_mpnet_backbone,
            heads=_LM_HEAD,
            copies={"lm_head.decoder.weight": f"mpnet.{TOKENS}", "lm_head.decoder.bias": "lm_head.bias"},
            pooler="pooler",
            gelu_heads=frozenset({"token"}),
        ),
        Family(
            name="electra",
            paper="ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators",
            prefix="electra.",
            read=_electra,
            backbone=_electra_backbone,
            heads={
                "token": _token_head(
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
        ),
        Family(
            name="albert",
            paper="ALBERT: A Lite BERT for Self-supervised Learning of Language Representations",
            prefix="albert.",
            read=_albert,
            backbone=_albert_backbone,
            heads={
                "token": _token_head("predictions.dense", "predictions.LayerNorm", "predictions.bias"),
                "order": _pair_head("albert.pooler", "sop_classifier.classifier"),
            },
            copies={
                "predictions.decoder.weight": f"albert.{TOKENS}",
                "predictions.decoder.bias": "predictions.bias",
            },
            pooler="pooler",
        ),
        Family(
            name="distilbert",
            paper="DistilBERT, a distilled version of BERT: smaller, faster, cheaper and lighter",
            prefix="distilbert.",
            read=_distilbert,
            backbone=_distilbert_backbone,
            heads={"token": _token_head("vocab_transform", "vocab_layer_norm", "vocab_projector.bias")},
            copies={"vocab_projector.weight": f"distilbert.{TOKENS}"},
        ),
        Family(
            name="unilm",
            paper="UniLMv2: Pseudo-Masked Language Models for Unified Language Model Pre-Training",
            prefix="bert.",
            read=_unilm,
            backbone=_unilm_backbone,
            heads=_BERT_HEADS,
            copies=_BERT_COPIES,
            pooler="pooler",
        ),
    )
}
"""The families by name."""

MODEL_TYPES: Mapping[str, str] = {
    **{name: name for name in FAMILIES},
    "xlm-roberta": "roberta",
    "camembert": "roberta",
    "minilm": "unilm",
}
"""Family of each `model_type` of a configuration."""


def family_of(config: Config, names: Collection[str]) -> Family:
    """The family of a checkpoint: by its model type, and released UniLM by its tensors.

    Args:
        config: Its configuration.
        names: Names of its tensors.

    Raises:
        UniclozeError: It is of none.
    """
    if any(name.endswith((".qkv_linear.weight", "encoder.rel_pos_bias.weight")) for name in names):
        return FAMILIES["unilm"]
    kind = config.values.get("model_type")
    if kind is None and any(name.startswith("bert.") for name in names):  # released before the key was
        return FAMILIES["bert"]
    if not isinstance(kind, str) or kind not in MODEL_TYPES:
        raise config.refused("model_type", f"the encoders that can be read are {', '.join(MODEL_TYPES)}")
    return FAMILIES[MODEL_TYPES[kind]]
