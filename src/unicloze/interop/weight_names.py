"""Tensor names of each family: key-table entries for backbone and heads."""

from __future__ import annotations

from collections.abc import Mapping

from unicloze.interop.architectures import Architecture
from unicloze.interop.tables import (
    Change,
    Entry,
    Folded,
    KeylessBias,
    Same,
    Shifted,
    Transposed,
    layers,
    module,
    modules,
    same,
)

LAYER = "backbone.layers.{}."
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


def _embeddings(layout: Architecture, *, segments: bool = True) -> list[Entry]:
    """Embedding tables and their normalisation; without a segment table, ours is folded into the positions."""
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
    layout: Architecture, parts: Mapping[str, tuple[str, ...]] = BERT_LAYER, stack: str = "encoder.layer.{}."
) -> list[Entry]:
    count = 1 if layout.settings.share_layers == "all" else layout.settings.num_layers
    return layers(parts, count, ours=LAYER, theirs=stack)


def _fused_layers(layout: Architecture) -> list[Entry]:
    entries = _layers(layout, {ours: theirs for ours, theirs in BERT_LAYER.items() if ours != "attention.qkv"})
    for number in range(layout.settings.num_layers):
        ours, theirs = f"backbone.layers.{number}.attention.qkv", f"encoder.layer.{number}.attention.self"
        entries.append(same(f"{ours}.weight", f"{theirs}.qkv_linear.weight"))
        biases = f"{theirs}.q_bias", f"{theirs}.v_bias"
        entries.append(Entry(ours=(f"{ours}.bias",), theirs=biases, change=KeylessBias()))
    return entries


def bert_backbone(layout: Architecture) -> list[Entry]:
    """BERT and RoBERTa."""
    return _embeddings(layout) + _layers(layout)


def unilm_backbone(layout: Architecture) -> list[Entry]:
    """Released UniLM and MiniLM: BERT, optionally with fused attention and a relative position bias."""
    entries = _embeddings(layout) + (_fused_layers(layout) if layout.fused else _layers(layout))
    if layout.relative is not None:
        entries.append(same("backbone.relative.weight", layout.relative))
    return entries


def mpnet_backbone(layout: Architecture) -> list[Entry]:
    """MPNet: no segments, and T5's relative position bias."""
    relative = Entry(
        ours=("backbone.relative.weight",),
        theirs=("encoder.relative_attention_bias.weight",),
        change=Transposed(),
    )
    return [*_embeddings(layout, segments=False), *_layers(layout, MPNET_LAYER), relative]


def distilbert_backbone(layout: Architecture) -> list[Entry]:
    """DistilBERT: no segments."""
    return _embeddings(layout, segments=False) + _layers(layout, DISTILBERT_LAYER, "transformer.layer.{}.")


def electra_backbone(layout: Architecture) -> list[Entry]:
    """ELECTRA: embeddings of another width are projected."""
    projected = layout.settings.embedding_size is not None
    projection = module("backbone.embeddings.projection", "embeddings_project") if projected else []
    return bert_backbone(layout) + projection


def albert_backbone(layout: Architecture) -> list[Entry]:
    """ALBERT: one layer's weights, projected embeddings."""
    projection = module("backbone.embeddings.projection", "encoder.embedding_hidden_mapping_in")
    stack = "encoder.albert_layer_groups.{0}.albert_layers.{0}."
    return _embeddings(layout) + projection + _layers(layout, ALBERT_LAYER, stack)


def token_head(dense: str, norm: str, bias: str) -> tuple[Entry, ...]:
    """Head of a masked language model: dense, activation, normalisation, output bias."""
    transform = modules({"token_head.dense": dense, "token_head.norm": norm})
    return (*transform, same("token_head.bias", bias))


def pair_head(pooler: str, classifier: str) -> tuple[Entry, ...]:
    """A pooler and the classifier on top of it."""
    return tuple(modules({"pair_head.dense": pooler, "pair_head.output": classifier}))
